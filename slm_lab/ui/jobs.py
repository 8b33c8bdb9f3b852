"""Runs that the page starts: separate processes, which outlive the server."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_text
from slm_lab.lib.parent import VARIABLE
from slm_lab.lib.secret import redact
from slm_lab.results.folder import is_search
from slm_lab.spec.reader import printable

MAX_RUNNING = 8
MAX_OUTPUT = 20_000
# at the beginning of the output, within which the command names its run folder
MAX_HEAD = 100_000
# seconds for a process to end after SIGTERM
ENDING_SECONDS = 30.0
# a whole line: one that is half written ends within the name
_FOLDER = re.compile(r"\| Run folder (.+)\n")


@dataclass
class Job:
    """A process that the server has started."""

    number: int
    title: str
    command: list[str]
    process: subprocess.Popen[bytes]
    output: Path
    started: float
    # the run folder, once it is known
    folder: Path | None
    is_stopped: bool = False

    @property
    def state(self) -> str:
        """Running, stopping, or how it ended."""
        code = self.process.poll()
        if code is None:
            return "stopping" if self.is_stopped else "running"
        return "stopped" if self.is_stopped else "done" if code == 0 else "failed"

    def read_output(self) -> str:
        """The end of what it has printed."""
        with self.output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - MAX_OUTPUT, 0))
            return redact(file.read(MAX_OUTPUT).decode(errors="replace"))

    def find_folder(self) -> Path | None:
        """The run folder, which the command names when it has made it."""
        if self.folder is None:
            with self.output.open("rb") as file:
                match = _FOLDER.search(file.read(MAX_HEAD).decode(errors="replace"))
            if match is not None:
                self.folder = Path(match[1].strip())
        return self.folder


class Jobs:
    """All processes of one start of the server."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._num_draft = 0

    def start_spec(self, text: str, name: str, mode: str) -> Job:
        """Train or search a spec, given as text that is known to be valid."""
        with self._lock:
            self._num_draft += 1
            folder = self._find_folder() / f"draft{self._num_draft}"
        # the run keeps a copy of its own
        file = folder / f"{name}.yaml"
        write_text(file, text)
        return self._start(f"{mode} {name}", ["run", str(file), name, mode], None)

    def resume(self, path: Path, changes: Sequence[str]) -> Job:
        """Resume a run or a search, or make a run longer."""
        job = self.find_job(path)
        if job is not None and job.is_stopped:
            # it has saved, and may still draw its graphs
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(ENDING_SECONDS)
        if job is not None and job.process.poll() is None:
            raise LabError(f"{path.name} is running already")
        words = [word for change in changes for word in ("-s", change)]
        return self._start(f"resume {path.name}", ["resume", str(path), *words], path)

    def _find_folder(self) -> Path:
        """Where drafts and output are kept; called with the lock."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="slm_lab_ui_"))
        return self._folder

    def _start(self, title: str, words: Sequence[str], folder: Path | None) -> Job:
        command = [sys.executable, "-m", "slm_lab.cli", *words, "--data-dir", str(self.data_dir)]
        environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
        with self._lock:
            if sum(job.process.poll() is None for job in self._jobs) >= MAX_RUNNING:
                raise LabError(f"{MAX_RUNNING} runs that this page has started are running; stop one first")
            number = len(self._jobs)
            output = self._find_folder() / f"{number}.log"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    # Ctrl-C of the server is not meant for it
                    start_new_session=True,
                )
            job = Job(number, title, command, process, output, time.time(), folder)
            self._jobs.append(job)
        return job

    def get_running(self) -> list[Job]:
        """The processes that have not ended."""
        with self._lock:
            return [job for job in self._jobs if job.process.poll() is None]

    def find_job(self, path: Path) -> Job | None:
        """The process that trains a run."""
        return next((job for job in self.get_running() if _is_same(job.find_folder(), path)), None)

    def stop(self, number: int) -> Job:
        """Ask a process to save and end."""
        with self._lock:
            if not 0 <= number < len(self._jobs):
                raise LabError(f"there is no process {number} that this page has started")
            job = self._jobs[number]
        if job.process.poll() is None:
            job.is_stopped = True
            job.process.send_signal(signal.SIGTERM)
        return job

    def describe(self) -> list[Document]:
        """All processes, the newest first."""
        with self._lock:
            jobs = self._jobs[::-1]
        return [self._describe(job) for job in jobs]

    def _describe(self, job: Job) -> Document:
        folder = job.find_folder()
        known = {"number": job.number, "title": printable(job.title), "state": job.state, "started": job.started}
        place: Document = {"run": None, "kind": None}
        if folder is not None:
            id_ = Path(os.path.relpath(folder.resolve(), self.data_dir)).as_posix()
            place = {"run": id_, "kind": "search" if is_search(folder) else "run"}
        return known | place | {"command": shlex.join(["slm-lab", *job.command[3:]]), "output": job.read_output()}


def _is_same(one: Path | None, other: Path) -> bool:
    return one is not None and one.resolve() == other.resolve()
