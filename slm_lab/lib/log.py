"""Where log lines go: `YYYY-MM-DD HH:MM:SS | INFO | ...` on the console and in the run's log folder."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loguru import logger

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} | {level} | {message}"


class _Console:
    """The console's sink; a live display may take its lines for a while."""

    def __init__(self) -> None:
        self.taker: Callable[[str], None] | None = None

    def __call__(self, line: str) -> None:
        if self.taker is not None:
            self.taker(line)
        else:
            sys.stderr.write(line)


_console = _Console()


def setup_console(level: str) -> None:
    """Send log lines to the console in the lab's format, replacing what was there."""
    logger.remove()
    # diagnose=False: variable values in a traceback could carry a secret into a shared log
    logger.add(_console, format=FORMAT, level=level, diagnose=False, colorize=False)


@contextmanager
def console_to(taker: Callable[[str], None]) -> Iterator[None]:
    """Let a live display print the console's lines above itself."""
    _console.taker = taker
    try:
        yield
    finally:
        _console.taker = None


@contextmanager
def log_to(path: Path, level: str) -> Iterator[None]:
    """Also write log lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = logger.add(path, format=FORMAT, level=level, diagnose=False)
    try:
        yield
    finally:
        logger.remove(handle)
