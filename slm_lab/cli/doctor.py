"""`slm-lab doctor [DIR]`: what stands out in the tables of a run, and which key to try; or what a GPU can do."""

import sys
from importlib import import_module
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.log import setup_console
from slm_lab.results.doctor import Symptom, describe_health, find_symptoms
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.run import load_run
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)

MARKS = {"warn": "WARN", "info": "info"}
OUTCOMES = {True: "ok", False: "FAILED", None: "skipped"}


@app.command(
    help="Read the tables of a run and report what stands out, what it means and which key of the spec to try.\n\n"
    "DIR is a run folder, its name inside the data folder, a file in it, a pattern that matches one run, or latest. "
    "With --gpu it checks this machine's GPU instead, in about five minutes: whether it gives the CPU's numbers, "
    "repeats exactly and rarely waits, and how fast it is. Exit code 1: a check failed."
)
def doctor(
    where: Annotated[str, typer.Argument(metavar="DIR")] = "latest",
    data_dir: RunsDirOption = DATA_DIR,
    gpu: Annotated[bool, typer.Option("--gpu", help="Check the GPU of this machine instead of a run.")] = False,
) -> None:
    """Entry of the command."""
    if gpu:
        sys.exit(0 if _check_gpu() else 1)
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


def _check_gpu() -> bool:
    """Print the checks of this machine's GPU as they are done; returns whether none failed."""
    setup_console("WARNING")
    with user_errors():
        # it needs torch, which the doctor of runs does without
        audit = import_module("slm_lab.audit.gpu")
        device = audit.find_gpu()
    num_failed = 0
    for finding in audit.check_gpu(device):
        num_failed += finding.is_ok is False
        sys.stdout.write(f"{OUTCOMES[finding.is_ok]:<8}{finding.name:<28}{printable(finding.detail, limit=2000)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{num_failed} check(s) failed\n" if num_failed else "The GPU does what the CPU does\n")
    return num_failed == 0


def _describe(symptom: Symptom) -> str:
    # they may quote the run, which may come from anyone
    title, seen, meaning, advice = (
        printable(text, limit=2000) for text in (symptom.title, symptom.seen, symptom.meaning, symptom.advice)
    )
    return f"{MARKS[symptom.level]}  {title}\n      Seen   {seen}\n      Means  {meaning}\n      Try    {advice}\n"
