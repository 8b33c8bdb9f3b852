"""`slm-lab compare A B ...`: which of several runs is better, and how they differ."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.columns import write_columns
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_text
from slm_lab.results import aggregate
from slm_lab.results.comparison import (
    HEAD,
    NUM_NAME,
    ComparisonRow,
    build_rows,
    format_csv,
    format_latex,
)
from slm_lab.results.folder import DATA_DIR
from slm_lab.results.metrics import MIN_INTERVAL
from slm_lab.results.report import build_spec_diff, name_runs
from slm_lab.results.run import Run, find_common_kind, load_run
from slm_lab.results.statistics import compare as compare_scores
from slm_lab.results.statistics import describe_improvement
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)


@app.command(
    help="Compare two or more runs: scores with their intervals, aggregates over envs, differences of the specs."
)
def compare(
    places: Annotated[list[str], typer.Argument(metavar="A B [C ...]", help="Run folders or their names.")],
    data_dir: RunsDirOption = DATA_DIR,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as CSV.")] = None,
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as LaTeX, for the booktabs package.")
    ] = None,
) -> None:
    """Entry of the command."""
    with user_errors():
        if len(places) < 2:
            raise LabError("compare: give at least two runs; `slm-lab list` shows them")
        runs = [load_run(where, data_dir) for where in places]
        for run in runs:
            for problem in run.problems:
                sys.stderr.write(f"Note: {problem}\n")
        # as in the table: those of one env together
        envs = list(dict.fromkeys(run.env_name for run in runs))
        runs.sort(key=lambda run: envs.index(run.env_name))
        rows = build_rows(runs, name_runs(runs))
        if len(runs) == 2:
            _describe_two(runs, rows)
        else:
            _describe_many(runs, rows)
        for path, text in ((csv, format_csv(rows)), (latex, format_latex(rows))):
            if path is not None:
                write_text(path, text)


def _describe_two(runs: Sequence[Run], rows: Sequence[ComparisonRow]) -> None:
    out = sys.stdout
    ours, theirs = runs
    for run, row in zip(runs, rows, strict=True):
        if not row.scores:
            raise LabError(f"{run.path}: no episode has ended, so there is nothing to compare")
    for name, run, row in zip("AB", runs, rows, strict=True):
        out.write(f"{name}  {run.path.name}: {run.label} on {run.env_name}\n   score {_describe(row)}\n")
        out.writelines(f"   {note}\n" for note in run.score_notes)
    out.write(f"Scores  {ours.describe_kind(find_common_kind(runs))}\n")
    if ours.env_name != theirs.env_name:
        out.write("\nScores of different envs are not compared.\n")
    else:
        result = compare_scores(rows[0].scores, rows[1].scores)
        difference = result.difference
        interval = "" if math.isnan(difference.low) else f" [{difference.low:.2f}, {difference.high:.2f}]"
        out.write(f"\nA - B   {difference.value:+.2f}{interval}\n        {describe_improvement(result)}\n")
    if not (math.isnan(ours.fps) or math.isnan(theirs.fps)):
        out.write(f"Speed   {ours.fps:,.0f} and {theirs.fps:,.0f} frames per second, {ours.fps / theirs.fps:.2f} x\n")
    lines = [printable(f"{key}: {one} | {two}", limit=2000) for key, one, two in build_spec_diff(runs, "AB")["rows"]]
    out.write("Specs   " + "\n        ".join(lines or ["the same"]) + "\n")


def _describe(row: ComparisonRow) -> str:
    spread = row.spread
    values = ", ".join(f"{value:.2f}" for value in spread.values)
    if math.isnan(spread.low):
        return f"{spread.mean:.2f}: {values} (no interval from fewer than {MIN_INTERVAL} sessions)"
    return f"{spread.mean:.2f} [{spread.low:.2f}, {spread.high:.2f}], IQM {spread.iqm:.2f}: {values}"


def _describe_many(runs: Sequence[Run], rows: list[ComparisonRow]) -> None:
    out = sys.stdout
    lines = [["", *HEAD]]
    for number, (row, before) in enumerate(zip(rows, rows[:1] + rows[:-1], strict=True), start=1):
        lines += [] if before.env == row.env else [[""] * len(lines[0])]
        lines.append([str(number), *row.cells])
    write_columns(lines, NUM_NAME + 1)
    out.write(f"\nScores  {runs[0].describe_kind(find_common_kind(runs))}\n")
    for number, run in enumerate(runs, start=1):
        out.writelines(f"        {number}: {note}\n" for note in run.score_notes)
    out.write("        P(improvement): over the first run in the env, with its 95 % interval\n")
    found = aggregate.aggregate_rows(rows)
    if found is not None:
        out.write("\n")
        if found.rows:
            write_columns([aggregate.HEAD, *(row.cells for row in found.rows)], 1)
        out.writelines(f"{note}\n" for note in found.notes)
    specs = build_spec_diff(runs, [str(number) for number in range(1, len(runs) + 1)])
    if specs["rows"]:
        out.write("\n")
        write_columns([["Specs", *specs["head"][1:]], *specs["rows"]], len(specs["head"]))
    else:
        out.write("\nSpecs   the same\n")
