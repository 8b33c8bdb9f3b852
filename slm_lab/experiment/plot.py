"""Learning curves of sessions, trials and runs side by side, as PNG files and as HTML pages that open offline."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.io
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator
from plotly.offline import get_plotlyjs

from slm_lab.experiment.analysis import Table
from slm_lab.experiment.curve import BOOKKEEPING, average_curves, read_curve
from slm_lab.lib.io import write_bytes, write_text

_DPI = 150
_SIZE = (8.0, 5.0)
# Okabe-Ito without black, which is the mean; the pale yellow comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
# More sessions than colours differ by dashes: matplotlib's name, then plotly's.
_DASHES = (("-", "solid"), ("--", "dash"), (":", "dot"))
_STYLES = tuple((color, *dash) for dash, color in product(_DASHES, PALETTE))
INK = "#222222"
MUTED = "#666666"
GRID = "#E4E4E4"
FRAMES = "frames (env steps)"
_BAND = "±1 std over sessions"
_BAND_OPACITY = 0.18
# A dollar sign in a name is no formula.
TITLE: dict[str, Any] = dict(fontsize=13, fontweight="bold", color=INK, parse_math=False)
# From here on a reward is written in k or M.
LONG_NUMBER = 10_000
# Column, name in the file name, meaning when training, meaning when evaluating.
_RETURNS = (
    ("total_reward", "mean_returns", "total reward (mean of last 100 episodes)", "total reward (evaluation)"),
    (
        "total_reward_ma",
        "mean_returns_ma",
        "total reward, moving average over 100 checkpoints",
        "total reward (evaluation), moving average over 100 checkpoints",
    ),
)


# Colour of each algorithm in every figure that compares them, and how its line is dashed.
_ALGORITHMS = {
    "REINFORCE": (INK, *_DASHES[0]),
    "SARSA": ("#F0E442", *_DASHES[0]),
    "DQN": ("#56B4E9", *_DASHES[0]),
    "DDQN": ("#0072B2", *_DASHES[2]),
    "DQN+PER": ("#56B4E9", *_DASHES[2]),
    "DDQN+PER": ("#0072B2", *_DASHES[0]),
    "A2C": ("#E69F00", *_DASHES[0]),
    "SIL": ("#E69F00", *_DASHES[1]),
    "PPO": ("#D55E00", *_DASHES[0]),
    "PPO+SIL": ("#D55E00", *_DASHES[1]),
    "SAC": ("#009E73", *_DASHES[0]),
    "CrossQ": ("#CC79A7", *_DASHES[0]),
    "Random": (MUTED, *_DASHES[2]),
}
_MEAN_LOOK = (INK, *_DASHES[0])


@dataclass(frozen=True)
class _Line:
    """One curve: finite values at increasing frames."""

    name: str
    x: np.ndarray
    y: np.ndarray
    # colour, matplotlib's dash and plotly's
    look: tuple[str, str, str]
    is_mean: bool = False


@dataclass(frozen=True)
class _Band:
    """What is around a curve."""

    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    color: str
    # bands that belong to curves of their own names are not named again
    name: str = ""


@dataclass(frozen=True)
class DrawnRun:
    """A run in a figure with others: its name there, its algorithm, and the tables of its sessions."""

    name: str
    algorithm: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class _Chart:
    """What both renderers draw."""

    title: str
    subtitle: str
    y_label: str
    lines: list[_Line]
    bands: tuple[_Band, ...] = ()
    has_legend: bool = True

    @property
    def shows_legend(self) -> bool:
        """Whether curves are named: one alone is named by the title."""
        return self.has_legend and (len(self.lines) > 1 or any(line.is_mean for line in self.lines))

    @property
    def largest(self) -> float:
        """The largest magnitude, which decides how numbers are written."""
        return max(float(np.abs(line.y).max()) for line in self.lines)

    def weight(self, line: _Line) -> tuple[float, float]:
        """Width and opacity: thin, paler sessions below a bold mean; a lone curve in between."""
        if line.is_mean:
            return (2.4, 1.0) if len(self.bands) <= 1 else (1.8, 1.0)
        return (1.6, 1.0) if len(self.lines) == 1 else (1.0, 0.65)


@dataclass(frozen=True)
class DrawnSession:
    """A session to draw: what its graphs' names begin with, their title, and its table."""

    prefix: Path
    title: str
    table: Table


