"""Trial: several sessions of one spec, their score and its spread."""

import math
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from slm_lab.env.make import build_settings
from slm_lab.env.random_baseline import baseline_key, get_random_baseline, measure_apart
from slm_lab.experiment.control import Session, write_session_metrics
from slm_lab.experiment.executor import Resources, SessionTask, build_executor, run_tasks
from slm_lab.experiment.messages import Progress, SessionEnd, SessionResult, explain_end
from slm_lab.experiment.options import Options
from slm_lab.experiment.progress import ProgressView
from slm_lab.experiment.signals import StopSignal, end_hangs, no_exit
from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import EnvError, EnvHangError, LabError, RunFolderError, StorageError, WorkerError
from slm_lab.lib.io import write_json
from slm_lab.lib.log import log_to
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import (
    calc_final_eval,
    calc_session_metrics,
    calc_trial_metrics,
    format_trial_metrics,
    read_table,
)
from slm_lab.results.plot import plot_run, plot_run_curve
from slm_lab.results.report import write_report
from slm_lab.results.run import Run, read_run
from slm_lab.spec.schema import Spec

PLOT_SECONDS = 60.0
# who stops a run may have told its sessions a moment before
STOP_GRACE_SECONDS = 2.0
# A batch system says SIGTERM and gives a few seconds, and so does a terminal that closes: graphs and the report are
# left to the run that goes on.
HURRIED = (128 + signal.SIGTERM, 128 + signal.SIGHUP)


@dataclass(frozen=True)
class TrialResult:
    """What a trial came to."""

    folder: Path
    trial: int
    metrics: dict[str, Any] | None
    results: list[SessionResult]
    failures: dict[int, str]
    stop_code: int
    curve: Path
    # as it was read back from the folder; None where no session has a row
    run: Run | None = None
    # None if it could not be written
    report: Path | None = None

    @property
    def score(self) -> float:
        """The mean over sessions of their scores: of the deterministic policy at the end, where it was evaluated."""
        spread = self.run.spread if self.run is not None else None
        return spread.mean if spread is not None else math.nan

    @property
    def session_scores(self) -> list[float]:
        """The score of each session."""
        return self.run.scores if self.run is not None else []

    @property
    def exit_code(self) -> int:
        """0 when every session is done."""
        return self.stop_code or (1 if self.failures else 0)


