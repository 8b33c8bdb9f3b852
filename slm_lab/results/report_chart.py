"""The learning curves of runs for a page, as plain data with a limited number of points."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.io import write_text
from slm_lab.results.curve import (
    average_curves,
    describe_constants,
    find_constant,
    find_limits,
    list_metrics,
    pick_points,
    read_curve,
)
from slm_lab.results.metrics import MA_WINDOW
from slm_lab.results.page import color_variable, render_page
from slm_lab.results.palette import COLORS, DASHES, find_looks
from slm_lab.results.run import Run
from slm_lab.results.table import Table

# points of a curve in a chart as wide as the page, and in a small one
NUM_POINT = 1000
NUM_POINT_SMALL = 300
RETURNS = {"raw": "total_reward", "ma": "total_reward_ma"}
TITLE = f"Total reward while training, mean of the last {MA_WINDOW} episodes"
MA_TITLE = f"total_reward_ma while training, mean of the last {MA_WINDOW} rows, each the mean of {MA_WINDOW} episodes"


def write_graph(runs: Sequence[Run], names: Sequence[str], title: str, path: Path, has_legend: bool = True) -> None:
    """Write a page with only the curves."""
    write_text(path, render_page(build_graph(runs, names, title) | {"is_graph": True, "has_legend": has_legend}))


def build_graph(
    runs: Sequence[Run], names: Sequence[str], title: str, wanted: Collection[str] | None = None
) -> Document:
    """The curves of runs, by env, and the look of each run.

    With `wanted`, small charts of other columns have no curves, since averages and intervals are slow to compute.
    """
    looks = find_looks([run.label for run in runs])
    return {
        "title": title,
        "has_legend": True,
        "colors": [color_variable(name) for name in COLORS],
        "dashes": [svg for _, svg in DASHES],
        "runs": [
            {"name": name, "env": run.env_name, "color": color_variable(look.name), "dash": look.dashes[1]}
            for run, name, look in zip(runs, names, looks, strict=True)
        ],
        "envs": [_build_env(runs, env, wanted) for env in dict.fromkeys(run.env_name for run in runs)],
    }


def _build_env(runs: Sequence[Run], env: str, wanted: Collection[str] | None) -> Document:
    """The curves of all runs in one env: returns first, then the columns of the algorithms that change."""
    here = {index: run for index, run in enumerate(runs) if run.env_name == env}
    charts = []
    tables = {index: run.tables for index, run in here.items()}
    returns = {name: build_curves(here, tables, column, NUM_POINT) for name, column in RETURNS.items()}
    if returns["raw"]:
        evals = build_curves(here, {index: run.evaluations for index, run in here.items()}, "total_reward", NUM_POINT)
        # only the last curve of each run, the mean if it has several sessions, so that dots do not hide curves
        means = {curve["run"]: curve for curve in evals}
        titles = {"title": TITLE, "ma_title": MA_TITLE}
        charts.append({"name": "train", **titles, "is_small": False, **returns, "evals": list(means.values())})
    constants = {}
    every = [table for run in here.values() for table in run.tables.values()]
    for column in list_metrics(every):
        curves = [read_curve(table, column) for table in every]
        if not any(x.size for x, _ in curves):
            continue
        constant = find_constant(curves)
        if constant is not None:
            constants[column] = constant
            continue
        if wanted is not None and column not in wanted:
            charts.append({"name": column, "title": column, "is_small": True, "raw": [], "is_left_out": True})
            continue
        limits = find_limits(curves)
        raw = build_curves(here, tables, column, NUM_POINT_SMALL)
        chart = {"name": column, "title": column, "is_small": True, "raw": raw}
        charts.append(chart | ({"limits": _round(np.array(astuple(limits)))} if limits is not None else {}))
    return {"name": env, "charts": charts, "constants": describe_constants(constants)}


def build_curves(
    runs: Mapping[int, Run], tables: Mapping[int, Mapping[int, Table]], column: str, num_point: int
) -> list[Document]:
    """The curves of a column: for each run its sessions with values, then the mean of those that count."""
    result = []
    for index, run in runs.items():
        curves = {session: read_curve(table, column) for session, table in tables[index].items()}
        curves = {session: curve for session, curve in curves.items() if curve[0].size}
        for session, (x, y) in curves.items():
            picked = pick_points(y, num_point)
            result.append({"run": index, "session": session, "x": _plain(x[picked]), "y": _plain(y[picked])})
        counted = [curve for session, curve in curves.items() if session in run.counted_tables]
        average = average_curves(counted) if len(counted) > 1 else None
        if average is not None:
            picked = pick_points(average.mean, num_point)
            mean: Document = {
                "run": index,
                "session": None,
                "x": _plain(average.x[picked]),
                "y": _plain(average.mean[picked]),
            }
            if average.interval is not None:
                mean["low"], mean["high"] = (_plain(edge[picked]) for edge in average.interval)
            result.append(mean)
    return result


def _plain(values: Array) -> list[float | int]:
    """Numbers rounded to what a chart can show."""
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in _round(values)]


def _round(values: Array) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]
