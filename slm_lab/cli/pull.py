"""`slm-lab pull PATTERN`: download shared runs."""

import shlex
import sys
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.hub_table import show_runs
from slm_lab.cli.options import DataDirOption, LogLevelOption
from slm_lab.lib.errors import LabError
from slm_lab.lib.log import setup_console
from slm_lab.lib.unit import format_size, parse_size
from slm_lab.results.folder import DATA_DIR, REPORT_NAME
from slm_lab.share.opening import open_store
from slm_lab.share.pull import Pulled, list_runs, pull_runs
from slm_lab.share.settings import read_settings

app = typer.Typer(add_completion=False)
NUM_SHOWN = 5


@app.command(
    help="Download runs from HF_REPO into the data folder, and verify their hashes.\n\n"
    "Public repos need no token. Local files are never overwritten. Run an interrupted pull again to resume it."
)
def pull(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A run's name, a part of it, or a glob.")],
    list_: Annotated[bool, typer.Option("--list", "-l", help="Only show what would be downloaded.")] = False,
    source: Annotated[str | None, typer.Option("--from", metavar="REPO", help="A place other than HF_REPO.")] = None,
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Download at most this much, e.g. 20GB.")] = "5GB",
    data_dir: DataDirOption = DATA_DIR,
    log_level: LogLevelOption = "INFO",
) -> None:
    """Entry of the command."""
    setup_console(log_level)
    with user_errors():
        limit = _read_limit(max_size)
        store = open_store(read_settings(source))
        if list_:
            show_runs(list_runs(store, pattern), store, pattern, data_dir)
            return
        pulled, problems = pull_runs(pattern, store, data_dir, limit)
    for run in pulled:
        _tell(run)
    for name, problem in problems.items():
        sys.stderr.write(f"Left out {name}: {problem}\n")
    if problems or any(run.kept for run in pulled):
        sys.exit(1)


def _read_limit(text: str) -> int:
    try:
        limit = parse_size(text)
    except (ValueError, OverflowError):
        limit = 0
    if limit <= 0:
        raise LabError(f"--max-size: a size such as 500MB or 20GB expected, got '{text}'")
    return limit


def _tell(run: Pulled) -> None:
    what = f"{run.num_fetched} files, {format_size(run.num_bytes)}" if run.num_fetched else "already complete"
    sys.stdout.write(f"Fetched  {run.path} ({what})\n")
    if not (run.path / REPORT_NAME).exists():
        # pages are never downloaded, since their scripts would run here
        sys.stdout.write(f"Report   {shlex.join(['slm-lab', 'report', str(run.path)])}\n")
    if run.kept:
        shown = ", ".join(run.kept[:NUM_SHOWN]) + (", ..." if len(run.kept) > NUM_SHOWN else "")
        sys.stderr.write(
            f"Kept     {len(run.kept)} files of {run.path} differ from the shared ones and stay unchanged: {shown}; "
            "pull with another --data-dir to have both\n"
        )
