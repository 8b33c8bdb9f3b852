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

# a moving average over as many rows hides nothing between them
NUM_POINT = 100
_COLUMNS = ("frame", "total_reward_ma")

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
    frame, value = (np.asarray(table[name], dtype=float)[picked] for name in _COLUMNS)
    # before the first episode has ended
    is_known = np.isfinite(value)
    return dict(zip(_COLUMNS, (frame[is_known], value[is_known]), strict=True))


def load_curves(docs: Path, env: str) -> dict[str, dict[int, Table]]:
    """The curves of an env that are kept."""
    path = curves_file(docs, env)
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    try:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                run, frame = line.pop("run"), float(line.pop("frame"))
                for session, value in line.items():
                    if value:
                        points.setdefault(run, {}).setdefault(int(session), []).append((frame, float(value)))
    except FileNotFoundError:
        return {}
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} is damaged ({error}); take it back from git") from None
    return {
        run: {session: dict(zip(_COLUMNS, np.array(rows).T, strict=True)) for session, rows in sessions.items()}
        for run, sessions in points.items()
    }


def save_curves(docs: Path, env: str, curves: Curves) -> None:
    """Write the curves of an env: a line per run and frame, a column per session."""
    text = io.StringIO()
    sessions = sorted({session for tables in curves.values() for session in tables})
    writer = csv.DictWriter(text, ["run", "frame", *sessions], restval="", lineterminator="\n")
    writer.writeheader()
    for run, tables in curves.items():
        lines: dict[float, dict[object, str]] = {}
        for session, table in tables.items():
            for frame, value in zip(*(table[name] for name in _COLUMNS), strict=True):
                line = lines.setdefault(frame, {"run": run, "frame": f"{frame:.0f}"})
                line[session] = f"{value:.6g}"
        writer.writerows(lines[frame] for frame in sorted(lines))
    write_text(curves_file(docs, env), text.getvalue())
