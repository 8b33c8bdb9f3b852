"""An env that tells how it went, and wrappers; a module of its own, since processes that step envs import it."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env[Any, Any]):
    """A walk on a line with wind: step left or right until `goal` or -`goal` is reached, within 30 steps."""

    def __init__(self, goal: float = 3.0, wind: float = 1.0, size: float = 2) -> None:
        assert goal > 0, f"goal {goal} is not positive"
        self.observation_space = spaces.Box(-np.inf, np.inf, (int(size),), np.float32)
        self.action_space = spaces.Discrete(2)
        self.goal, self.wind = goal, wind

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return np.array([self.x, self.t / 30], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.x += (1.0 if action else -1.0) + self.wind * float(self.np_random.normal())
        is_over = abs(self.x) >= self.goal
        info = {"distance": abs(self.x), "is_success": is_over and self.x > 0, "goal": np.array([self.goal])}
        # text, and names of the lab's own columns
        info |= {"note": "text", "loss": 0.5, "clip_frac": 0.5}
        return self._obs(), float(action), is_over, self.t >= 30, info


class Shaped(gym.Wrapper[Any, Any, Any, Any]):
    """Rewards steps towards the goal."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 0.1) -> None:
        super().__init__(env)
        self.factor = factor

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.factor * float(obs[0]), *rest


class Noisy(gym.ObservationWrapper[Any, Any, Any]):
    """Adds noise from a generator that no seed of an episode sets."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.generator = np.random.default_rng(0)

    def observation(self, observation: Any) -> Any:
        return observation + self.generator.normal(size=2).astype(np.float32)


class Broken(Shaped):
    """Gives no number as a reward at the 5th step."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, np.nan if obs[1] > 4.5 / 30 else reward, *rest


gym.register("test/Walk-v0", entry_point=f"{__name__}:Walk")
