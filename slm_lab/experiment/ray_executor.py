"""Run sessions on a Ray cluster; nodes need no shared disk, since the files of a session are sent there and back."""

import logging
import os
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from loguru import logger
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from slm_lab.experiment.executor import STOP_SECONDS, Event, Key, Resources, SessionTask
from slm_lab.experiment.messages import SessionEnd
from slm_lab.experiment.ray_host import Report, SessionHost, check_same_code, describe_code
from slm_lab.experiment.session_files import TransferError, fetch_files, read_files
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.io import lock_file
from slm_lab.lib.runtime import num_cores
from slm_lab.results.folder import RunFolder

# addresses: start Ray on this machine, or use the cluster that it has joined
LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 5.0
# how often a session whose node is lost restarts from its last checkpoint
MAX_RESTART = 3
# with LOCAL; only a few pieces of files are in it at a time
OBJECT_STORE_BYTES = 200_000_000
# a poll of a node returns after this time, even if nothing has happened
ANSWER_SECONDS = 0.5
CLOSE_SECONDS = 5.0
# errors of the machine under a session, not of the session itself
LOST = (RayActorError, NodeDiedError, WorkerCrashedError, ObjectLostError, OutOfMemoryError)

# a generator that yields calls to a node, is sent their results, and returns the end of the session
Steps = Generator[Any, Any, SessionEnd]


@dataclass
class _Remote:
    task: SessionTask
    actor: Any = None
    # and the pending call
    steps: Steps = field(init=False)
    call: Any = None
    has_begun: bool = False
    is_stopping: bool = False
    heard: float = field(default_factory=time.monotonic)


