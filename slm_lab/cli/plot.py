"""`slm-lab plot`: runs side by side in one figure per env."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.plot import name_figure, plot_runs, to_drawn
from slm_lab.results.report_chart import write_graph
from slm_lab.results.run import Run, load_runs

PLOTS = Path("docs/plots")

app = typer.Typer(add_completion=False)


@app.command(help="Plot the learning curves of runs side by side, one figure per env.")
def plot(
    folders: Annotated[str, typer.Option("--folders", "-f", metavar="A,B,...", help="Run folders or their names.")],
    title: Annotated[str | None, typer.Option("--title", "-t", help="Title; by default the env.")] = None,
    legends: Annotated[
        str | None, typer.Option("--legends", "-l", metavar="A,B,...", help="Names of the runs, in order.")
    ] = None,
    data_dir: RunsDirOption = DATA_DIR,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = PLOTS,
    legend: Annotated[bool, typer.Option("--legend/--no-legend", help="Show a legend.")] = True,
) -> None:
    """Entry of the command."""
    with user_errors():
        places = _split(folders)
        if not places:
            raise LabError("--folders: give at least one run folder; `slm-lab list` shows them")
        names = _split(legends) if legends is not None else None
        if names is not None and len(names) != len(places):
            raise LabError(f"--legends: {len(names)} names for {len(places)} runs; give one for each")
        loaded, problems = load_runs(places, data_dir)
        runs = dict(loaded)
        problems += [f"{place}: {problem}" for place, run in runs.items() for problem in run.problems]
        envs = list(dict.fromkeys(run.env_name for run in runs.values()))
        if title is not None and len(envs) > 1:
            raise LabError(f"--title: names one figure, but the runs have {len(envs)} envs: {', '.join(envs)}")
        for problem in problems:
            sys.stderr.write(f"Note: {problem}\n")
        for env in envs:
            chosen = {place: run for place, run in runs.items() if run.env_name == env}
            shown = list(chosen.values())
            labels = [names[places.index(place)] for place in chosen] if names else _name_apart(shown)
            drawn = [to_drawn(run, label) for run, label in zip(shown, labels, strict=True)]
            prefix = output / name_figure(title or env)
            paths = plot_runs(drawn, prefix, title or env, legend)
            if not paths:
                raise LabError(f"{env}: none of the runs has a finished episode to plot")
            page = paths[0].with_suffix(".html")
            write_graph(shown, labels, title or env, page, legend)
            sys.stdout.writelines(f"{path}\n" for path in (*paths, page))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _name_apart(runs: list[Run]) -> list[str]:
    """Distinct labels: the algorithms, or the names of the specs, or those of the folders."""
    for names in ([run.label for run in runs], [run.name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [run.path.name for run in runs]
