"""The pages of searches and experiments, also while they run."""

import math
from collections.abc import Sequence
from typing import Any

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import read_text
from slm_lab.results.folder import RunFolder, describe_failure, is_running
from slm_lab.results.page import NOTHING, color_variable, format_number, to_number
from slm_lab.results.palette import find_look
from slm_lab.results.report import name_runs
from slm_lab.results.report_chart import NUM_POINT_SMALL, build_curves, build_graph
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.report_search import NOTE, STATES, find_name
from slm_lab.results.run import NoResultsError, Run, name_algorithm
from slm_lab.results.search_axis import SearchedKey, read_axis
from slm_lab.results.search_trial import TrialRow, calc_importance, rank, read_journal
from slm_lab.spec.loading import load_spec, name_for_env
from slm_lab.spec.search_space import read_dimensions
from slm_lab.ui.library import Library
from slm_lab.ui.places import Place, refuse_links
from slm_lab.ui.summary import find_status

MAX_SPEC_BYTES = 300_000
# curves of trials on one page
MAX_CURVES = 60


def build_search(place: Place, library: Library) -> Document:
    """The page of a search: its trials so far, its rungs, what mattered, and the best spec."""
    refuse_links(place.path)
    folder = RunFolder(place.path, find_name(place.path))
    if not folder.study_file.exists():
        raise RunFolderError(f"{place.id} has no journal {folder.study_file.name}, so its trials are unknown")
    spec = load_spec(folder.spec_file, folder.name).spec
    dimensions = read_dimensions(spec)
    rows = rank(read_journal(folder.study_file, dimensions))
    importance = calc_importance(rows, dimensions)
    found = [SearchedKey(d.path, d.space == "choice", d.is_log, importance.get(d.path)) for d in dimensions]
    keys = sorted(found, key=lambda key: -(key.importance or 0))
    best = next((row for row in rows if row.state == "done"), None)
    document = {"agent": spec.agent.model_dump(mode="json", serialize_as_any=True)}
    return {
        "id": place.id,
        "title": f"{spec.agent.name or name_algorithm(document)} on {spec.env.name}",
        "color": color_variable(find_look(name_algorithm(document)).name),
        "status": "running" if is_running(place.path) else "done" if folder.search_file.exists() else "stopped",
        "best": best.trial if best is not None else None,
        "facts": _list_facts(rows, best, spec.meta.max_trial),
        "keys": [key.path for key in keys],
        "trials": [_describe_trial(row, keys) for row in rows],
        "rungs": _list_rungs(rows),
        "importance": [[key.path, key.importance] for key in keys if key.importance is not None],
        "parallel": _build_parallel(rows, keys, best),
        "curves": _build_curves(rows, best, place, library),
        "best_spec": _read_best_spec(folder),
        "note": NOTE,
    }


def _list_facts(rows: Sequence[TrialRow], best: TrialRow | None, max_trial: int | None) -> list[list[str]]:
    states = [row.state for row in rows]
    score = best.score if best is not None else math.nan
    named = f"trial {best.trial}" if best is not None else "no trial is done"
    facts = [["Best score", format_number(score), named], ["Trials", f"{len(rows)} of {max_trial or '?'}", "begun"]]
    notes = {
        "done": "to the last frame",
        "stopped": "for better ones",
        "running": "under way",
        "failed": "see the table",
    }
    names = {"stopped": "Stopped early"}
    facts += [
        [names.get(state, state.title()), str(states.count(state)), notes[state]] for state in notes if state in states
    ]
    return facts


def _describe_trial(row: TrialRow, keys: Sequence[SearchedKey]) -> Document:
    values = [_show(row.values[key.path]) if key.path in row.values else NOTHING for key in keys]
    reached = [[frame, to_number(score)] for frame, score in row.rungs.items()]
    known = {"trial": row.trial, "state": STATES.get(row.state, row.state), "score": to_number(row.score)}
    return known | {"values": values, "rungs": reached, "error": row.reason}


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _list_rungs(rows: Sequence[TrialRow]) -> Document | None:
    """How many trials reached each rung, how many were kept, and the best score there; None without rungs."""
    frames = sorted({frame for row in rows for frame in row.rungs})
    if not frames:
        return None
    lines = []
    for frame in frames:
        reached = [row for row in rows if frame in row.rungs]
        ended = [row for row in reached if row.state in ("stopped", "failed") and max(row.rungs) == frame]
        scores = [row.rungs[frame] for row in reached if math.isfinite(row.rungs[frame])]
        cells = [format_number(frame), str(len(reached)), str(len(ended)), str(len(reached) - len(ended))]
        lines.append([*cells, format_number(max(scores, default=math.nan))])
    return {"head": ["frame", "trials", "stopped", "kept", "best score"], "rows": lines}


