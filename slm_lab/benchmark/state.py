"""The state of each row, from results, runs in the data folder, and remote runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from slm_lab.benchmark.match import Stage, find_misfits, find_obstacles, find_row, find_stage
from slm_lab.benchmark.matrix import Row, load_matrix
from slm_lab.benchmark.result import Result, find_start, is_stale
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import is_locked
from slm_lab.results.run import Run, load_run


class Standing(StrEnum):
    """The standing of a row."""

    DONE = "done"
    READY = "to take in"
    RUNNING = "running"
    SUBMITTED = "submitted"
    STOPPED = "stopped"
    REFUSED = "refused"
    # the spec has changed since the result was made
    STALE = "stale"
    MISSING = "missing"


@dataclass(frozen=True)
class RowState:
    """A row, its result if there is one, and its newest run that is not taken in."""

    row: Row
    standing: Standing
    result: Result | None
    run: Run | None
    # why the run cannot be taken in
    obstacles: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Frames of all sessions of the run."""
        return 0 if self.run is None else sum(int(table["frame"][-1]) for table in self.run.tables.values())

    @property
    def resumable_frames(self) -> int:
        """Frames that the next run of the row need not train again."""
        return self.frames if self.standing is Standing.STOPPED else 0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end, at the speed of the training sessions; None if none is training."""
        if self.run is None:
            return None
        speeds = [self.run.tables[s]["fps"][-1] for s in find_locked(self.run.path) if s in self.run.tables]
        speed = float(np.nansum(speeds))
        return (self.row.max_frame * self.row.max_session - self.frames) / speed if speed > 0 else None


def find_locked(path: Path) -> list[int]:
    """Sessions of a run that are training."""
    locks = [file for file in (path / "model").glob(".*_s*.lock") if is_locked(file)]
    return sorted(int(file.stem.rpartition("_s")[2]) for file in locks)


def find_states(
    rows: Sequence[Row], results: Mapping[str, Result], data_dir: Path, submitted: Collection[str] = ()
) -> list[RowState]:
    """The state of each row; `submitted` are the keys of rows that run on other machines."""
    runs: dict[str, list[Run]] = {}
    for run in _read_runs(rows, data_dir):
        # among all rows, because rows can share a spec: a run may belong to one that is not in `rows`
        row = find_row(run, load_matrix())
        if row is not None:
            runs.setdefault(row.key, []).append(run)
    return [_find_state(row, results.get(row.key), runs.get(row.key, []), row.key in submitted) for row in rows]


def _read_runs(rows: Sequence[Row], data_dir: Path) -> list[Run]:
    """Runs whose folders are named like a row, the newest first."""
    prefixes = tuple({row.spec_name for row in rows})
    folders = [folder for folder in data_dir.glob("*") if folder.name.startswith(prefixes)]
    runs = []
    for folder in sorted(folders, key=lambda folder: find_start(folder.name), reverse=True):
        try:
            runs.append(load_run(str(folder), data_dir))
        except LabError:
            continue  # no results yet, or not a run
    return runs


def _find_state(row: Row, result: Result | None, runs: Sequence[Run], is_submitted: bool) -> RowState:
    """The newest run of the row's spec counts, not the best; runs with other settings are skipped if possible."""
    if result is not None:
        runs = [run for run in runs if find_start(run.path.name) > find_start(result.run)]
    fitting = next((run for run in runs if not find_misfits(run, row)), None)
    if fitting is not None and (state := _find_stage_state(row, result, fitting)) is not None:
        return state
    if is_submitted:
        return RowState(row, Standing.SUBMITTED, result, fitting)
    if fitting is not None:
        return RowState(row, Standing.STOPPED, result, fitting)
    if result is not None:
        return RowState(row, Standing.STALE if is_stale(result, row) else Standing.DONE, result, None)
    if runs:
        return RowState(row, Standing.REFUSED, None, runs[0], tuple(find_misfits(runs[0], row)))
    return RowState(row, Standing.MISSING, None, None)


def _find_stage_state(row: Row, result: Result | None, run: Run) -> RowState | None:
    """The state of a row whose run is training or has ended; None if it was stopped and can resume."""
    stage = find_stage(run)
    if stage is Stage.RUNNING:
        return RowState(row, Standing.RUNNING, result, run)
    if stage is Stage.STOPPED and not run.failed:
        return None
    obstacles = find_obstacles(run, row)
    return RowState(row, Standing.REFUSED if obstacles else Standing.READY, result, run, tuple(obstacles))
