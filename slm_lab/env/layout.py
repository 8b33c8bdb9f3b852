"""The layout of a flat observation: named parts, in order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from slm_lab.env.gym_types import GymEnv, GymSpace
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError

# name of the only part, if an observation has no named parts
WHOLE = "obs"
# the part of MuJoCo Playground's observations that only critics may see
PRIVILEGED = "privileged_state"
# the values that `reset` and `step` return
RESET_VALUES = ("observation", "info")
STEP_VALUES = ("observation", "reward", "terminated", "truncated", "info")


@dataclass(frozen=True)
class ObsPart:
    """One entry of a Dict observation: its position in the flat one, and its shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    # whether it is the mask of allowed actions, which nets see only if they name it
    is_mask: bool = False

    @property
    def is_privileged(self) -> bool:
        """Whether only critics may see it, because a deployed agent does not have it."""
        return self.name == PRIVILEGED


def calc_parts(space: GymSpace) -> tuple[ObsPart, ...]:
    """The parts of an observation in gymnasium's order of flattening; nested names are joined by dots."""
    parts: list[ObsPart] = []
    start = 0
    for path, leaf in list_leaves(space):
        size = spaces.flatdim(leaf)
        is_box = isinstance(leaf, spaces.Box)
        # a scalar Box has one number
        shape = leaf.shape if is_box and leaf.shape else (size,)
        parts.append(ObsPart(_join(path), start, start + size, shape))
        start += size
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise EnvError(f"env.name: parts of the observation have the same name: {', '.join(names)}")
    return tuple(parts)


def list_leaves(
    space: GymSpace, what: str = "observation", path: tuple[Any, ...] = ()
) -> list[tuple[tuple[Any, ...], GymSpace]]:
    """The leaves of a space, with the keys that lead to them; `what` names the value in messages."""
    named: list[tuple[Any, GymSpace]]
    if isinstance(space, spaces.Dict):
        named = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        named = list(enumerate(space.spaces))
    else:
        return [(path, space)]
    if not named:
        raise EnvError(f"env.name: the {what} has no parts")
    return [leaf for key, part in named for leaf in list_leaves(part, what, (*path, key))]


def _join(path: tuple[Any, ...]) -> str:
    return ".".join(str(key) for key in path) or WHOLE


class MisfitError(ValueError):
    """A value that does not match its space; the caller adds where in the run it happened."""

    # the kind of value that is wrong
    tensor = "observation"


class FlatObservation(FlattenObservation[Any, Any, Any]):
    """Flattens observations; gymnasium's own wrapper silently casts parts of another type or shape."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        self.leaves = list_leaves(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """The parts of an observation in one row."""
        for path, leaf in self.leaves:
            part = observation
            try:
                for key in path:
                    part = part[key]
            except (IndexError, KeyError, TypeError):
                raise MisfitError(f"the observation has no part '{_join(path)}'") from None
            problem = _find_leaf_misfit(part, leaf)
            if problem is not None:
                what = f"part '{_join(path)}' of the observation" if path else "the observation"
                raise MisfitError(f"{what} {problem}")
        return super().observation(observation)


def _find_leaf_misfit(value: Any, space: GymSpace) -> str | None:
    if isinstance(space, spaces.Discrete):
        is_whole = isinstance(value, (int, np.integer)) or (
            np.shape(value) == () and np.asarray(value).dtype.kind in "iu"
        )
        is_inside = is_whole and space.start <= value < space.start + space.n
        return None if is_inside else f"is {value!r}, the space says {in_one_line(space)}"
    if space.shape is None or space.dtype is None:
        return None
    return find_misfit(value, space.shape, space.dtype)


def find_misfit(value: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """Why an array does not match a space; None if it can be stored without loss."""
    try:
        array = np.asarray(value)
    except ValueError:
        return f"is no array: {type(value).__name__}"
    if array.shape != shape:
        return f"has the shape {array.shape}, the space says {shape}"
    if array.dtype == dtype or (dtype.kind == "f" and array.dtype.kind in "fiub"):
        return None
    if array.dtype.kind not in "fiub":
        return f"is of type {array.dtype}, the space says {dtype}"
    with np.errstate(invalid="ignore"):
        is_other = array.astype(dtype) != array
    if not is_other.any():
        return None
    index = tuple(int(part) for part in np.argwhere(is_other)[0])
    return f"is {array[index]} at {list(index)}, the space says {dtype}"


def read_reward(reward: Any) -> float:
    """A reward as a number; an array of one number is accepted."""
    try:
        return float(reward.item() if isinstance(reward, np.ndarray) else reward)
    except OverflowError:
        raise MisfitError("the reward is too large for a float") from None
    except (TypeError, ValueError):
        shape = np.shape(reward)
        raise MisfitError(f"the reward is {type(reward).__name__} of shape {shape}, a number expected") from None


def read_number(value: object) -> float | None:
    """A value of `info` as a number, NaN if it is not finite; None for anything else."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        return None
    number = float(array.item())
    return number if math.isfinite(number) else math.nan