def _build_parallel(rows: Sequence[TrialRow], keys: Sequence[SearchedKey], best: TrialRow | None) -> Document | None:
    """A line per trial across the searched keys to its score, as numbers from 0 to 1."""
    known = [row for row in rows if math.isfinite(row.score) and all(key.path in row.values for key in keys)]
    if len(known) < 2 or not keys:
        return None
    axes = [read_axis(key, [row.values[key.path] for row in known]) for key in keys]
    axes.append(read_axis(SearchedKey("score", False, False), [row.score for row in known]))
    lines = []
    for index, row in enumerate(known):
        words = [f"{key.name} {_show(row.values[key.path])}" for key in keys]
        line = {"trial": str(row.trial), "is_done": row.state == "done", "is_best": best is not None and row == best}
        text = "\n".join([f"trial {row.trial}: {format_number(row.score)}", *words])
        lines.append(line | {"places": [round(float(axis.place[index]), 4) for axis in axes], "text": text})
    names = [*(key.name for key in keys), "score"]
    shown = []
    for name, axis in zip(names, axes, strict=True):
        ticks = [[round(float(tick), 4), label] for tick, label in zip(axis.ticks, axis.labels, strict=True)]
        shown.append({"name": name, "ticks": ticks})
    return {"axes": shown, "lines": lines}


def _build_curves(rows: Sequence[TrialRow], best: TrialRow | None, place: Place, library: Library) -> list[Document]:
    """The mean return of each trial over frames."""
    curves = []
    for row in rows[:MAX_CURVES]:
        try:
            run = library.load(place.id, row.trial)
        except (LabError, OSError):
            continue
        found = build_curves({0: run}, {0: run.tables}, "total_reward", NUM_POINT_SMALL)
        if found:
            # the mean comes last
            known = {"trial": row.trial, "is_best": best is not None and row.trial == best.trial}
            curves.append(known | {"is_done": row.state == "done", "x": found[-1]["x"], "y": found[-1]["y"]})
    return curves


def _read_best_spec(folder: RunFolder) -> str:
    try:
        return read_text(folder.best_spec_file, MAX_SPEC_BYTES)
    except (OSError, UnicodeDecodeError):
        return ""


# --- experiments


def build_experiment(place: Place, library: Library) -> Document:
    """The page of an experiment: a small chart for each algorithm and env, and the comparison of all runs."""
    if place.kind != "experiment":
        raise RunFolderError(f"{place.id} is no experiment")
    runs: list[tuple[Place, Run]] = []
    problems, waiting = [], []
    for child in library.find_children(place.id):
        try:
            runs.append((child, library.load(child.id)))
        except NoResultsError:
            waiting.append(child.id)
        except (LabError, OSError) as error:
            problems.append(f"{child.id}: {describe_failure(error)}")
    loaded = [run for _, run in runs]
    labels = [_find_label(run) for run in loaded]
    return {
        "id": place.id,
        "title": place.path.name,
        "problems": problems,
        "waiting": waiting,
        "envs": list(dict.fromkeys(run.env_name for run in loaded)),
        "labels": list(dict.fromkeys(labels)),
        "cells": [_build_cell(child, run, label) for (child, run), label in zip(runs, labels, strict=True)],
        "comparison": compare_runs(loaded, labels) if len(loaded) > 1 else None,
    }


def _find_label(run: Run) -> str:
    """What the experiment calls a run: its folder's name without the env."""
    end = name_for_env("", run.env_name)
    name = run.path.name
    bare = name.removesuffix(end) if name.endswith(end) else name
    # most are the name of the algorithm, written for a folder
    return run.label if bare.lower() == _slug(run.label) else bare


def _slug(text: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in text.lower()).strip("_")


def _build_cell(place: Place, run: Run, label: str) -> Document:
    graph = build_graph([run], name_runs([run]), "")
    charts = [chart for env in graph["envs"] for chart in env["charts"] if chart["name"] == "train"]
    spread = run.spread
    score = (
        {"score": to_number(spread.mean), "low": to_number(spread.low), "high": to_number(spread.high)}
        if spread
        else {}
    )
    known = {"id": place.id, "label": label, "env": run.env_name, "status": find_status(place, run), "frame": run.frame}
    return known | score | {"look": graph["runs"][0], "dashes": graph["dashes"], "chart": charts[0] if charts else None}