class Trial:
    """Runs the sessions of a spec and draws the sum."""

    def __init__(self, spec: Spec, folder: RunFolder, options: Options, trial: int = 0) -> None:
        self.spec = spec
        # as it was named, for those who read it; an env may change the working folder
        self.named = folder
        self.folder = RunFolder(folder.path.absolute(), folder.name)
        self.options = options
        self.trial = trial
        self.last_plot = time.monotonic()

    def run(self) -> TrialResult:
        """Train every session; a failed one makes the result partial, it never vanishes from it."""
        with log_to(self.folder.log_file(self.trial), self.options.log_level):
            return self._run()

    def _run(self) -> TrialResult:
        num_session = self.spec.meta.max_session
        if self.options.render and num_session > 1:
            logger.warning("--render shows nothing with several sessions; use dev or -s meta.max_session=1")
        logger.info(
            f"{self._title}: {num_session} session(s) of {self.spec.env.max_frame:,} frames, "
            f"{self.spec.env.num_envs} env(s), seed {self.spec.meta.seed}"
        )
        with StopSignal() as stop, self._show(num_session) as view:
            run = self._run_here if num_session == 1 and self.options.ray_address is None else self._run_processes
            ends = run(view, stop)
        results, failures = [], {}
        for end in ends:
            if end.result is not None:
                results.append(end.result)
            elif end.reason == "input":
                raise LabError(f"session {end.session}: {end.error}")
            elif is_failure(end, stop):
                failures[end.session] = end.error
            else:
                logger.info(f"Session {end.session} stopped: {end.error}")
        return self._conclude(results, failures, stop.exit_code)

    def _show(self, num_session: int) -> ProgressView:
        return ProgressView(num_session, self.spec.env.max_frame, may_draw=self.options.log_format == "text")

    def _run_here(self, view: ProgressView, stop: StopSignal) -> list[SessionEnd]:
        def on_progress(progress: Progress) -> None:
            view.update(progress)
            self._plot_now_and_then()

        def end_by(error: BaseException, is_stopping: bool) -> SessionEnd:
            end = explain_end(0, error, is_stopping)
            end.ended = time.monotonic()
            tell_failure(end, stop)
            return end

        def on_hang(error: EnvHangError, is_stopping: bool) -> None:
            end_by(error, is_stopping)
            logger.warning(f"Its last checkpoint stays; continue with slm-lab run train@{self.named.path}")

        here = Path.cwd()
        try:
            with no_exit(), end_hangs(stop, stop, on_hang):
                session = Session(self.spec, self.folder, self.trial, 0, on_progress, stop, self.options)
                return [SessionEnd(0, session.run())]
        except (Exception, SystemExit) as error:
            end = end_by(error, stop())
            if end.reason == "input":
                raise
            return [end]
        finally:
            os.chdir(here)

    def _run_processes(self, view: ProgressView, stop: StopSignal) -> list[SessionEnd]:
        meta = self.spec.meta
        task = SessionTask(
            self.folder.path,
            self.folder.name,
            self.trial,
            0,
            replace(self.options, render=False),
            # what matters reaches the console; the rest is in the session's own log
            "WARNING" if self.options.log_level == "INFO" else self.options.log_level,
            meta.num_threads,
        )
        return run_tasks(
            build_executor(self.options, Resources(meta.num_threads, meta.search_resources.gpu)),
            [replace(task, session=session) for session in range(meta.max_session)],
            view.update,
            stop,
            self._plot_now_and_then,
            # when it happens, not when all others have ended
            lambda end: tell_failure(end, stop),
        )

    def _conclude(self, results: list[SessionResult], failures: dict[int, str], stop_code: int) -> TrialResult:
        for result in results:
            state = "done" if result.is_done else f"stopped at frame {result.frame}"
            logger.info(f"Session {result.session} {state}")
        metrics = run = report = None
        sessions = [result.session for result in results]
        tables = self._tables(sessions)
        if tables:
            # a run that is asked to stop has seconds for it
            baseline = find_random_return(self.spec, not stop_code, self.options.imports)
            metrics = calc_trial_metrics(list(tables.values()), baseline)
            metrics["num_session"] = self.spec.meta.max_session
            metrics["session_index"] = list(tables)
            metrics["failed"] = sorted(failures)
            metrics["final_eval"] = calc_final_eval([result.final_eval for result in results])
            metrics["is_complete"] = len(results) == self.spec.meta.max_session and all(r.is_done for r in results)
            for result in results:
                if result.session in tables:
                    session = calc_session_metrics(tables[result.session], baseline)
                    write_session_metrics(self.folder, self.trial, result, asdict(session))
            write_json(self.folder.trial_metrics_file(self.trial), metrics)
            run = read_run(self.named.path, self.trial)
            if stop_code not in HURRIED:
                plot_run(run)
                report = self._write_report(run)
            logger.info(format_trial_metrics(metrics["scalar"]))
        if failures:
            logger.error(f"Trial {self.trial}: {len(results)} of {self.spec.meta.max_session} sessions have a result")
        elif not stop_code:
            logger.info(f"Trial {self.trial} done")
        prefix = self.named.graph_prefix(self.trial)
        curve = prefix.with_name(f"{prefix.name}_trial_graph_mean_returns_vs_frames.png")
        return TrialResult(self.named.path, self.trial, metrics, results, failures, stop_code, curve, run, report)

    def _tables(self, sessions: list[int]) -> dict[int, dict[str, Any]]:
        tables = {}
        for session in sessions:
            path = self.folder.table_file(self.trial, session, "train")
            if path.exists() and len(table := read_table(path)) and len(table["frame"]):
                tables[session] = table
        return tables

    @property
    def _title(self) -> str:
        return f"{self.spec.agent.name} on {self.spec.env.name}"

    def _plot_now_and_then(self) -> None:
        """The trial's curve so far; the sessions' own are drawn at the end."""
        if time.monotonic() - self.last_plot > PLOT_SECONDS:
            try:
                plot_run_curve(read_run(self.folder.path, self.trial))
            except RunFolderError:
                pass  # no session has a row yet
            except StorageError as error:
                # a checkpoint that does not fit ends a session; a curve on the way is no reason
                logger.warning(f"No curve: {error}")
            self.last_plot = time.monotonic()

    def _write_report(self, run: Run) -> Path | None:
        """The page about the run; whatever is wrong with it, the run is not lost."""
        path = self.folder.report_file
        try:
            write_report([run], path)
        except Exception as error:
            logger.warning(f"No report: {type(error).__name__}: {error}")
            return None
        return self.named.report_file


def is_failure(end: SessionEnd, stop: StopSignal) -> bool:
    """Whether a session has no result for another reason than the wish to stop, which may come a moment after."""
    return end.result is None and not (end.is_stopped and stop.since < end.ended + STOP_GRACE_SECONDS)


def tell_failure(end: SessionEnd, stop: StopSignal) -> None:
    """Log why a session failed; a mistake in the input is raised, and so told anyway."""
    if is_failure(end, stop) and end.reason != "input":
        logger.error(f"Session {end.session} failed: {end.error}")


def find_random_return(spec: Spec, may_measure: bool, imports: tuple[str, ...] = ()) -> float:
    """The mean return of random play in a spec's env; 0 where it is not known and cannot be measured."""
    env = spec.env
    key = baseline_key(env.name, dict(env.kwargs), env.max_t)
    settings = build_settings(env, (0,), device=str(pick_device(spec.meta.device, 0)), imports=imports)
    try:
        return get_random_baseline(key, lambda: measure_apart(settings), may_measure=may_measure)
    except (EnvError, WorkerError) as error:
        logger.warning(f"No random baseline, so strength counts from 0: {error}")
        return 0.0
