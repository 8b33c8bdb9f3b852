"""Algorithms over several envs: normalised scores as in rliable (Agarwal et al. 2021, arXiv 2108.13264)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.results.comparison import ComparisonRow, format_estimate
from slm_lab.results.metrics import MIN_INTERVAL, NUM_RESAMPLE, calc_iqm
from slm_lab.results.statistics import LEVEL, Interval, calc_improvement

HEAD = ("algorithm", "envs", "normalised IQM", "P(improvement)")
# scores of sessions by algorithm and env
Scores = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class AggregateRow:
    """An algorithm over all envs that are not left out."""

    algorithm: str
    num_env: int
    # interquartile mean of the normalised scores of all sessions in all envs
    iqm: Interval
    # probability of improvement over the first algorithm, the mean over envs; None for the first itself
    improvement: Interval | None

    @property
    def cells(self) -> list[str]:
        """The row as text, a cell for each name in HEAD."""
        return [self.algorithm, str(self.num_env), format_estimate(self.iqm), format_estimate(self.improvement)]


@dataclass(frozen=True)
class Aggregates:
    """The rows, and how envs were normalised."""

    rows: tuple[AggregateRow, ...]
    # the returns that count as 0 (random play) and as 1 (the best mean among the algorithms), by env
    scales: Mapping[str, tuple[float, float]]
    # envs that are left out, with the reason
    left_out: Mapping[str, str]

    @property
    def notes(self) -> list[str]:
        """What 0 and 1 mean in each env, and the envs that are left out; a line each."""
        lines = [
            f"{env}: 0 is random play ({low:.2f}), 1 the best mean ({high:.2f})"
            for env, (low, high) in self.scales.items()
        ]
        return [*lines, *(f"{env} left out: {reason}" for env, reason in self.left_out.items())]


def aggregate_rows(rows: Sequence[ComparisonRow]) -> Aggregates | None:
    """The aggregates of a table; None for a single env or algorithm, or several runs of an algorithm in one env."""
    scores: dict[str, dict[str, Sequence[float]]] = {}
    for row in rows:
        if row.env in scores.setdefault(row.algorithm, {}):
            return None
        scores[row.algorithm][row.env] = row.scores
    if min(len(scores), len({row.env for row in rows})) < 2:
        return None
    # shipped, or measured by the runs
    random_returns = {row.env: row.random_return for row in rows if row.random_return is not None}
    return aggregate_scores(scores, random_returns)


def aggregate_scores(scores: Scores, random_returns: Mapping[str, float]) -> Aggregates:
    """Normalise the scores of each env and aggregate them; an env that cannot be normalised is left out.

    A normalised score is (score - random) / (reference - random), with the best mean of the algorithms as reference.
    """
    scales, left_out = {}, {}
    for env in dict.fromkeys(env for known in scores.values() for env in known):
        missing = [name for name, known in scores.items() if not known.get(env)]
        if missing:
            left_out[env] = f"no score of {', '.join(missing)}"
        elif env not in random_returns:
            left_out[env] = "the return of random play is unknown"
        else:
            best = max(float(np.mean(known[env])) for known in scores.values())
            if best > random_returns[env]:
                scales[env] = (random_returns[env], best)
            else:
                left_out[env] = "no algorithm is better than random play"
    rows: list[AggregateRow] = []
    first = next(iter(scores.values()), {})
    for name, known in scores.items() if scales else ():
        normalised = [(np.asarray(known[env], float) - low) / (high - low) for env, (low, high) in scales.items()]
        improvement = calc_improvement([(known[env], first[env]) for env in scales]) if rows else None
        rows.append(AggregateRow(name, len(scales), calc_aggregate_iqm(normalised), improvement))
    return Aggregates(tuple(rows), scales, left_out)


def calc_aggregate_iqm(scores: Sequence[Array]) -> Interval:
    """Interquartile mean of all sessions in all envs, an array per env, with its stratified bootstrap interval.

    Sessions are drawn with replacement within each env, the same draws every time. There is no interval if an env
    has fewer than 3 sessions.
    """
    value = float(calc_iqm(np.concatenate(scores)))
    if min(map(len, scores)) < MIN_INTERVAL:
        return Interval(value, math.nan, math.nan)
    generator = np.random.default_rng(0)
    drawn = [env[generator.integers(len(env), size=(NUM_RESAMPLE, len(env)))] for env in scores]
    outside = 50 * (1 - LEVEL)
    low, high = np.percentile(calc_iqm(np.concatenate(drawn, axis=1)), (outside, 100 - outside))
    return Interval(value, float(low), float(high))
