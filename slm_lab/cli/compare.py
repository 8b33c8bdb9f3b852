"""`slm-lab compare A B`: which of two runs is better, and how they differ."""

import math
import sys
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.metrics import MIN_INTERVAL, calc_spread
from slm_lab.results.report import build_spec_diff
from slm_lab.results.run import Run, find_common_kind, load_run
from slm_lab.results.statistics import compare as compare_scores
from slm_lab.results.statistics import describe_improvement
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)


@app.command(help="Compare two runs: difference of the scores, speed, and differences of the specs.")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A run folder or its name.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    with user_errors():
        runs = [load_run(where, data_dir) for where in (first, second)]
        for run in runs:
            for problem in run.problems:
                sys.stderr.write(f"Note: {problem}\n")
        ours, theirs = runs
        kind = find_common_kind(runs)
        scores = [[score for score in run.get_scores(kind).values() if not math.isnan(score)] for run in runs]
        for run, values in zip(runs, scores, strict=True):
            if not values:
                raise LabError(f"{run.path}: no episode has ended, so there is nothing to compare")
        out = sys.stdout
        for name, run, values in zip("AB", runs, scores, strict=True):
            out.write(f"{name}  {run.path.name}: {run.label} on {run.env_name}\n   score {_describe(values)}\n")
            out.writelines(f"   {note}\n" for note in run.score_notes)
        out.write(f"Scores  {ours.describe_kind(kind)}\n")
        if ours.env_name != theirs.env_name:
            out.write("\nScores of different envs are not compared.\n")
        else:
            result = compare_scores(*scores)
            difference = result.difference
            interval = "" if math.isnan(difference.low) else f" [{difference.low:.2f}, {difference.high:.2f}]"
            out.write(f"\nA - B   {difference.value:+.2f}{interval}\n        {describe_improvement(result)}\n")
        if not (math.isnan(ours.fps) or math.isnan(theirs.fps)):
            out.write(
                f"Speed   {ours.fps:,.0f} and {theirs.fps:,.0f} frames per second, {ours.fps / theirs.fps:.2f} x\n"
            )
        out.write(_describe_specs(runs))


def _describe(scores: list[float]) -> str:
    spread = calc_spread(scores)
    values = ", ".join(f"{value:.2f}" for value in spread.values)
    if math.isnan(spread.low):
        return f"{spread.mean:.2f}: {values} (no interval from fewer than {MIN_INTERVAL} sessions)"
    return f"{spread.mean:.2f} [{spread.low:.2f}, {spread.high:.2f}], IQM {spread.iqm:.2f}: {values}"


def _describe_specs(runs: list[Run]) -> str:
    rows = build_spec_diff(runs, "AB")["rows"]
    lines = [printable(f"{key}: {one} | {two}", limit=2000) for key, one, two in rows]
    return "Specs   " + "\n        ".join(lines or ["the same"]) + "\n"
