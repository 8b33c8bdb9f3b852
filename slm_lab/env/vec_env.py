"""The batched env contract, and its two implementations: envs in this process, or in worker processes."""

import math
import os
import pickle
import socket
import subprocess
import sys
import traceback
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.env.make import EnvSettings, count_frames, make_env
from slm_lab.env.render import RenderMode, draw
from slm_lab.env.wrapper import ActionMap
from slm_lab.lib.errors import EnvError, WorkerError
from slm_lab.lib.runtime import derive_seed

Array = np.ndarray[Any, Any]
# Actions kept per env for rebuilding its state; an episode longer than this continues only statistically.
MAX_REPLAY = 1_000_000
# frames per second of a video where the env does not say its own
RENDER_FPS = 30.0


class Step(NamedTuple):
    """What one step of all N envs gave; `next_obs` is the true successor, `obs` is what to act on next."""

    obs: Array
    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array

    @property
    def done(self) -> Array:
        """Ended by the task or by the clock."""
        return self.terminated | self.truncated


class Slots:
    """Some of the envs, stepped one after the other and reset as soon as they end."""

    def __init__(self, settings: EnvSettings, indices: list[int], render_mode: RenderMode | None = None) -> None:
        # the first env of all is the one that is shown
        self.envs = [make_env(settings, render_mode if index == 0 else None) for index in indices]
        self.indices = indices
        self.name = settings.name
        self.render_mode = render_mode
        # how the first env looked when its episode ended; None unless it did so in the last step
        self.ended_frame: Array | None = None
        self.seed_key = settings.seed_key
        space = self.envs[0].observation_space
        assert space.shape is not None
        count = len(indices)
        self.obs = np.zeros((count, *space.shape), space.dtype)
        self.next_obs = np.zeros_like(self.obs)
        self.reward = np.zeros(count)
        self.terminated = np.zeros(count, bool)
        self.truncated = np.zeros(count, bool)
        self.is_float = self.obs.dtype.kind == "f"
        # steps of the episode under way, and of the one that the last step belonged to
        self.t = [0] * count
        self.last_t = [0] * count

    def episode_seed(self, slot: int, episode: int) -> int:
        """Every episode of every env starts from a seed of its own."""
        return derive_seed(*self.seed_key, self.indices[slot], episode)

    def reset(self, slot: int, episode: int) -> None:
        """Start an episode."""
        self.t[slot] = 0
        obs = self.envs[slot].reset(seed=self.episode_seed(slot, episode))[0]
        self._check_shape(obs, slot, episode)
        self.obs[slot] = obs
        if self.is_float and not np.isfinite(self.obs[slot]).all():
            raise EnvError(f"{self._where(slot, episode)}: the first observation of an episode is not finite: {obs}")

    def step(self, action: Array, episode: Array) -> None:
        """Step every env; one that ended starts its next episode at once."""
        self.ended_frame = None
        for slot, env in enumerate(self.envs):
            obs, reward, terminated, truncated, _ = env.step(action[slot])
            self.t[slot] += 1
            self.last_t[slot] = self.t[slot]
            self._check_shape(obs, slot, int(episode[slot]))
            self.next_obs[slot] = obs
            self.reward[slot] = reward
            self.terminated[slot] = terminated
            self.truncated[slot] = truncated
            if terminated or truncated:
                if self.render_mode == "rgb_array" and slot == 0:
                    # the reset would wipe it out
                    self.ended_frame = self.render()
                self.reset(slot, int(episode[slot]) + 1)
            else:
                self.obs[slot] = obs
        # once for all envs: 2 us, where each env's own check would cost as much
        if not np.isfinite(self.reward).all() or (self.is_float and not np.isfinite(self.next_obs).all()):
            for slot in range(len(self.envs)):
                self._check_finite(slot, int(episode[slot]))

    def render(self) -> Array:
        """What the first env looks like now."""
        return draw(self.envs[0], self.name)

    def _where(self, slot: int, episode: int) -> str:
        seed = self.episode_seed(slot, episode)
        return f"env {self.indices[slot]}, episode {episode} (seed {seed}), step {self.last_t[slot]}"

    def _check_shape(self, obs: Any, slot: int, episode: int) -> None:
        shape = self.obs.shape[1:]
        # without this a single number would fill the whole row
        if np.shape(obs) != shape:
            where = self._where(slot, episode)
            raise EnvError(f"{where}: the observation has the shape {np.shape(obs)}, the space says {shape}")

    def _check_finite(self, slot: int, episode: int) -> None:
        reward, obs = self.reward[slot], self.next_obs[slot]
        if not math.isfinite(reward):
            raise EnvError(f"{self._where(slot, episode)}: the reward is {reward}; `slm-lab env check` may tell more")
        if not np.isfinite(obs).all():
            index = [int(part) for part in np.argwhere(~np.isfinite(obs))[0]]
            raise EnvError(
                f"{self._where(slot, episode)}: the observation is {obs[tuple(index)]} at {index}; "
                "`slm-lab env check` may tell more"
            )

    def replay(self, slot: int, episode: int, action: Array) -> None:
        """Rebuild the state of an env from its episode's seed and the actions since."""
        self.reset(slot, episode)
        obs: Any = None
        for one in action:
            obs = self.envs[slot].step(one)[0]
        self.t[slot] = len(action)
        if obs is not None:
            self.obs[slot] = obs

    def close(self) -> None:
        """Release the envs."""
        for env in self.envs:
            env.close()


