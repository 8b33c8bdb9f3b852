"""Learning curves of sessions and trials, as PNG files and as HTML pages that open offline."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.io
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from plotly.offline import get_plotlyjs

from slm_lab.experiment.analysis import Table
from slm_lab.experiment.curve import BOOKKEEPING, average_curves, read_curve
from slm_lab.lib.io import write_bytes, write_text

_DPI = 150
_SIZE = (8.0, 5.0)
# Okabe-Ito without black, which is the mean; the pale yellow comes last.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
# More sessions than colours differ by dashes: matplotlib's name, then plotly's.
_DASHES = (("-", "solid"), ("--", "dash"), (":", "dot"))
_STYLES = tuple((color, *dash) for dash, color in product(_DASHES, _PALETTE))
_INK = "#222222"
_MUTED = "#666666"
_GRID = "#E4E4E4"
_FRAMES = "frames (env steps)"
_BAND = "±1 std over sessions"
_BAND_OPACITY = 0.18
# A dollar sign in a name is no formula.
_TITLE: dict[str, Any] = dict(fontsize=13, fontweight="bold", color=_INK, parse_math=False)
# From here on a reward is written in k or M.
_LONG_NUMBER = 10_000
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


@dataclass(frozen=True)
class _Line:
    """One curve: finite values at increasing frames."""

    name: str
    x: np.ndarray
    y: np.ndarray
    style: int | None = None  # place in the palette; None is the mean

    @property
    def look(self) -> tuple[str, str, str]:
        """Colour, matplotlib's dash and plotly's."""
        return (_INK, "-", "solid") if self.style is None else _STYLES[self.style % len(_STYLES)]


@dataclass(frozen=True)
class _Chart:
    """What both renderers draw."""

    title: str
    subtitle: str
    y_label: str
    lines: list[_Line]
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # frames, lower and upper edge

    @property
    def largest(self) -> float:
        """The largest magnitude, which decides how numbers are written."""
        return max(float(np.abs(line.y).max()) for line in self.lines)

    def weight(self, line: _Line) -> tuple[float, float]:
        """Width and opacity: thin, paler sessions below a bold mean; a lone curve in between."""
        if line.style is None:
            return 2.4, 1.0
        return (1.6, 1.0) if len(self.lines) == 1 else (1.0, 0.65)


def plot_session(table: Table, prefix: Path, title: str, kind: str = "train") -> list[Path]:
    """Draw one session's returns and its algorithm's metrics; returns the graphs written."""
    paths = []
    for column, name, train_label, eval_label in _RETURNS:
        x, y = read_curve(table, column)
        if x.size:
            label = eval_label if kind == "eval" else train_label
            chart = _Chart(title, "", label, [_Line(column, x, y, style=0)])
            paths += _write_chart(chart, prefix, f"session_graph_{kind}_{name}_vs_frames")
    metrics = [_Line(name, *read_curve(table, name), style=0) for name in table if name not in BOOKKEEPING]
    # The learning rate is a setting, the others are results.
    metrics = sorted((line for line in metrics if line.x.size), key=lambda line: line.name == "lr")
    if metrics:
        path = prefix.with_name(f"{prefix.name}_session_graph_{kind}_metrics_vs_frames.png")
        write_bytes(path, _metrics_png(metrics, title))
        paths.append(path)
    return paths


def plot_trial(tables: Sequence[Table], prefix: Path, title: str) -> list[Path]:
    """Draw the returns of a trial's sessions, their mean and ±1 standard deviation; returns the graphs written."""
    paths = []
    for column, name, label, _ in _RETURNS:
        series = [read_curve(table, column) for table in tables]
        lines = [_Line(f"session {i}", x, y, style=i) for i, (x, y) in enumerate(series) if x.size]
        if lines:
            chart = _trial_chart(lines, title, label)
            paths += _write_chart(chart, prefix, f"trial_graph_{name}_vs_frames")
    return paths


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
        end = _short(average.x[-1])
        subtitle = f"mean of {count} sessions interpolated on common frames, up to the shortest ({end} frames)"
    mean = _Line(f"mean of {count} sessions", average.x, average.mean)
    band = (average.x, average.mean - average.std, average.mean + average.std)
    return _Chart(title, subtitle, label, [*sessions, mean], band)


def _write_chart(chart: _Chart, prefix: Path, name: str) -> list[Path]:
    """Write a chart as PNG and as HTML, with plotly's script next to the pages."""
    png = prefix.with_name(f"{prefix.name}_{name}.png")
    html = prefix.with_name(f"{prefix.name}_{name}.html")
    write_bytes(png, _chart_png(chart))
    script = html.with_name("plotly.min.js")
    if not script.exists():
        write_text(script, get_plotlyjs())
    write_text(html, _chart_html(chart))
    return [png, html]


