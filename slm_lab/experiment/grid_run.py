"""Run an experiment file: train the sessions of all its runs in parallel, then conclude the runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.env.make import find_reward_threshold
from slm_lab.experiment.executor import POLL_SECONDS, Executor, Key, Resources, SessionTask, build_executor
from slm_lab.experiment.grid import Cell, build_cells, check_cell
from slm_lab.experiment.grid_view import GridView
from slm_lab.experiment.messages import SessionEnd
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
from slm_lab.results.run import NoResultsError, Run, read_run
from slm_lab.spec.grid import parse_experiment, read_experiment

# sessions of a driver that was killed may still be saving
LOCK_SECONDS = 20.0


@dataclass(frozen=True)
class GridResult:
    """The result of an experiment: its runs with their labels, failures by session, and files."""

    folder: Path
    runs: dict[str, Run]
    labels: list[str]
    failures: dict[str, str]
    stop_code: int
    # sessions that this command trained, and those that were done before
    num_trained: int
    num_before: int
    # None if it was stopped
    files: GridFiles | None = None

    @property
    def exit_code(self) -> int:
        """0 when every session is done."""
        return self.stop_code or (1 if self.failures else 0)


def run_experiment(source: Path | Document, options: Options, changes: ReadOnlyDocument | None = None) -> GridResult:
    """Train what is not done yet of an experiment, from a file or as plain data."""
    require_posix("training")
    import_modules(options.imports)
    if isinstance(source, Path):
        experiment, path = read_experiment(source), source
    else:
        experiment, path = parse_experiment(source, "experiment"), Path("experiment.yaml")
    folder = options.data_dir / (experiment.name or path.stem)
    if any(folder.glob("*_spec.yaml")):
        raise RunFolderError(f"{folder} is a run, not an experiment; give the experiment another name")
    # spec files are relative to the experiment file
    cells = build_cells(experiment, path.absolute(), folder, changes or {})
    # check before anything is written, even a lock
    plans = None if folder.exists() else [check_cell(cell, options) for cell in cells]
    with lock_file(folder / ".lock" / "grid", LOCK_SECONDS):
        # in an existing folder another process may have changed something, so check under the lock
        plans = plans or [check_cell(cell, options) for cell in cells]
        for plan in plans:
            plan.write(options)
        with log_to(folder / "experiment.log", options.log_level):
            return Grid([plan.cell for plan in plans], folder, options).run()


class Grid:
    """Trains the sessions that are not done yet, in parallel as far as there is room."""

    def __init__(self, cells: Sequence[Cell], folder: Path, options: Options) -> None:
        self.cells = cells
        self.folder = folder
        self.options = options
        self.results = [find_done_sessions(cell.spec, cell.folder) for cell in cells]
        self.failures: dict[Key, str] = {}
        self.num_before = sum(map(len, self.results))
        counts = [cell.spec.meta.max_session for cell in cells]
        frames = [cell.spec.env.max_frame for cell in cells]
        titles = [cell.title for cell in cells]
        self.view = GridView(titles, counts, frames, may_draw=options.log_format == "text")

    def run(self) -> GridResult:
        """Train, conclude each run when its last session ends, and write tables and figures of the experiment."""
        for number, results in enumerate(self.results):
            for session, result in results.items():
                self.view.add_done((number, session), _mean(result.final_eval))
        tasks = self._build_tasks()
        logger.info(
            f"{self.folder}: {len(self.cells)} runs, {sum(self.view.num_session)} sessions, {self.num_before} done, "
            f"{len(tasks)} to train"
        )
        with StopSignal() as stop, self.view:
            if tasks:
                self._train(tasks, stop)
            self._conclude_incomplete(stop.exit_code)
        runs = {cell.title: run for cell in self.cells if (run := _read(cell)) is not None}
        labels = [cell.label for cell in self.cells if cell.title in runs]
        num_trained = sum(map(len, self.results)) - self.num_before
        files = write_grid(self.folder, list(runs.values()), labels) if runs and not stop.exit_code else None
        failures = {self._name(key): error for key, error in self.failures.items()}
        return GridResult(self.folder, runs, labels, failures, stop.exit_code, num_trained, self.num_before, files)

    def _name(self, key: Key) -> str:
        number, session = key
        return f"{self.cells[number].title}, session {session}"

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

    def _take(self, executor: Executor, stop: StopSignal) -> set[Key]:
        """Handle new events; returns the sessions that have ended."""
        ended = set()
        for event in executor.poll(POLL_SECONDS):
            if event.progress is not None:
                self.view.update(event.key, event.progress)
            if event.end is not None:
                self._take_end(event.key, event.end, stop)
                ended.add(event.key)
        return ended

    def _take_end(self, key: Key, end: SessionEnd, stop: StopSignal) -> None:
        if end.result is None:
            if is_failure(end, stop):
                self.failures[key] = end.error
                logger.error(f"{self._name(key)} failed: {end.error}")
            return
        if end.result.is_done:
            number, session = key
            cell, results = self.cells[number], self.results[number]
            results[session] = end.result
            self.view.add_done(key, _mean(end.result.final_eval))
            # after every session, so that its result is kept whatever happens to the others
            is_last = len(results) == cell.spec.meta.max_session
            self._conclude(number, is_drawn=is_last and not stop.exit_code)
            if is_last:
                logger.info(f"{cell.title} done")

    def _conclude_incomplete(self, stop_code: int) -> None:
        for number, cell in enumerate(self.cells):
            if 0 < len(self.results[number]) < cell.spec.meta.max_session:
                self._conclude(number, is_drawn=stop_code not in HURRIED)

    def _conclude(self, number: int, is_drawn: bool) -> None:
        cell, results = self.cells[number], self.results[number]
        run = _read(cell)
        if run is None:
            return
        failed = sorted(session for run_number, session in self.failures if run_number == number)
        random_return = find_random_return(cell.spec, True, self.options.imports)
        threshold = find_reward_threshold(cell.spec.env)
        ended = [results[session] for session in sorted(results)]
        conclude(run, ended, failed, random_return, cell.spec.meta.max_session, is_drawn, threshold)


def _read(cell: Cell) -> Run | None:
    try:
        return read_run(cell.folder.path, 0)
    except NoResultsError:
        return None


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return sum(values) / len(values) if values else float("nan")
