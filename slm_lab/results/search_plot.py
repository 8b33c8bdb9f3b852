"""Graphs of a search: the score against each searched key, parallel coordinates, and the curves of all trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from slm_lab.lib.array import Array
from slm_lab.lib.io import write_bytes
from slm_lab.results.curve import average_curves, read_curves
from slm_lab.results.figure import INK, MUTED, TITLE, Chart, Line, draw_chart, style_axes, to_png, wrap
from slm_lab.results.folder import RunFolder
from slm_lab.results.palette import Look, find_look
from slm_lab.results.plot import AVERAGE, RETURN, RETURN_LABELS
from slm_lab.results.search_axis import SearchedKey, read_axis
from slm_lab.results.table import Table

_SCORE = "score"


@dataclass(frozen=True)
class DrawnTrial:
    """One trial in the graphs."""

    number: int
    is_done: bool
    is_best: bool
    score: float
    # in the order of the keys
    values: Sequence[Any]
    tables: Sequence[Table]
    algorithm: str

    @property
    def look(self) -> Look:
        """The algorithm's colour for the best trial, grey for stopped ones, dark for the others."""
        return Look(find_look(self.algorithm).name if self.is_best else "ink" if self.is_done else "grey")


def plot_search(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], folder: RunFolder, title: str) -> list[Path]:
    """Draw all graphs of a search; returns those written."""
    title = f"Search: {title}"
    has_averages = any(read_curves(trial.tables, AVERAGE) for trial in trials)
    graphs = {
        "experiment_graph": _draw_scatter(trials, keys, title),
        "parallel_coordinates": _draw_parallel(trials, keys, title),
        "multi_trial_graph_mean_returns_vs_frames": _draw_curves(trials, title, RETURN),
        "multi_trial_graph_mean_returns_ma_vs_frames": _draw_curves(trials, title, AVERAGE if has_averages else RETURN),
    }
    for name, png in graphs.items():
        write_bytes(folder.graph_file(name), png)
    return [folder.graph_file(name) for name in graphs]


def _draw_scatter(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], title: str) -> bytes:
    """The score against each key; trials stopped early are pale."""
    columns = min(len(keys), 3)
    rows = -(-len(keys) // columns)
    size = (max(6.0, 3.6 * columns), 3.0 * rows + 1.3)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    figure.suptitle(wrap(title), x=0.02, ha="left", **TITLE)
    first: Axes | None = None
    for index, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, index + 1, sharey=first)
        first = first or axes
        style_axes(axes, font_size=9)
        values = [trial.values[index] for trial in trials]
        if key.is_choice:
            axis = read_axis(key, values)
            x = axis.place
            axes.set_xticks(axis.ticks, axis.labels, fontsize=8)
            axes.set_xlim(0, 1)
        else:
            x = np.asarray(values, float)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
            if key.is_log:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            else:
                axes.xaxis.set_major_locator(MaxNLocator(5))
        _scatter(axes, x, trials)
        note = f"explains {key.importance:.0%} of the ranking" if key.importance is not None else ""
        axes.set_title(note, fontsize=9, color=MUTED, loc="left")
        axes.set_xlabel(key.name, fontsize=10, color=INK, parse_math=False)
        if index % columns == 0:
            axes.set_ylabel(_SCORE, fontsize=10, color=INK)
    handles, labels = first.get_legend_handles_labels() if first is not None else ([], [])
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return to_png(figure)


def _scatter(axes: Axes, x: Array, trials: Sequence[DrawnTrial]) -> None:
    groups: tuple[tuple[str, list[int], dict[str, Any]], ...] = (
        ("stopped early", _pick(trials, is_done=False), dict(s=26, facecolors="none")),
        ("done", _pick(trials, is_done=True), dict(s=34)),
        ("best", [i for i, trial in enumerate(trials) if trial.is_best], dict(s=90, marker="*", zorder=3)),
    )
    for label, picked, look in groups:
        if picked:
            edge = dict(edgecolors=trials[picked[0]].look.color)
            look = edge | dict(facecolors=trials[picked[0]].look.color) | look
            axes.scatter(x[picked], [trials[i].score for i in picked], label=label, **look)


def _pick(trials: Sequence[DrawnTrial], is_done: bool) -> list[int]:
    return [i for i, trial in enumerate(trials) if trial.is_done == is_done and not trial.is_best]


def _draw_parallel(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], title: str) -> bytes:
    """One line per trial across all keys to its score."""
    axes_of = [read_axis(key, [trial.values[i] for trial in trials]) for i, key in enumerate(keys)]
    axes_of.append(read_axis(SearchedKey(_SCORE, False, False), [trial.score for trial in trials]))
    names = [*(key.name for key in keys), _SCORE]
    figure = Figure(figsize=(max(7.0, 1.9 * len(names)), 4.8), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    axes = figure.add_subplot()
    axes.set_title(wrap(title), loc="left", pad=14, **TITLE)
    axes.set_axis_off()
    for index, trial in sorted(enumerate(trials), key=lambda pair: (pair[1].is_best, pair[1].score)):
        look: dict[str, Any] = dict(linewidth=1.2, alpha=0.9 if trial.is_done else 0.5)
        if trial.is_best:
            look = dict(linewidth=2.6, zorder=3)
        axes.plot([axis.place[index] for axis in axes_of], color=trial.look.color, solid_joinstyle="round", **look)
    for position, (axis, name) in enumerate(zip(axes_of, names, strict=True)):
        axes.plot([position, position], [0, 1], color=MUTED, linewidth=0.9, zorder=2)
        axes.text(position, -0.09, name, ha="center", va="top", fontsize=10, color=INK, parse_math=False)
        for tick, label in zip(axis.ticks, axis.labels, strict=True):
            axes.text(position + 0.03, tick, label, fontsize=8, color=INK, va="center", parse_math=False, zorder=4)
    axes.set_ylim(-0.14, 1.03)
    axes.set_xlim(-0.15, len(names) - 0.6)
    return to_png(figure)


def _draw_curves(trials: Sequence[DrawnTrial], title: str, column: str) -> bytes:
    """The mean curve of each trial; curves of weak trials end where they were stopped."""
    lines = []
    for trial in sorted(trials, key=lambda one: (one.is_best, one.is_done)):
        sessions = read_curves(trial.tables, column)
        average = average_curves(sessions)
        if sessions:
            x, y = (average.x, average.mean) if average is not None else sessions[0]
            name = f"best (trial {trial.number})" if trial.is_best else "done" if trial.is_done else "stopped early"
            lines.append(Line(name, x, y, trial.look, is_mean=trial.is_best))
    return draw_chart(Chart(title, "", RETURN_LABELS[column], lines))
