"""Same seed, same result; stop anywhere, go on exactly."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.experiment import evaluation
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.lib.io import remove_orphans
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

ALGORITHMS: dict[str, dict[str, Any]] = {
    "Random": {"name": "Random"},
    "Reinforce": {"name": "Reinforce", "training_frequency": 40, "entropy_coef_spec": 0.01},
    "ActorCritic": {"name": "ActorCritic", "training_frequency": 16, "lam": 0.95, "normalize_v_targets": True},
    "ActorCritic-n": {"name": "ActorCritic", "num_step_returns": 8},
    "PPO": {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 3},
    "PPO-percentile": {
        "name": "PPO",
        "time_horizon": 32,
        "minibatch_size": 32,
        "training_epoch": 2,
        "normalize_advantages": "percentile",
        "symlog": True,
        "clip_eps_spec": {"name": "linear_decay", "start_val": 0.3, "end_val": 0.0, "end_step": 2000},
    },
    "SARSA": {"name": "SARSA", "training_frequency": 12},
    "VanillaDQN": {"name": "VanillaDQN", "training_start_step": 100, "training_frequency": 12},
    "DQN": {"name": "DQN", "training_start_step": 100, "training_frequency": 16, "training_iter": 2},
    # a target that is replaced at frames between two trainings
    "DQN-replace": {"name": "DQN", "training_start_step": 100, "training_frequency": 40},
    "DoubleDQN": {"name": "DoubleDQN", "training_start_step": 100, "training_frequency": 16, "training_batch_iter": 2},
    "SoftActorCritic": {"name": "SoftActorCritic", "training_start_step": 100, "training_iter": 1, "policy_delay": 2},
    "CrossQ": {
        "name": "CrossQ",
        "training_start_step": 100,
        "training_iter": 1,
        "entropy_anneal": {"start_ratio": 0.9, "end_ratio": 0.1, "frames": 800},
    },
    "SIL": {"name": "SIL", "training_frequency": 32, "lam": 0.95, "training_iter": 2},
    "PPOSIL": {"name": "PPOSIL", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 2},
}
REPLAY = {"name": "Replay", "batch_size": 16, "max_size": 600, "use_cer": True}
PRIORITIZED = {"name": "PrioritizedReplay", "batch_size": 16, "max_size": 600, "num_step_returns": 3}
MEMORIES: dict[str, dict[str, Any]] = {
    "VanillaDQN": {**REPLAY, "use_cer": False},
    "DQN": REPLAY,
    "DQN-replace": REPLAY,
    "DoubleDQN": PRIORITIZED,
    "SoftActorCritic": PRIORITIZED,
    "CrossQ": REPLAY,
}
NETS: dict[str, dict[str, Any]] = {
    "MLPNet": {"type": "MLPNet", "hid_layers": [16], "optim_spec": {"name": "Adam", "lr": 3e-3}},
    "shared": {
        "type": "MLPNet",
        "hid_layers": [16],
        "shared": True,
        "batch_norm": True,
        "optim_spec": {"name": "RMSprop", "lr": 1e-3, "momentum": 0.5},
        "lr_scheduler_spec": {"name": "StepLR", "step_size": 5},
    },
    "DictNet": {
        "type": "DictNet",
        "hid_layers": [8],
        "encoders": {"0": {"type": "MLPNet", "hid_layers": [8], "batch_norm": True}},
        "actor_obs_keys": ["2", "0"],
    },
    "RecurrentNet": {"type": "RecurrentNet", "cell_type": "LSTM", "rnn_hidden_size": 8, "seq_len": 8},
    "TorchArcNet": {
        "type": "TorchArcNet",
        "arc": {"modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 16}}, {"Dropout": {"p": 0.1}}]}}},
        "optim_spec": {"name": "SGD", "lr": 1e-2, "momentum": 0.9},
        "lr_scheduler_spec": {"name": "LinearToZero", "frame": 4000},
    },
}


def make_spec(
    algorithm: str, net: str = "MLPNet", env: dict[str, Any] | None = None, memory: str = "OnPolicyBatchReplay"
) -> Spec:
    raw = {
        "name": "exact",
        "agent": {
            "algorithm": ALGORITHMS[algorithm],
            "memory": MEMORIES.get(algorithm, {"name": memory}),
            "net": {**NETS[net], "update_frequency": 30} if algorithm == "DQN-replace" else NETS[net],
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 1200, **(env or {})},
        "meta": {"log_frequency": 100, "rigorous_eval": 2, "eval_frequency": 500, "checkpoint_frequency": 10_000_000},
    }
    return parse_spec(raw)[0]


def only_fast(*names: str) -> list[Any]:
    """All algorithms, of which these few are tried in the fast suite."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]


