"""Sessions on a Ray cluster; its nodes share no disk, so the files of a session go there and come back."""

import hashlib
import logging
import os
import platform
import shutil
import signal
import socket
import tempfile
import textwrap
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
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

import slm_lab
from slm_lab.experiment.executor import STOP_SECONDS, Event, Key, LocalExecutor, Resources, SessionTask
from slm_lab.experiment.messages import Progress, SessionEnd
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.io import lock_file, move_into_place, temporary_name
from slm_lab.lib.runtime import num_cores
from slm_lab.results.folder import RunFolder, previous_file

# a Ray of our own, and the cluster that this machine has joined
LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 5.0
# a session whose node is lost starts again so often, from its last checkpoint
MAX_RESTART = 3
# of a Ray of our own; it only ever holds a few pieces of files
OBJECT_STORE_BYTES = 200_000_000
CHUNK_BYTES = 8_000_000
# a node answers after so long, even if nothing has happened
ANSWER_SECONDS = 0.5
# tables and logs come back so often; a checkpoint comes at once
SYNC_SECONDS = 2.0
CLOSE_SECONDS = 5.0
SNAPSHOT_TRIES = 20
# folders of a run in which a session writes
FOLDERS = ("info", "model", "log", "video")
# what happens to a session when the machine under it does not work any more; none of it is the session's own doing
LOST = (RayActorError, NodeDiedError, WorkerCrashedError, ObjectLostError, OutOfMemoryError)

# what tells whether a file has changed: its inode, time and size
Mark = tuple[int, int, int]
# calls of a node, one after the other, and how the session ended
Steps = Generator[Any, Any, SessionEnd]


class TransferError(Exception):
    """A node has sent what is no file of its session."""


@dataclass(frozen=True)
class SentFile:
    """A file that a node has ready to be read."""

    name: str
    size: int


@dataclass(frozen=True)
class Report:
    """What has happened on a node since the last one."""

    progress: list[Progress]
    end: SessionEnd | None
    files: list[SentFile]
    # every replay file there is, so that others can be deleted; None if nobody has looked
    replays: frozenset[str] | None


def is_session_file(name: str, prefix: str) -> bool:
    """Whether a name, relative to the run folder, is that of a file of this session; never one outside the folder."""
    parts = name.split("/")
    if len(parts) not in (2, 3) or parts[0] not in FOLDERS:
        return False
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        return False
    if len(parts) == 3:
        # TensorBoard has a folder of its own
        return parts[1] == prefix
    # the next letter tells session 1 from session 10
    return parts[1].startswith((f"{prefix}_", f"{prefix}."))


def list_files(folder: Path, prefix: str) -> dict[str, Mark]:
    """The files of a session in a run folder, by their names relative to it."""
    found = {}
    for top in FOLDERS:
        for path in (folder / top).rglob("*"):
            name = path.relative_to(folder).as_posix()
            if is_session_file(name, prefix) and (mark := mark_of(path)) is not None and path.is_file():
                found[name] = mark
    return found


