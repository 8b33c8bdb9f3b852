"""From the policy's actions to the env's."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.lib.errors import EnvError

Array = np.ndarray[Any, Any]


# Some envs say "no bound" with the largest number there is.
_NO_BOUND = 1e30


class ActionMap:
    """Scales Box actions from the policy's [-1, 1] to the env's bounds and clips there; others keep their values."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.start: Any = 0
        if isinstance(space, spaces.Box):
            # a side without a bound keeps the policy's own scale
            bounded = (np.abs(space.low) < _NO_BOUND) & (np.abs(space.high) < _NO_BOUND)
            low = np.where(bounded, space.low, -1.0)
            high = np.where(bounded, space.high, 1.0)
            self.is_whole = np.issubdtype(space.dtype, np.integer)
            dtype = np.float64 if self.is_whole else space.dtype
            self.scale = ((high - low) / 2).astype(dtype)
            self.center = ((high + low) / 2).astype(dtype)
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.start = space.start
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
        return mapped + self.start if np.any(self.start) else mapped

    def shape(self, num_envs: int) -> tuple[int, ...]:
        """Shape of a batch of the env's actions."""
        return (num_envs, *(self.space.shape or ()))
