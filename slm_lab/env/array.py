"""CartPole stepped as arrays by gymnasium's vector env; the numbers equal those of its single env."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from slm_lab.env.make import EnvSettings, describe, make_env, resolve_name
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError

# a test compares these with the single env, bit by bit
ENV_IDS = ("CartPole-v0", "CartPole-v1")
# `env.kwargs` with the same meaning in both
OPTIONS = frozenset({"sutton_barto_reward"})


def has_array_form(settings: EnvSettings) -> bool:
    """Whether `ArrayVecEnv` supports an env with its options."""
    return _is_known(settings) and set(settings.kwargs) <= OPTIONS and not settings.needs_gymnasium


def _is_known(settings: EnvSettings) -> bool:
    env_id = resolve_name(settings.name)
    # a user may have registered another env under this name
    own = f"{CartPoleVectorEnv.__module__}:{CartPoleVectorEnv.__name__}"
    return env_id in ENV_IDS and gym.registry[env_id].vector_entry_point == own


class ArrayVecEnv(VecEnv):
    """All envs of a session, as columns of one state (D, N).

    By itself, the native env restarts an ended env in the next step and ignores its action: a fake row, with random
    numbers that all envs share. So ended envs are restarted here, within the step, each from its own seed.
    """

    def __init__(self, settings: EnvSettings) -> None:
        if not _is_known(settings):
            raise EnvError(f"env.backend: array is for {' and '.join(ENV_IDS)}, not for '{settings.name}'; use auto")
        refused = sorted(set(settings.kwargs) - OPTIONS)
        if refused:
            raise EnvError(f"env.kwargs: the array backend has no {', '.join(refused)}; use env.backend gymnasium")
        # only reset, never stepped
        self.single: Any = make_env(settings)
        assert self.single.spec is not None
        limit: Any = self.single.spec.max_episode_steps
        self.native: Any = CartPoleVectorEnv(settings.num_envs, max_episode_steps=limit, **settings.kwargs)
        # creates the arrays, whose contents are overwritten
        self.native.reset()
        super().__init__(settings, describe(self.single))

    def _start(self, indices: Array, episode: Array) -> None:
        """Start the given episodes of some envs from their seeds."""
        for index in indices.tolist():
            self.single.reset(seed=self.episode_seed(index, int(episode[index])))
            self.native.state[:, index] = self.single.unwrapped.state
        self.native.steps[indices] = 0
        self.native.prev_done[indices] = False

    def _observe(self) -> Array:
        # contiguous rows, as of every backend: the memory layout of its input may affect the rounding of a net
        return np.ascontiguousarray(self.native.state.T, self.obs_space.dtype)

    def _reset(self) -> Array:
        self._start(np.arange(self.num_envs), self.episode)
        return self._observe()

    def _step(self, action: Array) -> Step:
        _, reward, terminated, truncated, _ = self.native.step(action)
        obs = next_obs = self._observe()
        ended = terminated | truncated
        if ended.any():
            self._start(np.flatnonzero(ended), self.episode + 1)
            obs = self._observe()
        # 0 is added because the native env's reward may be -0
        return Step(obs, next_obs, reward.astype(np.float64) + 0.0, terminated, truncated, ended)

    def _replay(self, action: list[Array]) -> tuple[Array, Array]:
        self._start(np.arange(self.num_envs), self.origin)
        start = self.native.state.copy()
        log, lengths = self._align(action)
        score = np.zeros(self.num_envs)
        for left, now in zip(range(len(log), 0, -1), log, strict=True):
            _, reward, terminated, truncated, _ = self.native.step(now)
            waiting = lengths < left
            score += np.where(waiting, 0.0, reward)
            self.native.state[:, waiting] = start[:, waiting]
            self.native.steps[waiting] = 0
            # only if the episode is longer than the log, so it cannot be rebuilt
            ended = (terminated | truncated) & ~waiting
            score[ended] = 0
            self._start(np.flatnonzero(ended), self.origin)
        return self._observe(), score

    def close(self) -> None:
        self.single.close()
        self.native.close()
