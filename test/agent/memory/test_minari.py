"""Datasets of Minari as recorded steps, and collected steps as a dataset.

The package is optional: `uv run --group minari pytest test/agent/memory/test_minari.py`; without it all but the first
test are skipped.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from slm_lab.agent.memory.dataset import load_steps
from slm_lab.env.vec_env import ActionMap
from slm_lab.experiment.collect import collect
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import prepare, start
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec
from test.agent.algorithm.test_offline import make_spec

is_installed = importlib.util.find_spec("minari") is not None
needs_minari = pytest.mark.skipif(not is_installed, reason="minari is not installed: uv sync --group minari")


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return importlib.import_module("minari")


def record(minari: Any, name: str, env_id: str, num_episode: int = 3) -> list[Any]:
    """A dataset of random play, written by Minari's own buffers."""
    env = gym.make(env_id, max_episode_steps=20)
    env.action_space.seed(0)
    episodes = []
    for seed in range(num_episode):
        rows: dict[str, list[Any]] = {key: [] for key in ("obs", "action", "reward", "terminated", "truncated")}
        rows["obs"].append(env.reset(seed=seed)[0])
        is_done = False
        while not is_done:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            for key, value in zip(rows, (obs, action, reward, terminated, truncated), strict=True):
                rows[key].append(value)
            is_done = terminated or truncated
        episodes.append(rows)
    buffer = [
        minari.data_collector.EpisodeBuffer(
            observations=np.stack(rows["obs"]),
            actions=np.stack(rows["action"]),
            rewards=rows["reward"],
            terminations=rows["terminated"],
            truncations=rows["truncated"],
        )
        for rows in episodes
    ]
    minari.create_dataset_from_buffers(name, buffer, env=env)
    return episodes


@pytest.mark.skipif(is_installed, reason="minari is installed")
def test_without_the_package_one_line_says_what_to_install() -> None:
    with pytest.raises(LabError, match=r"agent.algorithm.data: minari is not installed; get it with `uv sync --group"):
        load_steps("minari:pendulum/random-v0")


@needs_minari
@pytest.mark.parametrize(("env_id", "name"), [("Pendulum-v1", "IQL"), ("CartPole-v1", "BC")])
def test_steps_of_a_dataset_are_those_recorded(minari: Any, env_id: str, name: str, tmp_path: Path) -> None:
    episodes = record(minari, "lab/random-v0", env_id)
    steps, facts = load_steps("minari:lab/random-v0")
    assert (facts["env"], facts["num_episode"]) == (env_id, 3)
    assert facts["mean_return"] == pytest.approx(np.mean([np.sum(rows["reward"]) for rows in episodes]))
    wanted = {
        "obs": np.concatenate([rows["obs"][:-1] for rows in episodes]),
        "next_obs": np.concatenate([rows["obs"][1:] for rows in episodes]),
        "reward": np.concatenate([rows["reward"] for rows in episodes]),
        "terminated": np.concatenate([rows["terminated"] for rows in episodes]),
    }
    for key, value in wanted.items():
        assert_close(steps[key], torch.as_tensor(value))
    action = np.concatenate([rows["action"] for rows in episodes])
    # in [-1, 1], as policies give them: Pendulum's are in [-2, 2]
    assert_close(steps["action"], torch.as_tensor(action / 2 if name == "IQL" else action))
    # by its folder, too
    for folder in (tmp_path / "minari" / "lab" / "random-v0", tmp_path / "minari" / "lab" / "random-v0" / "data"):
        assert torch.equal(load_steps(folder)[0]["obs"], steps["obs"])
    spec = make_spec(name, Path("minari:lab/random-v0"), name == "BC", env={"max_frame": 20})
    assert Session(spec, RunFolder(tmp_path / "run", "tiny")).run().is_done


@needs_minari
def test_datasets_that_do_not_fit_are_refused(minari: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no Minari dataset lab/none-v0 here: .*not found locally"):
        load_steps("minari:lab/none-v0")
    with pytest.raises(SpecError, match="there is no Minari dataset no id at all here"):
        load_steps("minari:no id at all")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"there is no Minari dataset .*empty here"):
        load_steps(tmp_path / "empty")
    record(minari, "lab/random-v0", "CartPole-v1")
    with pytest.raises(SpecError, match=r"is of CartPole-v1, whose obs has shape \[4\], not \[3\]"):
        prepare(make_spec("BC", Path("minari:lab/random-v0")))


@needs_minari
@pytest.mark.usefixtures("undrawn")
def test_collected_steps_as_a_dataset(minari: Any, tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec("SoftActorCritic", env={"name": "Pendulum-v1", "max_t": 30, "max_frame": 120})
    options = Options(tmp_path / "data")
    folder = str(start(spec, options).folder)
    done = collect(folder, Path("lab/sac-v0"), options, 250, num_envs=4, format="minari")
    assert done.path == "minari:lab/sac-v0"
    file = collect(folder, tmp_path / "steps.safetensors", options, 250, num_envs=4)
    steps, _ = load_steps(done.path)
    other, _ = load_steps(file.path)
    for name in ("obs", "next_obs", "reward", "terminated"):
        assert_close(steps[name], other[name], check_dtype=False)
    assert_close(steps["action"], other["action"], rtol=1e-5, atol=1e-6)
    # 63 steps of each env, but for 61 of the last: two whole episodes and a cut one
    assert [len(episode.rewards) for episode in minari.load_dataset("lab/sac-v0").iterate_episodes()] == [
        *(30, 30, 3) * 3,
        *(30, 30, 1),
    ]
    with pytest.raises(LabError, match=r"--output lab/sac-v0: Minari refuses it: .*already exists"):
        collect(folder, Path("lab/sac-v0"), options, 20, num_envs=4, format="minari")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_actions_of_an_env_lead_back_to_those_of_a_policy(space: Any) -> None:
    space.seed(0)
    mapping = ActionMap(space)
    action = np.stack([space.sample() for _ in range(10)])
    np.testing.assert_allclose(mapping(mapping.undo(action)), action, atol=1e-6)
