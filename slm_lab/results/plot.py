"""Learning curves of sessions, trials and runs side by side, as PNG files and as HTML pages that open offline."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
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

from slm_lab.lib.io import read_bytes, write_bytes, write_text
from slm_lab.results.curve import (
    BOOKKEEPING,
    average_curves,
    describe_constants,
    find_constant,
    find_limits,
    read_curve,
)
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import MIN_INTERVAL
from slm_lab.results.palette import Look, find_look, find_looks, find_place
from slm_lab.results.run import Run
from slm_lab.results.table import Table

_DPI = 150
_SIZE = (8.0, 5.0)
INK = "#222222"
MUTED = "#666666"
GRID = "#E4E4E4"
FRAMES = "frames (env steps)"
BAND = "95 % interval of the mean"
# of a few bands, and of more that overlap
_BAND_OPACITY, _MANY_OPACITY, _MANY = 0.18, 0.1, 4
# more sessions than this are told apart by the pointer alone
_MAX_NAMED = 4
# A dollar sign in a name is no formula.
TITLE: dict[str, Any] = dict(fontsize=13, fontweight="bold", color=INK, parse_math=False)
# From here on a reward is written in k or M.
LONG_NUMBER = 10_000
RETURN = "total_reward"
AVERAGE = "total_reward_ma"
_EVALUATION = "evaluation, deterministic policy"
# Names of graphs, and what their axis says.
_NAMES = {RETURN: "mean_returns", AVERAGE: "mean_returns_ma"}
RETURN_LABELS = {
    RETURN: "total reward, mean of the last 100 episodes",
    AVERAGE: "total_reward_ma, mean of the last 100 rows",
}
_LABELS = {
    "train": RETURN_LABELS,
    "eval": {RETURN: "total reward, evaluation", AVERAGE: "total reward, mean of the last 100 evaluations"},
}
_NO_AVERAGE = "fewer than 100 rows, so no moving average"


@dataclass(frozen=True)
class _Line:
    """One curve: finite values at increasing frames."""

    name: str
    x: np.ndarray
    y: np.ndarray
    look: Look
    is_mean: bool = False
    # evaluations, which lie on top
    is_dotted: bool = False
    # dots of several runs have their colours and no name of their own
    is_named: bool = True


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
    evals: Sequence[Table] = ()


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
        return max((float(np.abs(line.y).max()) for line in self.lines if line.y.size), default=0.0)

    @property
    def band_opacity(self) -> float:
        return _BAND_OPACITY if len(self.bands) <= _MANY else _MANY_OPACITY

    def weight(self, line: _Line) -> tuple[float, float]:
        """Width and opacity: thin, paler sessions below a bold mean; a lone curve in between."""
        if line.is_dotted:
            return 1.2, 1.0
        if line.is_mean:
            return (2.4, 1.0) if len(self.bands) <= 1 else (1.8, 1.0)
        return (1.6, 1.0) if sum(not other.is_dotted for other in self.lines) == 1 else (0.9, 0.65)


@dataclass(frozen=True)
class DrawnSession:
    """A session to draw: what its graphs' names begin with, their title, its table and that of its evaluations."""

    prefix: Path
    title: str
    table: Table
    evals: Table | None = None


def plot_run(run: Run) -> None:
    """Draw all graphs of a run; a session that failed has some of its own."""
    folder = RunFolder(run.path, run.name)
    evaluations = run.evaluations
    for kind, tables in (("train", run.tables), ("eval", run.eval_tables)):
        sessions = [
            DrawnSession(
                folder.graph_prefix(run.trial, session),
                f"{run.title}, session {session}",
                table,
                evaluations.get(session) if kind == "train" else None,
            )
            for session, table in tables.items()
        ]
        plot_sessions(sessions, run.label, kind)
    plot_run_curve(run)


