"""What a person sees while files travel: a bar on a terminal, nothing elsewhere."""

from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from slm_lab.lib.log import console_to


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
