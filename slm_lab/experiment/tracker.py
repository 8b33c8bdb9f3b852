"""The table of a session: scores, times and the metrics of the algorithm."""

import io
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from slm_lab.env.vec_env import Episode
from slm_lab.lib.data import State
from slm_lab.lib.errors import EnvError
from slm_lab.lib.io import AppendFile, write_text
from slm_lab.results.metrics import MA_WINDOW, calc_total_reward_ma

CORE_COLUMNS = (
    *("total_reward", "total_reward_ma", "loss", "fps", "frame", "wall_t", "t", "epi", "opt_step", "lr"),
    "episode_length",
)
EPISODE_COLUMNS = ("frame", "env", "total_reward", "episode_length")
_WHOLE = ("frame", "t", "epi", "opt_step")


def list_columns(metric_names: Iterable[str], info_keys: Iterable[str]) -> tuple[str, ...]:
    """The columns of a session's table that are known before its first episode."""
    columns = dict.fromkeys((*CORE_COLUMNS, *metric_names))
    for key in info_keys:
        if key in columns or key in EPISODE_COLUMNS:
            raise EnvError(f"env.info_keys: '{key}' is a column of the lab's own; give it another name in a wrapper")
    return (*columns, *dict.fromkeys(info_keys))


class Tracker:
    """Collects episodes and training metrics, and writes rows of the table.

    A row averages over the last `window` episodes. `episode_path` is for a second table, with a line per episode.
    """

    def __init__(
        self,
        path: Path,
        metric_names: Iterable[str],
        info_keys: tuple[str, ...] = (),
        episode_path: Path | None = None,
        window: int = MA_WINDOW,
    ) -> None:
        self.path = path
        self.columns = list_columns(metric_names, info_keys)
        self.info_keys = tuple(dict.fromkeys(info_keys))
        # what episodes report beside return and length; known after the first one
        self.info_names: tuple[str, ...] | None = None
        # return, length and `info_names` of the last episodes
        self.recent: deque[tuple[float, ...]] = deque(maxlen=window)
        self.rows: list[list[float]] = []
        self.best = -math.inf
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._file: AppendFile | None = None
        self.episode_path = episode_path
        self._episode_file: AppendFile | None = None
        # size of the table of episodes; a resumed run removes the rest
        self.episode_bytes = 0

    def record(self, finished: Sequence[Episode], metrics: Mapping[str, float] | None, frame: int = 0) -> None:
        """Add episodes that ended, and the metrics of a training if there was one."""
        if finished:
            self._record_episodes(finished, frame)
        if metrics is not None:
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + value
                # not every training reports every metric
                self._counts[name] = self._counts.get(name, 0) + 1

    def _record_episodes(self, finished: Sequence[Episode], frame: int) -> None:
        if self.info_names is None:
            self._set_info_names(dict.fromkeys((*self.info_keys, *finished[0].info)))
        lines = []
        for episode in finished:
            told = [episode.info.get(name, math.nan) for name in self.info_names or ()]
            self.recent.append((episode.total_reward, episode.length, *told))
            cells = [str(frame), str(episode.env), repr(episode.total_reward), str(episode.length)]
            lines.append(",".join(cells + ["" if math.isnan(value) else repr(value) for value in told]) + "\n")
        if self.episode_path is not None:
            self._append_episodes(self.episode_path, "".join(lines))

    def _set_info_names(self, names: Iterable[str]) -> None:
        """Add columns that episodes report without `env.info_keys`; they are empty in older rows."""
        self.info_names = tuple(names)
        new = [name for name in self.info_names if name not in self.columns]
        self.columns += tuple(new)
        for row in self.rows:
            row += [math.nan] * len(new)
        if new and self._file is not None:
            self._file.close()
            self.open()

    def _append_episodes(self, path: Path, text: str) -> None:
        if self._episode_file is None:
            self._episode_file = AppendFile(path, keep=self.episode_bytes)
        header = "" if self._episode_file.size else ",".join((*EPISODE_COLUMNS, *(self.info_names or ()))) + "\n"
        self._episode_file.write(header + text)
        # the header counts once, even if the file was lost and is written again
        self.episode_bytes += len(text.encode()) + (0 if self.episode_bytes else len(header.encode()))

    @property
    def total_reward(self) -> float:
        """Mean raw return of the last finished episodes."""
        return self._average(0)

    def _average(self, index: int) -> float:
        known = [row[index] for row in self.recent if not math.isnan(row[index])]
        return sum(known) / len(known) if known else math.nan

    def add_row(self, clock: Mapping[str, float]) -> dict[str, float]:
        """Write a row; training metrics are means over all trainings since the last one."""
        known = dict(clock)
        known |= {name: value / self._counts[name] for name, value in self._sums.items()}
        for index, name in enumerate(("total_reward", "episode_length", *(self.info_names or ()))):
            known[name] = self._average(index)
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
        """Whether the last row has the best mean return so far; remembers that return.

        A mean of fewer episodes counts as best, but is not remembered: a lucky one at the start would remain the best.
        """
        value = self.rows[-1][0] if self.rows else math.nan
        if math.isnan(value) or value < self.best:
            return False
        if len(self.recent) == MA_WINDOW:
            self.best = value
        return True

    def _format(self, row: list[float]) -> str:
        cells = [
            str(int(value)) if name in _WHOLE else "" if math.isnan(value) else repr(float(value))
            for name, value in zip(self.columns, row, strict=True)
        ]
        return ",".join(cells) + "\n"

    def open(self) -> None:
        """Write the whole table, then append to it: in a resumed session rows after the checkpoint disappear."""
        text = io.StringIO()
        text.write(",".join(self.columns) + "\n")
        text.writelines(self._format(row) for row in self.rows)
        write_text(self.path, text.getvalue())
        self._file = AppendFile(self.path)

    def close(self) -> None:
        """Close the tables."""
        for file in (self._file, self._episode_file):
            if file is not None:
                file.close()
        self._file = self._episode_file = None

    def state_dict(self) -> State:
        """Rows and everything the next row depends on."""
        return {
            "rows": np.array(self.rows, float).reshape(len(self.rows), len(self.columns)),
            "info_names": None if self.info_names is None else list(self.info_names),
            "recent": np.array(self.recent, float).reshape(len(self.recent), 2 + len(self.info_names or ())),
            "best": self.best,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "episode_bytes": self.episode_bytes,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a saved table."""
        names = state["info_names"]
        if names is not None:
            self._set_info_names(str(name) for name in names)
        rows, recent = np.asarray(state["rows"], float), np.asarray(state["recent"], float)
        if rows.shape[1:] != (len(self.columns),) or recent.shape[1:] != (2 + len(self.info_names or ()),):
            raise ValueError("its table has other columns")
        self.rows = rows.tolist()
        self.recent = deque(map(tuple, recent.tolist()), maxlen=self.recent.maxlen)
        self.best = float(state["best"])
        self._sums = {str(name): float(value) for name, value in state["sums"].items()}
        # every sum needs its count
        self._counts = {name: int(state["counts"][name]) for name in self._sums}
        self.episode_bytes = int(state["episode_bytes"])
        self.open()
        if self.episode_path is not None:
            self._episode_file = AppendFile(self.episode_path, keep=self.episode_bytes)
