"""`slm-lab bench`: missing rows of the benchmark, its runs, and its page."""

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from loguru import logger

from slm_lab.benchmark.intake import Share, take_in
from slm_lab.benchmark.intake import commit as commit_rows
from slm_lab.benchmark.local import STOP_CODES, become_idle, order_by_cost, run_rows, wait_for_core
from slm_lab.benchmark.matrix import Row, load_matrix, select_rows
from slm_lab.benchmark.plan import estimate, find_open, load_costs, measure_fps
from slm_lab.benchmark.remote import Cloud, RemoteRuns, find_submitted
from slm_lab.benchmark.result import DOCS, Result, find_start, load_results
from slm_lab.benchmark.state import RowState, Standing, find_locked, find_states
from slm_lab.benchmark.table import PHASES, write_table
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import lock_file
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import num_cores
from slm_lab.lib.secret import full_environment
from slm_lab.lib.unit import format_seconds
from slm_lab.remote.submit import find_status, submit_task
from slm_lab.remote.task import SpotPolicy, TaskRequest, find_root
from slm_lab.results.folder import DATA_DIR
from slm_lab.share.opening import open_store
from slm_lab.share.pull import find_names, pull_runs
from slm_lab.share.push import push_run
from slm_lab.share.settings import read_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run the benchmark.")

Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        "-f",
        metavar="WORDS",
        help="Rows of a phase, env, algorithm or spec: classic, 'atari ppo'. Repeatable.",
    ),
]
VolumeOption = Annotated[str | None, typer.Option(metavar="NAME", help="Volume for checkpoints, with --remote.")]
SpotOption = Annotated[
    SpotPolicy | None, typer.Option(help="Kind of machine, with --remote; auto takes the cheaper one.")
]
MaxPriceOption = Annotated[float | None, typer.Option(metavar="DOLLARS", help="Highest price per hour, with --remote.")]
MaxDurationOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time limit of a run, such as 12h, with --remote.")
]
# time limit in the templates of remote runs, in seconds
USUAL_LIMIT = 6 * 3600
Docs = Annotated[Path, typer.Option("--docs", help="Folder with the page, its figures and results.")]


@app.command(help="Show the rows without a result, and how long they would take.")
def plan(filters: Filter = None, data_dir: RunsDirOption = DATA_DIR, docs: Docs = DOCS) -> None:
    """Rows without a result, with their time."""
    with user_errors():
        states = _states(select_rows(filters or []), data_dir, docs)
        measured = _measure(data_dir, docs)
    waiting = find_open(states)
    out, total, is_rough = sys.stdout, 0.0, False
    width = max((len(state.row.key) for state in waiting), default=0)
    out.write(f"{'row':<{width}} {'time':>9} {'core-hours':>11}  spec\n" if waiting else "")
    for state in waiting:
        time = estimate(state.row, measured, num_cores())
        total += time.seconds
        is_rough |= not time.is_measured
        mark = " " if time.is_measured else "~"
        why = f"  ({state.standing})" if state.standing is not Standing.MISSING else ""
        out.write(
            f"{state.row.key:<{width}} {mark}{format_seconds(time.seconds):>8} {time.core_seconds / 3600:>11,.1f}  "
            f"{state.row.spec_name}{why}\n"
        )
    out.write(
        f"{len(waiting)} of {len(states)} rows need a run; one after the other on {num_cores()} cores they take "
        f"about {format_seconds(total)}{' (~: a rough guess, no similar row was measured)' if is_rough else ''}\n"
    )
    if waiting:
        words = [word for text in filters or [] for word in ("--filter", text)]
        out.write(f"Next     {shlex.join(['slm-lab', 'bench', 'run', *words, '--local'])}\n")


