"""Sessions in forked children: they start at once, where a new interpreter takes seconds to load torch.

The parent has loaded everything and trains nothing itself, so there is no thread to be lost in a fork.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from loguru import logger

from slm_lab.experiment.control import Session
from slm_lab.lib.io import remove_orphans
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec

# longer than any child takes on a busy machine
CHILD_SECONDS = 600.0


def fork(action: Callable[[], None], output: Path | None = None) -> int:
    """A child that does one thing and ends; its output goes to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_child(action, output)
    return child


def _be_child(action: Callable[[], None], output: Path | None) -> NoReturn:
    code = 1
    try:
        target = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        # what it has inherited belongs to the parent's output, which need not be the terminal
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        logger.remove()
        logger.add(sys.stderr, level="INFO", format="{level} | {message}")
        action()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        # one line is what a verdict has room for
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float = CHILD_SECONDS) -> int:
    """The exit code of a child, minus the signal that ended it; one that hangs is killed and told."""
    code, _ = wait_usage(child, seconds)
    return code


def wait_usage(child: int, seconds: float = CHILD_SECONDS) -> tuple[int, resource.struct_rusage]:
    """The exit code of a child and what it took."""
    deadline = time.monotonic() + seconds
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.wait4(child, 0)
            raise TimeoutError(f"a child took more than {seconds:.0f} s")
        time.sleep(0.002)


def train(
    spec: Spec, path: Path, stop_frame: int | None = None, prepare: Callable[[Session], None] | None = None
) -> None:
    """Train or continue a session in this process, as a continued run does it."""
    if path.exists():
        remove_orphans(path)
    session = Session(spec, RunFolder(path, spec.name), 0, 0, lambda _: None, lambda: False)
    if stop_frame is not None:
        session.should_stop = lambda: session.frame >= stop_frame
    if prepare is not None:
        prepare(session)
    session.run()


def train_to_end(spec: Spec, path: Path, stop_frame: int | None = None) -> None:
    """The same in a child, which must end well."""
    output = path.with_name(f"{path.name}.out")
    code = wait(fork(lambda: train(spec, path, stop_frame), output))
    if code:
        lines = output.read_text().strip().splitlines()
        raise RuntimeError(f"a session ended with {code}: {lines[-1] if lines else 'no output'}")
