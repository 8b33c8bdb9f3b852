"""The progress of a search: a live table on a terminal, log lines elsewhere."""

import time
from collections.abc import Collection, Iterable
from typing import Any, Protocol, Self

from loguru import logger
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slm_lab.experiment.progress import LiveView, format_score
from slm_lab.lib.data import ReadOnlyDocument
from slm_lab.lib.terminal import escape
from slm_lab.lib.unit import format_seconds
from slm_lab.results.search_trial import TrialRow

LINE_SECONDS = 20.0


class ShownTrial(Protocol):
    """The parts of a running trial that are shown."""

    @property
    def number(self) -> int: ...
    @property
    def frame(self) -> int: ...
    @property
    def score(self) -> float: ...
    @property
    def values(self) -> dict[str, Any]: ...


class SearchView(LiveView):
    """Shows how many trials have ended, the best so far, those that run, and the time left."""

    def __init__(self, max_trial: int, max_frame: int, console: Console | None = None, may_draw: bool = True) -> None:
        super().__init__(console, may_draw)
        self.max_trial = max_trial
        self.max_frame = max_frame
        self.ended: dict[int, TrialRow] = {}
        self.num_before: int | None = None
        self.running: list[ShownTrial] = []
        self.began = self.last_line = time.monotonic()

    def __enter__(self) -> Self:
        self.began = self.last_line = time.monotonic()
        return super().__enter__()

    @property
    def best(self) -> TrialRow | None:
        """The best trial that is done."""
        return max((row for row in self.ended.values() if row.state == "done"), key=lambda row: row.score, default=None)

    def add_ended(self, row: TrialRow) -> None:
        """Show a trial that has ended."""
        before = self.best
        self.ended[row.trial] = row
        if row.state == "failed":
            logger.warning(f"Trial {row.trial} failed: {row.reason}")
        elif row.state == "stopped":
            logger.info(f"Trial {row.trial} stopped at frame {max(row.rungs, default=0):,}: {row.score:.2f}")
        else:
            is_best = before is None or row.score > before.score
            logger.info(f"Trial {row.trial} done: {row.score:.2f}{', the best so far' if is_best else ''}")

    def update(self, trials: Iterable[ShownTrial]) -> None:
        """Show the running trials."""
        if self.num_before is None:
            # trials from before a resume do not count for the speed
            self.num_before = len(self.ended)
        self.running = list(trials)
        if self.live is None and time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            running = "; ".join(
                f"trial {one.number} at {one.frame:,}: {format_score(one.score)}" for one in self.running
            )
            logger.info(f"{self._summary()} | {running}")

    def _summary(self) -> str:
        states = [row.state for row in self.ended.values()]
        parts = [f"{len(states)} of {self.max_trial} trials ended"]
        parts += [f"{states.count('stopped')} early"] if "stopped" in states else []
        parts += [f"{states.count('failed')} failed"] if "failed" in states else []
        best = self.best
        parts += [f"best {best.score:.2f} (trial {best.trial})"] if best is not None else []
        return f"Search: {', '.join(parts)}, left {self._time_left()}"

    def _time_left(self) -> str:
        num_new = len(self.ended) - (self.num_before or 0)
        if num_new < 1:
            return "?"
        return format_seconds((time.monotonic() - self.began) / num_new * (self.max_trial - len(self.ended)))

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), title=self._summary(), title_justify="left", title_style="")
        for title, justify in (("trial", "left"), ("frames", "left"), ("", "right"), ("score", "right"), ("", "left")):
            table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for one in self.running:
            bar = ProgressBar(self.max_frame, one.frame, width=24)
            table.add_row(
                str(one.number), bar, f"{one.frame:,}", format_score(one.score), Text(escape(show_values(one.values)))
            )
        return table


def show_values(values: ReadOnlyDocument) -> str:
    """Searched values by the ends of their paths, as short as possible while still unique."""
    return ", ".join(
        f"{_short_name(path, values)} {f'{value:.4g}' if isinstance(value, float) else value}"
        for path, value in values.items()
    )


def _short_name(path: str, paths: Collection[str]) -> str:
    parts = path.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) == 1:
            return end
    return path
