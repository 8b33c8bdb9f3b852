"""Search: train a spec with different values, stop weak trials early, and keep the best.

Only the driver reads and writes the study. An executor runs the sessions, which report their progress. The driver
records each decision in the journal before it acts on it, so a search that was killed resumes where it was.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from slm_lab.experiment.executor import POLL_SECONDS, Event, Executor, SessionTask
from slm_lab.experiment.options import Options
from slm_lab.experiment.search_result import SearchResult, write_result
from slm_lab.experiment.search_view import SearchView, show_values
from slm_lab.experiment.signals import StopSignal
from slm_lab.experiment.study import Study
from slm_lab.experiment.trial import find_random_return
from slm_lab.lib.errors import RunFolderError, SpecError
from slm_lab.lib.io import lock_file, remove_orphans
from slm_lab.lib.log import log_to
from slm_lab.results.conclude import conclude
from slm_lab.results.folder import RunFolder, save_spec
from slm_lab.results.metrics import SessionResult
from slm_lab.results.run import read_run
from slm_lab.results.table import read_session_table
from slm_lab.spec.candidate import apply_values
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import read_dimensions

# sessions of a driver that was killed may still be saving
LOCK_SECONDS = 20.0
ORPHAN_SECONDS = 120.0
KEEP_ALL = -1


@dataclass
class _Session:
    """The progress of a session."""

    frame: int = 0
    score: float = math.nan
    # the score at each rung that it has passed
    rungs: dict[int, float] = field(default_factory=dict)
    is_running: bool = True
    result: SessionResult | None = None


@dataclass
class RunningTrial:
    """A trial whose sessions are running."""

    number: int
    spec: Spec
    values: dict[str, Any]
    num_rung: int = 0
    sessions: dict[int, _Session] = field(default_factory=dict)
    # stopped or failed: further reports of its sessions are ignored
    is_over: bool = False

    @property
    def frame(self) -> int:
        """The frame of the slowest session that has reported."""
        return min((session.frame for session in self.sessions.values() if session.frame), default=0)

    @property
    def score(self) -> float:
        """The mean of the current scores of its sessions."""
        known = [session.score for session in self.sessions.values() if math.isfinite(session.score)]
        return float(np.mean(known)) if known else math.nan


def find_rungs(spec: Spec) -> list[int]:
    """The frames at which trials are compared, below the last one."""
    scheduler = spec.meta.search_scheduler
    rungs: list[int] = []
    if scheduler is not None:
        frame = scheduler.grace_period
        while frame < spec.env.max_frame:
            rungs.append(frame)
            frame *= scheduler.reduction_factor
    return rungs


class Search:
    """Runs the trials of a search, new or resumed."""

    def __init__(self, spec: Spec, folder: RunFolder, executor: Executor, options: Options) -> None:
        self.spec = spec
        self.folder = folder
        self.executor = executor
        self.options = options
        self.max_trial = spec.meta.max_trial or 1
        self.rungs = find_rungs(spec)
        self.active: dict[int, RunningTrial] = {}
        self.should_stop: Callable[[], bool] = lambda: False
        self.view = SearchView(self.max_trial, spec.env.max_frame, may_draw=options.log_format == "text")

    def run(self) -> SearchResult:
        """Run trials until there are `meta.max_trial`, or until asked to stop."""
        with (
            log_to(self.folder.log_file(), self.options.log_level),
            lock_file(self._lock, LOCK_SECONDS),
            StopSignal() as stop,
        ):
            self.should_stop = stop
            remove_orphans(self.folder.path)
            self.study = Study(
                self.folder.study_file,
                self.spec.name,
                read_dimensions(self.spec),
                self.spec.meta.seed,
                self.max_trial,
                self.spec.meta.search_scheduler,
            )
            self.random_return = find_random_return(self.spec, True, self.options.imports)
            try:
                with self.view:
                    self._loop()
            finally:
                self.executor.close()
            self._remove_models()
            return write_result(self.spec, self.folder, self.study.read_rows(), stop.exit_code)

    @property
    def _lock(self) -> Path:
        return self.folder.path / "model" / ".search.lock"

    def _loop(self) -> None:
        for row in self.study.read_rows():
            if row.state != "running":
                self.view.add_ended(row)
        for number, values in self.study.reopen().items():
            logger.info(f"Trial {number} continues")
            self._await_orphans(number)
            self._start(number, values)
        is_stopping = False
        while True:
            if self.should_stop() and not is_stopping:
                is_stopping = True
                for trial in self.active.values():
                    self._stop_sessions(trial)
            while self._has_room():
                self._start(*self.study.ask())
            if not self.active:
                return
            for event in self.executor.poll(POLL_SECONDS):
                self._take(event)
            self.view.update(self.active.values())

    def _await_orphans(self, number: int) -> None:
        """Wait for sessions of a driver that was killed to save and end."""
        for session in range(self._count_sessions(len(self.rungs))):
            if (lock := self.folder.lock_file(number, session)).exists():
                with lock_file(lock, ORPHAN_SECONDS):
                    pass

    def _has_room(self) -> bool:
        if self.should_stop() or self.study.num_trial >= self.max_trial:
            return False
        busy = sum(session.is_running for trial in self.active.values() for session in trial.sessions.values())
        return busy < self.executor.num_slot

    # --- one trial

    def _start(self, number: int, values: dict[str, Any]) -> None:
        try:
            spec = self._make_spec(values)
        except SpecError as error:
            self.study.fail(number, str(error))
            self.view.add_ended(self.study.read_rows()[number])
            return
        save_spec(self.folder.trial_spec_file(number), spec)
        last = self.study.get_last_rung(number)
        trial = RunningTrial(number, spec, values, sum(rung <= last for rung in self.rungs))
        self.active[number] = trial
        logger.info(f"Trial {number} of {self.max_trial}: {show_values(values)}")
        if last and not self.study.passes_rung(number, last):
            # a kill came after its score was recorded, before it was stopped
            self.study.stop(number)
            trial.is_over = True
            self._end_if_last(trial)
            return
        self._add_sessions(trial)
        # a resumed trial has already reached the rungs in its tables
        self._climb(trial)

    def _make_spec(self, values: dict[str, Any]) -> Spec:
        spec = apply_values(self.spec, values)
        meta: dict[str, Any] = {
            "max_trial": 1,
            "search_scheduler": None,
            "max_session": self._count_sessions(len(self.rungs)),
        }
        if spec.meta.compile == "auto":
            # each trial would compile its own graph, and few are long enough for that
            meta["compile"] = False
        env = {"num_workers": 0} if spec.env.num_workers is None else {}
        return spec.replace(meta=meta, env=env)

    def _count_sessions(self, num_rung: int) -> int:
        """How many sessions a trial has after this many rungs."""
        scheduler = self.spec.meta.search_scheduler
        if scheduler is None:
            return self.spec.meta.max_session
        return scheduler.sessions[min(num_rung, len(scheduler.sessions) - 1)]

    def _add_sessions(self, trial: RunningTrial) -> None:
        for index in range(len(trial.sessions), self._count_sessions(trial.num_rung)):
            trial.sessions[index] = _Session()
            self._read_rungs(trial, index)
            task = SessionTask(
                self.folder.path,
                self.folder.name,
                trial.number,
                index,
                self.options,
                console_level="ERROR",
                num_threads=self.spec.meta.num_threads,
            )
            self.executor.submit(task)

    def _read_rungs(self, trial: RunningTrial, index: int) -> None:
        """Read the scores at rungs from the table of a session."""
        path = self.folder.table_file(trial.number, index, "train")
        if not path.exists():
            return
        try:
            table = read_session_table(path)
        except RunFolderError as error:
            logger.warning(f"Trial {trial.number}: {error}")
            return
        session = trial.sessions[index]
        for frame, score in zip(table["frame"], table["total_reward"], strict=True):
            self._note(session, int(frame), float(score))

    def _note(self, session: _Session, frame: int, score: float) -> None:
        session.frame, session.score = frame, score
        for rung in self.rungs:
            if rung <= frame:
                session.rungs.setdefault(rung, score)

    def _take(self, event: Event) -> None:
        trial = self.active.get(event.key[0])
        if trial is None:
            return
        session = trial.sessions[event.key[1]]
        if event.progress is not None and event.progress.what == "row":
            self._note(session, event.progress.frame, event.progress.total_reward)
            self._climb(trial)
        if event.end is not None:
            session.is_running = False
            session.result = event.end.result
            is_done = session.result is not None and session.result.is_done
            # if the user stops the search, a session may end before this loop notices
            if not is_done and not trial.is_over and not self.should_stop():
                self._fail(trial, event.end.error or f"session {event.key[1]} was stopped from outside")
            if is_done:
                self._read_rungs(trial, event.key[1])
                self._climb(trial)
            self._end_if_last(trial)

    def _climb(self, trial: RunningTrial) -> None:
        """Compare a trial with others at every rung that all its sessions have reached; not while stopping."""
        while not self.should_stop() and not trial.is_over and trial.num_rung < len(self.rungs):
            rung = self.rungs[trial.num_rung]
            scores = [session.rungs.get(rung) for session in trial.sessions.values()]
            known = [score for score in scores if score is not None]
            if len(known) < len(scores):
                return
            trial.num_rung += 1
            score = float(np.mean(known))
            # until an episode has ended there is no score to compare
            if math.isfinite(score) and not self.study.report(trial.number, rung, score):
                self.study.stop(trial.number)
                self._abandon(trial)
                return
            self._add_sessions(trial)

    def _fail(self, trial: RunningTrial, reason: str) -> None:
        self.study.fail(trial.number, reason.strip())
        self._abandon(trial)

    def _abandon(self, trial: RunningTrial) -> None:
        trial.is_over = True
        self._stop_sessions(trial)

    def _stop_sessions(self, trial: RunningTrial) -> None:
        for index, session in trial.sessions.items():
            if session.is_running:
                self.executor.stop((trial.number, index))

    def _end_if_last(self, trial: RunningTrial) -> None:
        """Conclude a trial if none of its sessions is running."""
        if any(session.is_running for session in trial.sessions.values()):
            return
        del self.active[trial.number]
        results = [session.result for session in trial.sessions.values()]
        done = [result for result in results if result is not None and result.is_done]
        if not trial.is_over:
            is_cut_short = any(not result.final_eval for result in done) and trial.spec.meta.final_eval > 0
            if len(done) < len(results) or (self.should_stop() and is_cut_short):
                return  # the search is stopping; the trial continues when it resumes
            self._finish(trial, done)
        self.view.add_ended(self.study.read_rows()[trial.number])
        self._remove_models()

    def _finish(self, trial: RunningTrial, results: list[SessionResult]) -> None:
        """Write the metrics of a trial that is done, and report its score to the study."""
        try:
            run = read_run(self.folder.path, trial.number)
        except RunFolderError as error:
            self.study.fail(trial.number, str(error))
            return
        if missing := [result.session for result in results if result.session not in run.tables]:
            problems = "; ".join(run.problems)
            self.study.fail(trial.number, f"no table of session {', '.join(map(str, missing))}: {problems}")
            return
        concluded = conclude(run, results, (), self.random_return, len(results), is_drawn=False)
        spread = concluded.run.spread
        if spread is not None:
            self.study.finish(trial.number, spread.mean)
        else:
            self.study.fail(trial.number, "no episode has ended, so there is no score; train longer, or set env.max_t")

    def _remove_models(self) -> None:
        """Delete the weights of ended trials that are not among the best."""
        if self.options.keep == KEEP_ALL:
            return
        rows = [row for row in self.study.read_rows() if row.trial not in self.active]
        done = sorted((row for row in rows if row.state == "done"), key=lambda row: -row.score)
        kept = {row.trial for row in done[: self.options.keep]}
        for row in rows:
            if row.state != "running" and row.trial not in kept:
                for path in self.folder.path.glob(f"model/{self.folder.prefix(row.trial)}_s*"):
                    path.unlink(missing_ok=True)


def estimate_frames(spec: Spec) -> tuple[int, int]:
    """Frames of a whole search: without early stopping, and with the share of stopped trials that ASHA aims at."""
    num_trial, max_frame = spec.meta.max_trial or 1, spec.env.max_frame
    scheduler = spec.meta.search_scheduler
    if scheduler is None:
        most = num_trial * max_frame * spec.meta.max_session
        return most, most
    rungs = [*find_rungs(spec), max_frame]
    counts = [scheduler.sessions[min(rung, len(scheduler.sessions) - 1)] for rung in range(len(rungs))]
    expected, last = 0.0, 0
    for rung, (frame, count) in enumerate(zip(rungs, counts, strict=True)):
        share = num_trial / scheduler.reduction_factor**rung
        more = count - counts[rung - 1] if rung else 0
        # sessions that join at this rung start from the first frame
        expected += max(share, 1.0) * ((frame - last) * count + more * last)
        last = frame
    return num_trial * max_frame * counts[-1], round(expected)
