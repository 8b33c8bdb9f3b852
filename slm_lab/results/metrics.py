"""Scores of sessions and trials with their uncertainty: compute them from tables, save and read them as JSON.

s_i is the strength at checkpoint i: the return R_i minus that of a random policy. t_i is the frame or opt_step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from scipy.special import ndtr, stdtrit

from slm_lab.lib.array import Array
from slm_lab.lib.io import read_text, write_json
from slm_lab.results.table import Table

# checkpoints in the moving average, and episodes in each checkpoint's mean
MA_WINDOW = 100
METRICS = (
    "total_reward_ma",
    "strength",
    "max_strength",
    "final_strength",
    "sample_efficiency",
    "training_efficiency",
    "stability",
)
# fewer sessions do not get an interval
MIN_INTERVAL = 3
NUM_RESAMPLE = 10_000
# cache the bootstrap weights for up to this many sessions
MAX_KEPT_WEIGHTS = 16
# size limit of a file with metrics, which takes many times as much in memory
MAX_JSON_BYTES = 10_000_000

T = TypeVar("T")


def _read_known(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:
        return None


# None if a file lacks the value, or has one of another type
Known = Annotated[T | None, WrapValidator(_read_known)]
# saved as null, since JSON has no NaN
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


@dataclass(frozen=True)
class SessionResult:
    """How a session ended."""

    session: int
    is_done: bool
    frame: int
    phases: dict[str, float]
    # raw returns of the final evaluation; empty if the session was stopped, or if not all episodes ended
    final_eval: list[float] = field(default_factory=list)
    # done before the last frame, because of meta.stop or a callback
    ended_early: bool = False


@dataclass(frozen=True)
class Spread:
    """A mean over sessions with its uncertainty; the bounds are NaN without an interval."""

    mean: Number
    std: Number = math.nan
    iqm: Number = math.nan
    low: Number = math.nan
    high: Number = math.nan
    values: tuple[Number, ...] = ()


class _File(BaseModel):
    """A file of a run, perhaps from another version or another person: unknown keys are ignored."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def read(cls, *paths: Path) -> Self | None:
        """The first file that can be read; None if none can."""
        for path in paths:
            try:
                return cls.model_validate_json(read_text(path, MAX_JSON_BYTES))
            except (OSError, ValueError):
                continue
        return None

    def write(self, path: Path) -> None:
        """Write the file, without unknown values."""
        write_json(path, self.model_dump(exclude_none=True))


class SessionMetrics(_File):
    """The metrics of a session."""

    frame: Known[int] = None
    total_reward_ma: Number = math.nan
    strength: Number = math.nan
    max_strength: Number = math.nan
    final_strength: Number = math.nan
    sample_efficiency: Number = math.nan
    training_efficiency: Number = math.nan
    stability: Number = math.nan


class SessionFile(SessionMetrics):
    """`session_metrics.json`: how a session ended, and its metrics."""

    session: Known[int] = None
    is_done: Known[bool] = None
    ended_early: Known[bool] = None
    final_eval: Known[tuple[FiniteFloat, ...]] = None
    phases: Known[dict[str, FiniteFloat]] = None


class MeanMetrics(SessionMetrics):
    """The means over sessions, and their consistency."""

    consistency: Number = math.nan


class TrialMetrics(_File):
    """`trial_metrics.json`: the results of a trial's sessions."""

    scalar: Known[MeanMetrics] = None
    total_reward_ma: Known[Spread] = None
    random_return: Known[FiniteFloat] = None
    # return at which the env counts as solved, if its author defines one
    reward_threshold: Known[FiniteFloat] = None
    sessions: Known[tuple[SessionMetrics, ...]] = None
    # sessions of the spec, sessions with a result, and failed sessions
    num_session: Known[int] = None
    session_index: Known[tuple[int, ...]] = None
    failed: Known[tuple[int, ...]] = None
    final_eval: Known[Spread] = None
    is_complete: Known[bool] = None


def calc_total_reward_ma(total_reward: Array) -> float:
    """Mean over the last checkpoints; those before the first finished episode do not count."""
    recent = total_reward[np.isfinite(total_reward)][-MA_WINDOW:]
    return float(recent.mean()) if len(recent) else math.nan


def mask_partial_ma(table: Table) -> Array:
    """total_reward_ma for a curve: NaN until its window is full."""
    is_full = np.isfinite(table["total_reward"]).cumsum() >= MA_WINDOW
    return np.where(is_full, table["total_reward_ma"], math.nan)


def find_solved_frame(table: Table, threshold: float) -> int | None:
    """The first frame at which the mean of the last 100 episodes reached a return; None if it never did."""
    is_solved = table["total_reward"] >= threshold
    if "epi" in table:
        is_solved &= table["epi"] >= MA_WINDOW
    return int(table["frame"][is_solved.argmax()]) if is_solved.any() else None


def calc_efficiency(strength: Array, t: Array) -> float:
    """Mean strength weighted by 1/t: early learning counts more."""
    weight = 1 / np.maximum(t, 1)
    return float((strength * weight).sum() / weight.sum())


def calc_stability(strength: Array) -> float:
    """One minus the fraction of strength lost in drops between checkpoints."""
    total = strength[:-1].sum()
    if len(strength) < 2 or total == 0:
        return 1.0
    return float(1 - abs(np.minimum(np.diff(strength), 0).sum() / total))


