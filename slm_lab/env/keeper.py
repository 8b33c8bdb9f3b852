"""The process between a session and an env worker: no process of the worker outlives the session.

It stays small, because it forks before the worker loads anything.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from slm_lab.lib.system import SIGUSR1

# signal that asks the keeper to kill everything at once
KILL = SIGUSR1
# between checks that the session is alive, and the time a worker has to close its envs without a session
LOOK_SECONDS = 1.0
GRACE_SECONDS = 3.0
# options of Linux: a signal when the parent dies, and becoming the parent of orphaned descendants
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(module: str, descriptor: int, session: int) -> None:
    """Run a module that serves a socket; exit as it does, after all its child processes are gone."""
    is_killed = False

    def kill(*_: object) -> None:
        nonlocal is_killed
        is_killed = True

    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            import_module(module).serve(descriptor)
        sys.exit()
    os.close(descriptor)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # a batch system may signal all processes, but the session has to save first
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(KILL, kill)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    deadline = float("inf")
    status: int | None = None
    while status is None and not is_killed and time.monotonic() < deadline:
        if select.select([wake], [], [], LOOK_SECONDS)[0]:
            os.read(wake, 64)
        pid, result = os.waitpid(child, os.WNOHANG)
        if pid:
            status = result
        elif os.getppid() != session:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    _kill_all(child)
    if status is None:
        status = int(signal.SIGKILL)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(keeper, ended_by)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_all(child: int) -> None:
    """Kill the worker and all its child processes; orphans become children of this process."""
    while True:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        for pid in _find_children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _find_children() -> list[int]:
    me, found = str(os.getpid()), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the name, in brackets, may contain spaces and brackets
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == me:
                found.append(int(path.parent.name))
    return found
