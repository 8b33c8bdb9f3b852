"""The far end of a session on a cluster: its process, and its files in a temporary folder."""

import hashlib
import os
import platform
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import slm_lab
from slm_lab.experiment.executor import LocalExecutor, SessionTask
from slm_lab.experiment.messages import Progress, SessionEnd
from slm_lab.experiment.session_files import (
    CHUNK_BYTES,
    Mark,
    SentFile,
    TransferError,
    is_replay,
    is_session_file,
    list_files,
    mark_of,
)
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder, previous_file

# tables and logs come back so often; a checkpoint comes at once
SYNC_SECONDS = 2.0
SNAPSHOT_TRIES = 20


@dataclass(frozen=True)
class Report:
    """What has happened on a node since the last one."""

    progress: list[Progress]
    end: SessionEnd | None
    files: list[SentFile]
    # every replay file there is, so that others can be deleted; None if nobody has looked
    replays: frozenset[str] | None


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
        self.prefix = self.folder.prefix(task.trial, task.session)
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