def plot_run_curve(run: Run) -> None:
    """Draw the curve of all sessions that count."""
    prefix = RunFolder(run.path, run.name).graph_prefix(run.trial)
    plot_trial(run.counted_tables, prefix, run.title, run.label, run.evaluations)


def plot_sessions(sessions: Sequence[DrawnSession], algorithm: str, kind: str = "train") -> list[Path]:
    """Draw each session's returns and its algorithm's metrics on the same axes; returns the graphs written."""
    paths = []
    look = Look(find_look(algorithm).name)
    for column, name in _NAMES.items():
        shown = _choose_column([one.table for one in sessions], column)
        drawn = [(one, *read_curve(one.table, shown)) for one in sessions]
        drawn = [(one, x, y) for one, x, y in drawn if x.size]
        subtitle = _NO_AVERAGE if shown != column else ""
        # on axes of their own only where there are some, so that a legend names nothing that is not there
        has_evals = shown == RETURN and any(one.evals for one, _, _ in drawn)
        charts = []
        for one, x, y in drawn:
            lines = [_Line("training" if kind == "train" else _EVALUATION, x, y, look)]
            if has_evals:
                lines.append(_Line(_EVALUATION, *read_curve(one.evals or {}, RETURN), look, is_dotted=True))
            charts.append(_Chart(one.title, subtitle, _LABELS[kind][shown], lines))
        for (one, _, _), chart, png in zip(drawn, charts, _draw_alike(charts), strict=True):
            paths += _write_chart(chart, one.prefix, f"session_graph_{kind}_{name}_vs_frames", png)
    columns = dict.fromkeys(column for one in sessions for column in one.table if column not in BOOKKEEPING)
    # The learning rate is a setting, the others are results.
    names = sorted(columns, key=lambda column: column == "lr")
    metrics = [{name: read_curve(one.table, name) for name in names} for one in sessions]
    names = [name for name in names if any(curves[name][0].size for curves in metrics)]
    constants = {name: find_constant([curves[name] for curves in metrics]) for name in names}
    names = [name for name in names if constants[name] is None]
    if names:
        titles = [one.title for one in sessions]
        note = describe_constants({name: value for name, value in constants.items() if value is not None})
        for one, png in zip(sessions, _draw_metrics(names, metrics, titles, look.color, note), strict=True):
            path = one.prefix.with_name(f"{one.prefix.name}_session_graph_{kind}_metrics_vs_frames.png")
            write_bytes(path, png)
            paths.append(path)
    return paths


def plot_trial(
    tables: Mapping[int, Table], prefix: Path, title: str, algorithm: str, evals: Mapping[int, Table]
) -> list[Path]:
    """Draw the returns of a trial's sessions, their mean and its interval; returns the graphs written."""
    paths = []
    color = find_look(algorithm).name
    for column, name in _NAMES.items():
        shown = _choose_column(list(tables.values()), column)
        curves = {session: read_curve(table, shown) for session, table in tables.items()}
        curves = {session: curve for session, curve in curves.items() if curve[0].size}
        if not curves:
            continue
        is_named = len(curves) <= _MAX_NAMED
        lines = [
            _Line(f"session {session}", *curve, Look(color, place if is_named else 0))
            for place, (session, curve) in enumerate(curves.items())
        ]
        chart = _trial_chart(lines, title, RETURN_LABELS[shown], Look(color))
        if shown == RETURN:
            chart.lines.extend(_average_evals(list(evals.values()), Look(color)))
        if shown != column:
            chart = replace(chart, subtitle="; ".join(filter(None, (_NO_AVERAGE, chart.subtitle))))
        paths += _write_chart(chart, prefix, f"trial_graph_{name}_vs_frames")
    return paths


def _choose_column(tables: Sequence[Table], column: str) -> str:
    """The column itself, or the returns where no moving average has a full window."""
    return column if any(read_curve(table, column)[0].size for table in tables) else RETURN


def _average_evals(tables: Sequence[Table], look: Look) -> list[_Line]:
    """The mean over sessions of their evaluations, as dots; nothing where there are none."""
    curves = [curve for table in tables if (curve := read_curve(table, RETURN))[0].size]
    average = average_curves(curves) if curves else None
    return [] if average is None else [_Line(_EVALUATION, average.x, average.mean, look, is_dotted=True)]


def plot_runs(runs: Sequence[DrawnRun], folder: Path, title: str, has_legend: bool = True) -> list[Path]:
    """Draw runs of one env side by side, each as the mean of its sessions and its interval; returns the graphs."""
    stem = re.sub(r"[^\w.+-]+", "_", title.rsplit("/", 1)[-1]).strip("_") or "runs"
    paths = []
    for column, name in _NAMES.items():
        shown = _choose_column([table for run in runs for table in run.tables], column)
        chart = _runs_chart(runs, title, has_legend, shown)
        if chart is not None:
            chart = (
                replace(chart, subtitle="; ".join(filter(None, (_NO_AVERAGE, chart.subtitle))))
                if shown != column
                else chart
            )
            paths += _write_chart(chart, folder / stem, f"multi_trial_graph_{name}_vs_frames")
    return paths


def draw_runs(runs: Sequence[DrawnRun], title: str) -> bytes | None:
    """Runs side by side as a PNG: their returns, or the moving averages where only those are kept of some run."""
    has_returns = all(RETURN in table for run in runs for table in run.tables)
    chart = _runs_chart(runs, title, has_legend=True, column=RETURN if has_returns else AVERAGE)
    return None if chart is None else _chart_png(chart)


def _runs_chart(runs: Sequence[DrawnRun], title: str, has_legend: bool, column: str) -> _Chart | None:
    lines, bands, notes = [], [], []
    dots: list[_Line] = []
    # algorithms in a fixed order, so that figures can be compared too
    ordered = sorted(runs, key=lambda run: find_place(run.algorithm))
    for run, look in zip(ordered, find_looks([run.algorithm for run in ordered]), strict=True):
        sessions = [curve for table in run.tables if (curve := read_curve(table, column))[0].size]
        if not sessions:
            notes.append(f"nothing to draw of {run.name}")
            continue
        average = average_curves(sessions)
        if average is None:
            notes.append(f"no mean of {run.name}: its sessions share no frames")
            continue
        count = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        lines.append(_Line(f"{run.name} ({count})", average.x, average.mean, look, is_mean=True))
        if average.interval is not None:
            bands.append(_Band(average.x, *average.interval, look.color))
        if column == RETURN:
            dots += [replace(line, is_named=False) for line in _average_evals(run.evals, look)]
    if not lines:
        return None
    parts = ["mean and its 95 % interval" if bands else f"no interval: fewer than {MIN_INTERVAL} sessions each"]
    parts += ["dots: evaluations"] if dots else []
    parts += ["drawn from where the 100 rows are full"] if column == AVERAGE else []
    return _Chart(title, "; ".join([*parts, *notes]), RETURN_LABELS[column], [*lines, *dots], tuple(bands), has_legend)


def _trial_chart(sessions: list[_Line], title: str, label: str, look: Look) -> _Chart:
    """Add mean and interval to the sessions, where their frames overlap."""
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
    mean = _Line(f"mean of {count} sessions", average.x, average.mean, look, is_mean=True)
    bands = (_Band(average.x, *average.interval, look.color, BAND),) if average.interval is not None else ()
    return _Chart(title, subtitle, label, [*sessions, mean], bands)


def _write_chart(chart: _Chart, prefix: Path, name: str, drawn: bytes | None = None) -> list[Path]:
    """Write a chart as PNG, unless it is drawn, and as HTML, with plotly's script next to the pages."""
    png = prefix.with_name(f"{prefix.name}_{name}.png")
    html = prefix.with_name(f"{prefix.name}_{name}.html")
    write_bytes(png, _chart_png(chart) if drawn is None else drawn)
    write_page(html, _chart_figure(chart), chart.title)
    return [png, html]


