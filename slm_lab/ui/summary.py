"""A run as one row of the table of runs."""

import math
import time
from typing import Any

import numpy as np

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.results.curve import average_curves, read_curves
from slm_lab.results.folder import is_running
from slm_lab.results.page import color_variable, to_number
from slm_lab.results.palette import find_look
from slm_lab.results.run import Run, TableReader, look_up, read_run
from slm_lab.ui.notes import read_notes
from slm_lab.ui.places import Place, find_age, refuse_links

# points of the small curve in a row
NUM_POINT = 32
# from the end of a session to the lock of the next one, which imports torch first
NEXT_SECONDS = 60.0


def sketch(place: Place) -> Document:
    """What is known of a run before its files are read."""
    return {
        "id": place.id,
        "kind": place.kind,
        "parent": place.parent,
        "age": find_age(place),
        "status": "loading",
        "name": place.path.name,
    }


def summarize(place: Place, read: TableReader) -> Document:
    """A run in numbers; raises LabError or OSError where it cannot be read."""
    refuse_links(place.path)
    run = read_run(place.path, None, read)
    spread = run.spread
    notes = read_notes(place.path)
    return sketch(place) | {
        "spec": run.name,
        "env": run.env_name,
        "algorithm": run.label,
        "color": color_variable(find_look(run.label).name),
        "score": to_number(spread.mean) if spread is not None else None,
        "low": to_number(spread.low) if spread is not None else None,
        "high": to_number(spread.high) if spread is not None else None,
        "score_kind": run.score_kind,
        "sessions": len(run.scores),
        "frame": run.frame,
        "max_frame": find_max_frame(run),
        "progress": calc_progress(run),
        "left": calc_seconds_left(run),
        "fps": to_number(run.fps),
        "status": find_status(place, run),
        "is_between_sessions": is_between_sessions(run),
        "spark": draw_spark(run),
        "tags": notes.tags,
        "note": notes.note,
        "has_problems": bool(run.problems),
    }


def find_max_frame(run: Run) -> int | None:
    """Frames of a session, as the spec has them."""
    return _whole(look_up(run.spec, "env", "max_frame"))


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def calc_progress(run: Run) -> float | None:
    """The share of all frames that are done, over the sessions that were asked for."""
    end = find_max_frame(run)
    if end is None:
        return None
    if run.metrics is not None and run.metrics.is_complete:
        # meta.stop may have ended sessions before their last frame
        return 1.0
    count = max(_whole(look_up(run.spec, "meta", "max_session")) or 1, len(run.tables))
    shares = [min(float(table["frame"][-1]) / end, 1.0) for table in run.tables.values()]
    return round(sum(shares) / count, 4)


def calc_seconds_left(run: Run) -> float | None:
    """Seconds until all sessions are at their last frame, at the speed of those that train."""
    end = find_max_frame(run)
    if end is None or not is_running(run.path):
        return None
    left, speeds = [], []
    for table in run.tables.values():
        fps = table["fps"][-1] if "fps" in table else math.nan
        if fps > 0 and table["frame"][-1] < end:
            left.append(end - float(table["frame"][-1]))
            speeds.append(float(fps))
    if not left:
        return None
    # those that have not begun take the places of those that end
    num_waiting = (_whole(look_up(run.spec, "meta", "max_session")) or 1) - len(run.tables)
    slowest = max(frames / fps for frames, fps in zip(left, speeds, strict=True))
    return max(slowest, (sum(left) + max(num_waiting, 0) * end) / sum(speeds))


def is_between_sessions(run: Run) -> bool:
    """Whether all sessions that have begun are at their end, and some have not begun: no process holds a lock then."""
    end, count = find_max_frame(run), _whole(look_up(run.spec, "meta", "max_session"))
    if end is None or count is None or run.metrics is not None:
        return False
    return len(run.tables) < count and all(table["frame"][-1] >= end for table in run.tables.values())


def is_next_awaited(row: ReadOnlyDocument) -> bool:
    """Whether the next session of a run is about to begin, by its row in the table."""
    return bool(row.get("is_between_sessions")) and time.time() - float(row["age"]) < NEXT_SECONDS


def find_status(place: Place, run: Run) -> str:
    """Whether a run trains, is done, has failed sessions, or was stopped."""
    row = {"is_between_sessions": is_between_sessions(run), "age": find_age(place)}
    if is_running(run.path) or is_next_awaited(row):
        return "running"
    if run.failed:
        return "failed"
    if run.metrics is not None and run.metrics.is_complete is not False:
        return "done"
    return "stopped"


def draw_spark(run: Run) -> list[float | None]:
    """The mean return at evenly spaced frames, from 0 to 1."""
    curves = read_curves(run.counted_tables.values(), "total_reward")
    if not curves:
        return []
    average = average_curves(curves, "minmax")
    x, y = (average.x, average.mean) if average is not None else curves[0]
    values = np.interp(np.linspace(x[0], x[-1], min(NUM_POINT, x.size)), x, y)
    low, high = float(values.min()), float(values.max())
    return [round((float(value) - low) / (high - low), 3) if high > low else 0.5 for value in values]
