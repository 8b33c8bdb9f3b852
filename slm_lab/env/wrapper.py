"""From the policy's actions to the env's."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.lib.errors import EnvError

Array = np.ndarray[Any, Any]


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives BipedalWalker a world of its own in each episode, as LunarLander has it.

    Its own reset empties one world and fills it again. Box2D then meets the same contacts in another order, and sums
    them with other roundings: an episode would depend on those before it, not on its seed alone.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        base: Any = self.unwrapped
        base._destroy()
        base.world = type(base.world)()
        return self.env.reset(seed=seed, options=options)


# Some envs say "no bound" with the largest number there is; gymnasium does so for whole numbers.
_NO_BOUND = 1e30
_NO_WHOLE_BOUND = 2.0**31 - 1


class ActionMap:
    """Scales Box actions from the policy's [-1, 1] to the env's bounds and clips there; others keep their values."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        # what is added to choices that do not count from 0
        self.start: Any = None
        if 0 in (space.shape or ()):
            raise EnvError(f"env.name: actions of {space} have no number to choose")
        if isinstance(space, spaces.Box):
            self.is_whole = np.issubdtype(space.dtype, np.integer)
            low, high = _calc_range(space, self.is_whole)
            self.scale = (high - low) / 2
            self.center = (high + low) / 2
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.start = space.start if np.any(space.start) else None
        elif not isinstance(space, spaces.MultiBinary):
            raise EnvError(f"env.name: actions of {type(space).__name__} are not supported")

    def __call__(self, action: Array) -> Array:
        """Actions (N, ...) of the policy as actions of the env."""
        action = action.reshape(self.shape(len(action)))
        if isinstance(self.space, spaces.Box):
            scaled = action * self.scale + self.center
            if self.is_whole:
                scaled = np.rint(scaled)
            return np.clip(scaled, self.space.low, self.space.high).astype(self.space.dtype, copy=False)
        mapped = action.astype(self.space.dtype)
        return mapped if self.start is None else mapped + self.start

    def shape(self, num_envs: int) -> tuple[int, ...]:
        """Shape of a batch of the env's actions."""
        return (num_envs, *(self.space.shape or ()))


def _calc_range(space: spaces.Box, is_whole: bool) -> tuple[Array, Array]:
    """What the policy's -1 and 1 stand for: the bounds, or where one is missing the policy's own scale.

    With one bound that scale begins there. Around 0 it could lie beyond the bound, and every action would be the bound.
    """
    no_bound = _NO_WHOLE_BOUND if is_whole else _NO_BOUND
    dtype = np.float64 if is_whole else space.dtype
    low, high = space.low.astype(dtype), space.high.astype(dtype)
    has_low, has_high = np.abs(low) < no_bound, np.abs(high) < no_bound
    start = np.where(has_low, low, np.where(has_high, high - 2.0, -1.0))
    return start, np.where(has_high, high, np.where(has_low, low + 2.0, 1.0))
