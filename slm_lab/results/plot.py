"""Plot learning curves of sessions, trials and several runs: choose the curves of each graph, and write its file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slm_lab.lib.io import write_bytes
from slm_lab.results.curve import (
    Axis,
    BandKind,
    average_curves,
    describe_constants,
    find_constant,
    list_metrics,
    read_curve,
    read_curves,
)
from slm_lab.results.figure import (
    FRAMES,
    Band,
    Chart,
    ImageFormat,
    Line,
    Point,
    draw_alike,
    draw_chart,
    draw_grid,
    draw_panels,
    shorten,
)
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import MIN_INTERVAL
from slm_lab.results.palette import Look, find_look, find_looks, find_place
from slm_lab.results.run import Run
from slm_lab.results.table import Table

RETURN = "total_reward"
AVERAGE = "total_reward_ma"
# the column of a graph, by its name in file names
GRAPHS = {"mean_returns": RETURN, "mean_returns_ma": AVERAGE}
RETURN_LABELS = {
    RETURN: "total reward, mean of the last 100 episodes",
    AVERAGE: "total_reward_ma, mean of the last 100 rows",
}
_EVAL_LABELS = {RETURN: "total reward, evaluation", AVERAGE: "total reward, mean of the last 100 evaluations"}
# more sessions cannot be distinguished by dashes
MAX_NAMED = 4
_BAND = "95 % interval of the mean"
_EVALUATION = "evaluation, deterministic policy"
_NO_AVERAGE = "fewer than 100 rows, so no moving average"
_BANDS: dict[BandKind, str] = {
    "ci": "mean and its 95 % interval",
    "std": "mean ± 1 std between sessions",
    "minmax": "mean, lowest and highest session",
}
# seconds in a unit, its name, and the least number of units for which it is used
_TIMES = ((3600.0, "hours", 10.0), (60.0, "minutes", 10.0), (1.0, "seconds", 0.0))


@dataclass(frozen=True)
class DrawnRun:
    """A run in a figure of several: its name there, its algorithm, and the tables of its sessions."""

    name: str
    algorithm: str
    tables: Sequence[Table]
    evals: Sequence[Table] = ()


@dataclass(frozen=True)
class Drawing:
    """How to draw several runs in one figure."""

    # None for the returns and their moving average, a figure each
    column: str | None = None
    axis: Axis = "frames"
    band: BandKind = "ci"
    smooth: int = 1
    has_legend: bool = True
    # whether the legend has the number of sessions, which can differ between panels
    names_sessions: bool = True
    # in all figures of a set, so that each algorithm has the same colour in all of them
    algorithms: tuple[str, ...] = ()

    @property
    def graphs(self) -> dict[str, str]:
        """The column of each graph by its name."""
        return GRAPHS if self.column is None else {name_figure(self.column): self.column}


def to_drawn(run: Run, name: str) -> DrawnRun:
    """The sessions of a run that count, for a figure."""
    return DrawnRun(name, run.label, list(run.counted_tables.values()), list(run.evaluations.values()))


def plot_run(run: Run) -> None:
    """Plot all graphs of a run, including those of failed sessions."""
    folder = RunFolder(run.path, run.name)
    for kind, tables in (("train", run.tables), ("eval", run.eval_tables)):
        for name in GRAPHS:
            charts = build_session_charts(run, kind, name)
            drawn = draw_alike(list(charts.values())) if charts else []
            for session, png in zip(charts, drawn, strict=True):
                write_bytes(folder.graph_file(f"session_graph_{kind}_{name}_vs_frames", run.trial, session), png)
        for session, png in zip(tables, _draw_metrics(run, list(tables.values()), list(tables)), strict=False):
            write_bytes(folder.graph_file(f"session_graph_{kind}_metrics_vs_frames", run.trial, session), png)
    plot_run_curve(run)


def plot_run_curve(run: Run) -> None:
    """Draw the curve of all sessions that count."""
    folder = RunFolder(run.path, run.name)
    for name in GRAPHS:
        chart = build_trial_chart(run, name)
        if chart is not None:
            write_bytes(folder.graph_file(f"trial_graph_{name}_vs_frames", run.trial), draw_chart(chart))


def plot_runs(
    figures: Mapping[str, Sequence[DrawnRun]],
    prefix: Path,
    title: str,
    drawing: Drawing,
    forms: Sequence[ImageFormat] = ("png",),
    points: Sequence[Point] = (),
) -> list[Path]:
    """Draw several runs, each as the mean of its sessions with a band; returns the files.

    `figures` are the runs by env, each env a panel. `points` are aggregates over envs by the names of the runs, in a
    last panel. A single env is drawn without panels.
    """
    paths = []
    drawing = replace(drawing, names_sessions=len(figures) == 1)
    for name, column in drawing.graphs.items():
        built = [build_runs_chart(runs, env, column, drawing) for env, runs in figures.items()]
        charts = [chart for chart in built if chart is not None]
        for form in forms if charts else ():
            paths.append(prefix.with_name(f"{prefix.name}_multi_trial_graph_{name}_vs_{drawing.axis}.{form}"))
            if len(figures) == 1:
                picture = draw_chart(replace(charts[0], title=title or charts[0].title), form)
            else:
                picture = draw_grid(charts, title, form, points)
            write_bytes(paths[-1], picture)
    return paths


def name_figure(title: str) -> str:
    """A title as the start of a file name."""
    return re.sub(r"[^\w.+-]+", "_", title.rsplit("/", 1)[-1]).strip("_") or "runs"


def name_figures(envs: Sequence[str]) -> dict[str, str]:
    """The start of a file name for each env; with the part before a slash only if names would be the same."""
    names = {env: name_figure(env) for env in envs}
    return {
        env: name if [*names.values()].count(name) == 1 else name_figure(env.replace("/", "_"))
        for env, name in names.items()
    }


def draw_runs(runs: Sequence[DrawnRun], title: str) -> bytes | None:
    """Several runs as a PNG: their returns, or the moving averages if some run has only those."""
    has_returns = all(RETURN in table for run in runs for table in run.tables)
    chart = _build_runs_chart(runs, title, RETURN if has_returns else AVERAGE, Drawing())
    return None if chart is None else draw_chart(chart)


def build_session_charts(run: Run, kind: str, name: str) -> dict[int, Chart]:
    """The returns of each session: training with evaluations as dots, or only the evaluations."""
    tables = run.tables if kind == "train" else run.eval_tables
    labels = RETURN_LABELS if kind == "train" else _EVAL_LABELS
    look = Look(find_look(run.label).name)
    shown = _choose_column(list(tables.values()), GRAPHS[name])
    subtitle = "" if shown == GRAPHS[name] else _NO_AVERAGE
    drawn = {session: curve for session, table in tables.items() if (curve := read_curve(table, shown))[0].size}
    evals = run.evaluations if kind == "train" and shown == RETURN else {}
    # all axes have dots or none has, because they share a legend
    has_evals = any(session in evals for session in drawn)
    charts = {}
    for session, curve in drawn.items():
        lines = [Line("training" if kind == "train" else _EVALUATION, *curve, look)]
        if has_evals:
            lines.append(Line(_EVALUATION, *read_curve(evals.get(session, {}), RETURN), look, is_dotted=True))
        charts[session] = Chart(f"{run.title}, session {session}", subtitle, labels[shown], lines)
    return charts


def _draw_metrics(run: Run, tables: Sequence[Table], sessions: Sequence[int]) -> list[bytes]:
    """The columns of the algorithm, a figure per session; none if nothing changes."""
    metrics = [{name: read_curve(table, name) for name in list_metrics(tables)} for table in tables]
    names = [name for name in list_metrics(tables) if any(curves[name][0].size for curves in metrics)]
    constants = {name: find_constant([curves[name] for curves in metrics]) for name in names}
    names = [name for name in names if constants[name] is None]
    if not names:
        return []
    titles = [f"{run.title}, session {session}" for session in sessions]
    note = describe_constants({name: value for name, value in constants.items() if value is not None})
    return draw_panels(names, metrics, titles, find_look(run.label).color, note)


def build_trial_chart(run: Run, name: str) -> Chart | None:
    """The returns of a trial's sessions, their mean and its interval; None without returns."""
    tables, look = run.counted_tables, Look(find_look(run.label).name)
    shown = _choose_column(list(tables.values()), GRAPHS[name])
    curves = {session: curve for session, table in tables.items() if (curve := read_curve(table, shown))[0].size}
    if not curves:
        return None
    if len(curves) <= MAX_NAMED:
        looks = {session: (f"session {session}", Look(look.name, place)) for place, session in enumerate(curves)}
    else:
        looks = dict.fromkeys(curves, ("each session", look))
    lines = [Line(looks[session][0], *curve, looks[session][1]) for session, curve in curves.items()]
    chart = _add_mean(Chart(run.title, "", RETURN_LABELS[shown], lines), look)
    if shown == RETURN:
        chart.lines.extend(_average_evals(list(run.evaluations.values()), look))
    return chart if shown == GRAPHS[name] else _without_average(chart)


