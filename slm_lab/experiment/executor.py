"""Run sessions: the interface of executors, and the one for local processes, at most one per core."""

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from loguru import logger
from pydantic import TypeAdapter

from slm_lab.experiment.messages import Progress, SessionEnd
from slm_lab.experiment.options import DEFAULTS, Options
from slm_lab.lib.errors import LabError
from slm_lab.lib.parent import child_python_path
from slm_lab.lib.runtime import MEMORY_VARIABLES, num_cores

# A session that is asked to stop and has not saved by then is killed: Docker, for example, gives a command ten seconds.
STOP_SECONDS = 8.0
# time for a session that has reported its result to end what an env or a service has started
END_SECONDS = 60.0
POLL_SECONDS = 0.2

# trial, or run of an experiment, and session
Key = tuple[int, int]


@dataclass(frozen=True)
class SessionTask:
    """Everything a process needs to run one session, as plain data."""

    folder: Path
    name: str
    trial: int
    session: int
    options: Options = DEFAULTS
    console_level: str = "WARNING"
    num_threads: int = 1
    # whether to check the spec first and report notes on it, at the start of a search
    is_probe: bool = False
    # number of the run, if the executor has sessions of several
    run: int | None = None

    @property
    def key(self) -> Key:
        """Identifies the session within the executor."""
        return self.trial if self.run is None else self.run, self.session

    def to_json(self) -> str:
        """As one argument of a command line."""
        return _TASK.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "SessionTask":
        """The inverse of `to_json`."""
        return _TASK.validate_json(text)


_TASK, _END = TypeAdapter(SessionTask), TypeAdapter(SessionEnd)


@dataclass(frozen=True)
class Resources:
    """What a session needs of a cluster; None means one CPU per torch thread."""

    cpu: float | None = None
    gpu: float = 0.0


@dataclass(frozen=True)
class Event:
    """News of a session: its progress, its end, or the notes of a probe."""

    key: Key
    progress: Progress | None = None
    end: SessionEnd | None = None
    notes: list[str] | None = None


class Executor(Protocol):
    """Where sessions run; trials and searches know only this interface."""

    @property
    def num_slot(self) -> int:
        """How many sessions it can run in parallel."""

    def submit(self, task: SessionTask) -> None:
        """Start a session as soon as there is room for it."""

    def poll(self, timeout: float) -> list[Event]:
        """Wait at most `timeout` seconds for events, and return them; the end of a session is its last event."""

    def stop(self, key: Key) -> None:
        """Ask a session to save and end, or keep it from starting; either way its end is reported."""

    def close(self) -> None:
        """Kill the running sessions."""


def load_ray(address: str) -> Any:
    """Import the module for Ray clusters, whose package is optional and slow to import."""
    # set before the import: under `uv run` Ray would send this folder to the nodes and install it there
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        module = importlib.import_module("slm_lab.experiment.ray_executor")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("slm_lab"):
            raise
        raise LabError(
            f"--ray-address {address}: needs the package '{error.name}', which is not installed; install it with: "
            "uv sync --group ray"
        ) from None
    module.check_address(address)
    return module


def check_executor(options: Options) -> None:
    """Raise an error for a cluster that does not answer, before anything is written."""
    if options.ray_address is not None:
        load_ray(options.ray_address)


def build_executor(options: Options, resources: Resources, max_parallel: int | None = None) -> Executor:
    """The executor that the options ask for: a cluster, or this machine with at most `max_parallel` sessions."""
    if options.ray_address is None:
        return LocalExecutor(max_parallel)
    executor: Executor = load_ray(options.ray_address).RayExecutor(options.ray_address, resources)
    return executor


def run_tasks(
    executor: Executor,
    tasks: Sequence[SessionTask],
    on_progress: Callable[[Progress], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[], None] = lambda: None,
    on_end: Callable[[SessionEnd], None] = lambda _: None,
) -> list[SessionEnd]:
    """Run every task to its end; when asked to stop, running sessions save and end, and waiting ones do not start."""
    ends: dict[Key, SessionEnd] = {}
    is_stopping = False
    try:
        for task in tasks:
            executor.submit(task)
        while len(ends) < len(tasks):
            if should_stop() and not is_stopping:
                is_stopping = True
                for task in tasks:
                    executor.stop(task.key)
            for event in executor.poll(POLL_SECONDS):
                if event.progress is not None:
                    on_progress(event.progress)
                if event.end is not None:
                    event.end.ended = time.monotonic()
                    ends[event.key] = event.end
                    on_end(event.end)
            on_idle()
    finally:
        executor.close()
    return [ends[task.key] for task in tasks]


@dataclass
class _Running:
    task: SessionTask
    process: subprocess.Popen[bytes]
    pipe: BinaryIO
    # as reported by the session
    end: SessionEnd | None = None
    # of the pipe: the start of a line that is not complete yet
    rest: bytes = b""
    # when it was asked to stop, and when its pipe was closed
    stopping_since: float | None = None
    closed_since: float | None = None


