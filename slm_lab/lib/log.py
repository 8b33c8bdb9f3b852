"""Where log lines go: `YYYY-MM-DD HH:MM:SS | INFO | ...` on the console and in the run's log folder."""

import sys
from pathlib import Path
from typing import Any

from loguru import logger

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} | {level} | {message}"


def setup_console(level: str, sink: Any = None) -> int:
    """Send log lines to the console (or another sink), replacing what was there."""
    logger.remove()
    # diagnose=False: variable values in a traceback could carry a secret into a shared log
    return logger.add(sink or sys.stderr, format=FORMAT, level=level, diagnose=False, colorize=False)


def add_file(path: Path, level: str = "INFO") -> int:
    """Also write log lines to a file; returns the handle to remove it with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return logger.add(path, format=FORMAT, level=level, diagnose=False)