def plot_sessions(sessions: Sequence[DrawnSession], kind: str = "train") -> list[Path]:
    """Draw each session's returns and its algorithm's metrics on the same axes; returns the graphs written."""
    paths = []
    for column, name, train_label, eval_label in _RETURNS:
        label = eval_label if kind == "eval" else train_label
        drawn = [(one, *read_curve(one.table, column)) for one in sessions]
        drawn = [(one, x, y) for one, x, y in drawn if x.size]
        charts = [_Chart(one.title, "", label, [_Line(column, x, y, _STYLES[0])]) for one, x, y in drawn]
        for (one, _, _), chart, png in zip(drawn, charts, _draw_alike(charts), strict=True):
            paths += _write_chart(chart, one.prefix, f"session_graph_{kind}_{name}_vs_frames", png)
    columns = dict.fromkeys(column for one in sessions for column in one.table if column not in BOOKKEEPING)
    # The learning rate is a setting, the others are results.
    names = sorted(columns, key=lambda column: column == "lr")
    metrics = [{name: read_curve(one.table, name) for name in names} for one in sessions]
    names = [name for name in names if any(curves[name][0].size for curves in metrics)]
    if names:
        titles = [one.title for one in sessions]
        for one, png in zip(sessions, _draw_metrics(names, metrics, titles), strict=True):
            path = one.prefix.with_name(f"{one.prefix.name}_session_graph_{kind}_metrics_vs_frames.png")
            write_bytes(path, png)
            paths.append(path)
    return paths


def plot_trial(tables: Mapping[int, Table], prefix: Path, title: str) -> list[Path]:
    """Draw the returns of a trial's sessions, their mean and ±1 standard deviation; returns the graphs written."""
    paths = []
    for column, name, label, _ in _RETURNS:
        curves = {session: read_curve(table, column) for session, table in tables.items()}
        looks = zip(curves.items(), cycle(_STYLES), strict=False)
        lines = [_Line(f"session {session}", x, y, look) for (session, (x, y)), look in looks if x.size]
        if lines:
            chart = _trial_chart(lines, title, label)
            paths += _write_chart(chart, prefix, f"trial_graph_{name}_vs_frames")
    return paths


def plot_runs(runs: Sequence[DrawnRun], folder: Path, title: str, has_legend: bool = True) -> list[Path]:
    """Draw runs of one env side by side, each as the mean and spread of its sessions; returns the graphs written."""
    chart = _runs_chart(runs, title, has_legend)
    if chart is None:
        return []
    stem = re.sub(r"[^\w.+-]+", "_", title.rsplit("/", 1)[-1]).strip("_") or "runs"
    return _write_chart(chart, folder / stem, f"multi_trial_graph_{_RETURNS[1][1]}_vs_frames")


def draw_runs(runs: Sequence[DrawnRun], title: str) -> bytes | None:
    """The same as a PNG; None if there is nothing to draw."""
    chart = _runs_chart(runs, title, has_legend=True)
    return None if chart is None else _chart_png(chart)


