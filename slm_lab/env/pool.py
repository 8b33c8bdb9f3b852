"""Envs stepped by EnvPool in C++ threads: the same dynamics as gymnasium's, but with EnvPool's own random numbers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import envpool
import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymSpace
from slm_lab.env.make import EnvFacts, EnvSettings, describe, make_env, resolve_name
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.errors import EnvError, EnvFaultError

# A test compares these with gymnasium, step by step. Other envs differ: Pendulum-v1 when its speed is clipped; Ant,
# Humanoid and HumanoidStandup from the start, since EnvPool includes MuJoCo 3.6.
ENV_IDS = frozenset(
    {
        "Acrobot-v1",
        "CartPole-v1",
        "HalfCheetah-v5",
        "Hopper-v5",
        "InvertedDoublePendulum-v5",
        "InvertedPendulum-v5",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Pusher-v5",
        "Reacher-v5",
        "Swimmer-v5",
        "Walker2d-v5",
    }
)
# `env.kwargs` with the same meaning in both
OPTIONS = frozenset(
    {
        "ctrl_cost_weight",
        "forward_reward_weight",
        "frame_skip",
        "healthy_reward",
        "reset_noise_scale",
        "terminate_when_unhealthy",
    }
)
# the largest number that EnvPool accepts
_NO_LIMIT = 2**31 - 1


class EnvPoolVecEnv(VecEnv):
    """All envs of a session.

    EnvPool resets an ended env in the next step and ignores its action: a fake row. So ended envs are reset here before
    that. It also reports an episode that terminates at its last allowed step as truncated, so time limits are handled
    here.

    Seeds are set when a pool is created, and each episode depends on those before it. So no episode can be rebuilt, and
    a stopped run starts new ones.
    """

    is_exact = False

    def __init__(self, settings: EnvSettings) -> None:
        self.env_id = resolve_name(settings.name)
        if self.env_id not in ENV_IDS:
            raise EnvError(
                f"env.backend: envpool is not known to give gymnasium's numbers for '{settings.name}', only for "
                f"{', '.join(sorted(ENV_IDS))}; use auto"
            )
        env = make_env(settings)
        facts = describe(env)
        limit = env.spec.max_episode_steps if env.spec else None
        env.close()
        _check(self.env_id, settings, facts)
        super().__init__(settings, facts)
        self.limit = limit or _NO_LIMIT
        # steps of the current episode
        self.t = np.zeros(self.num_envs, np.int64)
        self.pool: Any = None

    def _start(self) -> Array:
        """Make the pool and start the current episode of each env from its seed."""
        seeds = [self.episode_seed(index, int(episode)) & _NO_LIMIT for index, episode in enumerate(self.episode)]
        self.pool = envpool.make_gymnasium(
            self.env_id,
            num_envs=self.num_envs,
            num_threads=min(self.settings.num_cores, self.num_envs),
            seed=seeds,
            max_episode_steps=_NO_LIMIT,
            **self.settings.kwargs,
        )
        self.t[:] = 0
        with _quiet():
            return self.pool.reset()[0]

    def _reset(self) -> Array:
        return self._start()

    def _step(self, action: Array) -> Step:
        obs, reward, terminated, _, _ = self.pool.step(action)
        self.t += 1
        if not (np.isfinite(reward).all() and np.isfinite(obs).all()):
            raise self._not_finite(obs, reward)
        truncated = self.t >= self.limit
        ended = terminated | truncated
        next_obs = obs
        if ended.any():
            indices = np.flatnonzero(ended)
            obs = obs.copy()
            obs[indices] = self.pool.reset(indices.astype(np.int32))[0]
            self.t[indices] = 0
        return Step(obs, next_obs, reward.astype(np.float64), terminated, truncated, ended)

    def _not_finite(self, obs: Array, reward: Array) -> EnvFaultError:
        is_finite = np.isfinite(reward) & np.isfinite(obs).all(axis=1)
        index = int(np.flatnonzero(~is_finite)[0])
        return EnvFaultError(
            f"env {index}, episode {self.episode[index]}, step {self.t[index]}: the reward is {reward[index]}, the "
            f"observation {obs[index]}",
            "observation" if np.isfinite(reward[index]) else "reward",
            index,
        )

    def state_dict(self) -> State:
        """Unfinished episodes are discarded: the resumed run starts new ones with a score of 0."""
        return super().state_dict() | {
            "origin": self.episode.copy(),
            "score": np.zeros(self.num_envs),
            "length": np.zeros(self.num_envs, np.int64),
            "began": np.zeros(self.num_envs, np.int64),
            "action": np.zeros((0, self.num_envs, *self.action_map.shape)),
        }

    def _replay(self, action: list[Array]) -> tuple[Array, None]:
        # a state of another backend has scores and actions of unfinished episodes, which are discarded
        self.origin[:] = self.episode
        self.score[:] = 0
        self._first_step[:] = self.num_step
        self._began[:] = 0
        self._action_log.clear()
        return self._start(), None

    def close(self) -> None:
        # the threads end with the pool
        self.pool = None


def _check(env_id: str, settings: EnvSettings, facts: EnvFacts) -> None:
    """Refuse envs that EnvPool lacks, or that differ from gymnasium's."""
    refused = sorted(set(settings.kwargs) - OPTIONS)
    if refused:
        raise EnvError(f"env.kwargs: the envpool backend has no {', '.join(refused)}; use env.backend gymnasium")
    try:
        with _quiet():
            spec = envpool.make_spec(env_id, **settings.kwargs)
            space = spec.observation_space
    except (TypeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise EnvError(f"env.kwargs: envpool cannot make '{env_id}' with {settings.kwargs}: {reason}") from None
    if space != facts.obs_space or not _is_same_action(spec.action_space, facts.action_space):
        raise EnvError(
            f"env.backend: envpool has other spaces than gymnasium for '{env_id}': {space} and "
            f"{spec.action_space} instead of {facts.obs_space} and {facts.action_space}; use auto"
        )


def _is_same_action(theirs: GymSpace, ours: GymSpace) -> bool:
    if isinstance(theirs, spaces.Box) and isinstance(ours, spaces.Box):
        # EnvPool has 64 bits, gymnasium 32
        return theirs.shape == ours.shape and np.allclose(theirs.low, ours.low) and np.allclose(theirs.high, ours.high)
    return theirs == ours


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress gymnasium's warning that EnvPool has 64-bit bounds for 32-bit spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        yield
