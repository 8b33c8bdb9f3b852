"""Learning curves of results: a few points of each session beside the page, so that figures need no runs."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from slm_lab.benchmark.matrix import slug
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_text
from slm_lab.results.curve import average_curves, read_curves
from slm_lab.results.metrics import mask_partial_ma
from slm_lab.results.run import Run
from slm_lab.results.table import Table

# a row is a mean over a hundred episodes, so more points would show little more
NUM_POINT = 100
RETURN, MOVING_AVERAGE = "total_reward", "total_reward_ma"
# early results kept only the moving average
CURVES = (RETURN, MOVING_AVERAGE)

# by run name and session number
Curves = Mapping[str, Mapping[int, Table]]


def curves_file(docs: Path, group: str) -> Path:
    """The file with the curves of a group of rows."""
    return docs / "benchmark" / "curves" / f"{slug(group)}.csv"


def thin(run: Run) -> dict[int, Table]:
    """A few rows of each session."""
    return {session: _thin(table) for session, table in run.counted_tables.items()}


def _thin(table: Table) -> Table:
    size = len(table["frame"])
    picked = np.unique(np.linspace(0, size - 1, NUM_POINT).round().astype(int)) if size else np.arange(0)
    full = {**table, MOVING_AVERAGE: mask_partial_ma(table)}
    # there is nothing to draw before the first episode ends
    picked = picked[np.isfinite(table[RETURN][picked])]
    return {name: np.asarray(full[name], float)[picked] for name in ("frame", *CURVES)}


def pick_column(tables: Iterable[Table]) -> str:
    """The column of returns, or of their moving average if a table has only that."""
    has_returns = all(np.isfinite(table[RETURN]).any() for table in tables)
    return RETURN if has_returns else MOVING_AVERAGE


def find_reach(sessions: Mapping[int, Table], score: float) -> float | None:
    """The frame from which the mean over sessions stays at or above a score; None if it ends below."""
    column = pick_column(sessions.values())
    # without the returns, read_curve would mask the moving average again
    tables = [{name: table[name] for name in ("frame", column)} for table in sessions.values()]
    average = average_curves(read_curves(tables, column))
    if average is None or average.mean[-1] < score:
        return None
    below = np.flatnonzero(average.mean < score)
    return float(average.x[below[-1] + 1 if below.size else 0])


def load_curves(docs: Path, group: str) -> dict[str, dict[int, Table]]:
    """The saved curves of a group."""
    path = curves_file(docs, group)
    points: dict[str, dict[int, dict[float, dict[str, float]]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                run, curve, frame = line.pop("run"), line.pop("curve"), float(line.pop("frame"))
                for session, value in line.items():
                    if value:
                        rows = points.setdefault(run, {}).setdefault(int(session), {})
                        rows.setdefault(frame, {})[curve] = float(value)
    except FileNotFoundError:
        return {}
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} is damaged ({error}); restore it from git") from None
    return {run: {session: _to_table(rows) for session, rows in sessions.items()} for run, sessions in points.items()}


def _to_table(rows: Mapping[float, Mapping[str, float]]) -> Table:
    frames = sorted(rows)
    columns = {name: np.array([rows[frame].get(name, np.nan) for frame in frames]) for name in CURVES}
    return {"frame": np.array(frames), **columns}


def save_curves(docs: Path, group: str, curves: Curves) -> None:
    """Write the curves of a group: a line per run, curve and frame, a column per session."""
    text = io.StringIO()
    sessions = sorted({session for tables in curves.values() for session in tables})
    writer = csv.DictWriter(text, ["run", "curve", "frame", *sessions], restval="", lineterminator="\n")
    writer.writeheader()
    for run, tables in curves.items():
        for curve in CURVES:
            lines: dict[float, dict[object, str]] = {}
            for session, table in tables.items():
                for frame, value in zip(table["frame"], table[curve], strict=True):
                    if np.isfinite(value):
                        line = lines.setdefault(frame, {"run": run, "curve": curve, "frame": f"{frame:.0f}"})
                        line[session] = f"{value:.6g}"
            writer.writerows(lines[frame] for frame in sorted(lines))
    write_text(curves_file(docs, group), text.getvalue())
