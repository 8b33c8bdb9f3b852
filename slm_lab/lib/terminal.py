"""Safe output: foreign text cannot control the terminal, and no encoding or closed stream stops a command."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def escape(text: str) -> str:
    """Text with control and invisible characters escaped, except line breaks and tabs."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


class _Stream(io.TextIOBase):
    """A stream whose reader may be gone: output is then dropped."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = stream.encoding

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except BrokenPipeError:
            self._drop()
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """Discard the stream, including its buffer, which is flushed when the process ends."""
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, self.stream.fileno())
        os.close(descriptor)


class _Printer(_Stream):
    """A stream for text that may quote specs, names of folders and files of others."""

    @property
    def rich_proxied_file(self) -> _Stream:
        """The stream for rich's own colours and cursor moves; callers escape the text they pass to it."""
        return _Stream(self.stream)

    def write(self, text: str) -> int:
        super().write(escape(text))
        return len(text)


@contextmanager
def safe_output() -> Iterator[None]:
    """Escape everything that is printed, in any encoding, even to closed streams."""
    _open_standard_files()
    before = sys.stdout, sys.stderr
    streams = [
        # Python has none where the file was closed
        stream if stream is not None else open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        for number, stream in zip((1, 2), before, strict=True)
    ]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (_Printer(stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _open_standard_files() -> None:
    """Reopen closed standard file descriptors, or the next file of a run would get the output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        # also for the processes that are started
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
