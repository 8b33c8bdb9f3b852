"""What a person sees while sessions train: a live table on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from loguru import logger
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slm_lab.lib.log import console_to

LINE_SECONDS = 10.0
CURVE_WIDTH = 16
BARS = "▁▂▃▄▅▆▇█"


class ProgressView:
    """Shows frames, score, speed, time left and a small curve of each session."""

    def __init__(self, num_session: int, max_frame: int, console: Console | None = None, may_draw: bool = True) -> None:
        self.console = console or Console(stderr=True)
        # lines for machines are not drawn over
        self.may_draw = may_draw
        self.max_frame = max_frame
        self.rows: dict[int, Mapping[str, Any] | None] = dict.fromkeys(range(num_session))
        self.begun: dict[int, tuple[float, int]] = {}
        self.live: Live | None = None
        self.stack = ExitStack()
        self.last_line: dict[int, float] = {}
        # scores so far, with the frame each belongs to
        self.history: dict[int, list[tuple[int, float]]] = {session: [] for session in range(num_session)}

    def __enter__(self) -> "ProgressView":
        if self.may_draw and self.console.is_terminal:
            self.live = self.stack.enter_context(Live(self._table(), console=self.console, refresh_per_second=4))
            # log lines go above the live table instead of through it
            self.stack.enter_context(console_to(lambda line: self.console.print(Text(line.rstrip()), soft_wrap=True)))
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.update(self._table())
        self.stack.__exit__(*error)

    def update(self, progress: Mapping[str, Any]) -> None:
        """Take a session's progress."""
        session = progress["session"]
        now = time.monotonic()
        self.begun.setdefault(session, (now, progress["frame"]))
        self.rows[session] = progress
        if progress["total_reward"] is not None and not math.isnan(progress["total_reward"]):
            self.history[session].append((progress["frame"], progress["total_reward"]))
        if self.live is not None:
            self.live.update(self._table())
        elif now - self.last_line.get(session, -math.inf) >= LINE_SECONDS or progress["frame"] >= self.max_frame:
            self.last_line[session] = now
            logger.bind(progress=dict(progress)).info(self._line(progress))

    def _time_left(self, progress: Mapping[str, Any]) -> str:
        since, frame = self.begun[progress["session"]]
        done = progress["frame"] - frame
        if done <= 0:
            return "?"
        seconds = (self.max_frame - progress["frame"]) * (time.monotonic() - since) / done
        return format_seconds(seconds)

    def _line(self, progress: Mapping[str, Any]) -> str:
        return (
            f"Session {progress['session']} frame {progress['frame']:,}/{self.max_frame:,} | "
            f"total_reward {_score(progress['total_reward'])} | total_reward_ma "
            f"{_score(progress['total_reward_ma'])} | fps {progress['fps']:,.0f} | left {self._time_left(progress)}"
        )

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for title, justify in (
            ("session", "left"),
            ("frames", "left"),
            ("", "right"),
            ("total_reward", "right"),
            ("total_reward_ma", "right"),
            ("fps", "right"),
            ("left", "right"),
            ("", "left"),
        ):
            table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for session, progress in self.rows.items():
            if progress is None:
                table.add_row(str(session), ProgressBar(self.max_frame, 0, width=24), "waiting", *[""] * 5)
                continue
            table.add_row(
                str(session),
                ProgressBar(self.max_frame, progress["frame"], width=24),
                f"{progress['frame']:,}",
                _score(progress["total_reward"]),
                _score(progress["total_reward_ma"]),
                f"{progress['fps']:,.0f}",
                self._time_left(progress),
                draw_curve(self.history[session], self.max_frame),
            )
        return table


def draw_curve(history: Sequence[tuple[int, float]], max_frame: int) -> str:
    """Scores as a row of bars from the first frame to the last; what is still to come is empty."""
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


def _score(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def format_seconds(seconds: float) -> str:
    """A duration for people."""
    seconds = max(0, round(seconds))
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"
