"""A command outlives nobody who asked it to end with them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from slm_lab.lib.parent import VARIABLE

CHILD = """
import time
from slm_lab.lib.parent import end_with_parent
end_with_parent()
print(1, flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
from slm_lab.lib.parent import child_environment
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, env=child_environment())
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
    deadline = time.monotonic() + 60
    while is_alive(child):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child is still there")
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for is over."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_was_started_by_hand_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    done = subprocess.run([sys.executable, "-c", CHILD.replace("600", "2")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
