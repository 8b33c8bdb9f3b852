"""The progress of sessions: a live table on a terminal, log lines elsewhere."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Self

from loguru import logger
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slm_lab.experiment.messages import Progress
from slm_lab.lib.log import console_to
from slm_lab.lib.unit import format_seconds

LINE_SECONDS = 10.0
CURVE_WIDTH = 16
BAR_WIDTH, MIN_BAR = 24, 4
GAP = "  "
BARS = "▁▂▃▄▅▆▇█"


class LiveView(ABC):
    """A table that refreshes on a terminal; elsewhere the view writes log lines."""

    def __init__(self, console: Console | None, may_draw: bool) -> None:
        self.console = console or Console(stderr=True)
        # False for log lines in JSON, which a table would garble
        self.may_draw = may_draw
        self.live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.may_draw and self.console.is_terminal:
            # built at each refresh, so that times in it advance
            live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4)
            self.live = self._stack.enter_context(live)
            # log lines go above the live table instead of through it
            self._stack.enter_context(console_to(lambda line: self.console.print(Text(line.rstrip()), soft_wrap=True)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @abstractmethod
    def _table(self) -> Table: ...


class ProgressView(LiveView):
    """Shows frames, score, speed, time left and a small curve of each session."""

    def __init__(self, num_session: int, max_frame: int, console: Console | None = None, may_draw: bool = True) -> None:
        super().__init__(console, may_draw)
        self.max_frame = max_frame
        self.rows: dict[int, Progress | None] = dict.fromkeys(range(num_session))
        # phases of sessions that are not training, such as compiling, with their start
        self.states: dict[int, tuple[str, float]] = {}
        self.begun: dict[int, tuple[float, int]] = {}
        self.last_line: dict[int, float] = {}
        # sessions whose compiling was logged
        self.logged_compiling: set[int] = set()
        # scores so far, with the frame each belongs to
        self.history: dict[int, list[tuple[int, float]]] = {session: [] for session in range(num_session)}

    def update(self, progress: Progress) -> None:
        """Show the progress of a session."""
        session, what = progress.session, progress.what
        now = time.monotonic()
        if what != "row":
            self._take_state(session, what, now)
            return
        self.states.pop(session, None)
        self.begun.setdefault(session, (now, progress.frame))
        self.rows[session] = progress
        if not math.isnan(progress.total_reward):
            self.history[session].append((progress.frame, progress.total_reward))
        if self.live is None and (
            now - self.last_line.get(session, -math.inf) >= LINE_SECONDS or progress.frame >= self.max_frame
        ):
            self.last_line[session] = now
            logger.bind(progress=asdict(progress)).info(self._line(progress))

    def _take_state(self, session: int, what: str, now: float) -> None:
        if what == "compiled":
            # leave compiling out of the estimated time
            self.begun.pop(session, None)
            self.states.pop(session, None)
        elif self.states.get(session, ("", 0))[0] != what:
            self.states[session] = what, now
            if self.live is None and what == "compiling" and session not in self.logged_compiling:
                self.logged_compiling.add(session)
                logger.info(f"Session {session} compiling")

    def _time_left(self, progress: Progress) -> str:
        since, frame = self.begun.setdefault(progress.session, (time.monotonic(), progress.frame))
        done = progress.frame - frame
        if done <= 0:
            return "?"
        seconds = (self.max_frame - progress.frame) * (time.monotonic() - since) / done
        return format_seconds(seconds)

    def _line(self, progress: Progress) -> str:
        return (
            f"Session {progress.session} frame {progress.frame:,}/{self.max_frame:,} | "
            f"total_reward {format_score(progress.total_reward)} | eval {format_score(progress.eval_reward)} | "
            f"fps {progress.fps:,.0f} | left {self._time_left(progress)}"
        )

    def _table(self) -> Table:
        """The bar, then the curve, take the width that the numbers leave."""
        heads = ("session", "frames", "reward", "eval", "fps", "left")
        rows = {session: self._cells(session) for session in self.rows}
        widths = [max(map(len, column)) for column in zip(heads, *rows.values(), strict=True)]
        free = self.console.width - sum(widths) - len(GAP) * len(widths)
        bar = min(BAR_WIDTH, free - len(GAP)) if free >= MIN_BAR + len(GAP) else 0
        has_curve = free - bar - 2 * len(GAP) >= CURVE_WIDTH
        table = Table(box=None, padding=(0, len(GAP), 0, 0))
        for index, head in enumerate(heads):
            table.add_column(head, justify="right" if index else "left", no_wrap=True)
            if not index and bar:
                table.add_column("", no_wrap=True)
        if has_curve:
            table.add_column("", no_wrap=True)
        for session, (number, *cells) in rows.items():
            progress = self.rows[session]
            frame = 0 if progress is None else progress.frame
            bars = [ProgressBar(self.max_frame, frame, width=bar)] if bar else []
            curve = [draw_curve(self.history[session], self.max_frame)] if has_curve else []
            table.add_row(number, *bars, *cells, *curve)
        return table

    def _cells(self, session: int) -> tuple[str, ...]:
        progress = self.rows[session]
        state, since = self.states.get(session, ("" if progress is not None else "waiting", 0.0))
        if state and state != "waiting":
            state = f"{state} {format_seconds(time.monotonic() - since)}"
        if progress is None:
            return str(session), state, "", "", "", ""
        rewards = (format_score(value) for value in (progress.total_reward, progress.eval_reward))
        last = (state, "") if state else (f"{progress.fps:,.0f}", self._time_left(progress))
        return str(session), f"{progress.frame:,}", *rewards, *last


def draw_curve(history: Sequence[tuple[int, float]], max_frame: int) -> str:
    """Scores as a row of bars, from the first frame of the run to the last; frames to come are blank."""
    if not history:
        return ""
    cells: list[list[float]] = [[] for _ in range(CURVE_WIDTH)]
    for frame, score in history:
        cells[min(frame * CURVE_WIDTH // max(max_frame, 1), CURVE_WIDTH - 1)].append(score)
    means = [sum(cell) / len(cell) if cell else None for cell in cells]
    known = [mean for mean in means if mean is not None]
    low, span = min(known), max(known) - min(known)
    steps = len(BARS) - 1
    return "".join(
        " " if mean is None else BARS[round((mean - low) / span * steps) if span else 0] for mean in means
    ).rstrip()


def format_score(value: float) -> str:
    """A score with two decimals, or a dash."""
    return f"{value:.2f}" if math.isfinite(value) else "-"
