"""What differs between operating systems. Importable on all of them; what Windows lacks is a harmless value here."""

import os
import signal
import sys
from contextlib import suppress
from typing import IO, Any

from slm_lab.lib.errors import LabError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

# runs need more of POSIX than locks: signals, processes that inherit pipes
IS_POSIX: bool = fcntl is not None

# flags of os.open: links are not followed, pipes not waited for, bytes not changed
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
O_NOCTTY: int = getattr(os, "O_NOCTTY", 0)
O_BINARY: int = getattr(os, "O_BINARY", 0)
# a signal that a system lacks is one that never comes
NO_SIGNAL = -1
SIGHUP: int = getattr(signal, "SIGHUP", NO_SIGNAL)
SIGUSR1: int = getattr(signal, "SIGUSR1", NO_SIGNAL)
SIGVTALRM: int = getattr(signal, "SIGVTALRM", NO_SIGNAL)


def require_posix(what: str) -> None:
    """Raise on Windows, which lacks what training needs."""
    if not IS_POSIX:
        raise LabError(f"{what} needs Linux or macOS; on Windows use WSL: see docs/INSTALL.md")


def user_number() -> int:
    """The number of the user, 0 where users have none."""
    return os.getuid() if hasattr(os, "getuid") else 0


def memory_bytes() -> int:
    """Memory of the machine; beyond all bounds where it is unknown."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_alive(process: int) -> bool:
    """Whether a process runs; always true on Windows, where signal 0 is Ctrl-C."""
    if not IS_POSIX:
        return True
    try:
        os.kill(process, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True


def lower_priority(process: int, niceness: int) -> None:
    """Let a process wait for others; on Windows it does not."""
    if hasattr(os, "setpriority"):
        with suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process, niceness)


def lock_shared(descriptor: int) -> bool | None:
    """Take a shared lock without waiting; False if another process holds the lock, None if there are none here."""
    if not IS_POSIX:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: IO[Any]) -> None:
    """Lock a file for this process alone; freed when it is closed. Without such locks nothing is locked."""
    if IS_POSIX:
        fcntl.flock(file, fcntl.LOCK_EX)


def peak_children_mb() -> float:
    """The largest memory of a child process that has ended, in MB; 0 if unknown."""
    if not IS_POSIX:
        return 0.0
    # bytes on macOS, kilobytes elsewhere
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit
