"""Charts of curves as PNG, SVG or PDF, with matplotlib; `plot.py` chooses the curves."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Literal, get_args

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from slm_lab.lib.array import Array
from slm_lab.results.curve import Curve, find_limits
from slm_lab.results.palette import Look

ImageFormat = Literal["png", "svg", "pdf"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
_DPI = 150
_SIZE = (8.0, 5.0)
# for papers: in a column of 3.3 inches, text is 6 to 8 points high
_PAPER_SIZE = (4.4, 3.1)
# of a panel in a grid, and the panels in a row
_PANEL_SIZE = (2.7, 2.5)
_GRID_COLUMNS = 4
INK = "#222222"
MUTED = "#666666"
GRID = "#E4E4E4"
FRAMES = "frames (env steps)"
# names may contain dollar signs, which are not formulas
TITLE: dict[str, Any] = dict(fontsize=13, fontweight="bold", color=INK, parse_math=False)
# larger rewards are written in k or M
LONG_NUMBER = 10_000


@dataclass(frozen=True)
class Line:
    """One curve: finite values at increasing frames."""

    name: str
    x: Array
    y: Array
    look: Look
    is_mean: bool = False
    # evaluations: dots, above the lines
    is_dotted: bool = False
    # dots of several runs have the colour of their run, and are not in the legend
    is_named: bool = True


@dataclass(frozen=True)
class Band:
    """An interval around a curve."""

    x: Array
    low: Array
    high: Array
    color: str
    # empty if the curve has a name in the legend
    name: str = ""


@dataclass(frozen=True)
class Chart:
    """Curves over frames, with their labels."""

    title: str
    subtitle: str
    y_label: str
    lines: list[Line]
    bands: tuple[Band, ...] = ()
    has_legend: bool = True
    x_label: str = FRAMES

    @property
    def shows_legend(self) -> bool:
        """Whether to show a legend: a single curve is named by the title."""
        return self.has_legend and (len(self.lines) > 1 or any(line.is_mean for line in self.lines))

    def weight(self, line: Line) -> tuple[float, float]:
        """Width and opacity: thin, paler sessions below a bold mean; a lone curve in between."""
        if line.is_dotted:
            return 1.2, 1.0
        if line.is_mean:
            return (2.4, 1.0) if len(self.bands) <= 1 else (1.8, 1.0)
        return (1.6, 1.0) if sum(not other.is_dotted for other in self.lines) == 1 else (0.9, 0.65)


@dataclass(frozen=True)
class Point:
    """A number of the curves with this name, and its interval; the bounds are NaN without one."""

    name: str
    value: float
    low: float
    high: float


def shorten(value: float, _position: int | None = None) -> str:
    """A number in k, M or G: 200000 is 200k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def wrap(title: str, width: float = _SIZE[0], num_char: int = 72) -> str:
    """Wrap a text to at most two lines; `num_char` characters fit on a figure of the usual width."""
    return textwrap.fill(title, int(num_char * width / _SIZE[0]), max_lines=2, placeholder=" ...")