def train(spec: Spec, path: Path, stops: tuple[int, ...] = ()) -> dict[str, Any]:
    """Train to the end, stopping and continuing in a new session at each of some frames; the final state."""
    folder = RunFolder(path, spec.name)
    for stop in (*stops, spec.env.max_frame):
        session = Session(spec, folder, 0, 0, lambda _: None, lambda: False)
        session.should_stop = lambda stop=stop, session=session: session.frame >= stop  # type: ignore[misc]
        session.run()
    return load_state(folder.resume_file(0, 0))


def rows(path: Path, kind: str = "train") -> list[dict[str, str]]:
    """The session's table without what depends on the clock on the wall."""
    with RunFolder(path, "exact").table_file(0, 0, kind).open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in ("wall_t", "fps")} for row in csv.DictReader(file)]


def assert_equal(one: Any, two: Any, where: str = "") -> None:
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            if key not in ("wall_t", "phases"):
                assert_equal(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for index, pair in enumerate(zip(one, two, strict=True)):
            assert_equal(*pair, f"{where}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, np.ndarray):
        assert one.shape == two.shape, where
        if where == ".tracker.rows" or where == ".eval_tracker.rows":
            # columns 3 and 5 are fps and wall_t
            one, two = np.delete(one, [3, 5], 1), np.delete(two, [3, 5], 1)
        assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), where
    else:
        assert one == two or (one != one and two != two), where


@pytest.mark.parametrize("algorithm", only_fast("PPO", "DQN", "SoftActorCritic"))
def test_same_seed_gives_the_same_files_and_another_seed_does_not(algorithm: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm)
    first = train(spec, tmp_path / "a")
    assert_equal(first, train(spec, tmp_path / "b"))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    train(spec.replace(meta={"seed": 1}), tmp_path / "c")
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


@pytest.mark.parametrize(
    ("algorithm", "net"),
    [(algorithm, "MLPNet") for algorithm in ALGORITHMS]
    + [("Reinforce", "TorchArcNet"), ("ActorCritic", "shared"), ("SIL", "shared"), ("ActorCritic", "TorchArcNet")]
    + [(algorithm, "RecurrentNet") for algorithm in ("Reinforce", "ActorCritic", "PPO", "VanillaDQN")],
)
def test_stopped_runs_end_bit_for_bit_like_whole_ones(algorithm: str, net: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, net)
    whole = train(spec, tmp_path / "whole")
    # frames in the middle of a rollout, right after an update, and before anything was learned
    stopped = train(spec, tmp_path / "stopped", stops=(4, 500, 1024))
    assert_equal(whole, stopped)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")
    assert rows(tmp_path / "whole", "eval") == rows(tmp_path / "stopped", "eval")


@pytest.mark.parametrize(
    ("algorithm", "net"),
    [
        pytest.param(*case, marks=[] if case[0] == "DQN" else pytest.mark.slow)
        for case in [
            ("DQN", "MLPNet"),
            ("PPO", "MLPNet"),
            ("ActorCritic", "shared"),
            ("ActorCritic", "TorchArcNet"),
            ("SoftActorCritic", "MLPNet"),
            ("CrossQ", "MLPNet"),
            ("SIL", "MLPNet"),
        ]
    ],
)
def test_compiled_runs_repeat_and_continue_exactly(algorithm: str, net: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, net, {"max_frame": 800}).replace(meta={"compile": True})
    whole = train(spec, tmp_path / "whole")
    assert_equal(whole, train(spec, tmp_path / "stopped", stops=(4, 500)))
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")
    # and it was not the plain engine all along
    train(spec.replace(meta={"compile": False}), tmp_path / "plain")
    assert rows(tmp_path / "plain") != rows(tmp_path / "whole")


@pytest.mark.parametrize("algorithm", ["ActorCritic", "SoftActorCritic"])
def test_nets_on_named_parts_continue_exactly(algorithm: str, tmp_path: Path) -> None:
    """A Tuple of three choices: its parts are called 0, 1 and 2."""
    spec = make_spec(algorithm, "DictNet", {"name": "Blackjack-v1", "max_frame": 400, "num_workers": 0})
    whole = train(spec, tmp_path / "whole")
    assert_equal(whole, train(spec, tmp_path / "stopped", stops=(4, 300)))
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


@pytest.mark.parametrize(
    ("algorithm", "env", "memory"),
    [
        ("PPO", {"name": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True}, "OnPolicyBatchReplay"),
        ("PPO", {"name": "LunarLander-v3", "max_t": 150}, "OnPolicyBatchReplay"),
        ("PPO", {"name": "Acrobot-v1", "num_envs": 1, "max_t": 60, "num_workers": 1}, "OnPolicyBatchReplay"),
        ("PPO", {"name": "Hopper-v5", "num_workers": 2}, "OnPolicyBatchReplay"),
        ("ActorCritic", {"name": "probe/MultiAction-v0"}, "OnPolicyReplay"),
        ("Reinforce", {"normalize_obs": True, "clip_reward": [-1, 1]}, "OnPolicyReplay"),
    ],
)
def test_envs_normalisers_and_episode_memories_continue_exactly(
    algorithm: str, env: dict[str, Any], memory: str, tmp_path: Path
) -> None:
    spec = make_spec(algorithm, env=env, memory=memory)
    whole = train(spec, tmp_path / "whole")
    stopped = train(spec, tmp_path / "stopped", stops=(300, 900))
    assert_equal(whole, stopped)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


@pytest.mark.parametrize("algorithm", ["PPO", "SoftActorCritic"])
def test_columns_of_normalisers_repeat_and_continue_exactly(algorithm: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, env={"name": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True})
    whole = train(spec, tmp_path / "whole")
    assert_equal(whole, train(spec, tmp_path / "again"))
    # between two rows, and right after one
    assert_equal(whole, train(spec, tmp_path / "stopped", stops=(148, 300, 752)))
    table = rows(tmp_path / "whole")
    assert table == rows(tmp_path / "again") == rows(tmp_path / "stopped")
    assert list(table[0])[-2:] == ["obs_norm_shift", "reward_norm_std"]
    assert [row["obs_norm_shift"] == "" for row in table] == [True] + [False] * (len(table) - 1)
    assert all(float(row["obs_norm_shift"]) > 0 for row in table[1:])
    assert all(float(row["reward_norm_std"]) > 1 for row in table)
    # evaluations have no such columns
    assert "obs_norm_shift" not in rows(tmp_path / "whole", "eval")[0]


def test_runs_that_normalise_nothing_have_no_columns_and_no_state_for_it(tmp_path: Path) -> None:
    state = train(make_spec("PPO", env={"reward_scale": 0.1}), tmp_path / "run")
    assert not {"obs_norm_shift", "reward_norm_std"} & set(rows(tmp_path / "run")[0])
    assert state["agent"]["obs_normalizer"] is None
    assert set(state["agent"]["reward_scaler"]) == {"stats", "ret"}


def test_a_table_of_before_a_column_was_added_goes_on(tmp_path: Path) -> None:
    spec = make_spec("PPO", env={"normalize_obs": True})
    folder = RunFolder(tmp_path / "run", spec.name)
    whole = train(spec, tmp_path / "whole")
    Session(spec.replace(env={"max_frame": 500}), folder, 0, 0, lambda _: None, lambda: False).run()
    state = load_state(folder.resume_file(0, 0))
    state["tracker"]["rows"] = state["tracker"]["rows"][:, :-1]
    del state["agent"]["obs_normalizer"]["mark"]
    save_state(folder.resume_file(0, 0), state)
    after = train(spec, tmp_path / "run")
    table = rows(tmp_path / "run")
    assert [row["obs_norm_shift"] == "" for row in table] == [True] * 6 + [False] * 6
    without = [{name: value for name, value in row.items() if name != "obs_norm_shift"} for row in table]
    expected = [
        {name: value for name, value in row.items() if name != "obs_norm_shift"} for row in rows(tmp_path / "whole")
    ]
    assert without == expected
    assert_equal(whole["agent"], after["agent"])


def test_an_image_agent_continues_exactly(tmp_path: Path) -> None:
    NETS["ConvNet"] = {
        "type": "ConvNet",
        "conv_hid_layers": [[4, 4, 2], [4, 3, 1]],
        "fc_hid_layers": [8],
        "normalize": True,
        "batch_norm": True,
    }
    spec = make_spec("ActorCritic", "ConvNet", {"name": "probe/Image-v0", "max_frame": 800})
    assert_equal(train(spec, tmp_path / "whole"), train(spec, tmp_path / "stopped", stops=(200, 444)))


def test_evaluations_that_are_skipped_are_the_same_after_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # such a short run has not the steps for more than one
    monkeypatch.setattr(evaluation, "EVAL_SHARE", 0.3)
    spec = make_spec("PPO").replace(meta={"rigorous_eval": None, "eval_frequency": None}, env={"max_frame": 4000})
    whole = train(spec, tmp_path / "whole")
    assert_equal(whole, train(spec, tmp_path / "stopped", stops=(204, 1000, 2404)))
    frames = [int(row["frame"]) for row in rows(tmp_path / "whole", "eval")]
    # some of the twenty points are held, others are too dear
    assert 1 < len(frames) < 20
    assert all(frame % 200 == 0 for frame in frames)
    assert rows(tmp_path / "whole", "eval") == rows(tmp_path / "stopped", "eval")


def test_an_evaluation_that_is_cut_short_is_made_up_for(tmp_path: Path) -> None:
    spec = make_spec("PPO")
    whole = train(spec, tmp_path / "whole")
    session = Session(spec, RunFolder(tmp_path / "stopped", spec.name), 0, 0, lambda _: None, lambda: False)
    # its envs are made when the first evaluation begins
    session.should_stop = lambda: session.evaluation.env is not None
    session.run()
    assert session.evaluation.is_owed
    assert not session.evaluation.tracker.rows
    assert_equal(whole, train(spec, tmp_path / "stopped"))
    assert rows(tmp_path / "whole", "eval") == rows(tmp_path / "stopped", "eval")


@pytest.mark.parametrize("algorithm", ["DQN", pytest.param("PPO", marks=pytest.mark.slow)])
def test_atari_continues_exactly(algorithm: str, tmp_path: Path) -> None:
    """Lost lives, games that end between checkpoints, frames kept once, no seed at most games."""
    NETS["Atari"] = {"type": "ConvNet", "conv_hid_layers": [[4, 8, 4], [4, 4, 4]], "fc_hid_layers": [8]}
    env = {"name": "ALE/Breakout-v5", "num_envs": 2, "max_frame": 480, "max_t": 90, "kwargs": {"life_loss_info": True}}
    spec = make_spec(algorithm, "Atari", env).replace(meta={"rigorous_eval": 0, "checkpoint_frequency": 100})
    whole = train(spec, tmp_path / "whole")
    assert_equal(whole, train(spec, tmp_path / "stopped", stops=(150, 300)))
    assert whole["env"]["num_episode"] >= 4
    assert (whole["env"]["origin"] == 0).all()


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    state = {"number": np.array(3.0), "row": np.arange(3), "none": None, "list": [1, 2.5, "x"]}
    save_state(tmp_path / "x.pt", state)
    again = load_state(tmp_path / "x.pt")
    assert_equal(state, again)
    assert again["number"].shape == ()


def kill_until_done(spec_file: Path, data: Path, num_kill: int, seed: int) -> Path:
    """Run the command, killing it at random moments and continuing; the run folder in the end."""
    command = [sys.executable, "-m", "slm_lab.cli"]
    draw = random.Random(seed)
    arguments = ["run", str(spec_file), "exact", "train"]
    kills = 0
    while True:
        process = subprocess.Popen(
            [*command, *arguments, "--data-dir", str(data)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        if kills < num_kill:
            # wait until the session is under way, then let it run for a moment
            for line in process.stderr:
                if "Run folder" in line or "Continuing" in line:
                    break
            time.sleep(draw.uniform(0.0, 1.2))
            ended = process.poll() is not None
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += not ended
            if ended:
                break
            arguments = ["run", "train@latest"]
        else:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
            break
    (folder,) = data.iterdir()
    return folder


def test_killed_commands_change_nothing(tmp_path: Path, write_spec: Callable[[Spec, Path], Path]) -> None:
    spec = make_spec("PPO").replace(env={"max_frame": 6000}, meta={"checkpoint_frequency": 500, "rigorous_eval": 0})
    spec_file = write_spec(spec, tmp_path / "exact.yaml")
    whole = tmp_path / "whole"
    train(spec, whole)
    killed = kill_until_done(spec_file, tmp_path / "killed", 1, 2)
    assert_same_run(whole, killed)


def assert_same_run(whole: Path, killed: Path) -> None:
    assert rows(whole) == rows(killed)
    file = RunFolder(whole, "exact").resume_file(0, 0).relative_to(whole)
    assert_equal(load_state(whole / file), load_state(killed / file))
    remove_orphans(killed)
    assert not [name for _, _, names in os.walk(killed) for name in names if name.endswith(".tmp")]


def train_in_fork(spec: Spec, path: Path) -> int:
    """A child that trains the run to its end; a fork starts at once, where a new interpreter needs seconds."""
    child = os.fork()
    if child == 0:
        try:
            Session(spec, RunFolder(path, spec.name), 0, 0, lambda _: None, lambda: False).run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twenty_kills_at_random_moments_change_nothing(algorithm: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm).replace(
        env={"max_frame": 8_000}, meta={"checkpoint_frequency": 100, "rigorous_eval": 0}
    )
    began = time.monotonic()
    train(spec, tmp_path / "whole")
    # short enough for twenty kills before the end, however fast the machine is
    longest = (time.monotonic() - began) / 15
    draw = random.Random(algorithm)
    kills = 0
    while True:
        child = train_in_fork(spec, tmp_path / "killed")
        if kills < 20:
            time.sleep(draw.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        kills += 1
    # the machine may have become faster since
    assert kills >= 15
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
