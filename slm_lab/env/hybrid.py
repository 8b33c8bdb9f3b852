"""Hybrid actions: a Dict or Tuple of choices and numbers, which the lab handles as flat rows."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymEnv, GymSpace
from slm_lab.env.layout import list_leaves
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError


class HybridSpace(gym.Space[Array]):
    """The actions of a Dict or Tuple as rows of numbers, part after part in gymnasium's order.

    A choice is one number, so that rows can be logged and replayed like any action.
    """

    def __init__(self, source: GymSpace) -> None:
        self.source = source
        self.leaves = [leaf for _, leaf in list_leaves(source, "action")]
        sizes = [int(np.prod(leaf.shape or ())) for leaf in self.leaves]
        ends = np.cumsum(sizes).tolist()
        # the place of each part in a row
        self.slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        super().__init__((ends[-1],), np.float64)

    def seed(self, seed: Any = None) -> Any:
        """Seed all parts."""
        return self.source.seed(seed)

    def sample(self, mask: Any = None, probability: Any = None) -> Array:
        """A random row."""
        return self.flatten([leaf.sample() for leaf in self.leaves])

    def flatten(self, parts: list[Any]) -> Array:
        """A row of the actions of all parts."""
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])

    def unflatten(self, rows: Array) -> Any:
        """A row (K,) as the env takes it, or rows (N, K) as a gymnasium vector env does."""
        values = []
        for leaf, place in zip(self.leaves, self.slices, strict=True):
            part = rows[..., place].reshape((*rows.shape[:-1], *(leaf.shape or ()))).astype(leaf.dtype)
            values.append(part.item() if part.ndim == 0 else part)
        return _build(self.source, values)

    def contains(self, x: Any) -> bool:
        """Whether a row is an action."""
        return np.shape(x) == self.shape and bool(self.source.contains(self.unflatten(np.asarray(x))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HybridSpace) and bool(self.source == other.source)

    def __repr__(self) -> str:
        return repr(self.source)


def _build(space: GymSpace, values: list[Any]) -> Any:
    """The structure of a space, filled with values from the front of the list."""
    if isinstance(space, spaces.Dict):
        return {key: _build(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build(part, values) for part in space.spaces)
    return values.pop(0)


class FlatAction(gym.ActionWrapper[Any, Any, Any]):
    """Takes rows instead of Dict and Tuple actions."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        self.space = HybridSpace(env.action_space)
        self.action_space = self.space

    def action(self, action: Array) -> Any:
        """The action of a row."""
        return self.space.unflatten(action)


def flatten_action(env: GymEnv) -> GymEnv:
    """The env with flat actions; as it is unless they are a Dict or Tuple."""
    space = env.action_space
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return env
    for name, leaf in list_leaves(space, "action"):
        if not isinstance(leaf, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            where = ".".join(str(key) for key in name)
            raise EnvError(f"env.name: part '{where}' of the action is {type(leaf).__name__}, which is not supported")
    return FlatAction(env)