@app.command(help="Train the rows without a result; the same command resumes.")
def run(
    filters: Filter = None,
    local: Annotated[
        bool, typer.Option("--local/--remote", help="On this machine, one row at a time, or with dstack.")
    ] = True,
    idle: Annotated[
        bool,
        typer.Option("--idle", help="Only while a core is free, cheapest row first, at the lowest priority."),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also train rows with a result: the newest run counts.")
    ] = False,
    max_parallel: Annotated[int, typer.Option(help="Rows in parallel, with --remote.", min=1)] = 10,
    retries: Annotated[int, typer.Option(help="How often to retry a failed row, under a new name.", min=0)] = 1,
    volume: VolumeOption = None,
    spot: SpotOption = None,
    max_price: MaxPriceOption = None,
    max_duration: MaxDurationOption = None,
    data_dir: RunsDirOption = DATA_DIR,
    docs: Docs = DOCS,
) -> None:
    """Train the missing rows."""
    setup_console("INFO")
    with user_errors():
        rows = select_rows(filters or [])
        results = {} if again else load_results(docs)
        given = {"volume": volume, "spot": spot, "max_price": max_price, "max_duration": max_duration}
        if local and (wrong := [name for name, value in given.items() if value is not None]):
            raise LabError(f"--{wrong[0].replace('_', '-')} needs --remote")
        if idle and not local:
            raise LabError("--idle needs --local")
        if not local:
            request = TaskRequest("", volume=volume, spot=spot, max_price=max_price, max_duration=max_duration)
            with lock_file(data_dir / "bench" / "remote.lock", 0):
                _run_remote(rows, results, data_dir, max_parallel, retries, request)
            return
        if idle:
            rows = _begin_idle(find_states(rows, results, data_dir, find_submitted(data_dir)), data_dir, docs)
        outcomes = run_rows(
            rows,
            results,
            data_dir,
            retries,
            submitted=find_submitted(data_dir),
            wait=wait_for_core if idle else lambda: None,
        )
    stopped = next((outcome.exit_code for outcome in outcomes if outcome.exit_code in STOP_CODES), 0)
    failed = [outcome for outcome in outcomes if outcome.exit_code not in (0, *STOP_CODES)]
    out = sys.stdout
    out.write(f"\nTrained  {sum(outcome.exit_code == 0 for outcome in outcomes)} row(s)\n")
    for outcome in outcomes:
        out.write(f"Took     {outcome.core_seconds / 3600:.2f} core-hours: {outcome.row.key}\n")
    for outcome in failed:
        out.write(f"Failed   {outcome.row.key} in {outcome.num_attempt} attempts, exit code {outcome.exit_code}\n")
    if stopped:
        out.write("Stopped; the same command resumes\n")
    out.write("Next     slm-lab bench intake\n")
    sys.exit(stopped or (1 if failed else 0))


@app.command(help="Take finished runs into the page: check, upload, plot, write the row.")
def intake(
    filters: Filter = None,
    upload: Annotated[
        bool, typer.Option("--upload/--no-upload", help="Upload runs first; without it the page has no links to them.")
    ] = True,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the page, figures and results; never pushes.")
    ] = False,
    data_dir: RunsDirOption = DATA_DIR,
    docs: Docs = DOCS,
) -> None:
    """Take in finished runs."""
    setup_console("INFO")
    with user_errors():
        rows = select_rows(filters or [])
        with lock_file(data_dir / "bench" / "intake.lock", 60):
            states, results = _states(rows, data_dir, docs), load_results(docs)
            has_new = any(state.standing is Standing.READY for state in states)
            has_unshared = any(row.key in results and results[row.key].url is None for row in rows)
            share = _open_share() if upload and (has_new or has_unshared) else None
            done = take_in(states, docs, data_dir, share)
        is_committed = commit and commit_rows(docs)
    out = sys.stdout
    for name, reasons in done.refused.items():
        out.write(f"Refused  {name}: {'; '.join(reasons)}\n")
    out.write(f"Taken in {len(done.taken)} row(s){', and committed' if is_committed else ''}\n")
    if not done.taken and not done.refused:
        out.write(f"No new finished run in {data_dir}; see slm-lab bench status\n")
    sys.exit(1 if done.refused else 0)


@app.command(help="Write docs/BENCHMARKS.md from the results.")
def table(docs: Docs = DOCS) -> None:
    """Write the page."""
    with user_errors():
        path = write_table(docs)
    sys.stdout.write(f"{path}\n")


