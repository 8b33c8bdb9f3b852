"""What a person sees while files travel: a bar on a terminal, nothing elsewhere."""

from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from slm_lab.lib.log import console_to

UNITS = ("B", "kB", "MB", "GB", "TB")


class TransferView:
    """A bar of bytes with speed and time left."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.stack = ExitStack()
        self.task = self.progress.add_task(title, total=total)

    def __enter__(self) -> "TransferView":
        if not self.progress.disable:
            self.stack.enter_context(self.progress)
            # log lines go above the bar instead of through it
            show = self.progress.console.print
            self.stack.enter_context(console_to(lambda line: show(Text(line.rstrip()), soft_wrap=True)))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def advance(self, num: int) -> None:
        """So many bytes more have gone."""
        self.progress.advance(self.task, num)


def format_size(num: float) -> str:
    """Bytes for people."""
    for unit in UNITS:
        if num < 1000 or unit == UNITS[-1]:
            return f"{num:.0f} {unit}" if unit == "B" or num >= 100 else f"{num:.1f} {unit}"
        num /= 1000
    raise AssertionError("the last unit returns")


def parse_size(text: str) -> int:
    """`500MB`, `2 GB` or a number of bytes; raises ValueError for anything else."""
    text = text.strip().upper()
    for power, unit in reversed(list(enumerate(UNITS))):
        if text.endswith(unit.upper()):
            return int(float(text.removesuffix(unit.upper())) * 1000**power)
    return int(float(text))