def read_truth(name: str, value: object) -> bool:
    """Whether an episode ended; 0 and 1 are accepted."""
    array = np.asarray(value)
    if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
        return bool(array.item())
    raise MisfitError(f"{name} is {type(value).__name__ if array.ndim else repr(value)}, true or false expected")


def flatten_obs(space: GymSpace, obs: object) -> tuple[Array, bool]:
    """One observation or a batch as flat rows (N, size), as in training; and whether it was a batch.

    A batch is what a gymnasium vector env returns: the same structure, with one more dimension in front of each part.
    """
    rows: dict[str, Array] = {}
    is_batch: bool | None = None
    for (path, leaf), value in zip(list_leaves(space), _take_parts(space, obs, "observation"), strict=True):
        name = _join(path)
        where = f"part '{name}' of the observation" if path else "the observation"
        shape = leaf.shape or ()
        found = np.shape(value)
        if found not in (shape, (*found[:1], *shape)) or is_batch not in (None, found != shape):
            allowed = f"{shape}, or {('N', *shape)} in a batch".replace("'", "")
            raise EnvError(f"{where} has the shape {found}; expected {allowed}")
        is_batch = found != shape
        each = value if is_batch else [value]
        if isinstance(leaf, spaces.Box):
            rows[name] = np.asarray(each, leaf.dtype).reshape(len(each), -1)
        elif isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
            rows[name] = _one_hot(leaf, np.asarray(each), where)
        else:
            rows[name] = np.stack([np.asarray(spaces.flatten(leaf, one)) for one in each])
    if len({len(part) for part in rows.values()}) > 1:
        sizes = ", ".join(f"{name} {len(part)}" for name, part in rows.items())
        raise EnvError(f"the parts of the observation are batches of different size: {sizes}")
    return np.concatenate(list(rows.values()), 1), bool(is_batch)


def _one_hot(space: spaces.Discrete | spaces.MultiDiscrete, values: Array, where: str) -> Array:
    """Choices (N, ...) as rows of concatenated one-hot vectors, as gymnasium flattens them."""
    counts = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.flatten().tolist()
    is_whole = values.dtype.kind in "iu" or bool((values == np.rint(values)).all())
    index = (values.astype(np.int64) - space.start).reshape(len(values), -1)
    if not is_whole or (index < 0).any() or (index >= counts).any():
        raise EnvError(f"{where} has a choice that is none of {in_one_line(space)}")
    columns = index + np.cumsum([0, *counts[:-1]])
    row: Array = np.zeros((len(values), sum(counts)), space.dtype)
    row[np.arange(len(values))[:, None], columns] = 1
    return row


def _take_parts(space: GymSpace, obs: object, where: str) -> list[Any]:
    """The values of an observation in the order of `list_leaves`."""
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


def in_one_line(space: GymSpace) -> str:
    """A space on one line, for messages; numpy breaks the lines of arrays."""
    return " ".join(str(space).split())


def show_parts(parts: tuple[ObsPart, ...]) -> str:
    """Names and shapes, for messages."""
    return ", ".join(f"{part.name} {part.shape}" for part in parts)


def read_values(result: object, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Check the number of values that `reset` or `step` returns; gym before 0.26 had fewer."""
    if isinstance(result, tuple) and len(result) == len(names):
        return result
    found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
    raise MisfitError(f"returned {found}, ({', '.join(names)}) expected")
