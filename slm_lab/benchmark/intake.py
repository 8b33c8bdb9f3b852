"""From a finished run to a row of the page: check, upload, plot, write."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.curves import Curves, curves_file, load_curves, pick_column, save_curves, thin
from slm_lab.benchmark.matrix import Row, load_matrix
from slm_lab.benchmark.result import Result, build_result, load_results, results_file, save_results
from slm_lab.benchmark.state import RowState, Standing
from slm_lab.benchmark.table import PAGE, plot_file, write_table
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import write_bytes
from slm_lab.results.plot import DrawnRun, draw_runs
from slm_lab.results.run import load_run
from slm_lab.results.table import Table
from slm_lab.spec.loading import find_file

# uploads a run, verifies the copy and returns its link, if it has one
Share = Callable[[Path], str | None]


@dataclass(frozen=True)
class Intake:
    """The runs taken in, and the refused ones."""

    taken: tuple[Row, ...]
    # the reasons, by name of the run
    refused: dict[str, tuple[str, ...]]


def take_in(states: Sequence[RowState], docs: Path, data_dir: Path, share: Share | None) -> Intake:
    """Take every finished run through every step; a row is written only at the end."""
    results = load_results(docs)
    taken: list[Row] = []
    refused: dict[str, tuple[str, ...]] = {}
    for state in states:
        run, row = state.run, state.row
        if run is None or state.standing not in (Standing.READY, Standing.REFUSED):
            continue
        obstacles = state.obstacles or _find_uncommitted(row)
        if obstacles:
            refused[run.path.name] = obstacles
            continue
        try:
            url = None if share is None else share(run.path)
            result = build_result(run, url)
            mine = {**_of_group(row.group, results), row.algorithm: result}
            kept = load_curves(docs, row.group)
            curves = {one.run: kept.get(one.run) or _thin_run(one, row.group, data_dir) for one in mine.values()}
            draw_group(row.group, mine, curves, docs)
        except LabError as error:
            # leave this row as it was and continue with the others
            refused[run.path.name] = (str(error),)
            continue
        results[row.key] = result
        # results first: a curve that is lost in between can be read from its run again
        save_results(docs, results)
        save_curves(docs, row.group, curves)
        taken.append(row)
        logger.info(f"Taken in: {row.key} {result.score:.2f} from {result.run}")
    if share is not None:
        _share_rest(states, results, docs, data_dir, share, refused)
    write_table(docs)
    return Intake(tuple(taken), refused)


def _share_rest(
    states: Sequence[RowState],
    results: dict[str, Result],
    docs: Path,
    data_dir: Path,
    share: Share,
    refused: dict[str, tuple[str, ...]],
) -> None:
    """Upload local runs of rows without a link."""
    for state in states:
        result = results.get(state.row.key)
        if result is None or result.url is not None or not (data_dir / result.run).is_dir():
            continue
        try:
            results[state.row.key] = replace(result, url=share(data_dir / result.run))
        except LabError as error:
            refused[result.run] = (str(error),)
        else:
            save_results(docs, results)


def _find_uncommitted(row: Row) -> tuple[str, ...]:
    """An obstacle if the row's spec has uncommitted changes."""
    path = find_file(Path(row.spec_file))
    done = _run_git("diff", "--quiet", "HEAD", "--", str(path), folder=path.parent)
    if done is None or done.returncode != 1:
        return ()
    return (f"{row.spec_file} has changes that are not committed; commit them first",)


def _of_group(group: str, results: Mapping[str, Result]) -> dict[str, Result]:
    """The results of a group, by algorithm."""
    return {row.algorithm: results[row.key] for row in load_matrix() if row.group == group and row.key in results}


def _thin_run(result: Result, group: str, data_dir: Path) -> dict[int, Table]:
    try:
        return thin(load_run(result.run, data_dir))
    except RunFolderError:
        raise LabError(
            f"the figure of {group} also shows {result.run}, whose curve is not kept, and which is not in {data_dir}; "
            f"get it with: slm-lab pull {result.run}"
        ) from None


def draw_group(group: str, results: Mapping[str, Result], curves: Curves, docs: Path) -> None:
    """Plot the learning curves of all results of a group, by algorithm."""
    column = pick_column(table for result in results.values() for table in curves[result.run].values())
    # only this column: a plot of the moving average would mask it again
    runs = [
        DrawnRun(name, name, [{key: table[key] for key in ("frame", column)} for table in curves[result.run].values()])
        for name, result in results.items()
    ]
    picture = draw_runs(runs, group)
    if picture is None:
        raise LabError(f"{group}: none of its runs has a finished episode to plot")
    write_bytes(docs / plot_file(group), picture)


def commit(docs: Path) -> bool:
    """Commit the page, its figures, curves and results if they changed, and nothing else; never pushes."""
    results = load_results(docs)
    rows = [row for row in load_matrix() if row.key in results]
    groups = dict.fromkeys(row.group for row in rows)
    drawn = [path for group in groups for path in (docs / plot_file(group), curves_file(docs, group))]
    paths = [str(path) for path in (docs / PAGE, results_file(docs), *drawn) if path.exists()]
    _git("add", "--", *paths)
    changed = _run_git("diff", "--cached", "--quiet", "HEAD", "--", *paths)
    if changed is not None and not changed.returncode:
        return False
    _git("commit", "--quiet", "--message", f"docs: benchmark results, {len(rows)} rows", "--only", "--", *paths)
    return True


def _git(*arguments: str) -> None:
    done = _run_git(*arguments)
    if done is None:
        raise LabError("--commit needs git, which is not installed; the files are written")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"git {arguments[0]} failed; the files are written: {said[-1] if said else 'no reason given'}")


def _run_git(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str] | None:
    """The output of git; None without git."""
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
