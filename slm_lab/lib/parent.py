"""A command started by another one saves and ends when its parent is gone, even by SIGKILL."""

import os
import signal
import threading
import time

VARIABLE = "SLM_LAB_PARENT"
POLL_SECONDS = 1.0


def child_environment() -> dict[str, str]:
    """The environment for a command that should end with this process."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Send SIGTERM to this process when the parent that asked for it is gone; children do not inherit this."""
    parent = os.environ.pop(VARIABLE, "")
    if parent:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