def _add_mean(chart: Chart, look: Look) -> Chart:
    """Sessions with their mean and interval, where their frames overlap."""
    count = len(chart.lines)
    if count == 1:
        return chart
    average = average_curves([(line.x, line.y) for line in chart.lines])
    if average is None:
        return replace(chart, subtitle=f"no mean: the {count} sessions share no frames")
    subtitle = ""
    if average.is_interpolated:
        end = shorten(average.x[-1])
        subtitle = f"mean of {count} sessions interpolated on common frames, up to the shortest ({end} frames)"
    mean = Line(f"mean of {count} sessions", average.x, average.mean, look, is_mean=True)
    bands = (Band(average.x, *average.interval, look.color, _BAND),) if average.interval is not None else ()
    return replace(chart, subtitle=subtitle, lines=[*chart.lines, mean], bands=bands)


def build_runs_chart(runs: Sequence[DrawnRun], title: str, column: str, drawing: Drawing | None = None) -> Chart | None:
    """A chart of several runs; of returns if no moving average has a full window."""
    tables = [table for run in runs for table in run.tables]
    shown = _choose_column(tables, column) if column == AVERAGE else column
    chart = _build_runs_chart(runs, title, shown, drawing or Drawing())
    return chart if chart is None or shown == column else _without_average(chart)


