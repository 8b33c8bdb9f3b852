"""Learning curves of results: a few points of each session beside the page, so that figures need no run at hand."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from slm_lab.benchmark.matrix import slug
from slm_lab.experiment.analysis import Table
from slm_lab.experiment.results import Run
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_text

COLUMNS = ("run", "session", "frame", "total_reward_ma")
# a moving average over as many rows hides nothing between them
NUM_POINT = 100

# by the name of the run and the number of the session
Curves = Mapping[str, Mapping[int, Table]]


def curves_file(docs: Path, env: str) -> Path:
    """Where the curves of an env are kept."""
    return docs / "benchmark" / "curves" / f"{slug(env)}.csv"


def thin(run: Run) -> dict[int, Table]:
    """A few rows of each session, at the same frames where the tables have the same rows."""
    return {session: _thin(table) for session, table in run.counted_tables.items()}


def _thin(table: Table) -> Table:
    size = len(table["frame"])
    picked = np.unique(np.linspace(0, size - 1, NUM_POINT).round().astype(int)) if size else np.arange(0)
    frame, value = (np.asarray(table[name], dtype=float)[picked] for name in ("frame", "total_reward_ma"))
    # before the first episode has ended
    is_known = np.isfinite(value)
    return {"frame": frame[is_known], "total_reward_ma": value[is_known]}


def load_curves(docs: Path, env: str) -> dict[str, dict[int, Table]]:
    """The curves of an env that are kept."""
    path = curves_file(docs, env)
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    try:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                sessions = points.setdefault(line["run"], {})
                point = float(line["frame"]), float(line["total_reward_ma"])
                sessions.setdefault(int(line["session"]), []).append(point)
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} is damaged ({error}); take it back from git") from None
    return {
        run: {session: dict(zip(COLUMNS[2:], np.array(rows).T, strict=True)) for session, rows in sessions.items()}
        for run, sessions in points.items()
    }


def save_curves(docs: Path, env: str, curves: Curves) -> None:
    """Write the curves of an env."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run, sessions in curves.items():
        for session, table in sessions.items():
            for frame, value in zip(table["frame"], table["total_reward_ma"], strict=True):
                writer.writerow([run, session, f"{frame:.0f}", f"{value:.6g}"])
    write_text(curves_file(docs, env), text.getvalue())
