"""Trial: train the sessions of one spec, then compute the score and its spread."""

import math
import os
import signal
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.env.make import build_settings, find_reward_threshold
from slm_lab.env.random_baseline import baseline_key, get_random_baseline, measure_apart
from slm_lab.experiment.callback import Callback, copy_callback_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.executor import Resources, SessionTask, build_executor, run_tasks
from slm_lab.experiment.messages import Progress, SessionEnd, explain_end
from slm_lab.experiment.options import Options
from slm_lab.experiment.progress import ProgressView
from slm_lab.experiment.signals import StopSignal, end_hangs, no_exit
from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import EnvError, EnvHangError, LabError, WorkerError
from slm_lab.lib.log import log_to
from slm_lab.lib.system import SIGHUP
from slm_lab.results.conclude import Conclusion, conclude, read_conclusion, update_curve
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import SessionFile, SessionResult, TrialMetrics, format_trial_metrics
from slm_lab.results.run import NoResultsError, Run, read_run
from slm_lab.spec.schema import Spec

PLOT_SECONDS = 60.0
# when a run is stopped, its sessions may have got the signal a moment earlier
STOP_GRACE_SECONDS = 2.0
# Exit codes for stops that leave only a few seconds, by a batch system or a terminal that closes: graphs and report are
# left to the run when it resumes.
HURRIED = (128 + signal.SIGTERM, 128 + SIGHUP)


