"""The interface of batched envs, and the state from which any backend resumes exactly."""

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces
from loguru import logger

from slm_lab.env.gym_types import GymSpace
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.make import EnvFacts, EnvSettings
from slm_lab.env.mask import sample_allowed
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.errors import EnvError, EnvFaultError
from slm_lab.lib.runtime import derive_seed

if TYPE_CHECKING:
    # workers that step envs do not load torch
    from torch import Tensor

# a simulator on a GPU keeps observations there
Obs: TypeAlias = "Array | Tensor"
# actions kept per env to rebuild its state; a longer episode resumes only statistically
MAX_REPLAY = 1_000_000
# trim the list of actions only this often, because it moves the whole list
_TRIM_EVERY = 1000
# warn about an episode of this length, which may never end; the longest known games have 27,000 steps (frameskip 4)
ENDLESS = 100_000
# a common key of `info` in goal envs, at the end of an episode
SUCCESS = "is_success"
# frames per second of a video, if the env does not define its own
RENDER_FPS = 30.0
# larger bounds mean "no bound": some envs use the largest number for it, and so does gymnasium for integers
_NO_BOUND = 1e30
_NO_WHOLE_BOUND = 2.0**31 - 1


class Step(NamedTuple):
    """The result of one step of all N envs; `next_obs` is the true successor, `obs` is what to act on next.

    `terminated` and `truncated` are for learning; `ended` tells which envs began a new episode. They differ when a lost
    life counts as an end although the game continues.
    """

    obs: Obs
    next_obs: Obs
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array

    @property
    def done(self) -> Array:
        """Ended for learning, by the task or by a time limit."""
        return self.terminated | self.truncated


class Episode(NamedTuple):
    """An episode that has ended."""

    env: int
    # the sum of its raw rewards
    total_reward: float
    length: int
    # numbers of its last step's `info`
    info: dict[str, float]


def calc_episode_seed(settings: EnvSettings, index: int, episode: int) -> int:
    """Every episode of every env has its own seed."""
    return derive_seed(*settings.seed_key, index, episode)


def to_host(obs: Obs) -> Array:
    """Observations as a numpy array."""
    return obs if isinstance(obs, np.ndarray) else obs.cpu().numpy()


class ActionMap:
    """Scales Box actions from the policy's [-1, 1] to the env's bounds and clips them; others stay unchanged."""

    def __init__(self, space: GymSpace) -> None:
        self.space = space
        self.shape: tuple[int, ...] = space.shape or ()
        # added to choices that do not start at 0
        self.start: Any = None
        if 0 in (space.shape or ()):
            raise EnvError(f"env.name: actions of {space} have no number to choose")
        if isinstance(space, spaces.Box):
            self.is_whole = np.issubdtype(space.dtype, np.integer)
            has_low, has_high = _find_bounds(space, self.is_whole)
            low, high = _calc_range(space, self.is_whole, has_low, has_high)
            self.scale = (high - low) / 2
            self.center = (high + low) / 2
            # the policy's actions at the env's bounds, in one row
            self.low, self.high = np.where(has_low, -1, -np.inf).ravel(), np.where(has_high, 1, np.inf).ravel()
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.start = space.start if np.any(space.start) else None
        elif isinstance(space, HybridSpace):
            self.parts = [(place, ActionMap(leaf)) for place, leaf in zip(space.slices, space.leaves, strict=True)]
        elif not isinstance(space, spaces.MultiBinary):
            raise EnvError(f"env.name: actions of {type(space).__name__} are not supported")

    def __call__(self, action: Array) -> Array:
        """Actions (N, ...) of the policy as actions of the env."""
        action = action.reshape(len(action), *self.shape)
        if isinstance(self.space, spaces.Box):
            scaled = action * self.scale + self.center
            if self.is_whole:
                scaled = np.rint(scaled)
            return np.clip(scaled, self.space.low, self.space.high).astype(self.space.dtype, copy=False)
        mapped = action.astype(self.space.dtype)
        if isinstance(self.space, HybridSpace):
            for place, part in self.parts:
                mapped[:, place] = part(action[:, place]).reshape(len(action), -1)
            return mapped
        return mapped if self.start is None else mapped + self.start

    def limit(self, action: Array) -> Array:
        """Actions (N, ...) of the policy, clipped as the env clips them at its bounds."""
        if isinstance(self.space, spaces.Box):
            return np.clip(action, self.low, self.high).astype(action.dtype)
        if isinstance(self.space, HybridSpace):
            parts = [part.limit(action[:, place]) for place, part in self.parts]
            return np.concatenate(parts, 1)
        return action

    def undo(self, action: Array) -> Array:
        """The inverse: actions (N, ...) of the env as those of a policy, in rows."""
        if isinstance(self.space, spaces.Box):
            scaled = ((action - self.center) / self.scale).reshape(len(action), -1)
            return self.limit(scaled).astype(np.float32)
        if isinstance(self.space, HybridSpace):
            raise EnvError(f"env.name: actions of {type(self.space).__name__} cannot be undone")
        return (action if self.start is None else action - self.start).astype(np.int64)


