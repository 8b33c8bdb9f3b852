"""Every shipped spec builds its agent and trains two updates."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm_lab.agent.memory.dataset import save_steps
from slm_lab.lib.errors import EnvError
from slm_lab.spec.loading import load_spec, spec_files, spec_names
from slm_lab.spec.reader import read_document

# one env of those that the specs of a file serve, by a word in its name
ENVS = {
    "offline": "Pendulum-v1",
    "mujoco": "HalfCheetah-v5",
    "atari": "ALE/Pong-v5",
    "playground": "playground/CartpoleBalance",
}
# how much a spec waits for and draws does not change how it trains
SHORT = {
    "env.num_envs": 2,
    "agent.algorithm.training_epoch": 1,
    "agent.algorithm.training_start_step": 16,
    "agent.algorithm.training_iter": 2,
    "agent.algorithm.time_horizon": 16,
    "agent.algorithm.minibatch_size": 16,
    "agent.algorithm.training_frequency": 4,
    "agent.memory.batch_size": 32,
}


HAS_PLAYGROUND = importlib.util.find_spec("mujoco_playground") is not None


def shipped() -> list[Any]:
    return [
        pytest.param(path, name, id=name, marks=[pytest.mark.slow] if is_slow(path) else [])
        for path in spec_files()
        for name in spec_names(path)
    ]


def is_slow(path: Path) -> bool:
    """Whether the env of a file is compiled for a minute."""
    return HAS_PLAYGROUND and "playground" in path.stem


def fill(path: Path, document: dict[str, Any], data: Path) -> dict[str, Any]:
    """A value for each placeholder of a spec."""
    env = next((env for family, env in ENVS.items() if family in path.stem), None)
    values = {"env": env, "max_frame": 1_000_000, "data": str(data)}
    return {key: value for key, value in values.items() if f"${{{key}}}" in str(document)}


@pytest.mark.parametrize(("path", "name"), shipped())
def test_two_updates(lab, path: Path, name: str, tmp_path: Path) -> None:
    if "playground" in path.stem and not HAS_PLAYGROUND:
        pytest.skip("mujoco_playground is not installed; the spec is valid, but its env cannot be made")
    document = read_document(path)[name]
    given = {**document, **document["agent"]}  # "agent.memory" is its "memory"
    short = {key: value for key, value in SHORT.items() if key.split(".")[-1] in given[key.split(".")[-2]]}
    data = tmp_path / "steps.safetensors"
    if "offline" in path.stem:
        parts = {"obs": 3, "action": 1, "next_obs": 3}
        steps = {part: np.zeros((64, size), np.float32) for part, size in parts.items()}
        flags = {part: np.zeros(64, bool) for part in ("terminated", "truncated")}
        save_steps(data, {**steps, **flags, "reward": np.zeros(64)}, {"env": "Pendulum-v1"})
    spec = load_spec(path, name, fill(path, document, data) | short).spec
    try:
        trained = lab.train(spec, 50_000, until=lambda agent: agent.algorithm.opt_step >= 2)
    except EnvError as error:
        if "mujoco_menagerie" not in str(error):
            raise
        pytest.skip(f"the spec is valid, but robots are not downloaded: {error}")
    assert trained.agent.algorithm.opt_step >= 2
    assert all(math.isfinite(value) for row in trained.metrics for key, value in row.items() if "sil" not in key)
