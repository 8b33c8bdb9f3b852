"""`slm_lab.read`: the tables and scores of a run, for scripts and notebooks; needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from slm_lab.lib.array import Array
from slm_lab.lib.data import ReadOnlyDocument
from slm_lab.lib.errors import RunFolderError
from slm_lab.results.folder import DATA_DIR, RunFolder
from slm_lab.results.run import Run, load_run
from slm_lab.results.table import NEEDED, Table, read_session_table

# neither is a dependency; the first that is installed is used
_LIBRARIES = ("pandas", "polars")


@dataclass(frozen=True)
class RunData:
    """A run as data; `run` has everything else in its folder.

    Tables are data frames of pandas, or of polars, or dicts of numpy arrays, by what is installed.
    """

    run: Run

    @cached_property
    def df(self) -> Any:
        """The training rows of all sessions, failed ones too, with the column `session`."""
        return _to_frame(self.run.tables)

    @cached_property
    def eval_df(self) -> Any:
        """The evaluations of all sessions."""
        return _to_frame(self.run.eval_tables)

    @cached_property
    def episodes(self) -> Any:
        """A row per training episode, in runs that log episodes; otherwise without rows."""
        folder, tables = RunFolder(self.run.path, self.run.name), {}
        for session in self.run.tables:
            path = folder.table_file(self.run.trial, session, "episode")
            if path.exists():
                try:
                    tables[session] = read_session_table(path)
                except RunFolderError as error:
                    logger.warning(str(error))
        return _to_frame(tables)

    @property
    def spec(self) -> ReadOnlyDocument:
        """The saved spec."""
        return self.run.spec

    @property
    def score(self) -> float:
        """The score of the run, the mean of `scores`; NaN without one."""
        return float("nan") if self.run.spread is None else self.run.spread.mean

    @property
    def scores(self) -> list[float]:
        """The score of each session that counts."""
        return self.run.scores


def read(folder: str | Path, data_dir: str | Path = DATA_DIR, trial: int | None = None) -> RunData:
    """Read the results of a run: tables, spec and scores; of a search its best trial, unless another is given."""
    return RunData(load_run(str(folder), Path(data_dir), trial))


def _to_frame(tables: Mapping[int, Table]) -> Any:
    """The rows of all sessions; a column that a session lacks is NaN there."""
    names = list(dict.fromkeys([*(name for table in tables.values() for name in table)] or NEEDED))
    sizes = {session: len(table["frame"]) for session, table in tables.items()}
    columns: dict[str, Array] = {"session": np.repeat(np.array(list(sizes), int), list(sizes.values()))}
    for name in names:
        parts = [table.get(name, np.full(sizes[session], np.nan)) for session, table in tables.items()]
        columns[name] = np.concatenate([np.empty(0), *parts])
    columns["frame"] = columns["frame"].astype(int)
    for name in _LIBRARIES:
        try:
            found = vars(import_module(name))
        except ImportError:
            continue
        # a folder of that name beside a script can be imported as an empty package
        if "DataFrame" in found:
            return found["DataFrame"](columns)
    return columns
