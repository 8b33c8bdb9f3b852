"""Graphs of a search: the score against each searched key, parallel coordinates, and the curves of all trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from slm_lab.lib.io import write_bytes
from slm_lab.results.curve import average_curves, read_curve
from slm_lab.results.palette import find_look
from slm_lab.results.plot import (
    AVERAGE,
    FRAMES,
    INK,
    MUTED,
    RETURN,
    RETURN_LABELS,
    TITLE,
    style_axes,
    to_png,
    wrap,
    write_page,
)
from slm_lab.results.search_axis import SearchedKey, read_axis, show_name
from slm_lab.results.table import Array, Table

_SCORE = "score"
# from low to high scores: the brighter end of viridis cannot be seen on white
_SCALE = ListedColormap(colormaps["viridis"](np.linspace(0, 0.58, 64)))
_EARLY = "#8F8F8F"
_DONE = "#444444"


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
    def color(self) -> str:
        """The algorithm's own for the best trial; the others are grey, those that were stopped paler."""
        return find_look(self.algorithm).color if self.is_best else _DONE if self.is_done else _EARLY


def plot_search(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], prefix: Path, title: str) -> list[Path]:
    """Draw all graphs of a search; returns those written."""
    scatter = prefix.with_name(f"{prefix.name}_experiment_graph.png")
    parallel = prefix.with_name(f"{prefix.name}_parallel_coordinates.png")
    curves, averages = (
        prefix.with_name(f"{prefix.name}_multi_trial_graph_{name}_vs_frames.png")
        for name in ("mean_returns", "mean_returns_ma")
    )
    write_bytes(scatter, _draw_scatter(trials, keys, f"Search: {title}"))
    write_bytes(parallel, _draw_parallel(trials, keys, f"Search: {title}"))
    write_bytes(curves, _draw_curves(trials, f"Search: {title}", RETURN))
    has_averages = any(read_curve(table, AVERAGE)[0].size for trial in trials for table in trial.tables)
    write_bytes(averages, _draw_curves(trials, f"Search: {title}", AVERAGE if has_averages else RETURN))
    page = parallel.with_suffix(".html")
    write_page(page, _build_page(trials, keys, title), f"Search: {title}")
    points = scatter.with_suffix(".html")
    write_page(points, _build_points(trials, keys, title), f"Search: {title}")
    return [scatter, points, parallel, page, curves, averages]


def _draw_scatter(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], title: str) -> bytes:
    """The score against each key: what was stopped early is pale."""
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
        told = f"explains {key.importance:.0%} of the ranking" if key.importance is not None else ""
        axes.set_title(told, fontsize=9, color=MUTED, loc="left")
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
            edge = dict(edgecolors=trials[picked[0]].color)
            look = edge | dict(facecolors=trials[picked[0]].color) | look
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
    scores = np.array([trial.score for trial in trials])
    norm = Normalize(scores.min(), scores.max() if scores.max() > scores.min() else scores.min() + 1)
    for index in np.argsort(scores):
        trial = trials[index]
        line = [axis.place[index] for axis in axes_of]
        look: dict[str, Any] = dict(
            color=_SCALE(norm(scores[index])), linewidth=1.2, alpha=0.9 if trial.is_done else 0.5
        )
        if trial.is_best:
            look = dict(color=trial.color, linewidth=2.6, zorder=3)
        axes.plot(range(len(line)), line, solid_joinstyle="round", **look)
    for position, (axis, name) in enumerate(zip(axes_of, names, strict=True)):
        axes.plot([position, position], [0, 1], color=MUTED, linewidth=0.9, zorder=2)
        axes.text(position, -0.09, name, ha="center", va="top", fontsize=10, color=INK, parse_math=False)
        for tick, label in zip(axis.ticks, axis.labels, strict=True):
            axes.text(position + 0.03, tick, label, fontsize=8, color=INK, va="center", parse_math=False, zorder=4)
    axes.set_ylim(-0.14, 1.03)
    axes.set_xlim(-0.15, len(names) - 0.6)
    return to_png(figure)


