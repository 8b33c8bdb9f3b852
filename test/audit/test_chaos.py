"""Kills at random moments change no bit, hit no process of others, and leave none behind."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.faults.specs import NAME
from bench.faults.specs import make_spec as make_small_spec
from slm_lab.audit.chaos import Chaos, Kill, find_descendants, is_alive
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import SessionFile
from slm_lab.spec.schema import Spec


def make_spec(max_frame: int = 3000, **meta: Any) -> Spec:
    own = {"log_frequency": 500, "checkpoint_frequency": None, "rigorous_eval": None, "final_eval": 2}
    return make_small_spec("PPO", env={"max_frame": max_frame}, meta={**own, **meta})


def test_a_killed_run_ends_the_same(tmp_path: Path) -> None:
    lines: list[str] = []
    result = Chaos(make_spec(), tmp_path, 1, 0, lines.append).run()
    assert result.is_same, result.comparison.describe()
    assert len(result.kills) <= 1
    assert result.comparison.num_row >= 6
    assert result.comparison.num_tensor > 20
    assert lines[0].startswith("Checkpoints every 60 frames")
    assert not [one for one in find_descendants(os.getpid()) if is_alive(one) and "slm_lab.cli" in one.cmdline()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_of_sessions_and_driver_change_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = make_spec(8000, max_session=2)
    result = Chaos(spec, tmp_path, 6, 1, lines.append).run()
    assert result.is_same, result.comparison.describe()
    assert len({kill.target for kill in result.kills}) >= 2
    assert result.num_leftover == 0


def test_a_difference_is_found(tmp_path: Path) -> None:
    spec = make_spec(600)
    shaken = Chaos(spec, tmp_path, 1, 0, lambda _: None)
    folder = RunFolder(tmp_path / "one", NAME)
    result = Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    SessionFile(final_eval=tuple(result.final_eval)).write(folder.session_metrics_file(0, 0))
    copy = RunFolder(Path(shutil.copytree(folder.path, tmp_path / "two")), NAME)
    assert shaken._compare(folder.path, copy.path).is_same
    state = load_state(copy.resume_file(0, 0))
    state["agent"]["act_generator"][0] ^= 1
    save_state(copy.resume_file(0, 0), state)
    SessionFile(final_eval=(1.0,)).write(copy.session_metrics_file(0, 0))
    names = [difference.name for difference in shaken._compare(folder.path, copy.path).values]
    assert names == ["session 0, agent.act_generator[0]", "session 0, final_eval"]


def test_a_run_that_fails_by_itself_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Chaos, data_dir: Path) -> subprocess.Popen[bytes]:
        with self._log(data_dir).open("ab") as log:
            return subprocess.Popen(["sh", "-c", "echo Error: there is no such env; exit 2"], stdout=log)

    monkeypatch.setattr(Chaos, "_start", start)
    with pytest.raises(LabError, match=r"exit code 2: Error: there is no such env"):
        Chaos(make_spec(), tmp_path, 1, 0, lambda _: None).run()


def test_moments_of_kills_are_spread_over_what_is_left(tmp_path: Path) -> None:
    """The first of k moments that are uniform over T has mean T / (k + 1)."""
    shaken = Chaos(make_spec(), tmp_path, 4, 0, lambda _: None)
    delays = [shaken._draw_delay(tmp_path / "none", 10.0) for _ in range(4000)]
    assert sum(delays) / len(delays) == pytest.approx(2.0, abs=0.1)
    assert max(delays) <= 10.0
    # one kill left: anywhere
    shaken.kills = [Kill(number, "the driver", {0: (0, 0)}) for number in range(3)]
    delays = [shaken._draw_delay(tmp_path / "none", 10.0) for _ in range(4000)]
    assert sum(delays) / len(delays) == pytest.approx(5.0, abs=0.2)


def test_only_the_process_that_was_meant_is_killed() -> None:
    program = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    mine = subprocess.Popen([sys.executable, "-c", program])
    other = subprocess.Popen(["sleep", "60"])
    family: list[psutil.Process] = []
    try:
        while not family:
            family = find_descendants(mine.pid)
            time.sleep(0.01)
        (child,) = family
        assert child.pid not in (mine.pid, other.pid)
        child.kill()
        while is_alive(child):
            time.sleep(0.01)
        assert (mine.poll(), other.poll()) == (None, None)
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()
        for one in family:
            one.kill()


def test_a_kill_says_what_it_cost() -> None:
    kill = Kill(3, "session 1", {0: (500, 500), 1: (1500, 1200)})
    assert kill.num_lost == 300
    assert str(kill).startswith("Kill 3: session 1; session 0 at frame 500 resumes from 500, session 1 at frame 1,500")
