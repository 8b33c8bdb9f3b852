"""The progress of a transfer: a bar on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from slm_lab.lib.log import console_to


@contextmanager
def show_transfer(title: str, total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """A bar of bytes with speed and time left, and the function that advances it."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda num: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with (
        Progress(TextColumn("{task.description}", markup=False), *columns, console=console, transient=True) as progress,
        # log lines go above the bar instead of through it
        console_to(lambda line: progress.console.print(Text(line.rstrip()), soft_wrap=True)),
    ):
        task = progress.add_task(title, total=total)
        yield lambda num: progress.advance(task, num)
