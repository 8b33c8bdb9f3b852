"""`slm-lab doctor [DIR]`: what stands out in the tables of a run, and which key to try."""

import sys
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.results.doctor import Symptom, describe_health, find_symptoms
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.run import load_run
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)

MARKS = {"warn": "WARN", "info": "info"}


@app.command(
    help="Read the tables of a run and report what stands out, what it means and which key of the spec to try.\n\n"
    "DIR is a run folder, its name inside the data folder, a file in it, a pattern that matches one run, or latest."
)
def doctor(
    where: Annotated[str, typer.Argument(metavar="DIR")] = "latest",
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    with user_errors():
        run = load_run(where, data_dir)
    out = sys.stdout
    for problem in run.problems:
        sys.stderr.write(f"Note: {problem}\n")
    out.write(f"{run.path}: {run.label} on {run.env_name}, {len(run.scores)} session(s), {run.frame:,} frames\n")
    symptoms = find_symptoms(run)
    out.writelines(f"\n{_describe(symptom)}" for symptom in symptoms)
    if not symptoms:
        out.write(f"\n{describe_health(run)}\n")


def _describe(symptom: Symptom) -> str:
    # they may quote the run, which may come from anyone
    title, seen, meaning, advice = (
        printable(text, limit=2000) for text in (symptom.title, symptom.seen, symptom.meaning, symptom.advice)
    )
    return f"{MARKS[symptom.level]}  {title}\n      Seen   {seen}\n      Means  {meaning}\n      Try    {advice}\n"
