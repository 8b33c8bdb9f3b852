"""Where each row stands: by the results taken in and the runs in the data folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slm_lab.benchmark.match import Stage, find_obstacles, find_row, find_stage
from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.result import Result
from slm_lab.experiment.results import Run, find_runs


class Standing(StrEnum):
    """What there is of a row."""

    DONE = "done"
    READY = "to take in"
    RUNNING = "running"
    STOPPED = "stopped"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class RowState:
    """A row, its result if there is one, and the newest run of it that is not taken in."""

    row: Row
    standing: Standing
    result: Result | None
    run: Run | None
    # why a run that has ended cannot be taken in
    obstacles: tuple[str, ...] = ()


def find_states(rows: Sequence[Row], results: Mapping[str, Result], data_dir: Path) -> list[RowState]:
    """Where each row stands."""
    newest: dict[str, Run] = {}
    # newest first: which run counts is not chosen by its score
    for run in find_runs(data_dir):
        row = find_row(run, rows)
        if row is not None:
            newest.setdefault(row.key, run)
    return [_find_state(row, results.get(row.key), newest.get(row.key)) for row in rows]


def _find_state(row: Row, result: Result | None, run: Run | None) -> RowState:
    if run is None or (result is not None and run.path.name == result.run):
        return RowState(row, Standing.MISSING if result is None else Standing.DONE, result, run)
    match find_stage(run):
        case Stage.RUNNING:
            return RowState(row, Standing.RUNNING, result, run)
        case Stage.STOPPED if not run.metrics.get("failed"):
            return RowState(row, Standing.STOPPED, result, run)
    obstacles = find_obstacles(run, row)
    return RowState(row, Standing.REFUSED if obstacles else Standing.READY, result, run, tuple(obstacles))