def _short(value: float, _position: int | None = None) -> str:
    """A number in k, M or G: 200000 is 200k; G rather than B as plotly writes it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _wrap(title: str) -> str:
    """A long title on two lines, which is all the room above a figure."""
    return textwrap.fill(title, 72, max_lines=2, placeholder=" ...")


def _style_axes(axes: Axes, font_size: float) -> None:
    """Light grid, two spines, frames in k and M."""
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(labelsize=font_size, color=_MUTED, labelcolor=_INK)
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.margins(x=0.02)


def _chart_png(chart: _Chart) -> bytes:
    """Draw a chart with matplotlib; without pyplot there is no state shared between threads."""
    figure = Figure(figsize=_SIZE, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    axes = figure.add_subplot()
    _style_axes(axes, font_size=10)
    for i, line in enumerate(chart.lines):
        color, dash, _ = line.look
        width, opacity = chart.weight(line)
        # Beyond the distinct styles a legend could not tell sessions apart; matplotlib skips a leading underscore.
        label = line.name if line.style is None or i < len(_STYLES) else f"_{line.name}"
        marker = "o" if line.x.size == 1 else None
        axes.plot(line.x, line.y, dash, color=color, alpha=opacity, linewidth=width, marker=marker, label=label)
    if chart.band:
        axes.fill_between(*chart.band, color=_INK, alpha=_BAND_OPACITY, linewidth=0, label=_BAND)
    if chart.largest >= _LONG_NUMBER:
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlabel(_FRAMES, fontsize=11, color=_INK)
    axes.set_ylabel(chart.y_label.replace(", ", ",\n"), fontsize=11, color=_INK)
    axes.set_title(_wrap(chart.title), loc="left", pad=22 if chart.subtitle else 10, **_TITLE)
    above: dict[str, Any] = dict(xycoords="axes fraction", textcoords="offset points")
    axes.annotate(chart.subtitle, (0, 1), (0, 8), fontsize=9.5, color=_MUTED, **above)
    if len(chart.lines) > 1:
        # Below the axes it never hides a curve.
        look: dict[str, Any] = dict(fontsize=9, frameon=False, handlelength=1.5, columnspacing=1.4)
        figure.legend(loc="outside lower center", ncols=min(len(chart.lines) + 1, 6), **look)
    return _png(figure)


def _metrics_png(metrics: list[_Line], title: str) -> bytes:
    """Draw small multiples, one panel per metric, over the same frames."""
    count = len(metrics)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    width, height = max(_SIZE[0], 3.2 * columns), max(_SIZE[1], 2.1 * rows + 1.2)
    figure = Figure(figsize=(width, height))
    # Margins in inches: a layout engine takes a second for nine panels.
    figure.subplots_adjust(0.7 / width, 0.7 / height, 1 - 0.25 / width, 1 - 0.85 / height, wspace=0.28, hspace=0.3)
    figure.text(0.2 / width, 1 - 0.2 / height, _wrap(title), va="top", **_TITLE)
    figure.text(0.5, 0.15 / height, _FRAMES, fontsize=11, color=_INK, ha="center")
    first: Axes | None = None
    for i, line in enumerate(metrics):
        axes = figure.add_subplot(rows, columns, i + 1, sharex=first)
        first = first or axes
        _style_axes(axes, font_size=9)
        axes.tick_params(labelbottom=i + columns >= count)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
        axes.yaxis.get_offset_text().set_fontsize(8)
        axes.plot(line.x, line.y, color=line.look[0], linewidth=1.2, marker="o" if line.x.size == 1 else None)
        axes.set_title(line.name, fontsize=10.5, color=_INK, parse_math=False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    """The bytes of a figure as PNG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def _chart_html(chart: _Chart) -> str:
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
    if chart.band:
        x, low, high = (edge.tolist() for edge in chart.band)
        look: dict[str, Any] = dict(mode="lines", line=dict(width=0), fill="toself", hoverinfo="skip")
        look["fillcolor"] = f"rgba(34, 34, 34, {_BAND_OPACITY})"
        traces.append(dict(type="scatter", name=_BAND, x=x + x[::-1], y=high + low[::-1], **look))
    # Plotly reads tags in a text.
    title = escape(chart.title, quote=False)
    axis = dict(gridcolor=_GRID, linecolor=_MUTED, showline=True, zeroline=False, ticks="outside", automargin=True)
    y_ticks = "~s" if chart.largest >= _LONG_NUMBER else ""
    layout = dict(
        title=dict(text=f"<b>{title}</b>", subtitle=dict(text=chart.subtitle)),
        xaxis=dict(**axis, title=dict(text=_FRAMES), tickformat="~s"),
        yaxis=dict(**axis, title=dict(text=chart.y_label), tickformat=y_ticks),
        showlegend=len(chart.lines) > 1,
        font=dict(size=14, color=_INK),
        paper_bgcolor="white",
        plot_bgcolor="white",
        hovermode="x unified",
    )
    figure = dict(data=traces, layout=layout)
    # A fixed id makes the same data the same page.
    options = dict(include_plotlyjs="directory", div_id="graph", validate=False, config=dict(displaylogo=False))
    page: str = plotly.io.to_html(figure, **options)
    return page.replace("<head>", f"<head><title>{escape(chart.title)}</title>", 1)
