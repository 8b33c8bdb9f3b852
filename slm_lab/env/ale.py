"""Atari games stepped by ALE's own vector env, in C++ threads; the numbers equal those of `AtariEnv`."""

import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces

from slm_lab.env.atari import SEED_INTERVAL, AtariOptions, bound_seed
from slm_lab.env.layout import calc_parts
from slm_lab.env.make import EnvFacts, EnvSettings, find_game, resolve_name
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.lib.array import Array


class AleVecEnv(VecEnv):
    """All games of a session.

    An ended game restarts within the step, and its last observation is returned separately. Lives are counted here,
    because the signal of the native env does not distinguish a lost life from the end of a game.
    """

    def __init__(self, settings: EnvSettings) -> None:
        options = AtariOptions.parse(settings.kwargs, settings.max_t)
        self.native = AtariVectorEnv(
            find_game(resolve_name(settings.name)),
            settings.num_envs,
            num_threads=settings.num_cores,
            max_num_frames_per_episode=options.max_frames,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
            stack_num=options.stack_num,
            frameskip=options.frameskip,
            noop_max=options.noop_max,
            use_fire_reset=options.use_fire_reset,
            reward_clipping=False,
        )
        self.counts_lives = options.life_loss_info
        self.lives = np.zeros(settings.num_envs, np.int64)
        space = self.native.single_observation_space
        assert isinstance(space, spaces.Box)
        super().__init__(
            settings,
            EnvFacts(
                space,
                self.native.single_action_space,
                options.stack_num,
                calc_parts(space),
                seed_interval=SEED_INTERVAL,
            ),
        )

    def _seeds(self, indices: Array, episode: Array) -> Array:
        return np.array([bound_seed(self.episode_seed(int(index), int(episode[index]))) for index in indices])

    def _restart(self, indices: Array, episode: Array) -> Array:
        """Start the given episodes of some games from their seeds; returns the observations of all games."""
        mask = np.zeros(self.num_envs, bool)
        mask[indices] = True
        obs, info = self.native.reset(seed=self._seeds(indices, episode), options={"reset_mask": mask})
        self.lives = info["lives"].copy()
        return obs

    def _reset(self) -> Array:
        return self._restart(np.arange(self.num_envs), self.episode)

    def _step(self, action: Array) -> Step:
        obs, reward, terminated, truncated, info = self.native.step(action)
        next_obs, ended = obs, terminated | truncated
        life_lost = (info["lives"] < self.lives) & ~ended if self.counts_lives else np.zeros_like(ended)
        self.lives = info["lives"].copy()
        if ended.any():
            next_obs = obs.copy()
            next_obs[ended] = info["final_obs"][ended]
            due = np.flatnonzero(ended & self.is_seed_due())
            if len(due):
                obs = self._restart(due, self.episode + 1)
        return Step(obs, next_obs, reward.astype(np.float64), terminated | life_lost, truncated, ended)

    def _replay(self, action: list[Array]) -> tuple[Array, Array]:
        log, lengths = self._align(action)
        obs = self._restart(np.arange(self.num_envs), self.origin)
        score = np.zeros(self.num_envs)
        if not len(log):
            return obs, score
        for left, now in zip(range(len(log), 0, -1), log, strict=True):
            begin = np.flatnonzero(lengths == left)
            if len(begin):
                self._restart(begin, self.origin)
            obs, reward, terminated, truncated, info = self.native.step(now)
            self.lives = info["lives"].copy()
            score += reward
            # games that have not joined yet start at 0
            score[terminated | truncated | (lengths < left)] = 0
        idle = np.flatnonzero(lengths == 0)
        return self._restart(idle, self.origin) if len(idle) else obs, score

    def close(self) -> None:
        self.native.close()
