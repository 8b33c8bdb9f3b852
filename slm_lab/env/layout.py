"""What the numbers of a flat observation are: named parts, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.lib.errors import EnvError

Array = np.ndarray[Any, Any]

# the only part of an observation that has no named parts
WHOLE = "obs"
# what MuJoCo Playground calls the part that only critics may see
PRIVILEGED = "privileged_state"


@dataclass(frozen=True)
class ObsPart:
    """One entry of a Dict observation: where it lies in the flat one, and its own shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def is_privileged(self) -> bool:
        """Whether it is meant for critics: an agent at work would not know it."""
        return self.name == PRIVILEGED


def calc_parts(space: gym.Space[Any]) -> tuple[ObsPart, ...]:
    """The parts of an observation in the order in which gymnasium flattens it; nested names are joined by dots."""
    parts: list[ObsPart] = []
    start = 0
    for name, leaf in _leaves(space, ""):
        size = spaces.flatdim(leaf)
        is_box = isinstance(leaf, spaces.Box)
        shape = leaf.shape if is_box and leaf.shape is not None else (size,)
        parts.append(ObsPart(name or WHOLE, start, start + size, shape))
        start += size
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise EnvError(f"env.name: parts of the observation have the same name: {', '.join(names)}")
    return tuple(parts)


def _leaves(space: gym.Space[Any], prefix: str) -> list[tuple[str, gym.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        named = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        named = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        return [(prefix, space)]
    if not named:
        raise EnvError("env.name: the observation has no parts")
    return [leaf for key, part in named for leaf in _leaves(part, f"{prefix}.{key}" if prefix else str(key))]


def flatten_obs(space: gym.Space[Any], obs: Any) -> tuple[Array, bool]:
    """One observation, or a batch of them, as flat rows (N, size) like in training; and whether it was a batch.

    A batch is what a gymnasium vector env returns: the same structure, with one more dimension in front of each part.
    """
    rows: dict[str, Array] = {}
    is_batch: bool | None = None
    for (name, leaf), value in zip(_leaves(space, ""), _take_parts(space, obs, "observation"), strict=True):
        shape = leaf.shape or ()
        found = np.shape(value)
        if found not in (shape, (*found[:1], *shape)) or is_batch not in (None, found != shape):
            allowed = f"{shape}, or {('N', *shape)} in a batch".replace("'", "")
            where = f"part '{name}' of the observation" if name else "the observation"
            raise EnvError(f"{where} has the shape {found}; expected {allowed}")
        is_batch = found != shape
        each = value if is_batch else [value]
        if isinstance(leaf, spaces.Box):
            rows[name] = np.asarray(each, leaf.dtype).reshape(len(each), -1)
        else:
            rows[name] = np.stack([np.asarray(spaces.flatten(leaf, one)) for one in each])
    if len({len(part) for part in rows.values()}) > 1:
        sizes = ", ".join(f"{name} {len(part)}" for name, part in rows.items())
        raise EnvError(f"the parts of the observation are batches of different size: {sizes}")
    return np.concatenate(list(rows.values()), 1), bool(is_batch)


def _take_parts(space: gym.Space[Any], obs: Any, where: str) -> list[Any]:
    """The values of an observation in the order of `_leaves`."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or not set(space.spaces) <= set(obs):
            raise EnvError(f"{where}: expected a dict with the keys {', '.join(map(str, space.spaces))}")
        parts = [(part, obs[key], f"{where}.{key}") for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            raise EnvError(f"{where}: expected a tuple of {len(space.spaces)} parts")
        parts = [(part, obs[index], f"{where}.{index}") for index, part in enumerate(space.spaces)]
    else:
        return [obs]
    return [value for item in parts for value in _take_parts(*item)]


def in_one_line(space: gym.Space[Any]) -> str:
    """A space as it may stand in a message; numpy would break the line in arrays of two dimensions."""
    return " ".join(str(space).split())


def show_parts(parts: tuple[ObsPart, ...]) -> str:
    """Names and shapes, as they may stand in a message."""
    return ", ".join(f"{part.name} {part.shape}" for part in parts)