def _runs_chart(runs: Sequence[DrawnRun], title: str, has_legend: bool) -> _Chart | None:
    column, _, label, _ = _RETURNS[1]
    lines, bands, notes = [], [], []
    # algorithms in a fixed order, so that figures can be compared too
    order = list(_ALGORITHMS)
    places = {key: place for place, key in enumerate(order)}
    seen: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: places.get(run.algorithm, len(order))):
        color, *_ = look = _find_look(run.algorithm, seen)
        sessions = [curve for table in run.tables if (curve := read_curve(table, column))[0].size]
        if not sessions:
            notes.append(f"nothing to draw of {run.name}")
            continue
        if len(sessions) == 1:
            lines.append(_Line(f"{run.name} (1 session)", *sessions[0], look, is_mean=True))
            continue
        average = average_curves(sessions)
        if average is None:
            notes.append(f"no mean of {run.name}: its sessions share no frames")
            continue
        lines.append(_Line(f"{run.name} ({len(sessions)} sessions)", average.x, average.mean, look, is_mean=True))
        bands.append(_Band(average.x, average.mean - average.std, average.mean + average.std, color))
    if not lines:
        return None
    subtitle = "; ".join([f"mean and {_BAND}" if bands else "one session each", *notes])
    return _Chart(title, subtitle, label, lines, tuple(bands), has_legend)


def _find_look(algorithm: str, seen: dict[str, int]) -> tuple[str, str, str]:
    """The look of an algorithm; another run of it has the same colour and other dashes."""
    count = seen[algorithm] = seen.get(algorithm, -1) + 1
    known = _ALGORITHMS.get(algorithm)
    if known is None:
        place = list(seen).index(algorithm)
        return _STYLES[(len(PALETTE) + place) % len(_STYLES)]
    dashes = [dash for dash, _ in _DASHES]
    dash = _DASHES[(dashes.index(known[1]) + count) % len(_DASHES)]
    return (known[0], *dash)


def _trial_chart(sessions: list[_Line], title: str, label: str) -> _Chart:
    """Add mean and spread to the sessions, where their frames overlap."""
    if len(sessions) == 1:
        return _Chart(title, "", label, sessions)
    count = len(sessions)
    average = average_curves([(line.x, line.y) for line in sessions])
    if average is None:
        return _Chart(title, f"no mean: the {count} sessions share no frames", label, sessions)
    subtitle = ""
    if average.is_interpolated:
        end = shorten(average.x[-1])
        subtitle = f"mean of {count} sessions interpolated on common frames, up to the shortest ({end} frames)"
    mean = _Line(f"mean of {count} sessions", average.x, average.mean, _MEAN_LOOK, is_mean=True)
    band = _Band(average.x, average.mean - average.std, average.mean + average.std, INK, _BAND)
    return _Chart(title, subtitle, label, [*sessions, mean], (band,))


def _write_chart(chart: _Chart, prefix: Path, name: str, drawn: bytes | None = None) -> list[Path]:
    """Write a chart as PNG, unless it is drawn, and as HTML, with plotly's script next to the pages."""
    png = prefix.with_name(f"{prefix.name}_{name}.png")
    html = prefix.with_name(f"{prefix.name}_{name}.html")
    write_bytes(png, _chart_png(chart) if drawn is None else drawn)
    write_page(html, _chart_figure(chart), chart.title)
    return [png, html]


def write_page(path: Path, figure: dict[str, Any], title: str) -> None:
    """Write a figure of plotly as a page, with plotly's script next to it."""
    script = path.with_name("plotly.min.js")
    if not script.exists():
        write_text(script, get_plotlyjs())
    # A fixed id makes the same data the same page.
    options = dict(include_plotlyjs="directory", div_id="graph", validate=False, config=dict(displaylogo=False))
    page: str = plotly.io.to_html(figure, **options)
    write_text(path, page.replace("<head>", f"<head><title>{escape(title)}</title>", 1))


def shorten(value: float, _position: int | None = None) -> str:
    """A number in k, M or G: 200000 is 200k; G rather than B as plotly writes it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def wrap(title: str) -> str:
    """A long title on two lines, which is all the room above a figure."""
    return textwrap.fill(title, 72, max_lines=2, placeholder=" ...")


def style_axes(axes: Axes, font_size: float) -> None:
    """Light grid, two spines, frames in k and M."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=font_size, color=MUTED, labelcolor=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(shorten))
    axes.margins(x=0.02)