def write_page(path: Path, figure: dict[str, Any], title: str) -> None:
    """Write a figure of plotly as a page, with plotly's script next to it."""
    _write_script(path.with_name("plotly.min.js"))
    # A fixed id makes the same data the same page.
    options = dict(include_plotlyjs="directory", div_id="graph", validate=False, config=dict(displaylogo=False))
    page: str = plotly.io.to_html(figure, **options)
    write_text(path, page.replace("<head>", f"<head><title>{escape(title)}</title>", 1))


def _write_script(path: Path) -> None:
    """Put plotly's script where pages load it from; any other, such as one that came with a pulled run, is replaced."""
    script = get_plotlyjs().encode()
    # neither a link, whose target may change, nor a pipe, which never ends
    is_file = path.is_file() and not path.is_symlink()
    if not is_file or path.stat().st_size != len(script) or read_bytes(path) != script:
        write_bytes(path, script)


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
    named: set[str] = set()
    for line in chart.lines:
        width, opacity = chart.weight(line)
        # Curves that look alike are named once; matplotlib skips a leading underscore.
        name = _name_line(line, chart)
        label = f"_{name}" if name in named or not line.is_named else name
        named.add(name)
        look: dict[str, Any] = dict(color=line.look.color, alpha=opacity, linewidth=width, label=label)
        if line.is_dotted:
            look |= dict(linestyle="None", marker="o", markersize=4.5, markerfacecolor="white", zorder=3)
        else:
            look |= dict(linestyle=line.look.dashes[0], marker="o" if line.x.size == 1 else None)
        axes.plot(line.x, line.y, **look)
    for band in chart.bands:
        look = dict(color=band.color, alpha=chart.band_opacity, linewidth=0, label=band.name or None)
        axes.fill_between(band.x, band.low, band.high, **look)
    if chart.largest >= LONG_NUMBER:
        axes.yaxis.set_major_formatter(FuncFormatter(shorten))
    axes.set_xlabel(FRAMES, fontsize=11, color=INK)
    axes.set_ylabel(chart.y_label.replace(", ", ",\n"), fontsize=11, color=INK)
    subtitle = textwrap.fill(chart.subtitle, 100, max_lines=2, placeholder=" ...")
    pad = 10 + 13 * (subtitle.count("\n") + 1) if subtitle else 10
    title = axes.set_title(wrap(chart.title), loc="left", pad=pad, **TITLE)
    above: dict[str, Any] = dict(xycoords="axes fraction", textcoords="offset points")
    axes.annotate(subtitle, (0, 1), (0, 8), fontsize=9.5, color=MUTED, **above)
    if chart.shows_legend:
        # Below the axes it never hides a curve.
        columns = 4 if len(chart.bands) > 1 else min(len(named) + len(chart.bands), 4)
        look = dict(fontsize=9, frameon=False, handlelength=1.5, columnspacing=1.4)
        figure.legend(loc="outside lower center", ncols=columns, **look)
    return figure, title


def _name_line(line: _Line, chart: _Chart) -> str:
    """What a legend calls a curve; sessions too many to be told apart have one name."""
    sessions = [other for other in chart.lines if not other.is_mean and not other.is_dotted]
    return "each session" if line in sessions and len(sessions) > _MAX_NAMED else line.name


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
            if line.get_linestyle() != "None":
                line.set_marker("o" if x.size == 1 else "None")
            self.figure.draw_artist(line)
        self.title.set_text(wrap(title))
        self.figure.draw_artist(self.title)
        buffer = BytesIO()
        imsave(buffer, self.canvas.buffer_rgba(), format="png", dpi=_DPI)
        return buffer.getvalue()


