"""Runs an experiment file: the sessions of all its runs side by side, and what they come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.env.make import find_reward_threshold
from slm_lab.experiment.executor import POLL_SECONDS, Event, Executor, Resources, SessionTask, build_executor
from slm_lab.experiment.grid import Cell, build_cells, check_cell
from slm_lab.experiment.grid_view import GridView
from slm_lab.experiment.options import Options
from slm_lab.experiment.signals import StopSignal
from slm_lab.experiment.trial import HURRIED, find_done_sessions, find_random_return, is_failure
from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import lock_file, remove_orphans
from slm_lab.lib.log import log_to
from slm_lab.lib.runtime import import_modules
from slm_lab.lib.system import require_posix
from slm_lab.results.conclude import conclude
from slm_lab.results.grid import GridFiles, write_grid
from slm_lab.results.metrics import SessionResult
from slm_lab.results.run import NoResultsError, Run, read_run
from slm_lab.spec.grid import parse_experiment, read_experiment

# a driver that was killed leaves sessions that need a moment to save and end
LOCK_SECONDS = 20.0


@dataclass(frozen=True)
class GridResult:
    """What an experiment came to: its runs with their labels, those that failed, and the files that show it."""

    folder: Path
    runs: dict[str, Run]
    labels: list[str]
    failures: dict[str, str]
    stop_code: int
    # sessions that were trained now, and those that were done before
    num_trained: int
    num_before: int
    # None if it was stopped
    files: GridFiles | None = None

    @property
    def exit_code(self) -> int:
        """0 when every session is done."""
        return self.stop_code or (1 if self.failures else 0)


def run_experiment(source: Path | Document, options: Options, changes: ReadOnlyDocument | None = None) -> GridResult:
    """Run what is new in an experiment, from a file or as plain data."""
    require_posix("training")
    import_modules(options.imports)
    if isinstance(source, Path):
        experiment, path = read_experiment(source), source
    else:
        experiment, path = parse_experiment(source, "experiment"), Path("experiment.yaml")
    folder = options.data_dir / (experiment.name or path.stem)
    if any(folder.glob("*_spec.yaml")):
        raise RunFolderError(f"{folder} is a run, not an experiment; give the experiment another name")
    # relative specs are found beside the file, wherever the command is called
    cells = build_cells(experiment, path.absolute(), folder, changes or {})
    # every mistake shows before anything is written, be it a lock
    plans = None if folder.exists() else [check_cell(cell, options) for cell in cells]
    with lock_file(folder / ".lock" / "grid", LOCK_SECONDS):
        # another process may have changed what is there until now
        plans = plans or [check_cell(cell, options) for cell in cells]
        for plan in plans:
            plan.write(options)
        with log_to(folder / "experiment.log", options.log_level):
            return Grid([plan.cell for plan in plans], folder, options).run()


class Grid:
    """Trains the sessions that are not done yet, as many at once as there is room for."""

    def __init__(self, cells: Sequence[Cell], folder: Path, options: Options) -> None:
        self.cells = cells
        self.folder = folder
        self.options = options
        self.results = [find_done_sessions(cell.spec, cell.folder) for cell in cells]
        self.failures: dict[str, str] = {}
        self.num_before = sum(map(len, self.results))
        counts = [cell.spec.meta.max_session for cell in cells]
        frames = [cell.spec.env.max_frame for cell in cells]
        titles = [cell.title for cell in cells]
        self.view = GridView(titles, counts, frames, may_draw=options.log_format == "text")

    def run(self) -> GridResult:
        """Train, conclude each run when its last session ends, and write the tables and figures of all."""
        for number, results in enumerate(self.results):
            for session, result in results.items():
                self.view.add_done((number, session), mean(result.final_eval))
        tasks = list(self._build_tasks())
        logger.info(
            f"{self.folder}: {len(self.cells)} runs, {sum(self.view.num_session)} sessions, {self.num_before} done, "
            f"{len(tasks)} to train"
        )
        with StopSignal() as stop, self.view:
            if tasks:
                self._train(tasks, stop)
            self._conclude_all(stop.exit_code)
        runs = {cell.title: run for cell in self.cells if (run := _read(cell)) is not None}
        labels = [cell.label for cell in self.cells if cell.title in runs]
        num_trained = sum(map(len, self.results)) - self.num_before
        files = write_grid(self.folder, list(runs.values()), labels) if runs and not stop.exit_code else None
        return GridResult(self.folder, runs, labels, self.failures, stop.exit_code, num_trained, self.num_before, files)

    def _build_tasks(self) -> list[SessionTask]:
        tasks = []
        level = "WARNING" if self.options.log_level == "INFO" else self.options.log_level
        for number, cell in enumerate(self.cells):
            remove_orphans(cell.folder.path)
            place = cell.folder.path.absolute()
            task = SessionTask(
                place, cell.folder.name, 0, 0, self.options, level, cell.spec.meta.num_threads, run=number
            )
            todo = [index for index in range(cell.spec.meta.max_session) if index not in self.results[number]]
            tasks += [replace(task, session=session) for session in todo]
        return tasks

    def _train(self, tasks: Sequence[SessionTask], stop: StopSignal) -> None:
        meta = self.cells[0].spec.meta
        executor = build_executor(self.options, Resources(meta.num_threads, meta.search_resources.gpu))
        waiting = {task.key for task in tasks}
        is_stopping = False
        try:
            for task in tasks:
                executor.submit(task)
            while waiting:
                if stop() and not is_stopping:
                    is_stopping = True
                    for key in waiting:
                        executor.stop(key)
                waiting -= self._take(executor, stop)
        finally:
            executor.close()

    def _take(self, executor: Executor, stop: StopSignal) -> set[tuple[int, int]]:
        """What has happened; the sessions that have ended."""
        ended = set()
        for event in executor.poll(POLL_SECONDS):
            if event.progress is not None:
                self.view.update(event.key, event.progress)
            if event.end is not None:
                self._take_end(event, stop)
                ended.add(event.key)
        return ended

    def _take_end(self, event: Event, stop: StopSignal) -> None:
        number, session = event.key
        cell, end = self.cells[number], event.end
        assert end is not None
        if end.result is None:
            if is_failure(end, stop):
                self.failures[f"{cell.title}, session {session}"] = end.error
                logger.error(f"{cell.title}, session {session} failed: {end.error}")
            return
        if end.result.is_done:
            self.results[number][session] = end.result
            self.view.add_done(event.key, mean(end.result.final_eval))
            # what is done is known to be, whatever happens to the others
            is_last = len(self.results[number]) == cell.spec.meta.max_session
            self._conclude(cell, self.results[number], is_drawn=is_last and not stop.exit_code)
            if is_last:
                logger.info(f"{cell.title} done")

    def _conclude_all(self, stop_code: int) -> None:
        for cell, results in zip(self.cells, self.results, strict=True):
            if results and len(results) < cell.spec.meta.max_session:
                self._conclude(cell, results, is_drawn=stop_code not in HURRIED)

    def _conclude(self, cell: Cell, results: dict[int, SessionResult], is_drawn: bool) -> None:
        run = _read(cell)
        if run is None:
            return
        prefix = f"{cell.title}, session "
        failed = sorted(int(name.removeprefix(prefix)) for name in self.failures if name.startswith(prefix))
        random_return = find_random_return(cell.spec, True, self.options.imports)
        threshold = find_reward_threshold(cell.spec.env)
        ended = [results[session] for session in sorted(results)]
        conclude(run, ended, failed, random_return, cell.spec.meta.max_session, is_drawn, threshold)


def _read(cell: Cell) -> Run | None:
    try:
        return read_run(cell.folder.path, 0)
    except NoResultsError:
        return None


def mean(values: Sequence[float]) -> float:
    """NaN without values."""
    return sum(values) / len(values) if values else float("nan")
