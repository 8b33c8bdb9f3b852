"""The trials of a search: their ranking, the importance of keys, and a reader of the journal without Optuna."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from scipy.stats import rankdata

from slm_lab.lib.array import Array
from slm_lab.lib.io import read_bytes
from slm_lab.spec.search_space import Dimension

State = Literal["running", "done", "stopped", "failed"]
# with fewer trials the importance of keys is unknown
MIN_TRIAL = 6
# size limit of a journal
MAX_BYTES = 50_000_000
# codes of Optuna's journal: entries that make up a trial, and states of trials
_CREATE, _PARAM, _STATE, _SCORE, _ATTRIBUTE = 4, 5, 6, 7, 8
_STATES: dict[int, State] = {0: "running", 1: "done", 2: "stopped", 3: "failed", 4: "running"}


@dataclass(frozen=True)
class TrialRow:
    """One trial of a search."""

    trial: int
    state: State
    # searched values by their paths in the spec
    values: dict[str, Any]
    # for a trial that was stopped early, the score at its last rung
    score: float
    # frame of each rung that was reached, with the score there
    rungs: dict[int, float]
    error: str = ""

    @property
    def reason(self) -> str:
        """Why the trial failed, in one line."""
        return self.error.splitlines()[-1] if self.error else ""


def rank(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Best first: trials that are done, then stopped ones by the rung they reached, then the rest."""
    order = {"done": 0, "stopped": 1, "running": 2, "failed": 3}

    def place(row: TrialRow) -> tuple[float, ...]:
        score = -row.score if math.isfinite(row.score) else math.inf
        reached = -max(row.rungs, default=0) if row.state != "done" else 0
        return order[row.state], reached, score, row.trial

    return sorted(rows, key=place)


def calc_importance(rows: Sequence[TrialRow], dimensions: Sequence[Dimension]) -> dict[str, float]:
    """How much of the ranking of trials each key explains by itself, from 0 to 1.

    This is the adjusted R² of a fit to the ranks of scores: a parabola in the ranks of the values, or the mean of each
    choice.
    """
    known = [row for row in rank(rows) if row.state in ("done", "stopped") and len(row.values) == len(dimensions)]
    if len(known) < MIN_TRIAL:
        return {}
    place = -np.arange(len(known), dtype=float)
    shares = {}
    for dimension in dimensions:
        values = [row.values[dimension.path] for row in known]
        design = _choice_columns(values) if dimension.space == "choice" else _rank_columns(values)
        rank_of_design = int(np.linalg.matrix_rank(design))
        freedom = len(known) - rank_of_design
        if freedom < 1 or rank_of_design < 2:
            shares[dimension.path] = 0.0
            continue
        fitted = design @ np.linalg.lstsq(design, place, rcond=None)[0]
        left = ((place - fitted) ** 2).sum() / freedom
        whole = ((place - place.mean()) ** 2).sum() / (len(known) - 1)
        shares[dimension.path] = max(0.0, float(1 - left / whole))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _rank_columns(values: Sequence[float]) -> Array:
    ranks = rankdata(np.asarray(values, float))
    scaled = (ranks - ranks.mean()) / len(ranks)
    return np.stack([np.ones_like(scaled), scaled, scaled**2], axis=1)


def _choice_columns(values: Sequence[Any]) -> Array:
    names = [json.dumps(value) for value in values]
    return np.array([[name == choice for choice in dict.fromkeys(names)] for name in names], float)


@dataclass
class _Trial:
    """A trial, filled by the entries of the journal."""

    state: State = "running"
    params: dict[str, float] = field(default_factory=dict)
    rungs: dict[int, float] = field(default_factory=dict)
    value: float = math.nan
    error: str = ""

    def to_row(self, number: int, dimensions: Sequence[Dimension]) -> TrialRow:
        known = [dimension for dimension in dimensions if dimension.path in self.params]
        values = {dimension.path: dimension.decode(self.params[dimension.path]) for dimension in known}
        rungs = dict(sorted(self.rungs.items()))
        score = self.value if self.state == "done" else next(reversed(rungs.values()), math.nan)
        return TrialRow(number, self.state, values, math.nan if self.state == "failed" else score, rungs, self.error)


class _Entry(BaseModel):
    """A line of the journal."""

    op_code: int
    trial_id: int = -1
    param_name: str = ""
    param_value_internal: float = math.nan
    state: int = 0
    values: list[float] | None = None
    step: int = 0
    intermediate_value: float = math.nan
    user_attr: dict[str, Any] = {}


_ENTRY = TypeAdapter(_Entry)


def read_journal(path: Path, dimensions: Sequence[Dimension]) -> list[TrialRow]:
    """The trials of a search so far, in the order of their numbers; invalid entries are left out."""
    trials: list[_Trial] = []
    for line in read_bytes(path, MAX_BYTES).splitlines():
        try:
            # not pydantic's parser: the journal may hold NaN
            entry = _ENTRY.validate_python(json.loads(line))
        except (ValueError, ValidationError, RecursionError):
            continue
        if entry.op_code == _CREATE:
            trials.append(_Trial())
        elif 0 <= entry.trial_id < len(trials):
            _apply(trials[entry.trial_id], entry)
    rows = []
    for number, trial in enumerate(trials):
        try:
            rows.append(trial.to_row(number, dimensions))
        except (LookupError, ValueError, OverflowError):
            continue
    return rows


def _apply(trial: _Trial, entry: _Entry) -> None:
    if entry.op_code == _PARAM:
        trial.params[entry.param_name] = entry.param_value_internal
    elif entry.op_code == _STATE:
        trial.state = _STATES.get(entry.state, "running")
        trial.value = entry.values[0] if entry.values else math.nan
    elif entry.op_code == _SCORE:
        trial.rungs[entry.step] = entry.intermediate_value
    elif entry.op_code == _ATTRIBUTE:
        trial.error = str(entry.user_attr.get("error", trial.error))
