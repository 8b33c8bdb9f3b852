"""The uncertainty of a result, and the comparison of two: pure functions of per-session scores.

Importing scipy.stats takes as long as everything else in a session, so a run itself uses only `metrics.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, stats

# a number of sessions is enough if it detects the difference with this probability
POWER = 0.8
LEVEL = 0.95
# sessions of each run that are needed to distinguish runs whose scores do not overlap at all
MIN_TOLD = 4
# a difference that needs more sessions is not worth knowing
MAX_SESSION = 1000
EDGE = 1e-9
NOT_DISTINGUISHABLE = "not distinguishable"


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval; the bounds are NaN without one."""

    value: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return not (self.low > value or self.high < value)


@dataclass(frozen=True)
class ScoreComparison:
    """The comparison of two runs in the same env."""

    # difference of their means, first minus second
    difference: Interval
    # probability that a session of the first scores higher than one of the second
    improvement: Interval
    # sessions of each run that would show a difference of this size; None if no number is enough
    num_session_needed: int | None

    @property
    def is_distinguishable(self) -> bool:
        """Whether chance alone is an unlikely explanation."""
        return not self.improvement.covers(0.5)


def calc_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Difference of means with Welch's interval, which does not assume equal variances."""
    difference = float(np.mean(ours) - np.mean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return Interval(difference, math.nan, math.nan)
    # not scipy's test, which warns about sessions with equal scores
    own, other = (float(np.var(scores, ddof=1)) / len(scores) for scores in (ours, theirs))
    if own + other == 0:
        return Interval(difference, difference, difference)
    dof = (own + other) ** 2 / (own**2 / (len(ours) - 1) + other**2 / (len(theirs) - 1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * math.sqrt(own + other)
    return Interval(difference, difference - half, difference + half)


def calc_probability(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Fraction of all pairs of sessions in which ours scores higher, ties as half: a scaled Mann-Whitney U."""
    wins = np.sign(np.subtract.outer(np.asarray(ours, float), np.asarray(theirs, float)))
    return float((wins.mean() + 1) / 2)


def calc_improvement(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """Probability of improvement, the mean over envs; a pair is the sessions of both runs in one env.

    The interval contains every probability that does not contradict the observed one, given its variance by Newcombe
    (2006, method 5), with a correction of half a step because observed shares are discrete. Unlike that of a bootstrap,
    it has a width even if all of our sessions beat all of theirs: two or three sessions each prove nothing yet.
    """
    seen = float(np.mean([calc_probability(ours, theirs) for ours, theirs in pairs]))
    z = float(stats.norm.ppf(0.5 + LEVEL / 2))
    sizes = [(len(ours), len(theirs)) for ours, theirs in pairs]
    half_step = 0.5 / min(first * second for first, second in sizes) / len(pairs)

    def excess(probability: float) -> float:
        variance = sum(_calc_variance(probability, *size) for size in sizes) / len(pairs) ** 2
        return max(abs(seen - probability) - half_step, 0.0) ** 2 - z**2 * variance

    # at 0 and 1 the variance is zero, so that the interval would have no width
    inner = min(max(seen, EDGE), 1 - EDGE)
    low = 0.0 if seen == 0 else optimize.brentq(excess, 0.0, inner)
    high = 1.0 if seen == 1 else optimize.brentq(excess, inner, 1.0)
    return Interval(seen, float(low), float(high))


def _calc_variance(probability: float, num_ours: int, num_theirs: int) -> float:
    """Variance of the fraction of won pairs, if `probability` is the true one."""
    rest = 1 - probability
    mean_size = (num_ours + num_theirs) / 2
    spread = rest / (2 - probability) + probability / (1 + probability)
    return probability * rest * (1 + (mean_size - 1) * spread) / (num_ours * num_theirs)


def calc_num_session(ours: Sequence[float], theirs: Sequence[float]) -> int | None:
    """Sessions of each run that a t test needs to detect this difference with a power of 80 %."""
    if min(len(ours), len(theirs)) < 2:
        return None
    spread = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 2)
    gap = abs(float(np.mean(ours) - np.mean(theirs)))
    if gap == 0:
        return None
    for count in range(2, MAX_SESSION + 1):
        if spread == 0 or _calc_power(gap / spread, count) >= POWER:
            return count
    return None


def _calc_power(effect: float, count: int) -> float:
    """Power of a two-sided t test with samples of this size for an effect in units of the std."""
    freedom, shift = 2 * count - 2, effect * math.sqrt(count / 2)
    critical = stats.t.ppf(0.5 + LEVEL / 2, freedom)
    # scipy gives NaN for some values of the far tail, which is negligible
    return float(stats.nct.sf(critical, freedom, shift) + np.nan_to_num(stats.nct.cdf(-critical, freedom, shift)))


def compare(ours: Sequence[float], theirs: Sequence[float]) -> ScoreComparison:
    """Compare two runs by the scores of their sessions."""
    needed = calc_num_session(ours, theirs)
    found = ScoreComparison(calc_difference(ours, theirs), calc_improvement([(ours, theirs)]), needed)
    if needed is None or found.is_distinguishable:
        return found
    # the number comes from a t test, which assumes more than the verdict; the verdict needs more than there are now
    return replace(found, num_session_needed=max(needed, MIN_TOLD, min(len(ours), len(theirs)) + 1))


def describe_improvement(comparison: ScoreComparison) -> str:
    """The verdict in words."""
    value = comparison.improvement
    text = f"probability of improvement {value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
    if comparison.is_distinguishable:
        return text
    needed = comparison.num_session_needed
    if math.isnan(comparison.difference.low):
        advice = "one session on a side is too few: train more (meta.max_session)"
    elif needed is not None:
        advice = f"about {needed} sessions each would tell"
    else:
        advice = "no number of sessions would tell"
    return f"{text}: {NOT_DISTINGUISHABLE}, {advice}"
