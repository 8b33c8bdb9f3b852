"""Envs in worker processes, each with a share of them."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from slm_lab.env.keeper import KILL
from slm_lab.env.local import Slots
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.env.watch import CLOSE_SECONDS, Watchdog, Watched, watch
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvExitError, EnvHangError, LabError, WorkerDeathError, WorkerError
from slm_lab.lib.parent import child_python_path
from slm_lab.lib.runtime import import_modules

# time for a worker to answer, apart from its envs
_ANSWER_SECONDS = 2.0


class WorkerVecEnv(VecEnv):
    """Envs in worker processes, each with a share of them."""

    is_remote = True

    def __init__(self, settings: EnvSettings, num_workers: int) -> None:
        self.workers: list[Worker] = []
        shares = [list(share) for share in np.array_split(np.arange(settings.num_envs), num_workers)]
        self.shares = [slice(int(share[0]), int(share[-1]) + 1) for share in shares]
        self.episode = np.zeros(settings.num_envs, np.int64)
        # making envs is a call too, without a time limit
        self.calls, self.limit = 1, 0.0
        self.at = 0
        self.hang: EnvHangError | None = None
        watch(self)
        try:
            for share in shares:
                self.workers.append(Worker((settings, [int(index) for index in share])))
            # every worker answers once its envs are made
            facts = self._receive()
        except BaseException:
            self.close()
            raise
        super().__init__(settings, facts[0])
        # later than the limit within a worker, which can name the env that hangs, unless that env blocks Python itself
        self.limit = settings.step_timeout and settings.step_timeout + _ANSWER_SECONDS

    def describe_call(self) -> str:
        """The envs of the worker of the current call."""
        share = self.shares[self.at]
        episodes = ", ".join(str(episode) for episode in self.episode[share])
        pid = self.workers[self.at].process.pid
        return f"env worker {pid} (envs {share.start} to {share.stop - 1}, episodes {episodes})"

    def interrupt(self, error: EnvHangError) -> bool:
        """Kill the workers, so that the call fails."""
        self.hang = error
        for worker in self.workers:
            worker.kill()
        return True

    def _ask(self, what: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        # a replay may take long; the worker itself watches its steps
        self.calls += what != "replay"
        for worker, argument in zip(self.workers, arguments, strict=True):
            worker.send((what, *argument))
        return self._receive()

    def _receive(self) -> list[Any]:
        """The answers of all workers, which complete the call."""
        replies = []
        try:
            for index, worker in enumerate(self.workers):
                self.at = index
                replies.append(worker.receive())
        except WorkerDeathError as error:
            raise self.hang or error from None
        finally:
            self.calls += self.calls % 2
        return replies

    def _reset(self) -> Array:
        return np.concatenate(self._ask("reset", [(self.episode[share],) for share in self.shares]))

    def _step(self, action: Array) -> Step:
        due = self.is_seed_due()
        frame = (self.num_step + 1) * self.num_envs
        parts = self._ask("step", [(action[share], self.episode[share], due[share], frame) for share in self.shares])
        *columns, infos = zip(*parts, strict=True)
        for info in infos:
            self.ended_info.update(info)
        return Step(*(np.concatenate(column) for column in columns))

    def _replay(self, action: list[Array]) -> tuple[Array, Array]:
        begun = self.origin, action, self.first_frame
        parts = self._ask("replay", [tuple(part[share] for part in begun) for share in self.shares])
        obs, score = (np.concatenate(column) for column in zip(*parts, strict=True))
        return obs, score

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()
        # one deadline for all of them
        deadline = time.monotonic() + CLOSE_SECONDS + _ANSWER_SECONDS
        for worker in self.workers:
            worker.close(deadline)


class Worker:
    """One process that serves requests, reached through a socket pair; by default those of `serve` below."""

    def __init__(self, request: Any, module: str = __name__) -> None:
        ours, theirs = socket.socketpair()
        # a new interpreter, not a fork or a re-import of the user's script: it needs no torch and no main guard
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c"),
                f"from slm_lab.env.keeper import main; main({module!r}, {theirs.fileno()}, {os.getpid()})",
            ],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": child_python_path()},
            # in a new process group, so that Ctrl-C reaches only the session, which closes its workers
            start_new_session=True,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.send(request)

    def send(self, message: object) -> None:
        """Send a request."""
        try:
            self.connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:
        """The answer; the worker's own error is raised here."""
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _death(self) -> WorkerDeathError:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerDeathError(f"env worker {self.process.pid} does not answer")
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerDeathError(f"env worker {self.process.pid} {cause}")

    def kill(self) -> None:
        """End the process and its child processes."""
        with suppress(ProcessLookupError):
            self.process.send_signal(KILL)

    def close(self, deadline: float) -> None:
        """Wait for the process to end, as it does when its socket closes; kill it if it is late."""
        try:
            self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()


def serve(descriptor: int) -> None:
    """The worker's side: answer requests until the other end closes."""
    _outlive_the_session()
    connection = Connection(descriptor)
    slots: Slots | None = None

    def on_tick(waiting: list[tuple[Watched, float]]) -> None:
        for envs, seconds in waiting:
            if envs.limit and seconds >= envs.limit:
                # answer here, because the main thread is waiting for the env; the session ends this process
                text = f"{envs.describe_call()}: no answer for {seconds:g} s (env.step_timeout)"
                send_answer(connection, EnvHangError(text))

    with Watchdog(on_tick):
        while True:
            try:
                message = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                break
            try:
                if slots is None:
                    settings, indices = message
                    import_modules(settings.imports)
                    slots = Slots(settings, indices)
                    answer: object = slots.facts
                else:
                    answer = _serve_one(slots, *message)
            except (LabError, EnvExitError) as error:
                answer = error
            except Exception:
                answer = WorkerError(f"an env worker failed:\n{traceback.format_exc()}")
            if not send_answer(connection, answer):
                break
    if slots is not None:
        slots.close()


def send_answer(connection: Connection, answer: object) -> bool:
    """Send what `Worker.receive` returns, or the error that it raises; False if the other end is gone."""
    try:
        connection.send_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
    except OSError:
        return False
    return True


def _outlive_the_session() -> None:
    """Ignore SIGTERM to all processes of a run: the session saves first, then closes the socket.

    By a handler, since programs that an env starts would inherit an ignored signal. Forks inherit the handler, so they
    restore the default.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def restore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=restore)


def _serve_one(slots: Slots, what: str, *arguments: Any) -> Any:
    if what == "reset":
        for slot, episode in enumerate(arguments[0]):
            slots.reset(slot, int(episode))
        return slots.obs
    if what == "replay":
        scores = [
            slots.replay(slot, int(episode), part, int(frame))
            for slot, (episode, part, frame) in enumerate(zip(*arguments, strict=True))
        ]
        return slots.obs, np.array(scores)
    slots.ended_info.clear()
    slots.step(*arguments)
    return (
        *(slots.obs, slots.next_obs, slots.reward, slots.terminated, slots.truncated, slots.ended),
        slots.ended_info,
    )
