"""The row of a run, and whether the run qualifies as its result."""

import json
import math
from collections.abc import Sequence
from enum import StrEnum

from slm_lab.benchmark.matrix import Row
from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import is_running, is_search
from slm_lab.results.run import Run, look_up
from slm_lab.spec.loading import dump_spec, flatten_spec, name_for_env, parse_spec
from slm_lab.spec.schema import SINKS, Spec

# keys in which a run may differ from the committed spec: none affects training
FREE = frozenset(
    f"meta.{key}"
    for key in (
        "device",
        "compile",
        "num_threads",
        *SINKS,
        "checkpoint_frequency",
        "eval_frequency",
        "rigorous_eval",
        "video_frequency",
        "max_trial",
        "search_resources",
        "search_scheduler",
    )
) | {"env.num_workers", "search"}
# scores in files and tables agree up to rounding
TOLERANCE = 1e-6


class Stage(StrEnum):
    """The progress of a run."""

    FINISHED = "finished"
    RUNNING = "running"
    STOPPED = "stopped"


def find_row(run: Run, rows: Sequence[Row]) -> Row | None:
    """The row of a run, by the names of its spec and env; for a short row also by its frames."""
    named = [
        row
        for row in rows
        if run.env_name == row.env and run.name in (row.spec_name, name_for_env(row.spec_name, row.env))
    ]
    frames = look_up(run.spec, "env", "max_frame")
    return next((row for row in named if row.max_frame == frames), next((r for r in named if not r.is_short), None))


def find_stage(run: Run) -> Stage:
    """Whether a run has ended, is training, or was stopped or killed."""
    if run.metrics is not None and run.metrics.is_complete:
        return Stage.FINISHED
    return Stage.RUNNING if is_running(run.path) else Stage.STOPPED


def find_misfits(run: Run, row: Row) -> list[str]:
    """Why a run can never be the row's result."""
    if is_search(run.path):
        return ["it is a search: its score is the best of several, so train the best spec and take that run"]
    misfits = find_differences(run.spec, row)
    if imports := run.provenance.get("imports"):
        misfits.append(f"it was trained with --import {' '.join(map(str, imports))}")
    return misfits


def find_obstacles(run: Run, row: Row) -> list[str]:
    """Why a run cannot be the row's result; empty if it can."""
    if misfits := find_misfits(run, row):
        return misfits
    if run.metrics is None:
        return ["it has not ended: no trial_metrics"]
    obstacles = [*run.problems]
    if not run.provenance:
        obstacles.append("it has no info/*_provenance.json, so nobody knows what code made it")
    if run.failed:
        obstacles.append(f"sessions {list(run.failed)} failed")
    if not run.metrics.is_complete:
        obstacles.append("it was stopped before its end")
    scores = list(run.session_ma.values())
    if len(scores) != row.max_session:
        obstacles.append(f"it has {len(scores)} of {row.max_session} sessions")
    short = {s: int(table["frame"][-1]) for s, table in run.tables.items() if table["frame"][-1] < row.max_frame}
    obstacles += [f"session {s} ends at frame {frame:,} of {row.max_frame:,}" for s, frame in short.items()]
    written = run.metrics.total_reward_ma.mean if run.metrics.total_reward_ma is not None else None
    score = sum(scores) / len(scores)
    if not math.isfinite(score):
        obstacles.append("no episode ended in one of its sessions")
    elif not isinstance(written, (int, float)) or abs(written - score) > TOLERANCE * max(1, abs(score)):
        obstacles.append(f"trial_metrics has score {written}, the sessions' tables {score:.4f}; see slm-lab retro")
    return obstacles


def find_differences(spec: ReadOnlyDocument, row: Row) -> list[str]:
    """Differences between the spec of a run and the committed one with the row's settings."""
    try:
        read, _ = parse_spec({**spec, "name": row.spec_name}, "its spec")
    except LabError as error:
        return [str(error)]
    ours, theirs = flatten(row.load_spec()), flatten(read)
    keys = [key for key in (*ours, *(key for key in theirs if key not in ours)) if ours.get(key) != theirs.get(key)]
    return [f"{key} is {_show(theirs, key)}, the row has {_show(ours, key)}" for key in keys]


def _show(values: ReadOnlyDocument, key: str) -> str:
    return json.dumps(values[key]) if key in values else "not set"


def flatten(spec: Spec) -> Document:
    """The keys that affect the score, by dotted path."""
    (data,) = dump_spec(spec).values()
    return {path: value for path, value in flatten_spec(data).items() if not _is_free(path)}


def _is_free(path: str) -> bool:
    return any(path == key or path.startswith(f"{key}.") for key in FREE)
