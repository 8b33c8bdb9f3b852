"""Sessions as processes: one that does not end holds up no other, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from slm_lab.audit.chaos import find_descendants, is_alive
from slm_lab.experiment import executor, worker
from slm_lab.experiment.executor import Event, LocalExecutor, SessionTask
from slm_lab.experiment.messages import SessionEnd, SessionResult, explain_end
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import DivergenceError, EnvHangError, LabError, StorageError, WorkerDeathError, WorkerError

RESULT = SessionResult(0, True, 1, {})
TOLD = json.dumps(["end", asdict(SessionEnd(0, RESULT))])
# tells its result as a session does, then closes its end of the pipe and goes on, with a child
LINGERS = f"""
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
os.write(int(sys.argv[1]), b'{TOLD}\\n')
os.close(int(sys.argv[1]))
time.sleep(600)
"""
ENDS = f"""
import os, sys
os.write(int(sys.argv[1]), b'["progress", {{"session": 0, "frame": 2}}]\\n{TOLD}\\n')
"""
# as a session that still loads, one that does not save in time, and one that crashes
LOADS = "import os, sys, time; os.write(int(sys.argv[1]), b'\\n'); time.sleep(600)"
IS_LATE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LOADS
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
# has forked a child, which has the pipe too
FORKS = """
import os, signal, sys, time
if not os.fork():
    time.sleep(600)
os.write(int(sys.argv[1]), b'["progress", {"session": 0, "frame": 3}]\\n')
os.kill(os.getpid(), signal.SIGSEGV)
"""
pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are looked up in /proc"),
]


def start_programs(monkeypatch: pytest.MonkeyPatch, *programs: str) -> LocalExecutor:
    """An executor whose sessions, by number, are these programs."""

    def start(task: SessionTask) -> executor._Running:
        read_end, write_end = os.pipe()
        command = [sys.executable, "-c", programs[task.session], str(write_end)]
        process = subprocess.Popen(command, pass_fds=[write_end], start_new_session=True)
        os.close(write_end)
        return executor._Running(task, process, os.fdopen(read_end, "rb", buffering=0))

    monkeypatch.setattr(executor, "_start", start)
    local = LocalExecutor(len(programs))
    for session in range(len(programs)):
        local.submit(SessionTask(Path("folder"), "name", 0, session))
    return local


def without_states(events: list[Event]) -> list[Event]:
    """What sessions say, without the executor's own word that they start."""
    return [event for event in events if event.progress is None or event.progress.what == "row"]


def test_a_session_that_has_told_all_and_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "END_SECONDS", 0.5)
    local = start_programs(monkeypatch, LINGERS)
    try:
        process = local.running[0, 0].process
        while not (family := find_descendants(process.pid)):
            time.sleep(0.01)
        events: list[Event] = []
        while local.running:
            events += local.poll(0.05)
        (event,) = without_states(events)
        assert event.end == SessionEnd(0, RESULT)
        assert process.returncode == -9
        while any(is_alive(one) for one in family):
            time.sleep(0.01)
    finally:
        local.close()


def test_a_session_that_does_not_end_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "END_SECONDS", 3600.0)
    local = start_programs(monkeypatch, LINGERS, ENDS)
    try:
        process = local.running[0, 0].process
        events: list[Event] = []
        while not local.running[0, 0].pipe.closed or (0, 1) in local.running:
            events += local.poll(0.05)
        assert [event.key for event in events if event.end is not None] == [(0, 1)]
        assert process.poll() is None
        family = find_descendants(process.pid)
    finally:
        local.close()
    assert process.returncode == -9
    while any(is_alive(one) for one in family):
        time.sleep(0.01)