def _draw_curves(trials: Sequence[DrawnTrial], title: str, column: str) -> bytes:
    """The mean curve of each trial: where the weak ones were stopped is seen."""
    figure = Figure(figsize=(8.0, 5.0), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    axes = figure.add_subplot()
    style_axes(axes, font_size=10)
    named: set[str] = set()
    for trial in sorted(trials, key=lambda one: (one.is_best, one.is_done)):
        sessions = [curve for table in trial.tables if (curve := read_curve(table, column))[0].size]
        if not sessions:
            continue
        average = average_curves(sessions)
        x, y = (average.x, average.mean) if average is not None else sessions[0]
        kind = f"best (trial {trial.number})" if trial.is_best else "done" if trial.is_done else "stopped early"
        look: dict[str, Any] = dict(color=trial.color, linewidth=2.4 if trial.is_best else 1.2)
        axes.plot(x, y, label=None if kind in named else kind, **look)
        if not trial.is_done:
            axes.plot(x[-1:], y[-1:], "o", color=trial.color, markersize=3.5)
        named.add(kind)
    axes.set_xlabel(FRAMES, fontsize=11, color=INK)
    axes.set_ylabel(RETURN_LABELS[column].replace(", ", ",\n"), fontsize=11, color=INK)
    axes.set_title(wrap(title), loc="left", pad=10, **TITLE)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return to_png(figure)


def _build_page(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], title: str) -> dict[str, Any]:
    """Parallel coordinates that can be narrowed by dragging along an axis."""
    dimensions = []
    for index, key in enumerate(keys):
        axis = read_axis(key, [trial.values[index] for trial in trials])
        look = dict(label=key.name, values=axis.place.tolist(), tickvals=axis.ticks, ticktext=axis.labels)
        dimensions.append(look | dict(range=[0, 1]))
    scores = [trial.score for trial in trials]
    dimensions.append(dict(label=_SCORE, values=scores))
    scale = [[place, to_hex(_SCALE(place))] for place in np.linspace(0, 1, 9).tolist()]
    line = dict(color=scores, colorscale=scale, showscale=True, colorbar=dict(title=dict(text=_SCORE)))
    data = [dict(type="parcoords", dimensions=dimensions, line=line)]
    layout = dict(title=dict(text=f"<b>Search: {escape(title, quote=False)}</b>"), font=dict(size=14, color=INK))
    return dict(data=data, layout=layout | dict(margin=dict(t=110), paper_bgcolor="white"))


def _build_points(trials: Sequence[DrawnTrial], keys: Sequence[SearchedKey], title: str) -> dict[str, Any]:
    """The score against each key, with the trial under the pointer."""
    data = []
    layout: dict[str, Any] = dict(
        title=dict(text=f"<b>Search: {escape(title, quote=False)}</b>"),
        grid=dict(rows=-(-len(keys) // 2), columns=min(len(keys), 2), pattern="independent"),
        showlegend=False,
        font=dict(size=13, color=INK),
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
    told = [
        "<br>".join(
            [f"trial {trial.number}: {trial.score:.2f}{'' if trial.is_done else ', stopped early'}"]
            + [f"{escape(key.name)} {escape(_show(value))}" for key, value in zip(keys, trial.values, strict=True)]
        )
        for trial in trials
    ]
    colors = [trial.color for trial in trials]
    for index, key in enumerate(keys):
        number = "" if index == 0 else str(index + 1)
        values = [trial.values[index] for trial in trials]
        x = [show_name(value) for value in values] if key.is_choice else values
        marker = dict(color=colors, size=9)
        trace = dict(type="scatter", mode="markers", x=x, y=[trial.score for trial in trials], text=told, marker=marker)
        data.append(trace | dict(hoverinfo="text", xaxis=f"x{number}", yaxis=f"y{number}"))
        kind = "category" if key.is_choice else "log" if key.is_log else "linear"
        axis = dict(title=dict(text=escape(key.name)), type=kind, gridcolor="#E4E4E4", exponentformat="e")
        layout[f"xaxis{number}"] = axis
        layout[f"yaxis{number}"] = dict(title=dict(text=_SCORE), gridcolor="#E4E4E4")
    return dict(data=data, layout=layout)


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show_name(value)