def _draw_alike(charts: Sequence[_Chart]) -> list[bytes]:
    """Charts of the same kinds of curves, on axes that hold them all."""
    if not charts:
        return []
    every = [
        replace(lines[0], x=np.concatenate([line.x for line in lines]), y=np.concatenate([line.y for line in lines]))
        for lines in zip(*(chart.lines for chart in charts), strict=True)
    ]
    figure, title = _build_figure(replace(charts[0], lines=every))
    sheet = _Sheet(figure, figure.axes[0].lines, title)
    return [sheet.draw([(line.x, line.y) for line in chart.lines], chart.title) for chart in charts]


def _draw_metrics(
    names: list[str],
    sessions: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]],
    titles: Sequence[str],
    color: str,
    note: str,
) -> list[bytes]:
    """Draw small multiples, one panel per metric, over the same frames; below them the metrics that need none."""
    count = len(names)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    width, height = max(_SIZE[0], 3.2 * columns), max(_SIZE[1], 2.1 * rows + 1.2)
    figure = Figure(figsize=(width, height))
    # Margins in inches: a layout engine takes a second for nine panels.
    figure.subplots_adjust(0.7 / width, 0.7 / height, 1 - 0.25 / width, 1 - 0.85 / height, wspace=0.28, hspace=0.3)
    title = figure.text(0.2 / width, 1 - 0.2 / height, wrap(titles[0]), va="top", **TITLE)
    figure.text(0.5, 0.22 / height, FRAMES, fontsize=11, color=INK, ha="center")
    figure.text(0.2 / width, 0.06 / height, note, fontsize=8.5, color=MUTED, parse_math=False)
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
        lines += axes.plot(x, y, color=color, linewidth=1.2)
        axes.set_title(name, fontsize=10.5, color=INK, parse_math=False)
        _clip(axes, x, y)
    sheet = _Sheet(figure, lines, title)
    return [sheet.draw([curves[name] for name in names], text) for curves, text in zip(sessions, titles, strict=True)]


def _clip(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Keep a few extreme values from flattening a panel, and mark where they are."""
    limits = find_limits([(x, y)])
    if limits is None:
        return
    room = 0.05 * (limits.high - limits.low)
    axes.set_ylim(limits.low - room, limits.high + room)
    edges = ((limits.highest, limits.high, "^", 1.0), (limits.lowest, limits.low, "v", 0.0))
    for extreme, edge, marker, height in edges:
        if extreme == edge:
            continue
        at = float(x[y == extreme][0])
        is_left = at < x.mean()
        on_edge = axes.get_xaxis_transform()
        axes.plot(at, height, marker, markersize=5, color=INK, transform=on_edge, clip_on=False)
        offset = (6 if is_left else -6, -2 if height else 2)
        look: dict[str, Any] = dict(fontsize=8, color=INK, ha="left" if is_left else "right")
        look |= dict(va="top" if height else "bottom", xycoords=on_edge, textcoords="offset points")
        axes.annotate(f"to {shorten(float(f'{extreme:.3g}'))}", (at, height), offset, **look)


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
        if not line.x.size:
            continue
        color, dash = line.look.color, line.look.dashes[1]
        width, opacity = chart.weight(line)
        trace = dict(
            type="scatter",
            name=line.name,
            x=line.x.tolist(),
            y=line.y.tolist(),
            mode="lines" if line.x.size > 1 and not line.is_dotted else "markers",
            line=dict(color=color, width=width * 1.3, dash=dash),
            marker=dict(color=color, symbol="circle-open" if line.is_dotted else "circle"),
            opacity=opacity,
        )
        traces.append(trace if line.is_named else trace | dict(showlegend=False))
    for band in chart.bands:
        x, low, high = (edge.tolist() for edge in (band.x, band.low, band.high))
        red, green, blue = bytes.fromhex(band.color[1:])
        look: dict[str, Any] = dict(mode="lines", line=dict(width=0), fill="toself", hoverinfo="skip")
        look["fillcolor"] = f"rgba({red}, {green}, {blue}, {chart.band_opacity})"
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