def calc_session_metrics(table: Table, random_return: float) -> SessionMetrics:
    """All metrics of one session."""
    known = np.isfinite(table["total_reward"])
    reward = table["total_reward"][known]
    frame = int(table["frame"][-1]) if len(table["frame"]) else 0
    if not len(reward):
        return SessionMetrics(frame=frame)
    strength = reward - random_return
    return SessionMetrics(
        frame=frame,
        total_reward_ma=calc_total_reward_ma(reward),
        strength=float(strength.mean()),
        max_strength=float(strength.max()),
        final_strength=float(strength[-1]),
        sample_efficiency=calc_efficiency(strength, table["frame"][known]),
        # tables of other labs may lack it
        training_efficiency=calc_efficiency(strength, table["opt_step"][known]) if "opt_step" in table else math.nan,
        stability=calc_stability(strength),
    )


def calc_consistency(strengths: Sequence[Array]) -> float:
    """One minus twice the relative std between sessions, over their common checkpoints."""
    length = min(len(strength) for strength in strengths)
    if len(strengths) < 2 or length == 0:
        return 1.0
    grid = np.stack([strength[:length] for strength in strengths])
    total = grid.mean(0).sum()
    return float(1 - 2 * grid.std(0, ddof=1).sum() / total) if total else math.nan


def calc_spread(values: Sequence[float]) -> Spread:
    """Mean, std, interquartile mean and 95 % interval of per-session values."""
    array = np.asarray(values, float)
    mean = float(array.mean())
    iqm = float(calc_iqm(array))
    std = float(array.std(ddof=1)) if len(array) > 1 else math.nan
    low, high = calc_interval(array) or (math.nan, math.nan)
    return Spread(mean, std, iqm, float(low), float(high), tuple(values))


def calc_iqm(values: Array) -> Array:
    """The mean of the middle half, over the last axis."""
    count = values.shape[-1]
    cut = count // 4
    middle: Array = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return middle


def calc_interval(values: Array, num_resample: int = NUM_RESAMPLE) -> tuple[Array, Array] | None:
    """The 95 % bootstrap interval of the mean over sessions, the first axis; None for too few.

    Means of sessions drawn with replacement stay between the lowest and the highest session, so the interval contains
    no impossible value. Its percentiles are those of Hesterberg (2015, the expanded percentile interval): a plain
    bootstrap of four sessions is much too narrow. The draws are the same for the same number of sessions.
    """
    count = len(values)
    if count < MIN_INTERVAL:
        return None
    # the weights of many sessions are too large for the cache
    draw = _draw_weights if count <= MAX_KEPT_WEIGHTS else _draw_weights.__wrapped__
    weights = draw(count, num_resample)
    outside = 100 * float(ndtr(-math.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.975)))
    low, high = np.percentile(weights @ values, (outside, 100 - outside), axis=0)
    # rounding may move a mean beyond its values
    lowest, highest = values.min(axis=0), values.max(axis=0)
    return np.clip(low, lowest, highest), np.clip(high, lowest, highest)


@lru_cache(maxsize=16)
def _draw_weights(count: int, num_resample: int) -> Array:
    """The share of each session in samples drawn with replacement."""
    drawn = np.random.default_rng(0).integers(count, size=(num_resample, count))
    # a bin for each session of each sample
    bins = drawn + count * np.arange(num_resample)[:, None]
    return np.bincount(bins.ravel(), minlength=num_resample * count).reshape(num_resample, count) / count


def format_spread(spread: Spread) -> str:
    """A mean, with its interval if there is one, and the values if there are several."""
    text = f"{spread.mean:.2f}"
    if math.isfinite(spread.low):
        text += f", 95% interval [{spread.low:.2f}, {spread.high:.2f}]"
    if len(spread.values) > 1:
        text += f", {len(spread.values)} sessions: {', '.join(f'{value:.2f}' for value in spread.values)}"
    return text


def calc_trial_metrics(tables: Mapping[int, Table], random_return: float) -> TrialMetrics:
    """Mean metrics of a trial, the spread of its score, and the metrics of each session."""
    sessions = tuple(calc_session_metrics(table, random_return) for table in tables.values())
    rows = [session.model_dump() for session in sessions]
    strengths = [table["total_reward"][np.isfinite(table["total_reward"])] - random_return for table in tables.values()]
    means = {name: float(np.mean([row[name] for row in rows])) for name in METRICS}
    frame = max(session.frame or 0 for session in sessions)
    return TrialMetrics(
        scalar=MeanMetrics(frame=frame, consistency=calc_consistency(strengths), **means),
        total_reward_ma=calc_spread([session.total_reward_ma for session in sessions]),
        random_return=random_return,
        sessions=sessions,
        session_index=tuple(tables),
    )


def calc_final_eval(returns: Sequence[Sequence[float]]) -> Spread | None:
    """The spread over sessions of the mean return of the final evaluation; None without one."""
    means = [float(np.mean(values)) for values in returns if len(values)]
    return calc_spread(means) if means else None


def format_trial_metrics(scalar: MeanMetrics) -> str:
    """The log line `trial_metrics: ...`."""
    values = scalar.model_dump()
    parts = [f"frame:{scalar.frame or 0:.2e}", f"total_reward_ma:{scalar.total_reward_ma:.2f}"]
    parts += [f"{name}:{values[name]:.4g}" for name in (*METRICS[1:], "consistency")]
    return "trial_metrics: " + " | ".join(parts)
