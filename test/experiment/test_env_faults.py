"""Envs that hang, leave the process, fail at their end or hide what they remember: a session is none the worse."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm_lab.audit.chaos import find_descendants, is_alive
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, build_settings
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment import signals
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.experiment.trial import Trial, find_random_return
from slm_lab.lib.errors import CheckpointError, EnvHangError, LabError
from slm_lab.lib.io import write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

ENV = """
import os, subprocess, sys, time
import gymnasium as gym
import numpy as np

def hang():
    open("hangs", "w").close()
    time.sleep(600)

class Bad(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mode="", at=20):
        self.mode, self.at, self.total, self.episodes = mode, at, 0, 0
        if mode == "is never made":
            hang()
        if mode == "leaves at once":
            os._exit(0)
        if mode == "moves":
            os.chdir("/")
        if mode == "family":
            subprocess.Popen(["sleep", "600"])
            subprocess.Popen(["sleep", "600"], start_new_session=True)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.episodes += 1
        return self._observe(), {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.t += 1
        self.total += 1
        if self.total == self.at:
            if self.mode in ("sleeps", "family"):
                hang()
            while self.mode == "spins":
                pass
            if self.mode == "is deaf":
                while True:
                    try:
                        hang()
                    except Exception:
                        pass
            if self.mode == "sums":
                sum(range(10**15))
            if self.mode == "exits":
                sys.exit(0)
            if self.mode == "leaves":
                os._exit(0)
            if self.mode == "raises":
                raise ZeroDivisionError("planted hf_abcdefghijklmnopqrstuvwxyz")
        reward = float(self.episodes) if self.mode == "remembers" else 1.0
        return self._observe(), reward, self.t == 10, False, {}

    def close(self):
        if self.mode == "fails to close":
            raise OSError("planted")
        if self.mode == "never closes":
            time.sleep(600)

gym.register("Bad-v0", entry_point=Bad)
"""
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("undrawn")]


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "bad_env.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # envs that never close, and workers that never answer, are waited for in most tests
    for name, seconds in (("watch.CLOSE_SECONDS", 0.2), ("worker.CLOSE_SECONDS", 0.2), ("worker._ANSWER_SECONDS", 0.8)):
        monkeypatch.setattr(f"slm_lab.env.{name}", seconds)
    yield
    sys.modules.pop("bad_env", None)


def make_spec(mode: str, at: int = 20, max_frame: int = 100, max_session: int = 1, **env: Any) -> Spec:
    return make_tiny_spec(
        name="bad",
        time_horizon=8,
        minibatch_size=8,
        env={
            "name": "bad_env:Bad-v0",
            "kwargs": {"mode": mode, "at": at},
            "num_envs": 1,
            "num_workers": 0,
            "max_frame": max_frame,
            **env,
        },
        meta={"log_frequency": 20, "max_session": max_session},
    )


def make_trial(spec: Spec, path: Path) -> Trial:
    folder = RunFolder(path, spec.name)
    for name in ("info", "model", "graph", "log"):
        (path / name).mkdir(parents=True, exist_ok=True)
    write_yaml(folder.trial_spec_file(0), dump_spec(spec))
    write_yaml(folder.spec_file, dump_spec(spec))
    return Trial(spec, folder, Options(log_level="WARNING"))


def run_command(spec: Spec, path: Path) -> subprocess.Popen[str]:
    """`slm-lab run` in a folder below that of the env's module, with little patience."""
    path.mkdir()
    write_yaml(path / "bad_spec.yaml", dump_spec(spec))
    program = (
        "import sys\n"
        "from slm_lab.cli.main import main\n"
        "from slm_lab.experiment import signals\n"
        "signals.PATIENCE_SECONDS = signals.GRACE_SECONDS = 0.5\n"
        "sys.argv = ['slm-lab', 'run', 'bad_spec.yaml', 'bad', 'train']\n"
        "main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path.parent), *filter(None, sys.path)])}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=path, env=environment, text=True, stdout=pipe, stderr=pipe
    )


def kill_when_there_is(path: Path, number: int) -> None:
    """Send this process a signal, from a thread, as soon as there is a file."""

    def wait() -> None:
        while not path.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


# --- hangs


@pytest.mark.parametrize("mode", ["sleeps", "spins"])
def test_a_step_that_does_not_return_fails_the_session(mode: str, tmp_path: Path) -> None:
    result = make_trial(make_spec(mode, step_timeout=1.0), tmp_path / "run").run()
    assert result.exit_code == 1
    assert "env 0, episode 1 (seed" in result.failures[0]
    assert "step 10: no answer for 1 s (env.step_timeout)" in result.failures[0]


def test_a_step_that_hears_nothing_ends_the_process(tmp_path: Path) -> None:
    """At its time limit, or when a signal stops the command."""
    late = run_command(make_spec("is deaf", step_timeout=1.0), tmp_path / "late")
    told = run_command(make_spec("is deaf", max_frame=10_000), tmp_path / "told")
    while not (tmp_path / "told" / "hangs").exists():
        time.sleep(0.05)
    told.send_signal(signal.SIGTERM)
    assert told.wait() == 128 + signal.SIGTERM, told.communicate()[1]
    _, err = late.communicate()
    assert late.returncode == 1, err
    assert "step 10: no answer for" in err
    assert "slm-lab run train@" in err


@pytest.mark.parametrize("mode", ["sleeps", "sums"])
def test_a_worker_that_does_not_answer_leaves_a_checkpoint_of_the_step_before(mode: str, tmp_path: Path) -> None:
    spec = make_spec(mode, num_workers=1, step_timeout=1.0)
    trial = make_trial(spec, tmp_path / "run")
    result = trial.run()
    assert result.exit_code == 1
    # one that holds Python's lock cannot even tell which env it is
    expected = "env 0, episode 1 (seed" if mode == "sleeps" else "(envs 0 to 0, episodes 1)"
    assert expected in result.failures[0]
    assert load_state(trial.folder.resume_file(0, 0))["frame"] == 19


@pytest.mark.parametrize("mode", ["sleeps", "is never made"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_does_not_wait_for_an_env_that_hangs(
    mode: str, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.5)
    trial = make_trial(make_spec(mode, num_workers=num_workers), tmp_path / "run")
    kill_when_there_is(tmp_path / "hangs", signal.SIGTERM)
    result = trial.run()
    assert result.exit_code == 128 + signal.SIGTERM
    assert not result.failures


# --- ends of the session


def test_a_terminal_that_closes_leaves_a_checkpoint(tmp_path: Path) -> None:
    trial = make_trial(make_spec("", max_frame=10_000_000), tmp_path / "run")
    kill_when_there_is(trial.folder.table_file(0, 0, "train"), signal.SIGHUP)
    result = trial.run()
    assert result.exit_code == 129
    assert load_state(trial.folder.resume_file(0, 0))["frame"] > 0


def test_lines_for_a_terminal_that_is_gone_are_no_errors() -> None:
    master, slave = os.openpty()
    try:
        stop = signals.StopSignal()
        stop._terminals = [slave]
        os.write(slave, b"seen")
        os.close(master)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(slave, b"lost")
        stop._handle(signal.SIGHUP, None)
        assert stop.exit_code == 129
        os.write(slave, b"ignored")
    finally:
        os.close(slave)


def test_a_signal_that_nohup_has_ignored_stays_so() -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, old)


@pytest.mark.parametrize("mode", ["exits", "leaves"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_env_that_leaves_fails_its_session(mode: str, num_workers: int, tmp_path: Path) -> None:
    result = make_trial(make_spec(mode, num_workers=num_workers), tmp_path / "run").run()
    assert result.exit_code == 1
    assert "exit code 0" in result.failures[0]
    if not (mode == "leaves" and num_workers):
        assert "env 0, episode 1 (seed" in result.failures[0]


def test_an_env_that_leaves_fails_a_session_of_a_process_of_its_own(tmp_path: Path) -> None:
    result = make_trial(make_spec("leaves", max_session=2), tmp_path / "run").run()
    assert result.exit_code == 1
    assert all("exit code 0" in failure for failure in result.failures.values())


def test_an_env_that_leaves_when_it_is_made_is_told_before_a_run_starts(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="'bad_env:Bad-v0' exits the process when it is made"):
        start(make_spec("leaves at once"), Options(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_an_exit_of_a_fork_is_its_own(tmp_path: Path) -> None:
    with signals.no_exit():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(SystemExit):
            os._exit(0)


@pytest.mark.parametrize("mode", ["fails to close", "never closes"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_closing_neither_fails_nor_holds_up_a_session(
    mode: str, num_workers: int, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # measured in a process, which waits for its env as well
    monkeypatch.setattr("slm_lab.experiment.trial.find_random_return", lambda *_: 0.0)
    result = make_trial(make_spec(mode, num_workers=num_workers), tmp_path / "run").run()
    assert result.exit_code == 0
    assert result.results[0].is_done
    if not num_workers:
        assert any("close() of 'bad_env:Bad-v0'" in line for line in warnings)


def test_an_env_that_changes_the_working_folder_does_not_move_the_run(tmp_path: Path) -> None:
    result = make_trial(make_spec("moves"), Path("run")).run()
    assert Path.cwd() == tmp_path
    assert result.exit_code == 0
    assert result.folder == Path("run")
    assert result.report is not None
    assert (tmp_path / result.report).exists()
    assert result.metrics is not None


# --- what workers leave behind


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are looked up in /proc")
def test_nothing_of_a_worker_outlives_its_session(tmp_path: Path) -> None:
    program = (
        "import numpy as np\n"
        "from slm_lab.env.make import EnvSettings\n"
        "from slm_lab.env.worker import WorkerVecEnv\n"
        "env = WorkerVecEnv(EnvSettings('bad_env:Bad-v0', 1, kwargs={'mode': 'family', 'at': 1}), 1)\n"
        "env.reset()\n"
        "print('begun', flush=True)\n"
        "env.step(np.zeros(1, int))\n"
    )
    words = [sys.executable, "-c", program]
    sessions = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    families = []
    for session, number in zip(sessions, (signal.SIGKILL, signal.SIGHUP), strict=True):
        assert session.stdout is not None
        assert session.stdout.readline() == "begun\n"
        families.append(find_descendants(session.pid))
        session.send_signal(number)
    # keeper, worker, and two of the env
    assert [len(family) for family in families] == [4, 4]
    while any(is_alive(one) for family in families for one in family):
        time.sleep(0.05)
    for session in sessions:
        session.communicate()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are looked up in /proc")
def test_a_hanging_worker_is_closed_with_all_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    env = WorkerVecEnv(build_settings(make_spec("family", at=1, step_timeout=1.0).env, (0,)), 1)
    family = find_descendants(env.workers[0].process.pid)
    assert len(family) == 3
    env.reset()
    with pytest.raises(EnvHangError, match=r"env 0, episode 0 \(seed \d+\), step 1: no answer for 1 s"):
        env.step(np.zeros(1, int))
    env.close()
    assert not any(is_alive(one) for one in family)


# --- random play


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("raises", "ZeroDivisionError: planted"),
        ("sleeps", "did not end within"),
        ("leaves", "ended with exit code 0"),
        ("exits", "SystemExit: 0"),
    ],
)
def test_a_run_concludes_without_a_random_baseline(
    mode: str, reason: str, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setattr("slm_lab.env.random_baseline.GIVE_UP_SECONDS", 60.0 if mode != "sleeps" else 1.0)
    assert find_random_return(make_spec(mode, at=5), may_measure=True) == 0.0
    (line,) = warnings
    assert line.startswith("No random baseline, so strength counts from 0: ")
    assert reason in line
    assert "\n" not in line


def test_random_play_is_measured_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLM_LAB_CACHE", str(tmp_path / "cache"))
    assert find_random_return(make_spec("remembers"), may_measure=True) == np.mean([10 * n for n in range(1, 101)])


# --- exactness


def run_session(spec: Spec, path: Path, end_frame: int | None = None) -> Session:
    make_trial(spec, path)
    session = Session(spec, RunFolder(path, spec.name), end_frame=end_frame)
    session.run()
    return session


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("mode", "grade"), [("", "exact"), ("remembers", "statistical")])
def test_what_shows_only_in_rewards_is_not_exact(mode: str, grade: str, num_workers: int, tmp_path: Path) -> None:
    spec = make_spec(mode, num_workers=num_workers)
    run_session(spec, tmp_path / "run", end_frame=35)
    assert run_session(spec, tmp_path / "run").grade == grade


def test_no_return_spans_two_episodes_where_the_env_is_not_rebuilt(tmp_path: Path) -> None:
    for mode, is_cut in (("", False), ("remembers", True)):
        spec = make_spec(mode)
        # 3 steps into a batch of 8
        run_session(spec, tmp_path / f"run{mode}", end_frame=35)
        session = Session(spec, RunFolder(tmp_path / f"run{mode}", spec.name))
        obs, _ = session._begin()
        memory: Any = session.agent.algorithm.memory  # type: ignore[attr-defined]
        assert [bool(row["truncated"]) for row in memory.rows] == [False, False, is_cut]
        if is_cut:
            assert memory.cuts[2, 0].obs.tolist() == session.agent.encode(obs)[0].tolist()
        session.env.close()


@pytest.mark.parametrize("name", ["BipedalWalker-v3", "BipedalWalkerHardcore-v3", "LunarLander-v3"])
def test_box2d_envs_are_rebuilt_exactly_after_many_episodes(name: str) -> None:
    for seed in range(3):
        used = LocalVecEnv(EnvSettings(name, 1, max_t=60, seed_key=(seed,)))
        used.action_space.seed(seed)
        used.reset()
        for _ in range(60 * 6 + 50):
            step = used.step(np.array([used.action_space.sample()]))
        fresh = LocalVecEnv(EnvSettings(name, 1, max_t=60, seed_key=(seed,)))
        assert np.array_equal(fresh.load_state_dict(used.state_dict()), step.obs)
        assert fresh.has_same_return


# --- checkpoints that are not what they seem


@pytest.mark.parametrize(
    ("part", "message"),
    [("phases", "its times are not numbers of seconds"), ("actions", "2,000,000 actions per env; at most 1,000,000")],
)
def test_a_checkpoint_that_cannot_be_is_refused_in_one_line(part: str, message: str, tmp_path: Path) -> None:
    spec = make_spec("")
    run_session(spec, tmp_path / "run", end_frame=35)
    path = RunFolder(tmp_path / "run", spec.name).resume_file(0, 0)
    state = load_state(path)
    if part == "phases":
        state["phases"]["act"] = float("nan")
    else:
        state["env"]["action"] = np.zeros((2_000_000, 1), state["env"]["action"].dtype)
    save_state(path, state)
    with pytest.raises(CheckpointError, match=message) as caught:
        run_session(spec, tmp_path / "run")
    assert "\n" not in str(caught.value)
