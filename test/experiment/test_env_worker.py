"""Env workers of a run: they may die at any moment, and they may step an env from outside the package."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.messages import SessionResult
from slm_lab.lib.errors import WorkerError
from slm_lab.results.folder import RunFolder
from slm_lab.results.table import read_table
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

OWN_ENV = """
import gymnasium as gym
import numpy as np

class Own(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, float(action), self.t == 10, False, {}

gym.register("Own-v0", entry_point=Own)
"""


def run_session(spec: Spec, path: Path, kill_after: float | None = None, index: int = 0) -> SessionResult:
    """One session, with a worker of its own killed some seconds after the start."""
    session = Session(spec, RunFolder(path, spec.name))
    assert isinstance(session.env, WorkerVecEnv)
    if kill_after is not None:
        pid = session.env.workers[index].process.pid
        threading.Timer(kill_after, os.kill, (pid, signal.SIGKILL)).start()
    return session.run()


@pytest.mark.parametrize("num_kill", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_workers_end_clearly_and_change_nothing(num_kill: int, tmp_path: Path) -> None:
    spec = make_tiny_spec(env={"num_workers": 2, "max_frame": 2000 + 1000 * num_kill})
    began = time.monotonic()
    run_session(spec, tmp_path / "whole")
    longest = (time.monotonic() - began) / (num_kill + 2)
    draw = random.Random(num_kill)
    endings: list[str] = []
    is_done = False
    while not is_done:
        after = draw.uniform(0, longest) if len(endings) < num_kill else None
        try:
            is_done = run_session(spec, tmp_path / "killed", after, len(endings) % 2).is_done
        except WorkerError as error:
            endings.append(str(error))
    assert all("killed by signal 9" in ending for ending in endings)
    kills = len(endings)
    assert kills >= max(1, num_kill * 3 // 4)  # the machine may have become faster since
    whole, killed = (
        load_state(RunFolder(tmp_path / name, spec.name).model_file(0, 0, "last")) for name in ("whole", "killed")
    )
    for module, state in whole["modules"].items():
        for key, value in state.items():
            assert value.equal(killed["modules"][module][key]), key


def test_an_own_env_trains_in_four_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "my_env.py").write_text(OWN_ENV)
    # modules are found in the working folder
    monkeypatch.chdir(tmp_path)
    spec = make_tiny_spec(env={"name": "my_pkg.my_env:Own-v0", "num_workers": 4})
    assert run_session(spec, tmp_path / "run").is_done
    # every episode has ten steps of reward 0 or 1
    table = read_table(RunFolder(tmp_path / "run", spec.name).table_file(0, 0, "train"))
    assert 0 < table["total_reward"][-1] < 10
