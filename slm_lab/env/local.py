"""Envs stepped one by one, in this process."""

import math
import traceback
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from slm_lab.env.layout import (
    RESET_VALUES,
    STEP_VALUES,
    MisfitError,
    find_misfit,
    in_one_line,
    read_number,
    read_reward,
    read_truth,
    read_values,
)
from slm_lab.env.make import EnvSettings, describe, make_env
from slm_lab.env.mask import MASK, MaskedObservation, count_choices, read_mask
from slm_lab.env.render import RenderMode, draw
from slm_lab.env.vec_env import RENDER_FPS, SUCCESS, Step, VecEnv, calc_episode_seed
from slm_lab.env.watch import close_envs, watch
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError, EnvExitError, EnvFaultError, EnvHangError, nearest

# the types that nearly all envs use for `terminated` and `truncated`
_TRUTHS = (bool, np.bool_)
_HINT = "`slm-lab env check` may tell more"


class Slots:
    """Some of the envs, stepped one by one and reset as soon as they end."""

    def __init__(self, settings: EnvSettings, indices: list[int], render_mode: RenderMode | None = None) -> None:
        self.settings = settings
        self.indices = indices
        count = len(indices)
        # for the watchdog: odd while a call is running; `at` is the slot that is called
        self.calls = 1
        self.at = 0
        self.limit = 0.0
        self.is_hung = False
        # final `info` of ended episodes, by number of the env
        self.ended_info: dict[int, dict[str, float]] = {}
        self._info_keys = tuple(dict.fromkeys((*settings.info_keys, SUCCESS)))
        self.episode: Array = np.zeros(count, np.int64)
        # steps of the current episode, -1 before its reset, and of the episode of the last step
        self.t = [0] * count
        self.last_t = [0] * count
        watch(self)
        # only env 0 is rendered
        self.render_mode = render_mode
        # current options of each env, which differ only if `settings` has schedules
        self._kwargs = [settings.calc_kwargs(0)] * count
        self.envs: list[Any] = [self._make(slot) for slot in range(count)]
        self.calls = 0
        self.limit = settings.step_timeout
        # whether observations end with a mask of the actions
        self.is_masked = self._gives_masks()
        self.envs = [self._finish(env) for env in self.envs]
        # picture of the first env at the end of its episode, if that ended in the last step
        self.ended_frame: Array | None = None
        self.facts = describe(self.envs[0])
        if settings.schedules:
            # check the last values now; a new env always starts from a seed
            self._check_spaces(self._finish(make_env(settings))).close()
            self.facts = replace(self.facts, seed_interval=0)
        space = self.facts.obs_space
        self.shape = space.shape
        self.obs = np.zeros((count, *space.shape), space.dtype)
        self.dtype = self.obs.dtype
        self.next_obs = np.zeros_like(self.obs)
        self.reward = np.zeros(count)
        self.terminated = np.zeros(count, bool)
        self.truncated = np.zeros(count, bool)
        self.ended = np.zeros(count, bool)
        self.is_float = self.obs.dtype.kind == "f"
        # factors for the check for finite numbers
        self._zeros = [np.zeros(count), np.zeros(self.obs.size, self.dtype)] if self.is_float else [np.zeros(count)]

    def _make(self, slot: int) -> Any:
        settings = replace(self.settings, kwargs=self._kwargs[slot])
        return make_env(settings, self.render_mode if self.indices[slot] == 0 else None)

    def _finish(self, env: Any) -> Any:
        return MaskedObservation(env) if self.is_masked else env

    def _gives_masks(self) -> bool:
        """Whether the env gives action masks, by the info of its first reset."""
        env = self.envs[0]
        if not self.settings.is_masked:
            return False
        self.calls += 1
        try:
            info = env.reset(seed=self.episode_seed(0, 0))[1]
        except EnvHangError:
            raise
        except (Exception, SystemExit):  # the env's own code; it fails again, and is reported, in the first episode
            return False
        finally:
            self.calls += 1
        if not isinstance(info, dict) or MASK not in info:
            return False
        choices = count_choices(env.action_space)
        if not choices:
            raise EnvError(
                f"env.name: '{self.settings.name}' gives an {MASK}, which only discrete actions can have, and its "
                f"actions are {in_one_line(env.action_space)}; set env.{MASK}: ignore"
            )
        try:
            read_mask(info[MASK], choices)
        except MisfitError as error:
            raise EnvError(f"env.name: the first reset of '{self.settings.name}' gives a wrong mask: {error}") from None
        return True

    def _check_spaces(self, env: Any) -> Any:
        """Refuse an env with other options that does not fit the agent."""
        facts, first = describe(env), self.facts
        one, two = facts.obs_space, first.obs_space
        if (one.shape, one.dtype, facts.action_space) == (two.shape, two.dtype, first.action_space):
            return env
        env.close()
        keys = ", ".join(self.settings.schedules)
        raise EnvError(f"env.kwargs: the schedule of {keys} changes the observations or actions of the env")

    def _follow_schedules(self, slot: int, frame: int) -> None:
        """Make an env again if its options have changed since its last episode."""
        kwargs = self.settings.calc_kwargs(frame)
        if kwargs != self._kwargs[slot]:
            close_envs([self.envs[slot]], self.settings.name, self.render_mode is not None)
            self._kwargs[slot] = kwargs
            self.envs[slot] = self._check_spaces(self._finish(self._make(slot)))

    def episode_seed(self, slot: int, episode: int) -> int:
        """The seed of an episode of one of these envs."""
        return calc_episode_seed(self.settings, self.indices[slot], episode)

    def describe_call(self) -> str:
        """The env of the current call, with its seed and step."""
        return self._where(self.at, int(self.episode[self.at]), self.t[self.at] + 1)

    def interrupt(self, error: EnvHangError) -> bool:
        """Only the stepping thread can raise the error; the envs are not used again."""
        self.is_hung = True
        return False

    def _leave(self, error: BaseException, slot: int, episode: int) -> NoReturn:
        """Handle an error of a call; add env, seed and step, which only this class knows."""
        self.calls += self.calls % 2
        if isinstance(error, ValueError) and "values to unpack (expected 5" in str(error) and not _is_own(error):
            # gym before 0.26 returned fewer; a wrapper of gymnasium may notice before this class does
            error = MisfitError(f"the step has {error}: ({', '.join(STEP_VALUES)})")
        if isinstance(error, MisfitError):
            self.last_t[slot] = self.t[slot] + 1
            raise self._fault(slot, episode, str(error), error.tensor) from None
        if isinstance(error, SystemExit):
            where = self._where(slot, episode, self.t[slot] + 1)
            raise EnvExitError(f"{where}: the env ended the process, with exit code {error.code or 0}") from None
        raise error

    def reset(self, slot: int, episode: int, is_seeded: bool = True, frame: int = 0) -> None:
        """Start an episode at a frame, from its seed or from the env's current generators."""
        self.t[slot] = -1
        self.at = slot
        # a copy, since the array may belong to the batch
        self.episode = self.episode.copy()
        self.episode[slot] = episode
        seed = self.episode_seed(slot, episode) if is_seeded else None
        self.calls += 1
        try:
            if self.settings.schedules:
                self._follow_schedules(slot, frame)
            obs, info = read_values(self.envs[slot].reset(seed=seed), RESET_VALUES)
        except BaseException as error:
            self._leave(error, slot, episode)
        self.calls += 1
        self.t[slot] = 0
        if not self.is_masked and self.settings.is_masked and isinstance(info, dict) and MASK in info:
            raise EnvError(f"env.name: '{self.settings.name}' gives an {MASK} in some episodes only; give one in all")
        self.obs[slot] = self._read_obs(obs, slot, episode, step=0)
        if self.is_float and not np.isfinite(self.obs[slot]).all():
            raise EnvFaultError(
                f"{self._where(slot, episode, 0)}: the first observation of an episode is not finite: {obs}",
                "observation",
                self.indices[slot],
            )

    def step(self, action: Array, episode: Array, is_seed_due: Array, frame: int = 0) -> None:
        """Step every env up to a frame; one that ended starts its next episode at once."""
        self.ended_frame = None
        self.episode = episode
        shape, dtype = self.shape, self.dtype
        for slot, env in enumerate(self.envs):
            self.at = slot
            self.calls += 1
            try:
                obs, reward, terminated, truncated, info = env.step(action[slot])
            except BaseException as error:
                self._leave(error, slot, int(episode[slot]))
            if not (isinstance(info, dict) or info is None):
                raise self._fault(slot, int(episode[slot]), f"info is {type(info).__name__}, a dict expected")
            self.calls += 1
            self.t[slot] = self.last_t[slot] = self.t[slot] + 1
            # the usual types need no further check
            if type(obs) is not np.ndarray or obs.shape != shape or obs.dtype != dtype:
                obs = self._read_obs(obs, slot, int(episode[slot]))
            if not isinstance(reward, float):
                reward = self._read_reward(reward, slot, int(episode[slot]))
            if not isinstance(terminated, _TRUTHS):
                terminated = self._read_truth("terminated", terminated, slot, int(episode[slot]))
            if not isinstance(truncated, _TRUTHS):
                truncated = self._read_truth("truncated", truncated, slot, int(episode[slot]))
            self.next_obs[slot] = obs
            self.reward[slot] = reward
            # a lost life ends the episode for learning, but not the game
            self.terminated[slot] = terminated or (info is not None and info.get("life_lost", False))
            self.truncated[slot] = truncated
            self.ended[slot] = is_over = terminated or truncated
            if is_over:
                if self.render_mode == "rgb_array" and slot == 0:
                    # before the reset, which would replace it
                    self.ended_frame = self.render()
                self.ended_info[self.indices[slot]] = self._read_info(info or {}, int(episode[slot]))
                self.reset(slot, int(episode[slot]) + 1, bool(is_seed_due[slot]), frame)
            else:
                self.obs[slot] = obs
        # 0 times a finite number is 0, and one product for all envs is faster than a check of each number
        for numbers, zeros in zip((self.reward, self.next_obs.reshape(-1)), self._zeros, strict=False):
            if np.vdot(numbers, zeros) != 0:
                for slot in range(len(self.envs)):
                    self._check_finite(slot, int(episode[slot]))

    def render(self) -> Array:
        """The first env as an image."""
        return draw(self.envs[0], self.settings.name)

    def _where(self, slot: int, episode: int, step: int | None = None) -> str:
        seed = self.episode_seed(slot, episode)
        step = self.last_t[slot] if step is None else step
        return f"env {self.indices[slot]}, episode {episode} (seed {seed}), step {step}"

    def _fault(
        self, slot: int, episode: int, problem: str, tensor: str = "observation", step: int | None = None
    ) -> EnvFaultError:
        """An error for a value that does not match the spaces."""
        text = f"{self._where(slot, episode, step)}: {problem}; {_HINT}"
        return EnvFaultError(text, tensor, self.indices[slot], "is not what it should be")

    def _read_obs(self, obs: object, slot: int, episode: int, step: int | None = None) -> Any:
        # otherwise a scalar would fill the whole row, and fractions would be truncated
        problem = find_misfit(obs, self.shape, self.dtype)
        if problem is not None:
            raise self._fault(slot, episode, f"the observation {problem}", step=step)
        return obs

    def _read_reward(self, reward: object, slot: int, episode: int) -> float:
        try:
            return read_reward(reward)
        except MisfitError as error:
            raise self._fault(slot, episode, str(error), "reward") from None

    def _read_truth(self, name: str, value: object, slot: int, episode: int) -> bool:
        try:
            return read_truth(name, value)
        except MisfitError as error:
            raise self._fault(slot, episode, str(error), name) from None

    def _read_info(self, info: Any, episode: int) -> dict[str, float]:
        """Numbers in the final `info` of an episode; the first episode must have all `env.info_keys`."""
        found = {key: read_number(info[key]) for key in self._info_keys if key in info}
        numbers = {key: number for key, number in found.items() if number is not None}
        missing = [key for key in self.settings.info_keys if key not in numbers]
        if missing and episode == 0:
            known = sorted(str(key) for key, value in info.items() if read_number(value) is not None)
            raise EnvError(
                f"env.info_keys: the info of '{self.settings.name}' has no number '{missing[0]}' at the end of an "
                f"episode{nearest(missing[0], known)}; it has {', '.join(known) or 'none'}"
            )
        return numbers

    def _check_finite(self, slot: int, episode: int) -> None:
        reward, obs = self.reward[slot], self.next_obs[slot]
        if not math.isfinite(reward):
            raise EnvFaultError(
                f"{self._where(slot, episode)}: the reward is {reward}; {_HINT}", "reward", self.indices[slot]
            )
        if not np.isfinite(obs).all():
            index = [int(part) for part in np.argwhere(~np.isfinite(obs))[0]]
            raise EnvFaultError(
                f"{self._where(slot, episode)}: the observation is {obs[tuple(index)]} at {index}; {_HINT}",
                "observation",
                self.indices[slot],
            )

    def replay(self, slot: int, episode: int, action: Array, frame: int = 0) -> float:
        """Rebuild an env from an episode's seed and first frame, and the actions since; the return so far."""
        self.reset(slot, episode, frame=frame)
        env = self.envs[slot]
        score = 0.0
        for one in action:
            self.calls += 1
            try:
                obs, reward, terminated, truncated, _ = env.step(one)
            except BaseException as error:
                self._leave(error, slot, episode)
            self.calls += 1
            self.t[slot] += 1
            score += self._read_reward(reward, slot, episode)
            if terminated or truncated:
                self.reset(slot, episode, is_seeded=False, frame=frame)
                score = 0.0
            else:
                self.obs[slot] = obs
        return score

    def close(self) -> None:
        """Release the envs."""
        if not self.is_hung:
            close_envs(self.envs, self.settings.name, self.render_mode is not None)


