"""The progress of an experiment: a live table of its runs on a terminal, log lines elsewhere."""

import math
import time
from collections.abc import Sequence

from loguru import logger
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slm_lab.experiment.executor import Key
from slm_lab.experiment.messages import Progress
from slm_lab.experiment.progress import LiveView, format_score
from slm_lab.lib.terminal import escape
from slm_lab.lib.unit import format_seconds

LINE_SECONDS = 20.0
BAR_WIDTH = 20


class GridView(LiveView):
    """Shows each run of an experiment: sessions done, frames, score, speed; and the time left."""

    def __init__(
        self,
        titles: Sequence[str],
        num_session: Sequence[int],
        max_frame: Sequence[int],
        console: Console | None = None,
        may_draw: bool = True,
    ) -> None:
        super().__init__(console, may_draw)
        self.titles, self.num_session, self.max_frame = titles, num_session, max_frame
        self.frames: dict[Key, int] = {}
        self.scores: dict[Key, float] = {}
        self.speeds: dict[Key, float] = {}
        self.done: set[Key] = set()
        # frames that were trained before this command; None until the first progress
        self.num_before: int | None = None
        self.began = self.last_line = time.monotonic()

    def add_done(self, key: Key, score: float) -> None:
        """Show a session as done."""
        self.done.add(key)
        self.frames[key] = self.max_frame[key[0]]
        self.speeds.pop(key, None)
        if math.isfinite(score):
            self.scores[key] = score

    def update(self, key: Key, progress: Progress) -> None:
        """Take the progress of a session."""
        if progress.what == "row":
            self.frames.setdefault(key, 0)
            if self.num_before is None:
                self.num_before, self.began = sum(self.frames.values()), time.monotonic()
            self.frames[key] = progress.frame
            self.speeds[key] = progress.fps
            self.scores[key] = progress.total_reward
        if self.live is None and time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            running = [key for key in self.speeds if key not in self.done]
            parts = [f"{self.titles[run]} {session}: {self.frames[run, session]:,}" for run, session in running]
            logger.info(" | ".join([self._summary(), *parts]))

    def _summary(self) -> str:
        return f"{len(self.done)} of {sum(self.num_session)} sessions done, left {self._time_left()}"

    def _time_left(self) -> str:
        whole = sum(count * frame for count, frame in zip(self.num_session, self.max_frame, strict=True))
        now = sum(self.frames.values())
        trained = now - (self.num_before or 0)
        return format_seconds((time.monotonic() - self.began) / trained * (whole - now)) if trained > 0 else "?"

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), title=self._summary(), title_justify="left", title_style="")
        table.add_column("run", no_wrap=True)
        table.add_column("", no_wrap=True)
        for head in ("sessions", "score", "fps"):
            table.add_column(head, justify="right", no_wrap=True)
        for run, title in enumerate(self.titles):
            keys = [(run, session) for session in range(self.num_session[run])]
            whole = self.max_frame[run] * len(keys)
            bar = ProgressBar(whole, sum(self.frames.get(key, 0) for key in keys), width=BAR_WIDTH)
            known = [self.scores[key] for key in keys if math.isfinite(self.scores.get(key, math.nan))]
            score = sum(known) / len(known) if known else math.nan
            speed = sum(self.speeds.get(key, 0.0) for key in keys)
            count = f"{sum(key in self.done for key in keys)}/{len(keys)}"
            table.add_row(Text(escape(title)), bar, count, format_score(score), f"{speed:,.0f}" if speed else "")
        return table
