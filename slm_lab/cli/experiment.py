"""`slm-lab run FILE train` for an experiment file: what it prints at the end."""

import sys

from slm_lab.cli.columns import write_columns
from slm_lab.cli.options import write_command
from slm_lab.experiment.grid_run import GridResult
from slm_lab.results import aggregate
from slm_lab.results.comparison import HEAD, NUM_NAME


def conclude(result: GridResult, source: str, imports: tuple[str, ...]) -> int:
    """Print the tables, the files and the next commands; returns the exit code."""
    out = sys.stdout
    again = write_command("run", source, "train", imports=imports)
    out.write(f"\nTrained  {result.num_trained} sessions now, {result.num_before} before\n")
    if result.stop_code:
        out.write(f"Stopped and saved. Resume with:\n  {again}\n")
        return result.stop_code
    if result.files is not None:
        out.write("\n")
        # without the name of the folder, which repeats label and env
        write_columns([HEAD[1:], *(row.cells[1:] for row in result.files.rows)], NUM_NAME - 1)
        aggregates = result.files.aggregates
        if aggregates is not None:
            out.write("\n")
            if aggregates.rows:
                write_columns([aggregate.HEAD, *(row.cells for row in aggregates.rows)], 1)
            out.writelines(f"{note}\n" for note in aggregates.notes)
        out.write(f"\nTable    {result.files.table}, {result.files.latex.name}\n")
        if result.files.figures:
            out.write(f"Figures  {result.files.figures[0].parent}\n")
        out.write(f"Page     {result.files.page}\n")
    for title in result.failures:
        out.write(f"Failed   {title}\n")
    if result.failures:
        out.write(f"Again    {again}\n")
    return result.exit_code