class RayExecutor:
    """Sessions as processes on the nodes of a Ray cluster, one actor for each; Ray chooses the nodes."""

    def __init__(self, address: str, resources: Resources | None = None) -> None:
        self.resources = resources or Resources()
        self.running: dict[Key, _Remote] = {}
        self.events: list[Event] = []
        self.has_warned = False
        self.is_own = address == LOCAL
        # disconnect at the end, unless the caller was connected already
        self.must_leave = not ray.is_initialized()
        if self.must_leave:
            _connect(address)
        self.code = describe_code()
        self.host = ray.remote(SessionHost)

    @property
    def num_slot(self) -> int:
        """How many sessions the nodes that are alive now have room for."""
        needs = {"CPU": self.resources.cpu or 1.0, "GPU": self.resources.gpu}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        rooms = [min(int(node.get(name, 0) / need) for name, need in needs.items() if need) for node in nodes]
        return max(1, sum(rooms))

    def submit(self, task: SessionTask) -> None:
        """Start a session as soon as a node has room for it."""
        self._check_room(task)
        one = _Remote(task)
        one.steps = self._attend(one)
        self.running[task.key] = one
        one.call = next(one.steps)

    def poll(self, timeout: float) -> list[Event]:
        """Wait at most `timeout` seconds for events, and return them."""
        deadline = time.monotonic() + timeout
        while self.running:
            wait = 0.0 if self.events else max(0.0, deadline - time.monotonic())
            calls = {one.call: one for one in self.running.values()}
            if ray.wait(list(calls), timeout=wait)[0]:
                # handle all results that are there, not only the first
                for call in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                    self._advance(calls[call])
            self._give_up_late()
            if self.events or time.monotonic() >= deadline:
                break
        events, self.events = self.events, []
        return events

    def stop(self, key: Key) -> None:
        """Ask a session to save and end; `poll` gives up on it if its node is silent for too long."""
        one = self.running.get(key)
        if one is None or one.is_stopping:
            return
        one.is_stopping = True
        one.heard = time.monotonic()
        if one.has_begun:
            # an actor runs its calls in order, so this one follows the pending one
            one.actor.stop.remote()
        else:
            self._end(one, SessionEnd(one.task.session, error="not started", reason="not started"))

    def close(self) -> None:
        """Kill the running sessions; leave a cluster that the caller had joined as it is."""
        closing = [one.actor.close.remote() for one in self.running.values() if one.has_begun]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for one in list(self.running.values()):
            self._end(one, SessionEnd(one.task.session, error="killed"))
        self.events.clear()
        if self.must_leave:
            ray.shutdown()
            self.must_leave = False

    # --- one session

    def _attend(self, one: _Remote) -> Steps:
        """Run a session, and restart it if its node is lost."""
        task = one.task
        try:
            for restart in range(MAX_RESTART + 1):
                try:
                    return (yield from self._run_once(one))
                except LOST as error:
                    one.has_begun = False
                    reason = _first_line(error)
                    if one.is_stopping:
                        lost = f"its node was lost while it ended: {reason}"
                        return SessionEnd(task.session, error=lost, reason="killed")
                    if restart < MAX_RESTART:
                        logger.warning(
                            f"Session {task.session} of trial {task.trial} has lost its node and starts again from its "
                            f"last checkpoint, {restart + 1} of {MAX_RESTART} times: {reason}"
                        )
            return SessionEnd(task.session, error=f"lost its node {MAX_RESTART + 1} times: {reason}")
        except LabError as error:
            return SessionEnd(task.session, error=str(error), reason="input")
        except (RayError, TransferError, OSError) as error:
            return SessionEnd(task.session, error=f"its node or its files failed: {error}")

    def _run_once(self, one: _Remote) -> Steps:
        task, folder = one.task, RunFolder(one.task.folder, one.task.name)
        actor = one.actor = self.host.options(
            num_cpus=self._cpu(task),
            num_gpus=self.resources.gpu,
            max_restarts=0,
            max_task_retries=0,
            # sessions are long and take memory: one per node before two
            scheduling_strategy="SPREAD",
        ).remote(task)
        try:
            try:
                host, code = yield actor.describe.remote()
            except RayTaskError as error:
                last = str(error).strip().splitlines()[-1]
                raise LabError(
                    f"a Ray node cannot load this lab ({last}); install the same environment on every node"
                ) from None
            check_same_code(self.code, code, host)
            # as a local session does, so that no other process trains it meanwhile
            with lock_file(folder.lock_file(task.trial, task.session), wait=0):
                for name, data in read_files(folder, task.trial, task.session):
                    yield actor.write.remote(name, data)
                one.has_begun = True
                yield actor.begin.remote()
                end = None
                while end is None:
                    report: Report = yield actor.poll.remote(ANSWER_SECONDS)
                    self.events += [Event(task.key, progress=progress) for progress in report.progress]
                    if report.replays is not None:
                        yield from fetch_files(
                            folder, (task.trial, task.session), report.files, report.replays, actor.read.remote
                        )
                    end = report.end
            with suppress(RayError):
                yield actor.close.remote()
            return end
        except (LabError, RayTaskError, TransferError, OSError):
            # the node works; remove the files from it
            with suppress(RayError):
                yield actor.close.remote()
            raise
        finally:
            # any call would start Ray again after a shutdown
            if ray.is_initialized():
                ray.kill(actor)

    # --- all sessions

    def _advance(self, one: _Remote) -> None:
        one.heard = time.monotonic()
        try:
            try:
                answer = ray.get(one.call)
            except RayError as error:
                one.call = one.steps.throw(error)
            else:
                one.call = one.steps.send(answer)
        except StopIteration as stop:
            self._end(one, stop.value)

    def _end(self, one: _Remote, end: SessionEnd) -> None:
        one.steps.close()
        del self.running[one.task.key]
        self.events.append(Event(one.task.key, end=end))

    def _give_up_late(self) -> None:
        """Give up on stopping sessions whose nodes do not answer; nodes that do kill a session that is late."""
        for one in list(self.running.values()):
            if one.is_stopping and time.monotonic() - one.heard > STOP_SECONDS:
                silent = f"its node was silent for {STOP_SECONDS:.0f} seconds"
                self._end(one, SessionEnd(one.task.session, error=silent, reason="killed"))

    def _cpu(self, task: SessionTask) -> float:
        cpu = task.num_threads if self.resources.cpu is None else self.resources.cpu
        # more threads than cores are allowed, as for local processes
        return min(cpu, num_cores()) if self.is_own else cpu

    def _check_room(self, task: SessionTask) -> None:
        """Raise an error or warn if no node has room, since Ray would wait silently."""
        needs = {"CPU": self._cpu(task), "GPU": self.resources.gpu}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= need for name, need in needs.items()) for node in nodes):
            return
        text = f"no Ray node has {needs['CPU']:g} CPU(s) and {needs['GPU']:g} GPU(s), which a session is to have"
        if self.is_own:
            raise LabError(f"{text}; lower meta.search_resources, or give the address of a larger cluster")
        if not self.has_warned:
            self.has_warned = True
            logger.warning(f"{text}: sessions wait until one joins the cluster")


def check_address(address: str) -> None:
    """Reject a wrong address at once; Ray itself would try for minutes."""
    if address in (LOCAL, AUTO):
        return
    if address.startswith("ray://"):
        raise LabError(
            f"--ray-address {address}: Ray's client is not supported; join the cluster with "
            "`ray start --address=HOST:PORT` and give HOST:PORT"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LabError(f"--ray-address {address}: give HOST:PORT, {AUTO} or {LOCAL}{nearest(address, (AUTO, LOCAL))}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise LabError(
            f"--ray-address {address}: no cluster answers there ({error}); start a cluster with `ray start --head`, "
            f"or use {LOCAL}"
        ) from None


def _connect(address: str) -> None:
    check_address(address)
    # opt out of Ray's usage statistics
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL:
        options |= {
            "num_cpus": num_cores(),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    try:
        with _kept_signals():
            ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        raise LabError(
            f"--ray-address {address}: cannot join ({_first_line(error)}); start a cluster with `ray start --head`, "
            f"or use {LOCAL}"
        ) from None


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces: a run has to save first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return textwrap.shorten(f"{type(error).__name__}: {lines[0] if lines else ''}", 160)