@app.command(help="Show the progress of the benchmark.")
def status(filters: Filter = None, data_dir: RunsDirOption = DATA_DIR, docs: Docs = DOCS) -> None:
    """Counts by phase, and the active runs."""
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


def _open_share() -> Share:
    """A function that uploads a run and returns its link; a folder on a disk has none."""
    settings = read_settings()
    store = open_store(settings)
    store.check_write()
    if not store.is_public():
        logger.warning(
            f"{store.root_url} is private, so others cannot open the links of the page; slm-lab graduate copies "
            "the runs to a public repo"
        )

    def share(path: Path) -> str | None:
        url = push_run(path, store)
        return None if settings.is_folder else url

    return share


def _run_remote(
    rows: list[Row], results: dict[str, Result], data_dir: Path, max_parallel: int, retries: int, request: TaskRequest
) -> None:
    def fetch(name: str) -> None:
        try:
            store = open_store(read_settings())
            # the newest of this spec, not of one whose name starts alike
            names = find_names(store, f"{name}_[0-9][0-9][0-9][0-9]_*")
            if names:
                pull_runs(max(names, key=find_start), store, data_dir)
        except LabError as error:
            # the run is safe at the hub, and the other rows continue
            logger.warning(f"{name} could not be downloaded: {error}; later: slm-lab pull {name}")

    if request.max_duration is None:
        for row in rows:
            seconds = estimate(row, {}, row.max_session).seconds
            if seconds > USUAL_LIMIT:
                logger.warning(
                    f"{row.key} may take {format_seconds(seconds)}, but the time limit is 6h: give --max-duration, and "
                    "--volume so that it can resume"
                )
    environ, root = full_environment(), find_root(Path.cwd())
    cloud = Cloud(
        lambda request: submit_task(request, environ, root), lambda name: find_status(name, environ, root), fetch
    )
    try:
        runs = RemoteRuns(data_dir, cloud, request).run(rows, results, max_parallel, retries)
    except KeyboardInterrupt:
        sys.stdout.write("\nStopped waiting; submitted runs continue. Run the same command to return to them\n")
        sys.exit(130)
    for key, remote in runs.items():
        sys.stdout.write(f"{remote.status:<10} {key} as {remote.name}\n")
    sys.stdout.write("Next     slm-lab bench intake\n")
    sys.exit(1 if any(remote.status != "done" for remote in runs.values()) else 0)


def _begin_idle(states: list[RowState], data_dir: Path, docs: Path) -> list[Row]:
    """Lower the priority of this process and print the cost of each row; returns the rows, cheapest first."""
    become_idle()
    costs = order_by_cost(states, _measure(data_dir, docs))
    for row, seconds in costs:
        sys.stdout.write(f"{row.key:<56} {seconds / 3600:>11,.1f} core-hours\n")
    return [row for row, _ in costs]


def _measure(data_dir: Path, docs: Path) -> dict[tuple[str, str], float]:
    """Frames per second of a session, for all rows with a measurement."""
    return measure_fps(_states(list(load_matrix()), data_dir, docs), load_costs(data_dir))


def _states(rows: list[Row], data_dir: Path, docs: Path) -> list[RowState]:
    return find_states(rows, load_results(docs), data_dir, find_submitted(data_dir))


def _describe(state: RowState) -> str:
    text = f"{state.row.key}: {state.standing}"
    if (run := state.run) is not None:
        text += f", {run.path.name}"
        if state.standing in (Standing.RUNNING, Standing.STOPPED):
            frames = [int(run.tables[s]["frame"][-1]) if s in run.tables else 0 for s in range(state.row.max_session)]
            text += f", sessions at frame {', '.join(f'{frame:,}' for frame in frames)} of {state.row.max_frame:,}"
        if state.seconds_left is not None:
            training = ", ".join(map(str, find_locked(run.path)))
            text += f", training {training}, {format_seconds(state.seconds_left)} left"
    return "; ".join([text, *state.obstacles])
