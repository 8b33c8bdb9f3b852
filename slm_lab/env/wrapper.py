"""From the policy's actions to the env's."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.lib.errors import EnvError

Array = np.ndarray[Any, Any]


class ActionMap:
    """Scales Box actions from the policy's [-1, 1] to the env's bounds and clips there; others pass as they are."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.start: Any = 0
        if isinstance(space, spaces.Box):
            # a side without a bound keeps the policy's own scale
            bounded = np.isfinite(space.low) & np.isfinite(space.high)
            low = np.where(bounded, space.low, -1.0)
            high = np.where(bounded, space.high, 1.0)
            self.scale = ((high - low) / 2).astype(space.dtype)
            self.center = ((high + low) / 2).astype(space.dtype)
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.start = space.start
        elif not isinstance(space, spaces.MultiBinary):
            raise EnvError(f"env.name: actions of {type(space).__name__} are not supported")

    def __call__(self, action: Array) -> Array:
        """Actions (N, ...) of the policy as actions of the env."""
        if isinstance(self.space, spaces.Box):
            scaled = action.reshape(len(action), *self.space.shape) * self.scale + self.center
            return np.clip(scaled, self.space.low, self.space.high).astype(self.space.dtype, copy=False)
        mapped = action.astype(self.space.dtype)
        return mapped + self.start if np.any(self.start) else mapped

    def shape(self, num_envs: int) -> tuple[int, ...]:
        """Shape of a batch of the env's actions."""
        return (num_envs, *(self.space.shape or ()))