def _is_own(error: BaseException) -> bool:
    """Whether an error was raised by the env's own code, not by what calls it."""
    frames = traceback.walk_tb(error.__traceback__)
    *_, module = (str(frame.f_globals.get("__name__", "")) for frame, _ in frames)
    return module.partition(".")[0] not in ("slm_lab", "gymnasium")


class LocalVecEnv(VecEnv):
    """Envs in this process."""

    def __init__(self, settings: EnvSettings, render_mode: RenderMode | None = None) -> None:
        self.slots = Slots(settings, list(range(settings.num_envs)), render_mode)
        super().__init__(settings, self.slots.facts)
        self.ended_info = self.slots.ended_info

    def _reset(self) -> Array:
        for slot in range(self.num_envs):
            self.slots.reset(slot, int(self.episode[slot]))
        return self.slots.obs.copy()

    def _step(self, action: Array) -> Step:
        slots = self.slots
        # new arrays, since those of a step belong to the caller
        slots.obs, slots.next_obs = np.empty_like(slots.obs), np.empty_like(slots.obs)
        slots.reward = np.empty_like(slots.reward)
        slots.terminated, slots.truncated, slots.ended = np.empty((3, self.num_envs), bool)
        slots.step(action, self.episode, self.is_seed_due(), (self.num_step + 1) * self.num_envs)
        return Step(slots.obs, slots.next_obs, slots.reward, slots.terminated, slots.truncated, slots.ended)

    def _replay(self, action: list[Array]) -> tuple[Array, Array]:
        begun = zip(self.origin.tolist(), action, self.first_frame.tolist(), strict=True)
        scores = [self.slots.replay(slot, *one) for slot, one in enumerate(begun)]
        return self.slots.obs.copy(), np.array(scores)

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
