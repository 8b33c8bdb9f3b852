"""`slm-lab retro DIR`: metrics, graphs and report made anew from the tables of a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.results.folder import DATA_DIR, REPORT_NAME, RunFolder
from slm_lab.results.metrics import format_trial_metrics
from slm_lab.results.retro import find_models, recompute
from slm_lab.results.run import load_run

app = typer.Typer(add_completion=False)


@app.command(help="Make the metrics, graphs and report of a run again from its tables, wherever it was made.")
def retro(
    where: Annotated[str, typer.Argument(metavar="DIR", help="A run folder or its name.")],
    data_dir: Annotated[Path, typer.Option("--data-dir", "--data-folder", "-d", help="Where runs are.")] = DATA_DIR,
) -> None:
    """Entry of the command."""

    def tell(text: str) -> None:
        sys.stderr.write(f"Note: {text}\n")

    with user_errors():
        run = load_run(where, data_dir)
        for problem in run.problems:
            tell(problem)
        metrics = recompute(run, tell)
        count, foreign = find_models(run.path)
        if foreign and RunFolder(run.path, run.name).is_published:
            tell(f"{foreign} of {count} weight files are of the published SLM-Lab; slm-lab run enjoy@{run.path}")
        elif foreign:
            tell(f"{foreign} of {count} weight files are not of this lab and cannot be played")
        sys.stdout.write(f"{format_trial_metrics(metrics['scalar'])}\n")
        sys.stdout.write(f"Graphs   {run.path / 'graph'}\nReport   {run.path / REPORT_NAME}\n")