@dataclass(frozen=True)
class InProcess:
    """Objects that exist only in this process, so that the sessions train in it, one after the other."""

    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial."""

    folder: Path
    trial: int
    results: list[SessionResult]
    failures: dict[int, str]
    stop_code: int
    curve: Path
    # None if no session has a result with a row
    conclusion: Conclusion | None = None

    @property
    def run(self) -> Run | None:
        """The run as it is in its folder."""
        return self.conclusion.run if self.conclusion is not None else None

    @property
    def metrics(self) -> TrialMetrics | None:
        """What was written to `trial_metrics.json`."""
        return self.conclusion.metrics if self.conclusion is not None else None

    @property
    def report(self) -> Path | None:
        """The page about the run, if it could be written."""
        return self.conclusion.report if self.conclusion is not None else None

    @property
    def has_model(self) -> bool:
        """Whether a session can be played; one that failed early has no model yet."""
        return any((self.folder / "model").glob("*_ckpt-best_*"))

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
    """Runs the sessions of a spec, and concludes the trial once they have ended."""

    def __init__(
        self, spec: Spec, folder: RunFolder, options: Options, trial: int = 0, in_process: InProcess | None = None
    ) -> None:
        self.spec = spec
        # the path as the user gave it, for messages; the absolute one holds if an env changes the working folder
        self.named = folder
        self.folder = RunFolder(folder.path.absolute(), folder.name)
        self.options = options
        self.trial = trial
        self.in_process = in_process
        self.callbacks = () if in_process is None else in_process.callbacks
        # every session begins with this state of the callbacks
        self.initial = [copy_callback_state(callback) for callback in self.callbacks]
        self.last_plot = time.monotonic()

    def run(self) -> TrialResult:
        """Train every session; failed ones are listed in the result."""
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
            if self.in_process is not None or (num_session == 1 and self.options.ray_address is None):
                ends = []
                for session in range(num_session):
                    if not stop():
                        ends.append(self._run_here(session, view, stop))
            else:
                ends = self._run_processes(view, stop)
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

    def _run_here(self, index: int, view: ProgressView, stop: StopSignal) -> SessionEnd:
        def on_progress(progress: Progress) -> None:
            view.update(progress)
            self._update_curve()

        def end_by(error: BaseException, is_stopping: bool) -> SessionEnd:
            end = explain_end(index, error, is_stopping)
            end.ended = time.monotonic()
            tell_failure(end, stop)
            return end

        def on_hang(error: EnvHangError, is_stopping: bool) -> None:
            end_by(error, is_stopping)
            logger.warning(f"Its last checkpoint stays; resume with slm-lab run train@{self.named.path}")

        here = Path.cwd()
        try:
            with no_exit(), end_hangs(stop, stop, on_hang):
                for callback, state in zip(self.callbacks, self.initial, strict=True):
                    callback.load_state_dict(deepcopy(state))
                session = Session(
                    self.spec,
                    self.folder,
                    self.trial,
                    index,
                    on_progress,
                    stop,
                    self.options,
                    callbacks=self.callbacks,
                )
                return SessionEnd(index, session.run())
        except (Exception, SystemExit) as error:
            end = end_by(error, stop())
            if end.reason == "input":
                raise
            return end
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
            # only warnings reach the console; the rest is in the log of each session
            "WARNING" if self.options.log_level == "INFO" else self.options.log_level,
            meta.num_threads,
        )
        return run_tasks(
            build_executor(self.options, Resources(meta.num_threads, meta.search_resources.gpu)),
            [replace(task, session=session) for session in range(meta.max_session)],
            view.update,
            stop,
            self._update_curve,
            # at once, instead of when all sessions have ended
            lambda end: tell_failure(end, stop),
        )

    def _conclude(self, results: list[SessionResult], failures: dict[int, str], stop_code: int) -> TrialResult:
        for result in results:
            is_early = result.is_done and result.frame < self.spec.env.max_frame
            state = f"stopped at frame {result.frame:,}" if is_early or not result.is_done else "done"
            logger.info(f"Session {result.session} {state}")
        run = self._read_run({result.session for result in results})
        conclusion = None
        if run is not None:
            # a run that was asked to stop has no time to measure it
            random_return = find_random_return(self.spec, not stop_code, self.options.imports)
            num_session, is_drawn = self.spec.meta.max_session, stop_code not in HURRIED
            conclusion = conclude(
                run,
                results,
                sorted(failures),
                random_return,
                num_session,
                is_drawn,
                find_reward_threshold(self.spec.env),
            )
            if conclusion.metrics.scalar is not None:
                logger.info(format_trial_metrics(conclusion.metrics.scalar))
        if failures:
            logger.error(f"Trial {self.trial}: {len(results)} of {self.spec.meta.max_session} sessions have a result")
        elif not stop_code:
            logger.info(f"Trial {self.trial} done")
        curve = _find_curve(self.named, self.trial)
        return TrialResult(self.named.path, self.trial, results, failures, stop_code, curve, conclusion)

    def _read_run(self, sessions: set[int]) -> Run | None:
        """The run, if one of these sessions has a row."""
        try:
            run = read_run(self.named.path, self.trial)
        except NoResultsError:
            return None
        return run if sessions & set(run.tables) else None

    @property
    def _title(self) -> str:
        return f"{self.spec.agent.name} on {self.spec.env.name}"

    def _update_curve(self) -> None:
        """Draw the curve of the trial from time to time; those of sessions are drawn at the end."""
        if time.monotonic() - self.last_plot > PLOT_SECONDS:
            update_curve(self.folder, self.trial)
            self.last_plot = time.monotonic()


def _find_curve(folder: RunFolder, trial: int) -> Path:
    return folder.graph_file("trial_graph_mean_returns_vs_frames", trial)


def find_done_sessions(spec: Spec, folder: RunFolder) -> dict[int, SessionResult]:
    """The results of the sessions that are done, as they were written."""
    results = {}
    for session in range(spec.meta.max_session):
        file = SessionFile.read(folder.session_metrics_file(0, session))
        if file is None or not file.is_done:
            continue
        frame, ended_early = file.frame or 0, bool(file.ended_early)
        # a session of a run that has grown is not done, unless meta.stop ended it
        if frame >= spec.env.max_frame or (ended_early and spec.meta.stop is not None):
            returns = list(file.final_eval or ())
            results[session] = SessionResult(session, True, frame, dict(file.phases or {}), returns, ended_early)
    return results


def read_complete(spec: Spec, folder: RunFolder) -> TrialResult | None:
    """The result of a run that is complete, as it was written; None if there is anything left to do."""
    try:
        results = find_done_sessions(spec, folder)
        # a final evaluation may have been stopped
        is_evaluated = all(len(result.final_eval) == spec.meta.final_eval for result in results.values())
        if len(results) < spec.meta.max_session or not is_evaluated:
            return None
        run = read_run(folder.path, 0)
    except LabError:
        # what cannot be read is made again from the checkpoints
        return None
    conclusion = read_conclusion(run)
    if conclusion is None or run.problems or not results.keys() <= run.tables.keys():
        return None
    return TrialResult(folder.path, 0, list(results.values()), {}, 0, _find_curve(folder, 0), conclusion)


def is_failure(end: SessionEnd, stop: StopSignal) -> bool:
    """Whether a session has no result for another reason than a request to stop, which may come a moment later."""
    return end.result is None and not (end.is_stopped and stop.since < end.ended + STOP_GRACE_SECONDS)


def tell_failure(end: SessionEnd, stop: StopSignal) -> None:
    """Log why a session failed, unless by a mistake in the input, which is raised as an error."""
    if is_failure(end, stop) and end.reason != "input":
        logger.error(f"Session {end.session} failed: {end.error}")


def find_random_return(spec: Spec, may_measure: bool, imports: tuple[str, ...] = ()) -> float:
    """The mean return of random play in a spec's env; 0 if it is unknown and cannot be measured."""
    env = spec.env
    settings = build_settings(env, (0,), device=str(pick_device(spec.meta.device, 0)), imports=imports)
    key = baseline_key(env.name, settings.kwargs, env.max_t, [wrapper.model_dump() for wrapper in env.wrappers])
    try:
        return get_random_baseline(key, lambda: measure_apart(settings), may_measure=may_measure)
    except (EnvError, WorkerError) as error:
        logger.warning(f"No random baseline, so strength counts from 0: {error}")
        return 0.0
