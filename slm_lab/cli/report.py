"""`slm-lab report DIR...`: a run, or several side by side, as one page that opens offline."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import RunFolderError
from slm_lab.results.folder import DATA_DIR, REPORT_NAME, find_run_path, is_search
from slm_lab.results.report import write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.report_search import write_search_report
from slm_lab.results.run import load_runs

app = typer.Typer(add_completion=False)


@app.command()
def report(
    where: Annotated[list[str], typer.Argument(metavar="DIR...", help="Run folders, their names, or latest.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write; by default report.html in DIR."),
    ] = None,
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Write a page about a run, a search, or several runs side by side: scores, curves, spec and commands."""
    with user_errors():
        if len(where) > 1 and output is None:
            raise RunFolderError("a report of several runs is in none of their folders: add -o FILE.html")
        if len(where) == 1 and is_search(path := find_run_path(where[0], data_dir)):
            _write(output or path, lambda page: write_search_report(path, page))
            return
        loaded, problems = load_runs(where, data_dir)
        for problem in problems:
            sys.stderr.write(f"Left out: {problem}\n")
        runs = [run for _, run in loaded]
        notes = [f"left out: {problem}" for problem in problems]
        _write(output or runs[0].path, lambda page: write_report(runs, page, compare_runs(runs), notes))


def _write(page: Path, write: Callable[[Path], None]) -> None:
    """Write a page to a file or into a folder, and print its path."""
    if page.is_dir():
        page /= REPORT_NAME
    write(page)
    sys.stdout.write(f"Report   {page}\n")