def _chart_png(chart: _Chart) -> bytes:
    """Draw a chart as PNG."""
    return to_png(_build_figure(chart)[0])


def _build_figure(chart: _Chart) -> tuple[Figure, Text]:
    """A chart of matplotlib and its title; without pyplot there is no state shared between threads."""
    figure = Figure(figsize=_SIZE, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    axes = figure.add_subplot()
    style_axes(axes, font_size=10)
    for i, line in enumerate(chart.lines):
        color, dash, _ = line.look
        width, opacity = chart.weight(line)
        # Beyond the distinct styles a legend could not tell sessions apart; matplotlib skips a leading underscore.
        label = line.name if line.is_mean or i < len(_STYLES) else f"_{line.name}"
        marker = "o" if line.x.size == 1 else None
        axes.plot(line.x, line.y, dash, color=color, alpha=opacity, linewidth=width, marker=marker, label=label)
    for band in chart.bands:
        look: dict[str, Any] = dict(color=band.color, alpha=_BAND_OPACITY, linewidth=0, label=band.name or None)
        axes.fill_between(band.x, band.low, band.high, **look)
    if chart.largest >= LONG_NUMBER:
        axes.yaxis.set_major_formatter(FuncFormatter(shorten))
    axes.set_xlabel(FRAMES, fontsize=11, color=INK)
    axes.set_ylabel(chart.y_label.replace(", ", ",\n"), fontsize=11, color=INK)
    title = axes.set_title(wrap(chart.title), loc="left", pad=22 if chart.subtitle else 10, **TITLE)
    above: dict[str, Any] = dict(xycoords="axes fraction", textcoords="offset points")
    axes.annotate(chart.subtitle, (0, 1), (0, 8), fontsize=9.5, color=MUTED, **above)
    if chart.shows_legend:
        # Below the axes it never hides a curve.
        columns = 4 if len(chart.bands) > 1 else min(len(chart.lines) + 1, 6)
        look = dict(fontsize=9, frameon=False, handlelength=1.5, columnspacing=1.4)
        figure.legend(loc="outside lower center", ncols=columns, **look)
    return figure, title


class _Sheet:
    """A figure of which only curves and the title change: all else is drawn once, which is most of the work."""

    def __init__(self, figure: Figure, lines: Sequence[Line2D], title: Text) -> None:
        self.figure, self.lines, self.title = figure, lines, title
        figure.set_dpi(_DPI)
        self.canvas = FigureCanvasAgg(figure)
        for artist in (*lines, title):
            artist.set_animated(True)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(figure.bbox)

    def draw(self, curves: Sequence[tuple[np.ndarray, np.ndarray]], title: str) -> bytes:
        """The sheet with these curves, as PNG."""
        self.canvas.restore_region(self.background)
        for line, (x, y) in zip(self.lines, curves, strict=True):
            line.set_data(x, y)
            line.set_marker("o" if x.size == 1 else "None")
            self.figure.draw_artist(line)
        self.title.set_text(wrap(title))
        self.figure.draw_artist(self.title)
        buffer = BytesIO()
        imsave(buffer, self.canvas.buffer_rgba(), format="png", dpi=_DPI)
        return buffer.getvalue()


def _draw_alike(charts: Sequence[_Chart]) -> list[bytes]:
    """Charts of one curve each, on axes that hold them all."""
    if not charts:
        return []
    curves = [(chart.lines[0].x, chart.lines[0].y) for chart in charts]
    x, y = (np.concatenate([curve[part] for curve in curves]) for part in (0, 1))
    every = replace(charts[0].lines[0], x=x, y=y)
    figure, title = _build_figure(replace(charts[0], lines=[every]))
    sheet = _Sheet(figure, figure.axes[0].lines, title)
    return [sheet.draw([curve], chart.title) for curve, chart in zip(curves, charts, strict=True)]


def _draw_metrics(
    names: list[str], sessions: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]], titles: Sequence[str]
) -> list[bytes]:
    """Draw small multiples, one panel per metric, over the same frames."""
    count = len(names)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    width, height = max(_SIZE[0], 3.2 * columns), max(_SIZE[1], 2.1 * rows + 1.2)
    figure = Figure(figsize=(width, height))
    # Margins in inches: a layout engine takes a second for nine panels.
    figure.subplots_adjust(0.7 / width, 0.7 / height, 1 - 0.25 / width, 1 - 0.85 / height, wspace=0.28, hspace=0.3)
    title = figure.text(0.2 / width, 1 - 0.2 / height, wrap(titles[0]), va="top", **TITLE)
    figure.text(0.5, 0.15 / height, FRAMES, fontsize=11, color=INK, ha="center")
    first: Axes | None = None
    lines = []
    for i, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, i + 1, sharex=first)
        first = first or axes
        style_axes(axes, font_size=9)
        axes.tick_params(labelbottom=i + columns >= count)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
        axes.yaxis.get_offset_text().set_fontsize(8)
        x, y = (np.concatenate([curves[name][part] for curves in sessions]) for part in (0, 1))
        lines += axes.plot(x, y, color=PALETTE[0], linewidth=1.2)
        axes.set_title(name, fontsize=10.5, color=INK, parse_math=False)
    sheet = _Sheet(figure, lines, title)
    return [sheet.draw([curves[name] for name in names], text) for curves, text in zip(sessions, titles, strict=True)]