class VecEnv(ABC):
    """N copies of an env stepped together, always batched, with raw scores and exact continuation."""

    def __init__(
        self, settings: EnvSettings, obs_space: spaces.Box, action_space: gym.Space[Any], frame_stack: int
    ) -> None:
        self.settings = settings
        # frames an observation consists of, each of which also belongs to its neighbours
        self.frame_stack = frame_stack
        self.num_envs = settings.num_envs
        self.obs_space = obs_space
        self.action_space = action_space
        self.action_map = ActionMap(action_space)
        self.episode = np.zeros(self.num_envs, np.int64)
        self.score = np.zeros(self.num_envs)
        self.finished: list[float] = []
        self.num_episode = 0
        # Actions of all envs, one entry per step, and where in it each env's episode began.
        self._action_log: list[Array] = []
        self._began = np.zeros(self.num_envs, np.int64)

    @abstractmethod
    def _reset(self) -> Array:
        """Start each env's current episode."""

    @abstractmethod
    def _step(self, action: Array) -> Step:
        """Step each env with an action of its own space."""

    @abstractmethod
    def _replay(self, action: list[Array]) -> Array:
        """Rebuild each env from its episode and the actions since; returns the current observations."""

    @abstractmethod
    def close(self) -> None:
        """Release the envs and their processes."""

    def render(self) -> Array:
        """What the first env looks like now: (height, width, 3), 8 bits; needs `render_mode="rgb_array"`."""
        raise self._no_frame()

    def render_ended(self) -> Array:
        """What the first env looked like when its episode ended in the last step, before it was reset."""
        raise self._no_frame()

    @property
    def render_fps(self) -> float:
        """Frames per second at which the env's own time passes."""
        return RENDER_FPS

    def _no_frame(self) -> EnvError:
        return EnvError(f"'{self.settings.name}' gives no pictures as it runs here ({type(self).__name__})")

    def reset(self) -> Array:
        """Start the first episode of each env."""
        self.episode[:] = 0
        self.score[:] = 0
        self._action_log.clear()
        self._began[:] = 0
        return self._reset()

    def step(self, action: Array) -> Step:
        """Step with actions in the policy's range; arrays of the result belong to the caller."""
        mapped = self.action_map(action)
        self._action_log.append(mapped)
        step = self._step(mapped)
        self.score += step.reward
        done = step.done
        if done.any():
            ended = np.flatnonzero(done)
            self.finished.extend(self.score[ended].tolist())
            self.num_episode += len(ended)
            self.score[ended] = 0
            self.episode[ended] += 1
            self._began[ended] = len(self._action_log)
            self._trim()
        elif len(self._action_log) > MAX_REPLAY + 1000:
            self._trim()
        return step

    def pop_finished(self) -> list[float]:
        """Raw returns of the episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def _trim(self) -> None:
        """Forget actions that no running episode needs."""
        oldest = int(self._began.min())
        cut = max(oldest, len(self._action_log) - MAX_REPLAY)
        # trimming moves the list, so wait until it pays
        if cut > 1000 or cut == len(self._action_log):
            del self._action_log[:cut]
            self._began -= cut

    def state_dict(self) -> dict[str, Any]:
        """Where every env stands: its episode (hence its seed) and the actions since."""
        first = max(int(self._began.min()), 0)
        log = self._action_log[first:]
        return {
            "episode": self.episode.copy(),
            "score": self.score.copy(),
            "num_episode": self.num_episode,
            "finished": list(self.finished),
            "began": self._began - first,
            "action": np.stack(log) if log else np.zeros((0, *self.action_map.shape(self.num_envs))),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Array:
        """Put every env where it stood; returns the current observations."""
        self.episode[:] = state["episode"]
        self.score[:] = state["score"]
        self.num_episode = int(state["num_episode"])
        self.finished = list(state["finished"])
        log = state["action"]
        # an episode longer than the log cannot be rebuilt; the caller sees it by the observations
        self._began[:] = np.maximum(state["began"], 0)
        self._action_log = [row.copy() for row in log]
        return self._replay([log[int(begin) :, index] for index, begin in enumerate(self._began)])


class LocalVecEnv(VecEnv):
    """Envs in this process."""

    def __init__(self, settings: EnvSettings, render_mode: RenderMode | None = None) -> None:
        self.slots = Slots(settings, list(range(settings.num_envs)), render_mode)
        first = self.slots.envs[0]
        super().__init__(settings, as_box(first.observation_space), first.action_space, count_frames(first))

    def _reset(self) -> Array:
        for slot in range(self.num_envs):
            self.slots.reset(slot, int(self.episode[slot]))
        return self.slots.obs.copy()

    def _step(self, action: Array) -> Step:
        slots = self.slots
        slots.step(action, self.episode)
        return Step(
            slots.obs.copy(),
            slots.next_obs.copy(),
            slots.reward.copy(),
            slots.terminated.copy(),
            slots.truncated.copy(),
        )

    def _replay(self, action: list[Array]) -> Array:
        for slot, actions in enumerate(action):
            self.slots.replay(slot, int(self.episode[slot]), actions)
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


class WorkerVecEnv(VecEnv):
    """Envs in worker processes, each with a share of them."""

    def __init__(self, settings: EnvSettings, num_workers: int) -> None:
        self.workers = []
        shares = [list(share) for share in np.array_split(np.arange(settings.num_envs), num_workers)]
        for share in shares:
            self.workers.append(Worker(settings, [int(index) for index in share]))
        # every worker answers once its envs are made
        spaces_of_workers = [worker.receive() for worker in self.workers]
        super().__init__(settings, *spaces_of_workers[0])
        self.shares = [slice(int(share[0]), int(share[-1]) + 1) for share in shares]

    def _ask(self, what: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        for worker, argument in zip(self.workers, arguments, strict=True):
            worker.send((what, *argument))
        return [worker.receive() for worker in self.workers]

    def _reset(self) -> Array:
        return np.concatenate(self._ask("reset", [(self.episode[share],) for share in self.shares]))

    def _step(self, action: Array) -> Step:
        parts = self._ask("step", [(action[share], self.episode[share]) for share in self.shares])
        return Step(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _replay(self, action: list[Array]) -> Array:
        return np.concatenate(self._ask("replay", [(self.episode[share], action[share]) for share in self.shares]))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


class Worker:
    """One process with some of the envs, reached through a socket pair."""

    def __init__(self, settings: EnvSettings, indices: list[int]) -> None:
        ours, theirs = socket.socketpair()
        # An interpreter of its own rather than a fork or a re-import of the user's script: no torch, no main guard.
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from slm_lab.env.vec_env import serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # its own session, so that Ctrl-C reaches only the session, which closes its workers
            start_new_session=True,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.send((settings, indices))

    def send(self, message: Any) -> None:
        """Send a request."""
        try:
            self.connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:
        """The answer; the worker's own error is raised here."""
        try:
            kind, value = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error
        if kind == "user_error":
            raise EnvError(value)
        if kind == "error":
            raise WorkerError(f"an env worker failed:\n{value}")
        return value

    def _death(self) -> WorkerError:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerError(f"env worker {self.process.pid} does not answer")
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(f"env worker {self.process.pid} {cause}")

    def close(self) -> None:
        """Let the process end; it does so when its socket closes."""
        self.connection.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(descriptor: int) -> None:
    """The worker's side: answer requests until the other end closes."""
    connection = Connection(descriptor)
    slots: Slots | None = None
    while True:
        try:
            message = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        try:
            if slots is None:
                slots = Slots(*message)
                first = slots.envs[0]
                reply: Any = (as_box(first.observation_space), first.action_space, count_frames(first))
            else:
                reply = _serve_one(slots, *message)
            answer = ("ok", reply)
        except EnvError as error:
            answer = ("user_error", str(error))
        except Exception:
            answer = ("error", traceback.format_exc())
        connection.send_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
    if slots is not None:
        slots.close()


def _serve_one(slots: Slots, what: str, *arguments: Any) -> Any:
    if what == "reset":
        for slot, episode in enumerate(arguments[0]):
            slots.reset(slot, int(episode))
        return slots.obs
    if what == "replay":
        for slot, (episode, action) in enumerate(zip(*arguments, strict=True)):
            slots.replay(slot, int(episode), action)
        return slots.obs
    slots.step(*arguments)
    return slots.obs, slots.next_obs, slots.reward, slots.terminated, slots.truncated


def as_box(space: gym.Space[Any]) -> spaces.Box:
    """The observation space after flattening is always a Box."""
    assert isinstance(space, spaces.Box), space
    return space


def build_vec_env(settings: EnvSettings, num_workers: int = 0, render_mode: RenderMode | None = None) -> VecEnv:
    """The envs of a session, in this process or in workers; those that are drawn are in this one."""
    if num_workers and render_mode is None:
        return WorkerVecEnv(settings, num_workers)
    return LocalVecEnv(settings, render_mode)
