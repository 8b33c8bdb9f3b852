"""Envs that are stepped one after the other, in this process."""

import math
from typing import Any

import numpy as np

from slm_lab.env.make import EnvSettings, describe, make_env
from slm_lab.env.render import RenderMode, draw
from slm_lab.env.vec_env import RENDER_FPS, Array, Step, VecEnv, calc_episode_seed
from slm_lab.lib.errors import EnvError, EnvFaultError


class Slots:
    """Some of the envs, stepped one after the other and reset as soon as they end."""

    def __init__(self, settings: EnvSettings, indices: list[int], render_mode: RenderMode | None = None) -> None:
        # the first env of all is the one that is shown
        self.envs = [make_env(settings, render_mode if index == 0 else None) for index in indices]
        self.render_mode = render_mode
        # how the first env looked when its episode ended; None unless it did so in the last step
        self.ended_frame: Array | None = None
        self.facts = describe(self.envs[0])
        self.settings = settings
        self.indices = indices
        space = self.facts.obs_space
        self.shape = space.shape
        count = len(indices)
        self.obs = np.zeros((count, *space.shape), space.dtype)
        self.next_obs = np.zeros_like(self.obs)
        self.reward = np.zeros(count)
        self.terminated = np.zeros(count, bool)
        self.truncated = np.zeros(count, bool)
        self.ended = np.zeros(count, bool)
        self.is_float = self.obs.dtype.kind == "f"
        # views of the same memory, and what they are multiplied with to see whether all of it is finite
        self._flat = [self.reward, self.next_obs.reshape(-1)] if self.is_float else [self.reward]
        self._zeros = [np.zeros_like(flat) for flat in self._flat]
        # steps of the episode under way, and of the one that the last step belonged to
        self.t = [0] * count
        self.last_t = [0] * count

    def episode_seed(self, slot: int, episode: int) -> int:
        """The seed of an episode of one of these envs."""
        return calc_episode_seed(self.settings, self.indices[slot], episode)

    def reset(self, slot: int, episode: int, is_seeded: bool = True) -> None:
        """Start an episode, from its seed or as the generators of the env stand."""
        self.t[slot] = 0
        obs = self.envs[slot].reset(seed=self.episode_seed(slot, episode) if is_seeded else None)[0]
        if np.shape(obs) != self.shape:
            raise self._wrong_shape(obs, slot, episode)
        self.obs[slot] = obs
        if self.is_float and not np.isfinite(self.obs[slot]).all():
            raise EnvFaultError(
                f"{self._where(slot, episode)}: the first observation of an episode is not finite: {obs}",
                "observation",
                self.indices[slot],
            )

    def step(self, action: Array, episode: Array, is_seed_due: Array) -> None:
        """Step every env; one that ended starts its next episode at once."""
        self.ended_frame = None
        for slot, env in enumerate(self.envs):
            obs, reward, terminated, truncated, info = env.step(action[slot])
            self.t[slot] += 1
            self.last_t[slot] = self.t[slot]
            if np.shape(obs) != self.shape:
                raise self._wrong_shape(obs, slot, int(episode[slot]))
            self.next_obs[slot] = obs
            try:
                self.reward[slot] = reward
            except OverflowError:
                raise EnvFaultError(
                    f"{self._where(slot, int(episode[slot]))}: the reward is too large for a float",
                    "reward",
                    self.indices[slot],
                ) from None
            # the loss of a life ends what is learned from, not the game
            self.terminated[slot] = terminated or info.get("life_lost", False)
            self.truncated[slot] = truncated
            self.ended[slot] = is_over = terminated or truncated
            if is_over:
                if self.render_mode == "rgb_array" and slot == 0:
                    # the reset would wipe it out
                    self.ended_frame = self.render()
                self.reset(slot, int(episode[slot]) + 1, bool(is_seed_due[slot]))
            else:
                self.obs[slot] = obs
        # 0 times anything finite is 0: one product for all envs takes less time than looking at each number
        for flat, zeros in zip(self._flat, self._zeros, strict=True):
            if np.vdot(flat, zeros) != 0:
                for slot in range(len(self.envs)):
                    self._check_finite(slot, int(episode[slot]))

    def render(self) -> Array:
        """What the first env looks like now."""
        return draw(self.envs[0], self.settings.name)

    def _where(self, slot: int, episode: int) -> str:
        seed = self.episode_seed(slot, episode)
        return f"env {self.indices[slot]}, episode {episode} (seed {seed}), step {self.last_t[slot]}"

    def _wrong_shape(self, obs: Any, slot: int, episode: int) -> EnvError:
        # a single number, if it were let in, would fill the whole row
        where = self._where(slot, episode)
        return EnvError(f"{where}: the observation has the shape {np.shape(obs)}, the space says {self.shape}")

    def _check_finite(self, slot: int, episode: int) -> None:
        reward, obs = self.reward[slot], self.next_obs[slot]
        if not math.isfinite(reward):
            raise EnvFaultError(
                f"{self._where(slot, episode)}: the reward is {reward}; `slm-lab env check` may tell more",
                "reward",
                self.indices[slot],
            )
        if not np.isfinite(obs).all():
            index = [int(part) for part in np.argwhere(~np.isfinite(obs))[0]]
            raise EnvFaultError(
                f"{self._where(slot, episode)}: the observation is {obs[tuple(index)]} at {index}; "
                "`slm-lab env check` may tell more",
                "observation",
                self.indices[slot],
            )

    def replay(self, slot: int, episode: int, action: Array) -> None:
        """Rebuild the state of an env from the seed of an episode and the actions since."""
        self.reset(slot, episode)
        env = self.envs[slot]
        for one in action:
            obs, _, terminated, truncated, _ = env.step(one)
            self.t[slot] += 1
            if terminated or truncated:
                self.reset(slot, episode, is_seeded=False)
            else:
                self.obs[slot] = obs

    def close(self) -> None:
        """Release the envs."""
        for env in self.envs:
            env.close()


class LocalVecEnv(VecEnv):
    """Envs in this process."""

    def __init__(self, settings: EnvSettings, render_mode: RenderMode | None = None) -> None:
        self.slots = Slots(settings, list(range(settings.num_envs)), render_mode)
        super().__init__(settings, self.slots.facts)

    def _reset(self) -> Array:
        for slot in range(self.num_envs):
            self.slots.reset(slot, int(self.episode[slot]))
        return self.slots.obs.copy()

    def _step(self, action: Array) -> Step:
        slots = self.slots
        slots.step(action, self.episode, self.is_seed_due())
        return Step(
            slots.obs.copy(),
            slots.next_obs.copy(),
            slots.reward.copy(),
            slots.terminated.copy(),
            slots.truncated.copy(),
            slots.ended.copy(),
        )

    def _replay(self, action: list[Array]) -> Array:
        for slot, actions in enumerate(action):
            self.slots.replay(slot, int(self.origin[slot]), actions)
        return self.slots.obs.copy()

    def render(self) -> Array:
        if self.slots.render_mode != "rgb_array":
            raise self._no_frame()
        return self.slots.render()

    def render_ended(self) -> Array:
        if self.slots.ended_frame is None:
            raise self._no_frame()
        return self.slots.ended_frame

    @property
    def render_fps(self) -> float:
        return float(self.slots.envs[0].metadata.get("render_fps") or RENDER_FPS)

    def close(self) -> None:
        self.slots.close()
