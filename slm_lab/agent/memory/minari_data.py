"""Minari datasets as recorded steps; imported only if a spec names one, because the package is optional."""

import warnings
from pathlib import Path
from typing import Any

import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from slm_lab.env.gym_types import GymSpace
from slm_lab.env.layout import flatten_obs
from slm_lab.env.vec_env import ActionMap
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import EnvError, LabError, SpecError


def read_minari(name: str) -> tuple[dict[str, Array], Document]:
    """Steps (M, ...) of a dataset, by its local id or its folder, and facts about it; nothing is downloaded."""
    dataset = _open(name)
    action_space, obs_space = dataset.action_space, dataset.observation_space
    parts: dict[str, list[Array]] = {key: [] for key in ("obs", "action", "reward", "terminated", "truncated")}
    parts["next_obs"] = []
    returns = []
    try:
        to_policy = ActionMap(action_space).undo
        for episode in dataset.iterate_episodes():
            obs = _read_obs(obs_space, episode.observations)
            length = len(episode.rewards)
            if len(obs) != length + 1:
                raise SpecError(
                    f"agent.algorithm.data: episode {episode.id} of {name} has {len(obs)} observations for {length} "
                    "steps, one more expected"
                )
            values = (obs[:-1], to_policy(np.asarray(episode.actions)), episode.rewards, episode.terminations)
            for key, value in zip(parts, (*values, episode.truncations, obs[1:]), strict=True):
                parts[key].append(np.asarray(value))
            returns.append(float(np.sum(episode.rewards)))
    except (EnvError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"agent.algorithm.data: {name} cannot be read: {error}") from None
    if not returns:
        raise SpecError(f"agent.algorithm.data: {name} has no episodes")
    env = dataset.spec.env_spec
    facts = {
        "env": name if env is None else env.id,
        "num_episode": len(returns),
        "mean_return": float(np.mean(returns)),
    }
    return {key: np.concatenate(value) for key, value in parts.items()}, facts


def _open(name: str) -> Any:
    folder = Path(name)
    try:
        if folder.is_dir():
            return minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
        return minari.load_dataset(name)
    except (OSError, ValueError, KeyError, AssertionError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"agent.algorithm.data: there is no Minari dataset {name} here: {reason}") from None


def _read_obs(space: GymSpace, obs: Any) -> Array:
    """Observations (T+1, ...) as a run sees them: arrays unchanged, all others as flat rows."""
    if isinstance(space, spaces.Box):
        return np.asarray(obs)
    rows, _ = flatten_obs(space, obs)
    return rows


def write_minari(
    name: str, steps: dict[str, Array], lengths: list[int], env_id: str, action_space: GymSpace, agent: str
) -> None:
    """Write steps (M, ...) in order as a dataset; `lengths` are the numbers of steps of each env."""
    to_env, low = ActionMap(action_space), np.finfo(np.float32).min
    shape = steps["obs"].shape[1:]
    obs_space: GymSpace = spaces.Box(low, -low, shape, np.float32)
    if steps["obs"].dtype == np.uint8:
        obs_space = spaces.Box(0, 255, shape, np.uint8)
    ends = steps["terminated"] | steps["truncated"]
    ends[np.cumsum(lengths) - 1] = True
    buffers, start = [], 0
    for stop in (np.flatnonzero(ends) + 1).tolist():
        rows = slice(start, stop)
        truncated = steps["truncated"][rows].copy()
        truncated[-1] |= not steps["terminated"][stop - 1]
        buffers.append(
            EpisodeBuffer(
                observations=np.concatenate([steps["obs"][rows], steps["next_obs"][stop - 1 : stop]]),
                actions=to_env(steps["action"][rows]),
                rewards=steps["reward"][rows],
                terminations=steps["terminated"][rows],
                truncations=truncated,
            )
        )
        start = stop
    try:
        # Minari warns about every missing field
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=obs_space,
                action_space=action_space,
                algorithm_name=agent,
                description=f"Steps of a trained agent in {env_id}",
            )
    except (ValueError, OSError) as error:
        raise LabError(f"--output {name}: Minari refuses it: {' '.join(str(error).split())}") from None
