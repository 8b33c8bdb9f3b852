"""Envs in worker processes, each with a share of them."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from slm_lab.env.local import Slots
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import Array, Step, VecEnv
from slm_lab.lib.errors import EnvError, EnvFaultError, LabError, WorkerDeathError, WorkerError
from slm_lab.lib.runtime import import_modules


class WorkerVecEnv(VecEnv):
    """Envs in worker processes, each with a share of them."""

    is_remote = True

    def __init__(self, settings: EnvSettings, num_workers: int) -> None:
        self.workers: list[Worker] = []
        shares = [list(share) for share in np.array_split(np.arange(settings.num_envs), num_workers)]
        try:
            for share in shares:
                self.workers.append(Worker(settings, [int(index) for index in share]))
            # every worker answers once its envs are made
            facts = [worker.receive() for worker in self.workers]
        except BaseException:
            self.close()
            raise
        super().__init__(settings, facts[0])
        self.shares = [slice(int(share[0]), int(share[-1]) + 1) for share in shares]

    def _ask(self, what: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        for worker, argument in zip(self.workers, arguments, strict=True):
            worker.send((what, *argument))
        return [worker.receive() for worker in self.workers]

    def _reset(self) -> Array:
        return np.concatenate(self._ask("reset", [(self.episode[share],) for share in self.shares]))

    def _step(self, action: Array) -> Step:
        due = self.is_seed_due()
        parts = self._ask("step", [(action[share], self.episode[share], due[share]) for share in self.shares])
        return Step(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _replay(self, action: list[Array]) -> Array:
        return np.concatenate(self._ask("replay", [(self.origin[share], action[share]) for share in self.shares]))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


class Worker:
    """One process with some of the envs, reached through a socket pair."""

    def __init__(self, settings: EnvSettings, indices: list[int]) -> None:
        ours, theirs = socket.socketpair()
        # An interpreter of its own rather than a fork or a re-import of the user's script: no torch, no main guard.
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from slm_lab.env.worker import serve; serve({theirs.fileno()})"],
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
        if kind == "fault":
            raise value
        if kind == "user_error":
            raise EnvError(value)
        if kind == "error":
            raise WorkerError(f"an env worker failed:\n{value}")
        return value

    def _death(self) -> WorkerDeathError:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerDeathError(f"env worker {self.process.pid} does not answer")
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerDeathError(f"env worker {self.process.pid} {cause}")

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
    _outlive_the_session()
    connection = Connection(descriptor)
    slots: Slots | None = None
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
                reply: Any = slots.facts
            else:
                reply = _serve_one(slots, *message)
            answer: tuple[str, Any] = ("ok", reply)
        except EnvFaultError as error:
            answer = ("fault", error)
        except LabError as error:
            answer = ("user_error", str(error))
        except Exception:
            answer = ("error", traceback.format_exc())
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError:
            break  # no one is there any more
    if slots is not None:
        slots.close()


def _outlive_the_session() -> None:
    """Stay when all processes of a run are told to end: the session saves first, then closes the socket.

    A handler, since programs that an env starts would inherit that a signal is ignored. Forks inherit the handler.
    """
    session = os.getppid()

    def handle(*_: object) -> None:
        if os.getppid() != session:
            sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, handle)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


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
    return slots.obs, slots.next_obs, slots.reward, slots.terminated, slots.truncated, slots.ended