def _build_runs_chart(runs: Sequence[DrawnRun], title: str, column: str, drawing: Drawing) -> Chart | None:
    lines: list[Line] = []
    dots: list[Line] = []
    bands, notes = [], []
    # a fixed order of algorithms, so that figures can be compared
    ordered = sorted(runs, key=lambda run: find_place(run.algorithm))
    looks = find_looks([run.algorithm for run in ordered], drawing.algorithms)
    scale, x_label = _choose_unit(runs, drawing.axis)
    for run, look in zip(ordered, looks, strict=True):
        sessions = [(x / scale, y) for x, y in read_curves(run.tables, column, drawing.axis, drawing.smooth)]
        average = average_curves(sessions, drawing.band)
        if average is None:
            why = (
                f"no mean of {run.name}: its sessions share no frames" if sessions else f"nothing to draw of {run.name}"
            )
            notes.append(why)
            continue
        count = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        name = f"{run.name} ({count})" if drawing.names_sessions else run.name
        lines.append(Line(name, average.x, average.mean, look, is_mean=True))
        if average.interval is not None:
            bands.append(Band(average.x, *average.interval, look.color))
        if column == RETURN and drawing.axis == "frames":
            dots += [replace(line, is_named=False) for line in _average_evals(run.evals, look)]
    if not lines:
        return None
    fewest = MIN_INTERVAL if drawing.band == "ci" else 2
    parts = [_BANDS[drawing.band] if bands else f"no interval: fewer than {fewest} sessions each"]
    parts += [f"each point the mean of {drawing.smooth} rows"] if drawing.smooth > 1 else []
    parts += ["dots: evaluations"] if dots else []
    parts += ["drawn from where the 100 rows are full"] if column == AVERAGE else []
    y_label = RETURN_LABELS.get(column, column)
    subtitle = "; ".join([*parts, *notes])
    return Chart(title, subtitle, y_label, [*lines, *dots], tuple(bands), drawing.has_legend, x_label)


def _choose_unit(runs: Sequence[DrawnRun], axis: Axis) -> tuple[float, str]:
    """The divisor of the values of an axis, and its label."""
    if axis != "time":
        return 1.0, FRAMES if axis == "frames" else "gradient steps"
    longest = max((x[-1] for run in runs for x, _ in read_curves(run.tables, "frame", axis)), default=0.0)
    return next((size, f"training time ({unit})") for size, unit, least in _TIMES if longest >= least * size)


def _without_average(chart: Chart) -> Chart:
    return replace(chart, subtitle="; ".join(filter(None, (_NO_AVERAGE, chart.subtitle))))


def _choose_column(tables: Sequence[Table], column: str) -> str:
    """The column itself, or the returns if no moving average has a full window."""
    return column if read_curves(tables, column) else RETURN


def _average_evals(tables: Sequence[Table], look: Look) -> list[Line]:
    """The mean of the sessions' evaluations, as dots; nothing without evaluations."""
    average = average_curves(read_curves(tables, RETURN))
    return [] if average is None else [Line(_EVALUATION, average.x, average.mean, look, is_dotted=True)]