def _find_bounds(space: spaces.Box, is_whole: bool) -> tuple[Array, Array]:
    """Which numbers of an action have a lower and an upper bound."""
    no_bound = _NO_WHOLE_BOUND if is_whole else _NO_BOUND
    low, high = (np.abs(bound.astype(np.float64)) < no_bound for bound in (space.low, space.high))
    return low, high


def _calc_range(space: spaces.Box, is_whole: bool, has_low: Array, has_high: Array) -> tuple[Array, Array]:
    """The values of the policy's -1 and 1: the bounds, or the policy's own scale if one is missing.

    With one bound, the scale begins there. If it were centred at 0, all of it might lie beyond the bound.
    """
    dtype = np.float64 if is_whole else space.dtype
    low, high = space.low.astype(dtype), space.high.astype(dtype)
    start = np.where(has_low, low, np.where(has_high, high - 2.0, -1.0))
    return start, np.where(has_high, high, np.where(has_low, low + 2.0, 1.0))


class VecEnv(ABC):
    """N copies of an env stepped together, always batched, with raw scores and exact resume."""

    # whether other processes step the envs, which may die
    is_remote = False
    # whether the envs of a stopped run are rebuilt from seeds and actions
    is_exact = True

    def __init__(self, settings: EnvSettings, facts: EnvFacts) -> None:
        self.settings = settings
        self.num_envs = settings.num_envs
        self.facts = facts
        self.obs_space = facts.obs_space
        self.action_space = facts.action_space
        self.action_map = ActionMap(facts.action_space)
        self.episode = np.zeros(self.num_envs, np.int64)
        # the last episode of each env that started from a seed
        self.origin = np.zeros(self.num_envs, np.int64)
        self.score = np.zeros(self.num_envs)
        self.finished: list[Episode] = []
        self.num_episode = 0
        # steps since the first reset, and how many there were when each env's episode began
        self.num_step = 0
        self._first_step = np.zeros(self.num_envs, np.int64)
        # final `info` of episodes that ended in the last step, by env; not all backends fill it
        self.ended_info: dict[int, dict[str, float]] = {}
        # actions of all envs, one entry per step, and the index at which each env's last seeded episode began
        self._action_log: list[Array] = []
        self._began = np.zeros(self.num_envs, np.int64)
        self._all = np.ones(self.num_envs, bool)
        # whether rebuilt episodes have the same returns as before: observations may not show a difference
        self.has_same_return = True

    @abstractmethod
    def _reset(self) -> Obs:
        """Start each env's current episode."""

    @abstractmethod
    def _step(self, action: Array) -> Step:
        """Step each env with an action of its own space."""

    @abstractmethod
    def _replay(self, action: list[Array]) -> tuple[Obs, Array | None]:
        """Rebuild each env from its `origin` and the actions since; gives observations, and returns so far if known."""

    @abstractmethod
    def close(self) -> None:
        """Release the envs and their processes."""

    def render(self) -> Array:
        """The first env as an image: (height, width, 3), 8 bits; needs `render_mode="rgb_array"`."""
        raise self._no_frame()

    def render_ended(self) -> Array:
        """The first env as an image at the end of its episode, before the reset in the last step."""
        raise self._no_frame()

    @property
    def render_fps(self) -> float:
        """Frames per second for real-time playback."""
        return RENDER_FPS

    def _no_frame(self) -> EnvError:
        return EnvError(f"'{self.settings.name}' gives no pictures as it runs here ({type(self).__name__})")

    def reset(self) -> Obs:
        """Start the first episode of each env."""
        self.episode[:] = 0
        self.origin[:] = 0
        self.score[:] = 0
        self.num_step = 0
        self._first_step[:] = 0
        self.ended_info.clear()
        self._action_log.clear()
        self._began[:] = 0
        try:
            return self._reset()
        except EnvFaultError as fault:
            fault.record = self._describe_fault(fault.env)
            raise

    def step(self, action: Array) -> Step:
        """Step with actions in the policy's range; arrays of the result belong to the caller."""
        mapped = self.action_map(action)
        self._action_log.append(mapped)
        try:
            step = self._step(mapped)
        except BaseException as error:
            if isinstance(error, EnvFaultError):
                error.record = self._describe_fault(error.env)
            # a failed step must not be replayed
            self._action_log.pop()
            raise
        self.num_step += 1
        self.score += step.reward
        if np.count_nonzero(step.ended):
            ended = np.flatnonzero(step.ended)
            lengths = self.num_step - self._first_step[ended]
            for index, score, length in zip(ended.tolist(), self.score[ended].tolist(), lengths.tolist(), strict=True):
                self.finished.append(Episode(index, score, length, self.ended_info.pop(index, {})))
            self._first_step[ended] = self.num_step
            self.num_episode += len(ended)
            self.score[ended] = 0
            self.episode[ended] += 1
            seeded = ended[self.is_seed_due()[ended]]
            self.origin[seeded] = self.episode[seeded]
            self._began[seeded] = len(self._action_log)
            self._trim()
        elif len(self._action_log) > MAX_REPLAY + _TRIM_EVERY:
            self._trim()
        if len(self._action_log) == ENDLESS:
            self._warn_endless()
        return step

    def _warn_endless(self) -> None:
        index = int(self._began.argmin())
        episode = int(self.episode[index])
        logger.warning(
            f"env {index}, episode {episode} (seed {self.episode_seed(index, episode)}), step "
            f"{len(self._action_log) - self._began[index]:,} since its seed: not ended yet. Scores count whole "
            "episodes: if this env never ends, set env.max_t"
        )

    @property
    def first_frame(self) -> Array:
        """The frame at which each env's episode began (N,)."""
        return self._first_step * self.num_envs

    def is_seed_due(self) -> Array:
        """Whether an episode of each env (N,) would start from a seed now."""
        interval = self.facts.seed_interval
        return len(self._action_log) - self._began >= interval if interval else self._all

    def episode_seed(self, index: int, episode: int) -> int:
        """The seed of an episode of an env."""
        return calc_episode_seed(self.settings, index, episode)

    def _describe_fault(self, index: int) -> dict[str, Any]:
        """What is needed to repeat the current step of one env, or the start of its first episode."""
        began, settings = int(self._began[index]), self.settings
        return {
            "name": settings.name,
            "kwargs": settings.calc_kwargs(int(self.first_frame[index])),
            "wrappers": [wrapper.model_dump() for wrapper in settings.wrappers],
            "is_masked": settings.is_masked,
            "max_t": settings.max_t,
            "seed_key": list(settings.seed_key),
            "index": index,
            "episode": int(self.episode[index]),
            "origin": int(self.origin[index]),
            "is_seed_due": bool(self.is_seed_due()[index]),
            # the last action is that of the current step
            "action": np.array([action[index] for action in self._action_log[max(began, 0) :]]),
            # an episode longer than the log cannot be rebuilt
            "is_exact": self.is_exact and began >= 0,
        }

    def measure(self, seconds: float) -> float:
        """Seconds per step of all envs with random actions; reset the envs before any other use."""
        self.action_space.seed(0)
        obs = self.reset()
        actions = [self._sample(obs) for _ in range(16)]
        obs = self._step(actions[0]).obs
        num_step, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds or num_step < 5:
            is_masked = self.facts.mask is not None
            obs = self._step(self._sample(obs) if is_masked else actions[num_step % len(actions)]).obs
            num_step += 1
        return spent / num_step

    def try_episode(self, max_step: int = 1000) -> None:
        """Play an episode with random actions, at most `max_step` steps of it, to find mistakes of an env early."""
        self.action_space.seed(0)
        obs = self.reset()
        for _ in range(max_step):
            step = self._step(self._sample(obs))
            if step.ended.any():
                break
            obs = step.obs

    def _sample(self, obs: Obs) -> Array:
        """Random actions of the env's own space, among those that are allowed."""
        mask, space = self.facts.mask, self.action_space
        allowed = [None] * self.num_envs if mask is None else to_host(obs)[:, mask.start :] > 0
        return np.stack([sample_allowed(space, row) for row in allowed])

    def _align(self, action: list[Array], long: int = 1000) -> tuple[Array, Array]:
        """Actions (T, N, ...) to replay, aligned at the end, and their number for each env.

        A replay of more than `long` actions takes some seconds and is logged.
        """
        lengths = np.array([len(part) for part in action])
        longest = int(lengths.max())
        if longest > long:
            logger.info(f"Rebuilding {self.num_envs} envs from up to {longest:,} actions each")
        log = np.zeros((longest, self.num_envs, *self.action_map.shape), self.action_space.dtype)
        for index, part in enumerate(action):
            log[longest - len(part) :, index] = part
        return log, lengths

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def pop_finished(self) -> list[float]:
        """Raw returns of the episodes that ended since the last call."""
        return [episode.total_reward for episode in self.pop_episodes()]

    def _trim(self) -> None:
        """Forget actions that no running episode needs."""
        oldest = int(self._began.min())
        cut = max(oldest, len(self._action_log) - MAX_REPLAY)
        if cut > _TRIM_EVERY or cut == len(self._action_log):
            del self._action_log[:cut]
            self._began -= cut

    def state_dict(self) -> State:
        """The state of every env: its last seeded episode and the actions since."""
        first = max(int(self._began.min()), 0)
        log = self._action_log[first:]
        return {
            "episode": self.episode.copy(),
            "origin": self.origin.copy(),
            "score": self.score.copy(),
            "num_episode": self.num_episode,
            "finished": [episode._asdict() for episode in self.finished],
            "num_step": self.num_step,
            "length": self.num_step - self._first_step,
            "began": self._began - first,
            "action": np.stack(log) if log else np.zeros((0, self.num_envs, *self.action_map.shape)),
        }

    def load_state_dict(self, state: State) -> Obs:
        """Restore the state of every env; returns the current observations."""
        self.episode[:] = state["episode"]
        self.origin[:] = state["origin"]
        self.score[:] = state["score"]
        self.num_episode = int(state["num_episode"])
        self.finished = [
            Episode(int(one["env"]), float(one["total_reward"]), int(one["length"]), dict(one["info"]))
            for one in state["finished"]
        ]
        self.num_step = int(state["num_step"])
        self._first_step[:] = self.num_step - np.asarray(state["length"])
        log, began = state["action"], np.asarray(state["began"])
        if log.shape[1:] != (self.num_envs, *self.action_map.shape) or began.shape != (self.num_envs,):
            raise ValueError("its actions are for another number of envs")
        if len(log) > MAX_REPLAY + _TRIM_EVERY or (began > len(log)).any():
            raise ValueError(f"it holds {len(log):,} actions per env; at most {MAX_REPLAY:,} are kept")
        # an episode longer than the log cannot be rebuilt, which the caller notices from the observations
        self._began[:] = np.maximum(began, 0)
        self._action_log = [row.copy() for row in log]
        obs, score = self._replay([log[int(begin) :, index] for index, begin in enumerate(self._began)])
        self.has_same_return = score is None or np.array_equal(score, self.score)
        return obs
