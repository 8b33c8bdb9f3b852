"""Rows of a session's table: scores, clock, and what the algorithm reports."""

import io
import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from slm_lab.lib.data import State
from slm_lab.lib.io import AppendFile, write_text
from slm_lab.results.metrics import MA_WINDOW, calc_total_reward_ma

CORE_COLUMNS = ("total_reward", "total_reward_ma", "loss", "fps", "frame", "wall_t", "t", "epi", "opt_step", "lr")
_WHOLE = ("frame", "t", "epi", "opt_step")


class Tracker:
    """Collects raw episode returns and training metrics, and writes a row at each checkpoint."""

    def __init__(self, path: Path, metric_names: Iterable[str]) -> None:
        self.path = path
        self.columns = (*CORE_COLUMNS, *(name for name in metric_names if name not in CORE_COLUMNS))
        self.recent: deque[float] = deque(maxlen=MA_WINDOW)
        self.rows: list[list[float]] = []
        self.best = -math.inf
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._file: AppendFile | None = None

    def record(self, finished: list[float], metrics: Mapping[str, float] | None) -> None:
        """Take the episodes that ended and the metrics of a training, if there was one."""
        self.recent.extend(finished)
        if metrics is not None:
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + value
                # not every training has every metric
                self._counts[name] = self._counts.get(name, 0) + 1

    @property
    def total_reward(self) -> float:
        """Mean raw return of the last finished episodes."""
        return sum(self.recent) / len(self.recent) if self.recent else math.nan

    def add_row(self, clock: Mapping[str, float]) -> dict[str, float]:
        """Write a row; training metrics are means over all trainings since the last one."""
        known = dict(clock)
        known |= {name: value / self._counts[name] for name, value in self._sums.items()}
        known["total_reward"] = self.total_reward
        past = [row[0] for row in self.rows[-MA_WINDOW + 1 :]]
        known["total_reward_ma"] = calc_total_reward_ma(np.array([*past, known["total_reward"]]))
        row = {name: known.get(name, math.nan) for name in self.columns}
        self._sums.clear()
        self._counts.clear()
        self.rows.append(list(row.values()))
        if self._file is None:
            self.open()
        else:
            self._file.write(self._format(self.rows[-1]))
        return row

    def last(self, column: str) -> float:
        """A value of the last row."""
        return self.rows[-1][self.columns.index(column)]

    def is_best(self) -> bool:
        """Whether the last row has the best moving average so far; remembers it."""
        value = self.rows[-1][1] if self.rows else math.nan
        if math.isnan(value) or value < self.best:
            return False
        self.best = value
        return True

    def _format(self, row: list[float]) -> str:
        cells = [
            str(int(value)) if name in _WHOLE else "" if math.isnan(value) else repr(float(value))
            for name, value in zip(self.columns, row, strict=True)
        ]
        return ",".join(cells) + "\n"

    def open(self) -> None:
        """Write the whole table, then append to it: after a continuation rows beyond the checkpoint disappear."""
        text = io.StringIO()
        text.write(",".join(self.columns) + "\n")
        text.writelines(self._format(row) for row in self.rows)
        write_text(self.path, text.getvalue())
        self._file = AppendFile(self.path)

    def close(self) -> None:
        """Close the table."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def state_dict(self) -> State:
        """Rows and everything the next row depends on."""
        return {
            "rows": np.array(self.rows, float).reshape(len(self.rows), len(self.columns)),
            "recent": list(self.recent),
            "best": self.best,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue a saved table."""
        rows = state["rows"]
        # a table of an older version may lack the last columns
        empty = [math.nan] * (len(self.columns) - np.shape(rows)[1])
        self.rows = [[*map(float, row), *empty] for row in rows]
        self.recent = deque(map(float, state["recent"]), maxlen=MA_WINDOW)
        self.best = float(state["best"])
        self._sums = {str(name): float(value) for name, value in state["sums"].items()}
        # one that is not there cannot be divided by
        self._counts = {name: int(state["counts"][name]) for name in self._sums}
        self.open()
