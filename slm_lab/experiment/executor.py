"""Runs sessions: in this process, or in local processes, at most one per core."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from slm_lab.lib.log import LogFormat
from slm_lab.lib.runtime import num_cores

STOP_SECONDS = 10.0


@dataclass(frozen=True)
class SessionTask:
    """What a process needs to run one session; plain data."""

    folder: str
    name: str
    trial: int
    session: int
    imports: tuple[str, ...] = ()
    log_level: str = "INFO"
    console_level: str = "WARNING"
    num_threads: int = 1
    log_format: LogFormat = "text"


@dataclass
class Outcome:
    """How a session's process ended: a result, or the reason why there is none."""

    session: int
    result: dict[str, Any] | None = None
    error: str | None = None
    is_user_error: bool = False


@dataclass
class _Running:
    task: SessionTask
    process: subprocess.Popen[bytes]
    pipe: BinaryIO
    outcome: Outcome
    rest: bytes = field(default=b"")


class LocalExecutor:
    """Sessions as processes of this machine."""

    def __init__(self, max_parallel: int | None = None) -> None:
        self.max_parallel = max_parallel

    def run(
        self,
        tasks: Sequence[SessionTask],
        on_progress: Callable[[dict[str, Any]], None],
        should_stop: Callable[[], bool],
        on_idle: Callable[[], None],
    ) -> list[Outcome]:
        """Run every task; when asked to stop, the running ones save and end, the others never start."""
        threads = tasks[0].num_threads if tasks else 1
        limit = self.max_parallel or max(1, num_cores() // threads)
        waiting = list(tasks)
        running: list[_Running] = []
        outcomes: list[Outcome] = []
        stopping_since: float | None = None
        selector = selectors.DefaultSelector()
        try:
            while waiting or running:
                if should_stop() and stopping_since is None:
                    stopping_since = time.monotonic()
                    outcomes += [Outcome(task.session, error="not started") for task in waiting]
                    waiting.clear()
                    for one in running:
                        one.process.send_signal(signal.SIGTERM)
                if stopping_since is not None and time.monotonic() - stopping_since > STOP_SECONDS:
                    for one in running:
                        one.process.kill()
                while waiting and len(running) < limit:
                    one = _start(waiting.pop(0))
                    running.append(one)
                    selector.register(one.pipe, selectors.EVENT_READ, one)
                for key, _ in selector.select(timeout=0.2):
                    one = key.data
                    if not _read(one, on_progress):
                        selector.unregister(one.pipe)
                        running.remove(one)
                        outcomes.append(_end(one))
                on_idle()
        except BaseException:
            for one in running:
                one.process.kill()
                one.process.wait()
            raise
        finally:
            selector.close()
        return sorted(outcomes, key=lambda outcome: outcome.session)


def _start(task: SessionTask) -> _Running:
    read_end, write_end = os.pipe()
    threads = str(task.num_threads)
    process = subprocess.Popen(
        [sys.executable, "-m", "slm_lab.experiment.worker", json.dumps(asdict(task)), str(write_end)],
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            # libraries read these once, at import
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        # a group of its own: Ctrl-C reaches the parent, which passes it on once
        start_new_session=True,
    )
    os.close(write_end)
    return _Running(task, process, os.fdopen(read_end, "rb", buffering=0), Outcome(task.session))


def _read(one: _Running, on_progress: Callable[[dict[str, Any]], None]) -> bool:
    """Take what the process has told; False when it has closed its end."""
    data = one.pipe.read(65536)
    if not data:
        return False
    *lines, one.rest = (one.rest + data).split(b"\n")
    for line in lines:
        kind, content = json.loads(line)
        if kind == "progress":
            on_progress(content)
        elif kind == "result":
            one.outcome.result = content
        else:
            one.outcome.error = content
            one.outcome.is_user_error = kind == "user_error"
    return True


def _end(one: _Running) -> Outcome:
    one.pipe.close()
    code = one.process.wait()
    if one.outcome.result is None and one.outcome.error is None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        one.outcome.error = f"the process of session {one.task.session} {how}"
    return one.outcome