@pytest.mark.parametrize(("program", "number"), [(LOADS, 15), (IS_LATE, 9)])
def test_a_session_killed_by_a_stop_is_stopped(monkeypatch: pytest.MonkeyPatch, program: str, number: int) -> None:
    monkeypatch.setattr(executor, "STOP_SECONDS", 0.5)
    local = start_programs(monkeypatch, program)
    try:
        # it has begun
        local.running[0, 0].pipe.read(1)
        local.stop((0, 0))
        events: list[Event] = []
        while local.running:
            events += local.poll(0.05)
    finally:
        local.close()
    (event,) = without_states(events)
    assert event.end is not None
    assert event.end.is_stopped
    assert event.end.error == f"the process of session 0 was killed by signal {number}"


def run_to_the_end(monkeypatch: pytest.MonkeyPatch, program: str) -> list[Event]:
    """All that the session of a program tells."""
    local = start_programs(monkeypatch, program)
    group = local.running[0, 0].process.pid
    events: list[Event] = []
    try:
        while local.running:
            events += local.poll(0.05)
    finally:
        local.close()
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    return without_states(events)


def test_a_session_that_crashes_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = run_to_the_end(monkeypatch, CRASHES)
    assert event.end == SessionEnd(0, error="the process of session 0 was killed by signal 11")
    assert not event.end.is_stopped


def test_a_child_that_outlives_a_crashed_session_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, end = run_to_the_end(monkeypatch, FORKS)
    assert progress.progress is not None
    assert progress.progress.frame == 3
    assert end.end == SessionEnd(0, error="the process of session 0 was killed by signal 11")


def keep_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process sets up no console, and leaves the niceness of the terminal's processes alone."""
    monkeypatch.setattr(worker, "setup_console", lambda *_: None)
    monkeypatch.setattr(worker, "share_niceness", lambda: None)


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (WorkerDeathError("gone"), "killed", "gone"),
        (WorkerError("gone"), "failed", "gone"),
        (DivergenceError("gone"), "diverged", "gone"),
        (StorageError("full"), "failed", "full"),
        (LabError("gone"), "input", "gone"),
        (SystemExit(3), "failed", "the env or the agent ended the process, with exit code 3"),
        (ZeroDivisionError("gone"), "failed", "ZeroDivisionError: gone"),
    ],
)
def test_a_session_tells_how_it_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, reason: str, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "import_modules", fail)
    keep_to_itself(monkeypatch)
    read_end, write_end = os.pipe()
    assert worker.main(SessionTask(tmp_path, "name", 0, 0), write_end, os.getppid()) == 1
    with os.fdopen(read_end) as told:
        kind, content = json.loads(told.read())
    assert (kind, content["reason"], content["error"].splitlines()[-1]) == ("end", reason, text)


def test_a_session_whose_parent_was_killed_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep_to_itself(monkeypatch)
    read_end, write_end = os.pipe()
    os.close(read_end)
    assert worker.main(SessionTask(tmp_path, "name", 0, 0), write_end, os.getppid()) == 1


def test_a_call_that_hangs_is_a_failure_unless_the_run_is_stopping() -> None:
    hang = EnvHangError("no answer")
    assert [explain_end(0, hang, is_stopping).reason for is_stopping in (False, True)] == ["failed", "killed"]


def test_a_task_survives_its_way_to_the_process(tmp_path: Path) -> None:
    task = SessionTask(tmp_path, "name", 1, 2, Options(imports=("mine",), video=tmp_path / "x.mp4"), num_threads=2)
    assert SessionTask.from_json(task.to_json()) == task


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not group processes")
def test_a_session_keeps_its_niceness_among_all_processes(tmp_path: Path) -> None:
    # in a session of its own as the executor starts it; the group that Linux makes for it begins at 0
    program = (
        "import os, sys; os.nice(7); from slm_lab.experiment import worker\n"
        f"task = worker.SessionTask({str(tmp_path)!r}, 'name', 0, 0)\n"
        "worker.main(task, os.open(os.devnull, os.O_WRONLY), os.getppid())\n"
        "print(open('/proc/self/autogroup').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], start_new_session=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith(f"nice {os.nice(0) + 7}")


def test_whoever_stops_a_command_gives_it_more_time_than_a_session_has() -> None:
    # Docker waits for ten seconds; what is left is for the command itself
    assert executor.STOP_SECONDS <= 8.0
