"""From a finished run to a row of the page: checked, shared, drawn, written down."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.match import find_obstacles
from slm_lab.benchmark.matrix import Row, load_matrix
from slm_lab.benchmark.result import Result, build_result, load_results, results_file, save_results
from slm_lab.benchmark.state import RowState, Standing
from slm_lab.benchmark.table import PAGE, plot_file, write_table
from slm_lab.experiment.plot import DrawnRun, draw_runs
from slm_lab.experiment.results import Run, load_run
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import write_bytes

# uploads a run and returns where it can be had, once it is verified to be whole there
Share = Callable[[Path], str | None]


@dataclass(frozen=True)
class Intake:
    """What was taken in, and what was not."""

    taken: tuple[Row, ...]
    # by the name of the run: why not
    refused: dict[str, tuple[str, ...]]


def take_in(states: Sequence[RowState], docs: Path, data_dir: Path, share: Share | None) -> Intake:
    """Take every finished run through every step; a row is written only after all of them."""
    results = load_results(docs)
    taken: list[Row] = []
    refused: dict[str, tuple[str, ...]] = {}
    for state in states:
        run, row = state.run, state.row
        if run is None or state.standing not in (Standing.READY, Standing.REFUSED):
            continue
        obstacles = state.obstacles or tuple(find_obstacles(run, row))
        if obstacles:
            refused[run.path.name] = obstacles
            continue
        try:
            url = None if share is None else share(run.path)
            result = build_result(run, row, url)
            draw_env(row.env, {**results, row.key: result}, docs, data_dir)
        except LabError as error:
            # this row is left as it was; others may do
            refused[run.path.name] = (str(error),)
            continue
        results[row.key] = result
        save_results(docs, results)
        taken.append(row)
        logger.info(f"Taken in: {row.key} {result.score:.2f} from {result.run}")
    write_table(docs)
    return Intake(tuple(taken), refused)


def draw_env(env: str, results: dict[str, Result], docs: Path, data_dir: Path) -> None:
    """Draw the learning curves of all results of an env."""
    runs = []
    for row in load_matrix():
        if row.env == env and row.key in results:
            runs.append(DrawnRun(row.algorithm, row.algorithm, _tables(results[row.key], row, data_dir)))
    picture = draw_runs(runs, env)
    if picture is None:
        raise LabError(f"{env}: none of its runs has a finished episode to draw")
    write_bytes(docs / plot_file(env), picture)


def _tables(result: Result, row: Row, data_dir: Path) -> list[dict]:
    try:
        run: Run = load_run(result.run, data_dir)
    except RunFolderError:
        raise LabError(
            f"the figure of {row.env} also shows {row.algorithm}, whose run is not in {data_dir}; "
            f"get it with: slm-lab pull {result.run}"
        ) from None
    return [dict(table) for table in run.counted_tables.values()]


def commit(docs: Path, taken: Sequence[Row]) -> None:
    """One commit with the page, its figures and the results: nothing else goes in, nothing is pushed."""
    paths = [str(docs / PAGE), str(results_file(docs)), *{str(docs / plot_file(row.env)) for row in taken}]
    envs = ", ".join(dict.fromkeys(row.env for row in taken))
    count = "1 row" if len(taken) == 1 else f"{len(taken)} rows"
    message = f"docs: benchmark results of {count} ({envs})"
    if len(message.split()) > 19:
        message = f"docs: benchmark results of {count}"
    _git("add", "--", *paths)
    _git("commit", "--quiet", "--message", message, "--only", "--", *paths)


def _git(*arguments: str) -> None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("--commit needs git, which is not installed; the files are written") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"git {arguments[0]} failed; the files are written: {said[-1] if said else 'no reason given'}")
