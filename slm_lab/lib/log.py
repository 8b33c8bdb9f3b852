"""Where log lines go: `YYYY-MM-DD HH:MM:SS | INFO | ...` on the console and in the run's log folder."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loguru import logger

from slm_lab.lib.errors import StorageError
from slm_lab.lib.io import AppendFile, storage_errors, to_finite
from slm_lab.lib.secret import redact
from slm_lab.lib.terminal import escape

if TYPE_CHECKING:
    from loguru import Message

LogFormat = Literal["text", "json"]
FORMAT = "{time:YYYY-MM-DD HH:mm:ss} | {level} | {message}"


class _Console:
    """The console's sink; a live display may redirect its lines."""

    def __init__(self) -> None:
        self.taker: Callable[[str], None] | None = None
        self.format: LogFormat = "text"

    def __call__(self, message: "Message") -> None:
        if self.format == "json":
            sys.stderr.write(_to_json(message))
        elif self.taker is not None:
            self.taker(_to_text(message))
        else:
            sys.stderr.write(_to_text(message))


def _to_text(message: "Message") -> str:
    """Lines for people, without secrets and terminal codes."""
    return escape(redact(str(message)))


def _to_json(message: "Message") -> str:
    """A line for machines, with bound values as fields."""
    record = message.record
    line = {
        "time": record["time"].isoformat(timespec="milliseconds"),
        "level": record["level"].name,
        "message": redact(record["message"]),
        **record["extra"],
    }
    if record["exception"] is not None:
        line["exception"] = redact(str(record["exception"]))
    return redact(json.dumps(to_finite(line))) + "\n"


_console = _Console()


def setup_console(level: str, log_format: LogFormat = "text") -> None:
    """Send log lines to the console in the lab's format or as JSON, replacing earlier sinks."""
    logger.remove()
    _console.format = log_format
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


class _LogFile:
    """A file's sink; on a full disk it loses lines without stopping the run or the console."""

    def __init__(self, path: Path) -> None:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.file = AppendFile(path)
        self.is_told = False

    def __call__(self, message: "Message") -> None:
        try:
            self.file.write(_to_text(message))
        except StorageError as error:
            # not through the logger, which would come back here
            if not self.is_told:
                sys.stderr.write(f"Lines are missing in the log: {error}\n")
            self.is_told = True


@contextmanager
def log_to(path: Path, level: str) -> Iterator[None]:
    """Also write log lines to a file."""
    sink = _LogFile(path)
    handle = logger.add(sink, format=FORMAT, level=level, diagnose=False, colorize=False)
    try:
        yield
    finally:
        logger.remove(handle)
        sink.file.close()