class LocalExecutor:
    """Sessions as processes of this machine."""

    def __init__(self, max_parallel: int | None = None) -> None:
        self.max_parallel = max_parallel
        self.waiting: list[SessionTask] = []
        self.running: dict[Key, _Running] = {}
        # events that no session reported itself
        self.own_events: list[Event] = []
        self.selector = selectors.DefaultSelector()

    @property
    def num_slot(self) -> int:
        """How many sessions of one thread it can run in parallel."""
        return self.max_parallel or num_cores()

    def submit(self, task: SessionTask) -> None:
        """Start a session as soon as there is a core for it."""
        self.waiting.append(task)
        self._fill()

    def poll(self, timeout: float) -> list[Event]:
        """Wait at most `timeout` seconds for events, and return them."""
        self._kill_late()
        events, self.own_events = self.own_events, []
        if not self.running:
            return events
        for key, _ in self.selector.select(0 if events else timeout):
            one: _Running = key.data
            if not _read(one, events):
                # do not wait for its end here: threads may delay it, and the other sessions must not wait
                self._close(one)
        # a process that a crashed session forked keeps the pipe open
        for one in [one for one in self.running.values() if not one.pipe.closed and one.process.poll() is not None]:
            while _read(one, events, may_wait=False):
                pass
            self._close(one)
        for one in [one for one in self.running.values() if one.pipe.closed and one.process.poll() is not None]:
            del self.running[one.task.key]
            events.append(Event(one.task.key, end=_end(one)))
        self._fill()
        return events

    def stop(self, key: Key) -> None:
        """Ask a session to save and end; `poll` kills it if it takes too long."""
        for task in [task for task in self.waiting if task.key == key]:
            self.waiting.remove(task)
            self.own_events.append(Event(key, end=SessionEnd(task.session, error="not started", reason="not started")))
        one = self.running.get(key)
        if one is not None and one.stopping_since is None:
            one.stopping_since = time.monotonic()
            one.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill the running sessions."""
        for one in self.running.values():
            _kill(one.process)
            one.process.wait()
            one.pipe.close()
        self.running.clear()
        self.selector.close()

    def _fill(self) -> None:
        while self.waiting:
            task = self.waiting[0]
            if len(self.running) >= (self.max_parallel or max(1, num_cores() // task.num_threads)):
                return
            one = _start(self.waiting.pop(0))
            self.running[task.key] = one
            # the session itself needs seconds before it can report this
            self.own_events.append(Event(task.key, progress=Progress(task.session, what="starting")))
            self.selector.register(one.pipe, selectors.EVENT_READ, one)

    def _close(self, one: _Running) -> None:
        self.selector.unregister(one.pipe)
        one.pipe.close()
        one.closed_since = time.monotonic()

    def _kill_late(self) -> None:
        now = time.monotonic()
        for one in self.running.values():
            if one.stopping_since is not None and now - one.stopping_since > STOP_SECONDS:
                _kill(one.process)
            elif one.closed_since is not None and now - one.closed_since > END_SECONDS and one.process.poll() is None:
                logger.warning(f"Session {one.task.session} is done, does not end, and is killed")
                _kill(one.process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a session and the processes that it started, such as compilers, by their process group."""
    if process.poll() is None:
        # it may have ended in between
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _start(task: SessionTask) -> _Running:
    read_end, write_end = os.pipe()
    threads = str(task.num_threads)
    process = subprocess.Popen(
        # with the id of its parent: the session can notice even that the parent was killed while it was loading
        [sys.executable, "-m", "slm_lab.experiment.worker", task.to_json(), str(write_end), str(os.getpid())],
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        env={
            **MEMORY_VARIABLES,
            **os.environ,
            # libraries read these once, at import
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONPATH": child_python_path(),
        },
        # in its own process group: Ctrl-C reaches only the parent, which passes it on once
        start_new_session=True,
    )
    os.close(write_end)
    return _Running(task, process, os.fdopen(read_end, "rb", buffering=0))


def _read(one: _Running, events: list[Event], may_wait: bool = True) -> bool:
    """Add the reports of a session to the events; False at the end of its pipe, or if nothing is there."""
    if not may_wait:
        os.set_blocking(one.pipe.fileno(), False)
    data = one.pipe.read(65536)
    if not data:
        return False
    *lines, one.rest = (one.rest + data).split(b"\n")
    for line in lines:
        kind, content = json.loads(line)
        if kind == "progress":
            events.append(Event(one.task.key, progress=Progress(**content)))
        elif kind == "notes":
            events.append(Event(one.task.key, notes=content))
        else:
            one.end = _END.validate_python(content)
    return True


def _end(one: _Running) -> SessionEnd:
    code = one.process.wait()
    if one.end is not None:
        return one.end
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    # a session that is still loading dies of SIGTERM, which a batch system may send before we do
    is_killed = code == -signal.SIGTERM or (code == -signal.SIGKILL and one.stopping_since is not None)
    error = f"the process of session {one.task.session} {how}"
    return SessionEnd(one.task.session, error=error, reason="killed" if is_killed else "failed")
