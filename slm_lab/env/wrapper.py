"""Wrappers that envs need to be repeatable."""

from typing import Any

import gymnasium as gym

from slm_lab.env.gym_types import Info


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives BipedalWalker a new world in each episode, as in LunarLander.

    Its own reset empties one world and fills it again. Box2D then meets the same contacts in another order, and sums
    them with other roundings: an episode would depend on those before it, not on its seed alone.
    """

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        base: Any = self.unwrapped
        base._destroy()
        base.world = type(base.world)()
        return self.env.reset(seed=seed, options=options)
