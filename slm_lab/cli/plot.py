"""`slm-lab plot`: runs side by side in one figure per env."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError, nearest
from slm_lab.results.aggregate import aggregate_rows
from slm_lab.results.comparison import build_rows
from slm_lab.results.curve import Axis, BandKind
from slm_lab.results.figure import IMAGE_FORMATS, Point
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.plot import GRAPHS, Drawing, DrawnRun, name_figure, name_figures, plot_runs, to_drawn
from slm_lab.results.report_chart import write_graph
from slm_lab.results.run import Run, load_runs
from slm_lab.spec.reader import printable

PLOTS = Path("docs/plots")
FORMATS = (*IMAGE_FORMATS, "html")

app = typer.Typer(add_completion=False)


@app.command(help="Plot the learning curves of runs side by side, one figure per env.")
def plot(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN ...]", help="Run folders or their names.")] = None,
    folders: Annotated[
        str, typer.Option("--folders", "-f", metavar="A,B,...", help="The same, separated by commas.")
    ] = "",
    title: Annotated[str | None, typer.Option("--title", "-t", help="Title; by default the env.")] = None,
    legends: Annotated[
        str | None, typer.Option("--legends", "-l", metavar="A,B,...", help="Names of the runs, in order.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A column of the table; by default total_reward and total_reward_ma."),
    ] = None,
    x: Annotated[Axis, typer.Option("--x", help="What to plot over.")] = "frames",
    band: Annotated[
        BandKind, typer.Option(help="Band around the mean: 95 % interval, std, or lowest and highest session.")
    ] = "ci",
    smooth: Annotated[int, typer.Option(metavar="N", help="Average each point over N rows.", min=1)] = 1,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="A,B,...", help=f"{', '.join(FORMATS)}; by default png and html."),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="One figure with a panel per env and a common legend.")] = False,
    data_dir: RunsDirOption = DATA_DIR,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = PLOTS,
    legend: Annotated[bool, typer.Option("--legend/--no-legend", help="Show a legend.")] = True,
) -> None:
    """Entry of the command."""
    with user_errors():
        places = [*(runs or []), *_split(folders)]
        if not places:
            raise LabError("plot: give at least one run folder; `slm-lab list` shows them")
        names = _split(legends) if legends is not None else None
        if names is not None and len(names) != len(places):
            raise LabError(f"--legends: {len(names)} names for {len(places)} runs; give one for each")
        is_plain = (column, x, band, smooth, grid) == (None, "frames", "ci", 1, False)
        forms = _choose_formats(form, is_plain)
        loaded, problems = load_runs(places, data_dir)
        found = dict(loaded)
        problems += [f"{place}: {problem}" for place, run in found.items() for problem in run.problems]
        envs = list(dict.fromkeys(run.env_name for run in found.values()))
        if title is not None and len(envs) > 1 and not grid:
            raise LabError(f"--title: names one figure, but the runs have {len(envs)} envs: {', '.join(envs)}")
        _check_column(column, list(found.values()))
        for problem in problems:
            sys.stderr.write(f"Note: {problem}\n")
        drawing = Drawing(column, x, band, smooth, legend, algorithms=tuple(run.label for run in found.values()))
        stems = name_figures(envs)
        shown: dict[str, list[Run]] = {}
        labels: dict[str, list[str]] = {}
        for env in envs:
            chosen = {place: run for place, run in found.items() if run.env_name == env}
            shown[env] = list(chosen.values())
            labels[env] = [names[places.index(place)] for place in chosen] if names else _name_apart(shown[env])
        for part in [envs] if grid else [[env] for env in envs]:
            figures = {env: list(map(to_drawn, shown[env], labels[env])) for env in part}
            stem = stems[part[0]] if len(part) == 1 else "envs"
            prefix = output / (name_figure(title) if title else stem)
            pictures = [known for known in IMAGE_FORMATS if known in forms]
            points = _aggregate(figures, list(found.values())) if column in (None, *GRAPHS.values()) else []
            paths = plot_runs(figures, prefix, title or "", drawing, pictures, points)
            if pictures and not paths:
                what = "finished episode" if column is None else f"value of {column}"
                raise LabError(f"{', '.join(part)}: none of the runs has a {what} to plot over {x}")
            if "html" in forms:
                paths.append(prefix.with_name(f"{prefix.name}_multi_trial_graph_mean_returns_vs_frames.html"))
                # a page has one env: html and --grid exclude each other
                (env,) = part
                write_graph(shown[env], labels[env], title or env, paths[-1], legend)
            sys.stdout.writelines(f"{path}\n" for path in paths)


def _aggregate(figures: Mapping[str, Sequence[DrawnRun]], runs: list[Run]) -> list[Point]:
    """The normalised scores of each name over all envs; none for a single env."""
    # runs are drawn in the order of their envs, then their own
    ordered = [run for env in figures for run in runs if run.env_name == env]
    names = [drawn.name for env in figures.values() for drawn in env]
    found = aggregate_rows(build_rows(ordered, names, names)) if len(figures) > 1 else None
    rows = found.rows if found is not None else ()
    return [Point(row.algorithm, row.iqm.value, row.iqm.low, row.iqm.high) for row in rows]


def _choose_formats(text: str | None, is_plain: bool) -> list[str]:
    forms = _split(text or "") or ["png", *(["html"] if is_plain else [])]
    for form in forms:
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise LabError(f"--format: no format '{printable(form)}'{nearest(form, FORMATS)} (known: {known})")
    if "html" in forms and not is_plain:
        raise LabError(
            "--format html: a page has every column over frames with 95 % intervals; leave out --column, --x, --band, "
            f"--smooth and --grid, or choose {', '.join(IMAGE_FORMATS)}"
        )
    return forms


def _check_column(column: str | None, runs: list[Run]) -> None:
    known = dict.fromkeys(name for run in runs for table in run.tables.values() for name in table if name != "frame")
    if column is not None and column not in known:
        shown = printable(", ".join(known), limit=1000)
        raise LabError(f"--column: no column '{printable(column)}'{printable(nearest(column, known))} (known: {shown})")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _name_apart(runs: list[Run]) -> list[str]:
    """Distinct labels: the algorithms, else the names of the specs, else those of the folders."""
    for names in ([run.label for run in runs], [run.name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [run.path.name for run in runs]
