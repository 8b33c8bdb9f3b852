"""`slm-lab bench`: what the benchmark lacks, its runs, and its page."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from loguru import logger

from slm_lab.benchmark.intake import Share, take_in
from slm_lab.benchmark.intake import commit as commit_rows
from slm_lab.benchmark.local import STOP_CODES, run_rows
from slm_lab.benchmark.matrix import Row, load_matrix, select_rows
from slm_lab.benchmark.plan import estimate, find_open, measure_fps
from slm_lab.benchmark.remote import Cloud, run_remote
from slm_lab.benchmark.result import DOCS, Result, load_results
from slm_lab.benchmark.state import RowState, Standing, find_states
from slm_lab.benchmark.table import PHASES, write_table
from slm_lab.cli.failure import user_errors
from slm_lab.experiment.folder import DATA_DIR
from slm_lab.experiment.progress import format_seconds
from slm_lab.lib.errors import LabError
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import num_cores
from slm_lab.lib.secret import read_env_file
from slm_lab.remote.submit import find_status, submit_task
from slm_lab.remote.task import find_root
from slm_lab.share.opening import open_store
from slm_lab.share.pull import pull_runs
from slm_lab.share.push import push_run
from slm_lab.share.settings import read_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Run the benchmark.")

Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        "-f",
        metavar="WORDS",
        help="Rows of a phase, env, algorithm or spec: classic, 'atari ppo'. Repeatable.",
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", "--data-folder", "-d", help="Where runs are.")]
Docs = Annotated[Path, typer.Option("--docs", help="Where the page, its figures and results are.")]


@app.command(help="Show which rows lack a result, and how long they would take.")
def plan(filters: Filter = None, data_dir: DataDir = DATA_DIR, docs: Docs = DOCS) -> None:
    """Rows without a result, with their time."""
    with user_errors():
        states = _states(select_rows(filters or []), data_dir, docs)
        measured = measure_fps(_states(list(load_matrix()), data_dir, docs), load_results(docs))
    waiting = find_open(states)
    out, total, is_rough = sys.stdout, 0.0, False
    for state in waiting:
        time = estimate(state.row, measured, num_cores())
        total += time.seconds
        is_rough |= not time.is_measured
        mark = " " if time.is_measured else "~"
        why = f"  ({state.standing})" if state.standing is not Standing.MISSING else ""
        out.write(f"{state.row.key:<48} {mark}{format_seconds(time.seconds):>8}  {state.row.spec_name}{why}\n")
    out.write(
        f"{len(waiting)} of {len(states)} rows have no result; one after the other on {num_cores()} cores they take "
        f"about {format_seconds(total)}{' (~: a rough guess, nothing like it was measured yet)' if is_rough else ''}\n"
    )
    if waiting:
        words = [word for text in filters or [] for word in ("--filter", text)]
        out.write(f"Next     {shlex.join(['slm-lab', 'bench', 'run', *words, '--local'])}\n")


@app.command(help="Train the rows that lack a result; started again, it goes on where it was stopped.")
def run(
    filters: Filter = None,
    local: Annotated[
        bool, typer.Option("--local/--remote", help="On this machine, one row after the other, or with dstack.")
    ] = True,
    max_parallel: Annotated[int, typer.Option(help="Rows at once, with --remote.", min=1)] = 10,
    retries: Annotated[int, typer.Option(help="How often a failed row is tried again, in a new folder.", min=0)] = 1,
    data_dir: DataDir = DATA_DIR,
    docs: Docs = DOCS,
) -> None:
    """Train what is missing."""
    setup_console("INFO")
    with user_errors():
        rows = select_rows(filters or [])
        results = load_results(docs)
        if not local:
            _run_remote(rows, results, data_dir, max_parallel, retries)
            return
        outcomes = run_rows(rows, results, data_dir, retries)
    stopped = next((outcome.exit_code for outcome in outcomes if outcome.exit_code in STOP_CODES), 0)
    failed = [outcome for outcome in outcomes if outcome.exit_code not in (0, *STOP_CODES)]
    out = sys.stdout
    out.write(f"\nTrained  {sum(outcome.exit_code == 0 for outcome in outcomes)} row(s)\n")
    for outcome in failed:
        out.write(f"Failed   {outcome.row.key} in {outcome.num_attempt} attempts, exit code {outcome.exit_code}\n")
    if stopped:
        out.write("Stopped; the same command goes on with it\n")
    out.write("Next     slm-lab bench intake\n")
    sys.exit(stopped or (1 if failed else 0))


@app.command(help="Take finished runs into the page: check, upload, draw, write the row.")
def intake(
    filters: Filter = None,
    upload: Annotated[
        bool, typer.Option("--upload/--no-upload", help="Share runs first; --no-upload leaves their links out.")
    ] = True,
    commit: Annotated[
        bool, typer.Option("--commit", help="Make one commit of what was written; never a push.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
    docs: Docs = DOCS,
) -> None:
    """Take in what is finished."""
    setup_console("INFO")
    with user_errors():
        states = _states(select_rows(filters or []), data_dir, docs)
        has_new = any(state.standing is Standing.READY for state in states)
        with _open_share() if upload and has_new else nullcontext() as share:
            done = take_in(states, docs, data_dir, share)
        if commit and done.taken:
            commit_rows(docs, done.taken)
    out = sys.stdout
    for name, reasons in done.refused.items():
        out.write(f"Refused  {name}: {'; '.join(reasons)}\n")
    out.write(f"Taken in {len(done.taken)} row(s)\n")
    if not done.taken and not done.refused:
        out.write(f"There is no new finished run in {data_dir}; see slm-lab bench status\n")
    sys.exit(1 if done.refused else 0)


@app.command(help="Write docs/BENCHMARKS.md from the results.")
def table(data_dir: DataDir = DATA_DIR, docs: Docs = DOCS) -> None:
    """Write the page."""
    with user_errors():
        active = [_describe(state) for state in _states(list(load_matrix()), data_dir, docs) if _is_active(state)]
        path = write_table(docs, active)
    sys.stdout.write(f"{path}\n")


@app.command(help="Show how far the benchmark is.")
def status(filters: Filter = None, data_dir: DataDir = DATA_DIR, docs: Docs = DOCS) -> None:
    """Counts by phase, and what goes on."""
    with user_errors():
        states = _states(select_rows(filters or []), data_dir, docs)
    out = sys.stdout
    for phase, title in PHASES.items():
        counts = Counter(state.standing for state in states if state.row.phase == phase)
        if counts:
            parts = ", ".join(f"{counts[standing]} {standing}" for standing in Standing if counts[standing])
            out.write(f"{title:<18} {parts}\n")
    for state in states:
        if state.standing not in (Standing.DONE, Standing.MISSING):
            out.write(f"  {_describe(state)}\n")
    counts = Counter(state.standing for state in states)
    if counts[Standing.READY]:
        out.write("Next     slm-lab bench intake\n")
    elif find_open(states):
        out.write("Next     slm-lab bench plan\n")


@contextmanager
def _open_share() -> Iterator[Share]:
    """What uploads a run; a folder on a disk has no address that a page could link to."""
    settings = read_settings()
    with open_store(settings) as store:
        store.check_write()

        def share(path: Path) -> str | None:
            url = push_run(path, store)
            return None if settings.is_folder else url

        yield share


def _run_remote(rows: list[Row], results: dict[str, Result], data_dir: Path, max_parallel: int, retries: int) -> None:
    def fetch(name: str) -> None:
        try:
            with open_store(read_settings()) as store:
                pull_runs(name, store, data_dir)
        except LabError as error:
            # it is safe where it is, and the other rows go on
            logger.warning(f"{name} could not be fetched: {error}; later: slm-lab pull {name}")

    environ = {**read_env_file(), **os.environ}
    root = find_root(Path.cwd())
    cloud = Cloud(
        lambda request: submit_task(request, environ, root), lambda name: find_status(name, environ, root), fetch
    )
    try:
        runs = run_remote(rows, results, data_dir, max_parallel, retries, cloud)
    except KeyboardInterrupt:
        sys.stdout.write("\nLeft; what was submitted goes on. The same command comes back to it\n")
        sys.exit(130)
    for key, remote in runs.items():
        sys.stdout.write(f"{remote.status:<9} {key} as {remote.name}\n")
    sys.stdout.write("Next     slm-lab bench intake\n")
    sys.exit(1 if any(remote.status != "done" for remote in runs.values()) else 0)


def _states(rows: list[Row], data_dir: Path, docs: Path) -> list[RowState]:
    return find_states(rows, load_results(docs), data_dir)


def _is_active(state: RowState) -> bool:
    return state.standing in (Standing.RUNNING, Standing.STOPPED)


def _describe(state: RowState) -> str:
    run = state.run
    assert run is not None
    text = f"{state.row.key}: {state.standing}, {run.path.name}"
    if _is_active(state):
        text += (
            f", frame {run.frame:,} of {state.row.max_frame:,}, {len(run.tables)} of {state.row.max_session} sessions"
        )
    return "; ".join([text, *state.obstacles])
