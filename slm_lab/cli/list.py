"""`slm-lab list`: runs with their scores."""

import math
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from slm_lab.cli.columns import write_columns
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.log import setup_console
from slm_lab.lib.secret import redact
from slm_lab.lib.unit import format_seconds
from slm_lab.results.folder import DATA_DIR, match_names
from slm_lab.results.run import Run, find_runs
from slm_lab.share.settings import get_repo, read_settings

HEADER = ("run", "algorithm", "env", "score", "sessions", "frames", "age")
SORTS: dict[str, Callable[[Run], Any]] = {
    "age": lambda run: -run.ended,
    # runs without a score come last
    "score": lambda run: (math.isnan(_score(run)), -_score(run)),
    "env": lambda run: (run.env_name, run.label),
    "algorithm": lambda run: (run.label, run.env_name),
    "frames": lambda run: -run.frame,
    "run": lambda run: run.path.name,
}

# time limit for the hub if the user did not ask for it
QUICK_SECONDS = 10.0

app = typer.Typer(add_completion=False)


def _score(run: Run) -> float:
    return run.spread.mean if run.spread is not None else math.nan


@app.command(
    name="list",
    help="List the runs in the data folder: algorithm, env, score, sessions, frames and age.\n\n"
    "If HF_REPO is set, its runs follow, with their size and whether they are local.",
)
def list_runs(
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only these runs: a name, a part of it, or a glob.")
    ] = "",
    local: Annotated[bool, typer.Option("--local", help="Only local runs.")] = False,
    hub: Annotated[bool, typer.Option("--hub", "--remote", help="Only runs at HF_REPO.")] = False,
    sort: Annotated[str, typer.Option(metavar="BY", help=f"One of {', '.join(SORTS)}.")] = "age",
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    with user_errors():
        if sort not in SORTS:
            raise LabError(f"--sort: no order '{sort}'{nearest(sort, SORTS)} (known: {', '.join(SORTS)})")
        if hub:
            setup_console("INFO")
            _list_hub(pattern, data_dir)
            return
        found, problems = find_runs(data_dir)
        for problem in problems:
            sys.stderr.write(f"Left out: {problem}\n")
        names = match_names([run.path.name for run in found], pattern)
        runs = [run for run in found if run.path.name in names]
        if runs:
            write_columns([HEADER, *(_row(run) for run in sorted(runs, key=SORTS[sort]))], num_name=3)
        has_hub = get_repo() is not None and not local and _try_hub(pattern, data_dir)
        if not runs and not has_hub:
            what = f"no run named like '{pattern}'" if pattern else "no run with results"
            raise LabError(f"there is {what} in {data_dir}; start one with `slm-lab run`")


def _try_hub(pattern: str, data_dir: Path) -> bool:
    """List the runs at HF_REPO below the local ones; an unreachable hub is only a warning."""
    try:
        sys.stdout.flush()
        _list_hub(pattern, data_dir, title=f"\nAt {get_repo()}:\n", is_quick=True)
    except LabError as error:
        sys.stderr.write(redact(f"Warning: cannot list the runs at HF_REPO: {error}\n"))
        return False
    return True


def _list_hub(pattern: str, data_dir: Path, title: str = "", is_quick: bool = False) -> None:
    # loaded only here: importing the hub's client takes a moment
    opening, pull, table = (
        import_module(name) for name in ("slm_lab.share.opening", "slm_lab.share.pull", "slm_lab.cli.hub_table")
    )
    # if the user did not ask for the hub, do not make them wait
    limits = {"attempts": 1, "timeout": QUICK_SECONDS} if is_quick else {}
    store = opening.open_store(read_settings(), **limits)
    runs = pull.list_runs(store, pattern)
    if runs:
        sys.stdout.write(title)
    table.show_runs(runs, store, pattern, data_dir)


def _row(run: Run) -> tuple[str, ...]:
    score = _score(run)
    return (
        run.path.name,
        run.label,
        run.env_name,
        "-" if math.isnan(score) else f"{score:.2f}",
        str(len(run.scores)),
        f"{run.frame:,}",
        format_seconds(time.time() - run.ended),
    )