def mark_of(path: Path) -> Mark | None:
    """What to compare; None where there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def describe_code() -> dict[str, str]:
    """What must be the same on every machine for results to be the same."""
    digest = hashlib.sha256()
    root = Path(slm_lab.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return {
        "python": platform.python_version(),
        # builds for CPUs and for GPUs have the same version, but for what follows the plus
        "torch": metadata.version("torch").partition("+")[0],
        "slm_lab": f"{metadata.version('slm-lab')} with code {digest.hexdigest()[:12]}",
    }


def check_same_code(here: dict[str, str], there: dict[str, str], host: str) -> None:
    """Refuse a node whose software would give other results."""
    differ = [f"{name} is {there.get(name)} there and {here[name]} here" for name in here if here[name] != there[name]]
    if differ:
        raise LabError(f"Ray node {host}: {', '.join(differ)}; install the same environment on every node")


class SessionHost:
    """The far end, an actor of Ray: one session in a process of its own, and its files in a temporary folder."""

    def __init__(self, task: SessionTask) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="slm_lab_"))
        self.task = replace(task, folder=self.home / "run")
        self.folder = RunFolder(self.task.folder, task.name)
        self.prefix = self.folder.session_prefix(task.trial, task.session)
        self.staging = self.home / "staging"
        self.executor = LocalExecutor(max_parallel=1)
        self.sent: dict[str, Mark] = {}
        self.files: list[SentFile] = []
        self.last_sent = time.monotonic()

    def describe(self) -> tuple[str, dict[str, str]]:
        """Which machine this is, and what it has installed."""
        return socket.gethostname(), describe_code()

    def write(self, name: str, data: bytes) -> None:
        """Take a piece of a file, before the session begins."""
        path = self.folder.path / name
        if path != self.folder.trial_spec_file(self.task.trial) and not is_session_file(name, self.prefix):
            raise TransferError(f"not a file of session {self.task.session}: {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def begin(self) -> None:
        """Start the session."""
        # what has come from the driver need not go back
        self.sent = list_files(self.folder.path, self.prefix)
        self.executor.submit(self.task)

    def poll(self, seconds: float) -> Report:
        """What has happened, and the files that are new; they can be read until the next call."""
        events = self.executor.poll(seconds)
        progress = [event.progress for event in events if event.progress is not None]
        end = next((event.end for event in events if event.end is not None), None)
        resume = self.folder.resume_file(self.task.trial, self.task.session)
        is_saved = mark_of(resume) != self.sent.get(resume.relative_to(self.folder.path).as_posix())
        replays = None
        self.files = []
        if end is not None or is_saved or time.monotonic() - self.last_sent > SYNC_SECONDS:
            replays = self._take_snapshot()
            self.last_sent = time.monotonic()
        return Report(progress, end, self.files, replays)

    def read(self, index: int, offset: int) -> bytes:
        """A piece of a file of the last report."""
        with (self.staging / str(index)).open("rb") as file:
            file.seek(offset)
            # tables grow while they are read: what was not there then belongs to the next report
            return file.read(min(CHUNK_BYTES, self.files[index].size - offset))

    def stop(self) -> None:
        """Let the session save and end."""
        self.executor.stop(self.task.key)

    def close(self) -> None:
        """Leave nothing behind."""
        self.executor.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _take_snapshot(self) -> frozenset[str] | None:
        """Hold on to all files that have changed, by links; the names of all replay files, or None if it failed.

        Files are replaced, never changed, but for tables and logs, which grow. So links are a copy. They belong
        together if no checkpoint was written meanwhile: the session deletes no replay file that its last two
        checkpoints need.
        """
        for _ in range(SNAPSHOT_TRIES):
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir()
            before = self._mark_checkpoints()
            found = list_files(self.folder.path, self.prefix)
            changed = [name for name, mark in found.items() if mark != self.sent.get(name)]
            with suppress(FileNotFoundError):
                marks = {name: self._hold(name, index) for index, name in enumerate(changed)}
                if self._mark_checkpoints() == before:
                    self.sent |= marks
                    self.files = [SentFile(name, mark[2]) for name, mark in marks.items()]
                    return frozenset(name for name in found if is_replay(name, self.prefix))
        # a checkpoint every few milliseconds; there will be a better moment
        return None

    def _hold(self, name: str, index: int) -> Mark:
        link = self.staging / str(index)
        os.link(self.folder.path / name, link)
        mark = mark_of(link)
        assert mark is not None
        return mark

    def _mark_checkpoints(self) -> tuple[Mark | None, Mark | None]:
        last = self.folder.resume_file(self.task.trial, self.task.session)
        return mark_of(last), mark_of(previous_file(last))


def is_replay(name: str, prefix: str) -> bool:
    """Whether a file of a session holds rows of its memory."""
    return name.startswith(f"model/{prefix}_replay-")


@dataclass
class _Remote:
    task: SessionTask
    actor: Any = None
    # the call that is under way, and what to do with its answer
    call: Any = None
    steps: Steps | None = None
    has_begun: bool = False
    is_stopping: bool = False
    heard: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.task.folder, self.task.name)

    @property
    def prefix(self) -> str:
        return self.folder.session_prefix(self.task.trial, self.task.session)


def read_files(one: _Remote) -> Iterator[tuple[str, bytes]]:
    """What a session needs, in pieces."""
    root = one.folder.path
    names = [path.name for path in (one.folder.trial_spec_file(one.task.trial),) if path.exists()]
    for name in [*names, *list_files(root, one.prefix)]:
        with (root / name).open("rb") as file:
            # an empty file is one too
            yield name, file.read(CHUNK_BYTES)
            while data := file.read(CHUNK_BYTES):
                yield name, data


def fetch_files(one: _Remote, files: list[SentFile], replays: frozenset[str]) -> Generator[Any, Any, None]:
    """Bring files back: under other names until all are there, so that a lost node leaves no half of them."""
    root = one.folder.path
    staged: list[tuple[Path, Path]] = []
    try:
        for index, sent in enumerate(files):
            if not is_session_file(sent.name, one.prefix):
                raise TransferError(f"refused {sent.name!r}: not a file of session {one.task.session}")
            path = root / sent.name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(path)
            staged.append((temporary, path))
            with temporary.open("xb") as file:
                while (missing := sent.size - file.tell()) > 0:
                    data = yield one.actor.read.remote(index, file.tell())
                    if not 0 < len(data) <= missing:
                        raise TransferError(f"{sent.name}: {len(data)} bytes came, {missing} were missing")
                    file.write(data)
        resume = one.folder.resume_file(one.task.trial, one.task.session)
        # a checkpoint after the rows it needs, and the last one after the one before it: killed in between, this
        # process leaves a run that continues
        order = {previous_file(resume): 1, resume: 2}
        staged.sort(key=lambda pair: 0 if is_replay(_name(root, pair[1]), one.prefix) else order.get(pair[1], 3))
        while staged:
            move_into_place(*staged[0])
            del staged[0]
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)
    for name in list_files(root, one.prefix):
        if is_replay(name, one.prefix) and name not in replays:
            (root / name).unlink(missing_ok=True)


class RayExecutor:
    """Sessions as processes on the nodes of a Ray cluster, each held by an actor; Ray decides where there is room."""

    def __init__(self, address: str, resources: Resources | None = None) -> None:
        self.resources = resources or Resources()
        self.running: dict[Key, _Remote] = {}
        self.events: list[Event] = []
        self.has_warned = False
        self.is_own = address == LOCAL
        # Ray may be in use by whoever called us
        self.must_leave = not ray.is_initialized()
        if self.must_leave:
            _connect(address)
        self.code = describe_code()
        self.host = ray.remote(SessionHost)

    @property
    def num_slot(self) -> int:
        """How many sessions the nodes have room for; nodes that join later count from then on."""
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
        """What the sessions have told, and how they ended."""
        deadline = time.monotonic() + timeout
        while self.running:
            wait = 0.0 if self.events else max(0.0, deadline - time.monotonic())
            calls = {one.call: one for one in self.running.values()}
            if ray.wait(list(calls), timeout=wait)[0]:
                # whichever else has answered must not wait for its turn
                for call in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                    self._advance(calls[call])
            self._give_up_late()
            if self.events or time.monotonic() >= deadline:
                break
        events, self.events = self.events, []
        return events

    def stop(self, key: Key) -> None:
        """Ask a session to save and end; it is given up when its node is silent for too long."""
        one = self.running.get(key)
        if one is None or one.is_stopping:
            return
        one.is_stopping = True
        one.heard = time.monotonic()
        if one.has_begun:
            # calls of an actor are done in order: this one comes after the one under way
            one.actor.stop.remote()
        else:
            self._end(one, SessionEnd(one.task.session, error="not started", reason="not started"))

    def close(self) -> None:
        """Kill what still runs; a cluster that was there before stays."""
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
        """All that is done for a session, as calls of a node; whoever drives it hands over the answers."""
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
        task, folder = one.task, one.folder
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
            # as a local process would: no other one trains this session meanwhile
            with lock_file(folder.lock_file(task.trial, task.session), wait=0):
                for name, data in read_files(one):
                    yield actor.write.remote(name, data)
                one.has_begun = True
                yield actor.begin.remote()
                end = None
                while end is None:
                    report: Report = yield actor.poll.remote(ANSWER_SECONDS)
                    self.events += [Event(task.key, progress=progress) for progress in report.progress]
                    if report.replays is not None:
                        yield from fetch_files(one, report.files, report.replays)
                    end = report.end
            with suppress(RayError):
                yield actor.close.remote()
            return end
        except (LabError, RayTaskError, TransferError, OSError):
            # the node is well, and should keep nothing
            with suppress(RayError):
                yield actor.close.remote()
            raise
        finally:
            # asked to do anything, a Ray that was left would start again
            if ray.is_initialized():
                ray.kill(actor)

    # --- all sessions

    def _advance(self, one: _Remote) -> None:
        assert one.steps is not None
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
        assert one.steps is not None
        one.steps.close()
        del self.running[one.task.key]
        self.events.append(Event(one.task.key, end=end))

    def _give_up_late(self) -> None:
        """The far end kills a session that does not stop; this is for a far end that does not answer."""
        for one in list(self.running.values()):
            if one.is_stopping and time.monotonic() - one.heard > STOP_SECONDS:
                silent = f"its node was silent for {STOP_SECONDS:.0f} seconds"
                self._end(one, SessionEnd(one.task.session, error=silent, reason="killed"))

    def _cpu(self, task: SessionTask) -> float:
        cpu = task.num_threads if self.resources.cpu is None else self.resources.cpu
        # more threads than cores are slow, yet allowed, as for local processes
        return min(cpu, num_cores()) if self.is_own else cpu

    def _check_room(self, task: SessionTask) -> None:
        """A session that fits on no node would wait without a word."""
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
    """Tell a wrong address at once: Ray itself would try for minutes."""
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
            f"--ray-address {address}: nobody answers there ({error}); start a cluster with `ray start --head`, "
            f"or use {LOCAL}"
        ) from None


def _connect(address: str) -> None:
    check_address(address)
    # Ray counts its uses and tells its makers, unless it is told not to
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
    """Ray takes SIGTERM for itself; a run has to save first."""
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


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