def style_axes(axes: Axes, font_size: float) -> None:
    """Light grid, two spines, frames in k and M."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=font_size, color=MUTED, labelcolor=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(shorten))
    axes.margins(x=0.02)


def to_png(figure: Figure) -> bytes:
    """The bytes of a figure as PNG."""
    figure.set_dpi(_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    png = _encode(canvas)
    # its parts refer to each other, so otherwise they would wait for the garbage collector
    figure.clear()
    return png


def _encode(canvas: FigureCanvasAgg) -> bytes:
    """A canvas as PNG with a palette, which makes it three times smaller."""
    buffer = BytesIO()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    picture.quantize(256, method=Image.Quantize.FASTOCTREE).save(buffer, "PNG", dpi=(_DPI, _DPI))
    return buffer.getvalue()


def _to_bytes(figure: Figure, form: ImageFormat) -> bytes:
    """A figure in a format; the same figure gives the same bytes."""
    if form == "png":
        return to_png(figure)
    buffer = BytesIO()
    canvas = FigureCanvasPdf(figure) if form == "pdf" else FigureCanvasSVG(figure)
    # fonts that journals accept, and constant ids in SVG
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "slm-lab"}):
        canvas.print_figure(buffer, metadata={"CreationDate" if form == "pdf" else "Date": None})
    figure.clear()
    return buffer.getvalue()


def draw_chart(chart: Chart, form: ImageFormat = "png") -> bytes:
    """A chart as a picture; vector formats have a smaller page, so that text is readable in a column of a paper."""
    return _to_bytes(_build_figure(chart, _SIZE if form == "png" else _PAPER_SIZE)[0], form)


def draw_grid(charts: Sequence[Chart], title: str, form: ImageFormat = "png", points: Sequence[Point] = ()) -> bytes:
    """Charts as panels of one figure with a common legend and a note on the bands; `points` get the last panel."""
    count = len(charts) + bool(points)
    columns = min(count, _GRID_COLUMNS)
    rows = -(-count // columns)
    # room for a legend, a note and a title
    size = (_PANEL_SIZE[0] * columns + 0.3, _PANEL_SIZE[1] * rows + 0.7 + (0.3 if title else 0))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    handles: dict[str, Any] = {}
    for index, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, index + 1)
        style_axes(axes, font_size=8.5)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))
        _draw_curves(axes, chart, 0.75)
        axes.set_title(wrap(chart.title, _PANEL_SIZE[0], 96), fontsize=10.5, color=INK, parse_math=False)
        axes.set_xlabel(chart.x_label, fontsize=9.5, color=INK)
        if index % columns == 0:
            axes.set_ylabel(chart.y_label.replace(", ", ",\n"), fontsize=9.5, color=INK)
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if points:
        axes = figure.add_subplot(rows, columns, count)
        style_axes(axes, font_size=8.5)
        looks = {line.name: line.look for chart in charts for line in chart.lines}
        _draw_points(axes, [point for name in looks for point in points if point.name == name], looks)
    if title:
        figure.suptitle(wrap(title, size[0]), **TITLE)
    note = wrap("; ".join(dict.fromkeys(chart.subtitle for chart in charts if chart.subtitle)), size[0], 110)
    if charts[0].has_legend:
        _add_legend(figure, list(handles.values()), list(handles), note)
    return _to_bytes(figure, form)


def _draw_points(axes: Axes, points: Sequence[Point], looks: Mapping[str, Look]) -> None:
    """Aggregates over envs, in the order of the legend."""
    for place, point in enumerate(points):
        color = looks[point.name].color
        # without an interval the bounds are NaN, which matplotlib does not draw
        axes.plot([point.low, point.high], [place, place], color=color, linewidth=6, alpha=0.35, solid_capstyle="butt")
        axes.plot(point.value, place, "o", color=color, markersize=5)
    axes.set_yticks(range(len(points)), [point.name for point in points], parse_math=False)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.set_title("all envs", fontsize=10.5, color=INK)
    axes.set_xlabel("IQM of normalised scores", fontsize=9.5, color=INK)


def _add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], note: str = "") -> None:
    """A legend below the axes, in as many columns as fit."""
    width = figure.get_figwidth()
    size = 9 if width >= _SIZE[0] else 8
    column_width = 0.4 + 0.0075 * size * max(map(len, names), default=0)
    columns = max(min(int(width / column_width), len(names), 4), 1)
    look: dict[str, Any] = dict(fontsize=size, frameon=False, handlelength=2.8, columnspacing=1.4)
    legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, title=note or None, **look)
    legend.get_title().set(fontsize=8, color=MUTED, parse_math=False)


def draw_alike(charts: Sequence[Chart]) -> list[bytes]:
    """Pictures of charts with the same kinds of curves, on common axes."""
    every = [
        replace(lines[0], x=np.concatenate([line.x for line in lines]), y=np.concatenate([line.y for line in lines]))
        for lines in zip(*(chart.lines for chart in charts), strict=True)
    ]
    figure, title = _build_figure(replace(charts[0], lines=every))
    sheet = _Sheet(figure, figure.axes[0].lines, title)
    return [sheet.draw([(line.x, line.y) for line in chart.lines], chart.title) for chart in charts]


def draw_panels(
    names: Sequence[str], sessions: Sequence[Mapping[str, Curve]], titles: Sequence[str], color: str, note: str
) -> list[bytes]:
    """A figure per session: a panel per metric over the same frames, and a note below."""
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


def _build_figure(chart: Chart, size: tuple[float, float] = _SIZE) -> tuple[Figure, Text]:
    """A matplotlib figure of a chart, and its title; without pyplot, which shares state between threads."""
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    axes = figure.add_subplot()
    is_wide = size[0] >= _SIZE[0]
    style_axes(axes, font_size=10 if is_wide else 8.5)
    _draw_curves(axes, chart, 1.0 if is_wide else 0.8)
    axes.set_xlabel(chart.x_label, fontsize=11 if is_wide else 9, color=INK)
    axes.set_ylabel(chart.y_label.replace(", ", ",\n"), fontsize=11 if is_wide else 9, color=INK)
    subtitle = wrap(chart.subtitle, size[0], 100 if is_wide else 130)
    pad = 10 + (13 if is_wide else 11) * (subtitle.count("\n") + 1) if subtitle else 10
    title = axes.set_title(wrap(chart.title, size[0]), loc="left", pad=pad, **TITLE)
    title.set_fontsize(TITLE["fontsize"] if is_wide else 11)
    above: dict[str, Any] = dict(xycoords="axes fraction", textcoords="offset points")
    axes.annotate(subtitle, (0, 1), (0, 8), fontsize=9.5 if is_wide else 8, color=MUTED, **above)
    if chart.shows_legend:
        _add_legend(figure, *axes.get_legend_handles_labels())
    return figure, title


def _draw_curves(axes: Axes, chart: Chart, size: float = 1.0) -> None:
    """Lines, dots and bands; `size` is that of lines and dots."""
    named: set[str] = set()
    for line in chart.lines:
        width, opacity = chart.weight(line)
        # curves of one name are listed once; matplotlib skips names with a leading underscore
        label = f"_{line.name}" if line.name in named or not line.is_named else line.name
        named.add(line.name)
        look: dict[str, Any] = dict(color=line.look.color, alpha=opacity, linewidth=width * size, label=label)
        if line.is_dotted:
            look |= dict(linestyle="None", marker="o", markersize=4.5 * size, markerfacecolor="white", zorder=3)
        else:
            look |= dict(linestyle=line.look.dashes[0], marker="o" if line.x.size == 1 else None)
        axes.plot(line.x, line.y, **look)
    for band in chart.bands:
        # many bands overlap
        look = dict(color=band.color, alpha=0.18 if len(chart.bands) <= 4 else 0.12, linewidth=0)
        axes.fill_between(band.x, band.low, band.high, label=band.name or None, **look)
    if max((float(np.abs(line.y).max()) for line in chart.lines if line.y.size), default=0.0) >= LONG_NUMBER:
        axes.yaxis.set_major_formatter(FuncFormatter(shorten))


class _Sheet:
    """A figure in which only curves and title change; everything else is drawn once, to save time."""

    def __init__(self, figure: Figure, lines: Sequence[Line2D], title: Text) -> None:
        self.figure, self.lines, self.title = figure, lines, title
        figure.set_dpi(_DPI)
        self.canvas = FigureCanvasAgg(figure)
        for artist in (*lines, title):
            artist.set_animated(True)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(figure.bbox)

    def draw(self, curves: Sequence[Curve], title: str) -> bytes:
        """The sheet with these curves, as PNG."""
        self.canvas.restore_region(self.background)
        for line, (x, y) in zip(self.lines, curves, strict=True):
            line.set_data(x, y)
            if line.get_linestyle() != "None":
                line.set_marker("o" if x.size == 1 else "None")
            self.figure.draw_artist(line)
        self.title.set_text(wrap(title))
        self.figure.draw_artist(self.title)
        return _encode(self.canvas)


def _clip(axes: Axes, x: Array, y: Array) -> None:
    """Cut off outliers that would flatten a panel, and mark them."""
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
