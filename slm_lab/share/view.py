"""What a person sees while files travel: a bar on a terminal, nothing elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

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
        self.task = self.progress.add_task(title, total=total)

    def __enter__(self) -> "TransferView":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

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
