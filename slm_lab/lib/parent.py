"""Commands that are started by another one: what they inherit, and their end with their parent, even by SIGKILL."""

import os
import signal
import sys
import threading
import time

VARIABLE = "SLM_LAB_PARENT"
POLL_SECONDS = 1.0


def child_environment() -> dict[str, str]:
    """The environment for a command that should end with this process."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def child_python_path() -> str:
    """`PYTHONPATH` of a child that is to import what this process can."""
    return os.pathsep.join(path for path in sys.path if path)


def end_with_parent() -> None:
    """Send SIGTERM to this process when the parent that asked for it is gone; children do not inherit this."""
    parent = os.environ.pop(VARIABLE, "")
    if parent:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
