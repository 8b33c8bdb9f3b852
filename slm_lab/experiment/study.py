"""The trials of a search and the next values to try: an Optuna study in a text file, used by one process."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import read_bytes
from slm_lab.lib.runtime import derive_seed
from slm_lab.lib.secret import redact
from slm_lab.results.search_trial import State, TrialRow
from slm_lab.spec.schema import SearchScheduler
from slm_lab.spec.search_space import Dimension

_STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
}
# part of the seed key, so that suggestions have their own random numbers
SEARCH_SEED = 7
# a third of the trials, within these bounds, are random before the sampler learns from earlier ones
MIN_RANDOM, MAX_RANDOM = 4, 10

optuna.logging.set_verbosity(optuna.logging.ERROR)


class _NoLock(JournalFileOpenLock):
    """No lock: the driver locks the whole search, and Optuna's lock file would outlive a kill."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


class Study:
    """Suggests values, and decides which trials to stop early."""

    def __init__(
        self,
        path: Path,
        name: str,
        dimensions: Sequence[Dimension],
        seed: int,
        max_trial: int,
        scheduler: SearchScheduler | None = None,
    ) -> None:
        self.dimensions = list(dimensions)
        self.seed = seed
        self.num_random = min(MAX_RANDOM, max(MIN_RANDOM, max_trial // 3))
        self.reduction_factor = scheduler.reduction_factor if scheduler else 1
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.trials: dict[int, Trial] = {}
        _drop_partial_line(path)
        with _journal_errors(path):
            _check_lines(path)
            storage = JournalStorage(JournalFileBackend(str(path), _NoLock(str(path))))
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True
            )
            self.read_rows()

    def ask(self) -> tuple[int, dict[str, Any]]:
        """The next trial: its number, and its values by path."""
        trial = self.study.ask()
        return trial.number, self._suggest(trial)

    def reopen(self) -> dict[int, dict[str, Any]]:
        """Trials that were running when the search was interrupted, with their values."""
        found = {}
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # a kill may have come before all values were drawn
            with _journal_errors(self.path):
                found[frozen.number] = self._suggest(Trial(self.study, frozen._trial_id))
        return found

    def _suggest(self, trial: Trial) -> dict[str, Any]:
        self.trials[trial.number] = trial
        values = {}
        for index, dimension in enumerate(self.dimensions):
            # a sampler per value: the draw depends on the trial and on known results, not on earlier draws
            seed = derive_seed(SEARCH_SEED, self.seed, trial.number, index)
            self.study.sampler = TPESampler(n_startup_trials=self.num_random, seed=seed)
            low, high = dimension.bounds
            if dimension.space == "choice":
                drawn = float(trial.suggest_categorical(dimension.path, list(range(int(high) + 1))))
            elif dimension.is_whole:
                drawn = float(trial.suggest_int(dimension.path, int(low), int(high), log=dimension.is_log))
            else:
                drawn = trial.suggest_float(dimension.path, low, high, log=dimension.is_log)
            values[dimension.path] = dimension.decode(drawn)
        return values

    def get_last_rung(self, number: int) -> int:
        """The frame of the last rung at which a trial had a score; 0 before the first."""
        return max(self._read_rungs(number), default=0)

    def _read_rungs(self, number: int) -> dict[int, float]:
        return self.study.get_trials(deepcopy=False)[number].intermediate_values

    def report(self, number: int, frame: int, score: float) -> bool:
        """Record the score at a rung; False if the trial should stop there."""
        self.trials[number].report(score, frame)
        return self.passes_rung(number, frame)

    def passes_rung(self, number: int, frame: int) -> bool:
        """Whether a trial is among the best of those that have reached a rung so far; the first always is.

        This is the rule of Optuna's SuccessiveHalvingPruner, which cannot be used: it writes its verdict in three
        entries of the journal, and a kill between them would lose it.
        """
        scores = sorted(
            trial.intermediate_values[frame]
            for trial in self.study.get_trials(deepcopy=False)
            if frame in trial.intermediate_values
        )
        num_kept = max(1, len(scores) // self.reduction_factor)
        return self._read_rungs(number)[frame] >= scores[-num_kept]

    def stop(self, number: int) -> None:
        """Mark a trial as stopped early."""
        self.study.tell(number, state=TrialState.PRUNED)

    def finish(self, number: int, score: float) -> None:
        """Mark a trial as done."""
        self.study.tell(number, score)

    def fail(self, number: int, reason: str) -> None:
        """Mark a trial as failed."""
        self.trials[number].set_user_attr("error", redact(reason))
        self.study.tell(number, state=TrialState.FAIL)

    @property
    def num_trial(self) -> int:
        """Trials that were suggested so far."""
        return len(self.study.get_trials(deepcopy=False))

    def read_rows(self) -> list[TrialRow]:
        """All trials in the order of their numbers."""
        return [self._read_row(trial) for trial in self.study.get_trials(deepcopy=False)]

    def _read_row(self, trial: FrozenTrial) -> TrialRow:
        values = {
            dimension.path: dimension.decode(float(trial.params[dimension.path]))
            for dimension in self.dimensions
            if dimension.path in trial.params
        }
        rungs = {int(step): float(value) for step, value in sorted(trial.intermediate_values.items())}
        last = list(rungs.values())[-1] if rungs else math.nan
        score = float(trial.value) if trial.state == TrialState.COMPLETE and trial.value is not None else last
        state = _STATES[trial.state]
        error = str(trial.user_attrs.get("error", ""))
        return TrialRow(trial.number, state, values, math.nan if state == "failed" else score, rungs, error)


@contextmanager
def _journal_errors(path: Path) -> Iterator[None]:
    """Report a damaged journal in one line; Optuna trusts what it reads, so it may raise anything."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        OptunaError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunFolderError(
            f"{path} is damaged ({reason}), so the search cannot be resumed; put a copy back, or start a new search"
        ) from None


def _check_lines(path: Path) -> None:
    """Refuse lines that are not entries: Optuna would append to them, and fail the next time."""
    if not path.exists():
        return
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        try:
            is_entry = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            is_entry = False
        if not is_entry:
            raise ValueError(f"line {number} is no entry of a search")


def _drop_partial_line(path: Path) -> None:
    """Remove an incomplete last line, which a kill may leave, so that nothing is appended to it."""
    if not path.exists():
        return
    data = read_bytes(path)
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
