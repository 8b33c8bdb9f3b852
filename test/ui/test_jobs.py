"""Processes that the pages start: runs that keep apart, and videos that fail without holding up others."""

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slm_lab.ui import jobs as module
from slm_lab.ui.films import Film, Films
from slm_lab.ui.jobs import MAX_OUTPUT, Job, Jobs
from test.results.sample import make_spec, make_table, write_run


class Process:
    """A process that never ends by itself."""

    code: int | None = None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started."""
    commands: list[list[str]] = []

    def start(command: list[str], **_: Any) -> Process:
        commands.append(command)
        return Process()

    monkeypatch.setattr(module.subprocess, "Popen", start)
    return commands


def test_specs_started_at_once_keep_apart(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(2)
    write = module.write_text

    def write_together(path: Path, text: str) -> None:
        meeting.wait(20)
        write(path, text)

    monkeypatch.setattr(module, "write_text", write_together)
    jobs = Jobs(tmp_path)
    threads = [threading.Thread(target=jobs.start_spec, args=(text, "demo", "train")) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {Path(command[4]).read_text() for command in started} == {"one", "two"}
    assert [job["number"] for job in jobs.describe()] == [1, 0]


def make_job(folder: Path, text: str) -> Job:
    output = folder / "0.log"
    output.write_text(text)
    process: Any = Process()
    return Job(0, "train demo", ["python", "-m", "slm_lab.cli", "run"], process, output, time.time(), None)


def test_the_run_of_a_process_is_known_after_much_output(tmp_path: Path) -> None:
    job = make_job(tmp_path, f"x | INFO | Run folder {tmp_path}/run\n" + "a line\n" * MAX_OUTPUT)
    assert job.find_folder() == tmp_path / "run"
    assert len(job.read_output()) == MAX_OUTPUT


@pytest.mark.parametrize("kind", ["run", "search"])
def test_a_process_leads_to_the_page_of_its_run(tmp_path: Path, started: list[list[str]], kind: str) -> None:
    run = write_run(tmp_path / "run", {0: make_table()}, spec=make_spec())
    if kind == "search":
        (run.path / "info" / "demo_study.log").touch()
    jobs = Jobs(tmp_path)
    jobs.resume(run.path, [])
    (job,) = jobs.describe()
    assert (job["run"], job["kind"]) == ("run", kind)


def test_a_video_that_cannot_be_recorded_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    is_over = threading.Event()

    def publish(event: dict[str, Any]) -> None:
        told.append(f"{event['video']['frame']} {event['video']['state']}")
        if told[-1] == "2 failed":
            is_over.set()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    films = Films(publish)
    for frame in (1, 2):
        films.record(Film("run", 0, frame, tmp_path / f"{frame}.mp4", ["nothing"]))
    assert is_over.wait(20)
    assert told == ["1 recording", "1 failed", "2 recording", "2 failed"]
