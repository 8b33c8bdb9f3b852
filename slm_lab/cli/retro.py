"""`slm-lab retro DIR`: recompute the metrics, graphs and report of a run from its tables."""

import sys
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption, write_command
from slm_lab.results.conclude import recompute
from slm_lab.results.folder import DATA_DIR, RunFolder
from slm_lab.results.metrics import format_trial_metrics
from slm_lab.results.run import load_run

app = typer.Typer(add_completion=False)


@app.command(
    help="Recompute the metrics, graphs and report of a run from its tables, also for runs from other machines."
)
def retro(
    where: Annotated[str, typer.Argument(metavar="DIR", help="A run folder or its name.")],
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""

    def tell(text: str) -> None:
        sys.stderr.write(f"Note: {text}\n")

    with user_errors():
        run = load_run(where, data_dir)
        for problem in run.problems:
            tell(problem)
        if run.random_return is None:
            tell(f"the random baseline of {run.env_name} is unknown, so strength counts from 0")
        concluded = recompute(run, run.random_return or 0.0)
        count = len(list((run.path / "model").glob("*_model.pt")))
        if count and RunFolder(run.path, run.name).is_published:
            play = write_command("run", f"enjoy@{run.path}")
            tell(f"{count} weight files are of the published SLM-Lab; play them with {play}")
        if concluded.metrics.scalar is not None:
            sys.stdout.write(f"{format_trial_metrics(concluded.metrics.scalar)}\n")
        sys.stdout.write(f"Graphs   {run.path / 'graph'}\n")
        if concluded.report is not None:
            sys.stdout.write(f"Report   {concluded.report}\n")
