"""The node's side of a session on a Ray cluster: its process, and its files in a temporary folder."""

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

# between transfers of tables and logs; checkpoints are sent at once
SYNC_SECONDS = 2.0
SNAPSHOT_TRIES = 20


@dataclass(frozen=True)
class Report:
    """News from a node since its last report."""

    progress: list[Progress]
    end: SessionEnd | None
    files: list[SentFile]
    # all current replay files, so that others can be deleted; None if they were not listed
    replays: frozenset[str] | None


def describe_code() -> dict[str, str]:
    """Versions that must be the same on all machines for the same results."""
    digest = hashlib.sha256()
    root = Path(slm_lab.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return {
        "python": platform.python_version(),
        # builds for CPUs and GPUs differ only after the plus
        "torch": metadata.version("torch").partition("+")[0],
        "slm_lab": f"{metadata.version('slm-lab')} with code {digest.hexdigest()[:12]}",
    }


def check_same_code(here: dict[str, str], there: dict[str, str], host: str) -> None:
    """Refuse a node whose software would give other results."""
    differ = [f"{name} is {there.get(name)} there and {here[name]} here" for name in here if here[name] != there[name]]
    if differ:
        raise LabError(f"Ray node {host}: {', '.join(differ)}; install the same environment on every node")


class SessionHost:
    """A Ray actor that runs one session in a separate process, with its files in a temporary folder."""

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
        """The name of this machine and its versions."""
        return socket.gethostname(), describe_code()

    def write(self, name: str, data: bytes) -> None:
        """Append a piece of a file, before the session begins."""
        path = self.folder.path / name
        if path != self.folder.trial_spec_file(self.task.trial) and not is_session_file(name, self.prefix):
            raise TransferError(f"not a file of session {self.task.session}: {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def begin(self) -> None:
        """Start the session."""
        # files from the driver need not be sent back
        self.sent = list_files(self.folder.path, self.prefix)
        self.executor.submit(self.task)

    def poll(self, seconds: float) -> Report:
        """Wait at most `seconds` for news; files in the report can be read until the next call."""
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
            # tables may have grown since the report; the new rows belong to the next one
            return file.read(min(CHUNK_BYTES, self.files[index].size - offset))

    def stop(self) -> None:
        """Ask the session to save and end."""
        self.executor.stop(self.task.key)

    def close(self) -> None:
        """Kill the session if it still runs, and delete its files."""
        self.executor.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _take_snapshot(self) -> frozenset[str] | None:
        """Link all changed files to the staging folder; returns the names of all replay files, or None if it failed.

        Links are as good as copies, because files are replaced, never changed, apart from tables and logs, which grow.
        The files are consistent if no checkpoint was written meanwhile: the session deletes no replay file that its
        last two checkpoints need.
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
        # checkpoints come too fast just now; the next poll tries again
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