def to_png(figure: Figure) -> bytes:
    """The bytes of a figure as PNG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    # its parts refer to each other, so they would stay in memory until Python looks for such circles
    figure.clear()
    return buffer.getvalue()


def _chart_figure(chart: _Chart) -> dict[str, Any]:
    """Draw a chart with plotly: a click in the legend shows or hides a session."""
    traces: list[dict[str, Any]] = []
    for line in chart.lines:
        color, _, dash = line.look
        width, opacity = chart.weight(line)
        trace = dict(
            type="scatter",
            name=line.name,
            x=line.x.tolist(),
            y=line.y.tolist(),
            mode="lines" if line.x.size > 1 else "markers",
            line=dict(color=color, width=width * 1.3, dash=dash),
            marker=dict(color=color),
            opacity=opacity,
        )
        traces.append(trace)
    for band in chart.bands:
        x, low, high = (edge.tolist() for edge in (band.x, band.low, band.high))
        red, green, blue = bytes.fromhex(band.color[1:])
        look: dict[str, Any] = dict(mode="lines", line=dict(width=0), fill="toself", hoverinfo="skip")
        look["fillcolor"] = f"rgba({red}, {green}, {blue}, {_BAND_OPACITY})"
        look["showlegend"] = bool(band.name)
        traces.append(dict(type="scatter", name=band.name, x=x + x[::-1], y=high + low[::-1], **look))
    # Plotly reads tags in a text.
    title = escape(chart.title, quote=False)
    axis = dict(gridcolor=GRID, linecolor=MUTED, showline=True, zeroline=False, ticks="outside", automargin=True)
    y_ticks = "~s" if chart.largest >= LONG_NUMBER else ""
    layout = dict(
        title=dict(text=f"<b>{title}</b>", subtitle=dict(text=chart.subtitle)),
        xaxis=dict(**axis, title=dict(text=FRAMES), tickformat="~s"),
        yaxis=dict(**axis, title=dict(text=chart.y_label), tickformat=y_ticks),
        showlegend=chart.shows_legend,
        font=dict(size=14, color=INK),
        paper_bgcolor="white",
        plot_bgcolor="white",
        hovermode="x unified",
    )
    return dict(data=traces, layout=layout)
