"""Intervals hold what they promise, and runs are told apart only where sessions allow it."""

import math

import numpy as np
import pytest
from scipy import stats

from slm_lab.results.metrics import calc_spread
from slm_lab.results.statistics import (
    Interval,
    calc_difference,
    calc_improvement,
    calc_num_session,
    calc_probability,
    compare,
    describe_improvement,
)

NUM_STUDY = 1000


@pytest.mark.parametrize(("count", "least"), [(3, 0.72), (4, 0.86), (10, 0.93)])
def test_interval_of_a_mean_covers_the_truth(count: int, least: float) -> None:
    generator = np.random.default_rng(count)
    studies = generator.normal(100.0, 15.0, (400, count))
    spreads = [calc_spread(study.tolist()) for study in studies]
    covered = sum(spread.low <= 100.0 <= spread.high for spread in spreads) / len(studies)
    # an interval within the values cannot cover more often: the chance that all of 4 are on one side is an eighth
    assert least <= covered <= 0.97


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 4, 10])
def test_interval_of_an_improvement_covers_the_truth(count: int, shift: float) -> None:
    generator = np.random.default_rng(count)
    ours = generator.normal(shift, 1.0, (NUM_STUDY, count))
    theirs = generator.normal(0.0, 1.0, (NUM_STUDY, count))
    truth = float(stats.norm.cdf(shift / math.sqrt(2)))
    estimates = [calc_improvement([pair]) for pair in zip(ours.tolist(), theirs.tolist(), strict=True)]
    # with few sessions the share of won pairs has few values, so it covers too often rather than too seldom
    assert sum(estimate.covers(truth) for estimate in estimates) / NUM_STUDY >= 0.93


def test_probability_is_the_share_of_pairs_won() -> None:
    assert calc_probability([3.0, 1.0], [2.0, 0.0]) == 0.75
    assert calc_probability([1.0, 1.0], [1.0, 1.0]) == 0.5
    ours, theirs = [3.1, 2.2, 5.0, 4.4], [2.2, 1.0, 3.5]
    statistic = stats.mannwhitneyu(ours, theirs).statistic
    assert calc_probability(ours, theirs) == pytest.approx(statistic / 12)


def test_improvement_over_envs_is_their_mean_and_narrower() -> None:
    pair = ([3.0, 4.0, 5.0, 1.0], [2.0, 2.5, 1.5, 3.5])
    one, many = calc_improvement([pair]), calc_improvement([pair] * 5)
    assert many.value == pytest.approx(one.value)
    assert one.low < many.low < many.value < many.high < one.high


@pytest.mark.parametrize(("count", "is_told"), [(2, False), (3, False), (4, True), (10, True)])
def test_runs_without_overlap_are_told_apart_from_four_sessions_on(count: int, is_told: bool) -> None:
    """As the exact Mann-Whitney test has it: its p of 3 against 3 is 0.1."""
    low, high = [float(value) for value in range(count)], [float(value) for value in range(count, 2 * count)]
    assert (stats.mannwhitneyu(low, high, method="exact").pvalue < 0.05) == is_told
    assert compare(high, low).is_distinguishable == is_told
    assert compare(low, high).is_distinguishable == is_told


def test_difference_is_welch() -> None:
    estimate = calc_difference([10.0, 12.0, 14.0], [1.0, 2.0, 6.0])
    assert estimate.value == 9.0
    # by hand: variances 4 and 7, standard error sqrt(11/3), 3.72 degrees of freedom
    assert (estimate.low, estimate.high) == pytest.approx((9 - 5.475, 9 + 5.475), abs=5e-3)


@pytest.mark.parametrize("ours", [[5.0], [5.0, 5.0]])
def test_difference_without_spread(ours: list[float]) -> None:
    estimate = calc_difference(ours, [3.0, 3.0])
    assert estimate.value == 2.0
    assert math.isnan(estimate.low) if len(ours) == 1 else estimate == Interval(2.0, 2.0, 2.0)


def test_number_of_sessions_is_that_of_a_power_table() -> None:
    # an effect of one spread needs 17 of each for a power of 80 %, one of half a spread 64 (Cohen 1988)
    spread = math.sqrt(2.0)
    ours, theirs = [0.0, 2.0], [spread, 2.0 + spread]
    assert calc_num_session(ours, theirs) == 17
    assert calc_num_session(ours, [spread / 2, 2.0 + spread / 2]) == 64
    assert calc_num_session(ours, ours) is None
    assert calc_num_session([1.0], theirs) is None


def test_more_sessions_are_advised_than_there_are() -> None:
    # by its means this difference needs 4 of each; 4 of each have not shown it
    ours, theirs = [10.0, 10.0, 10.0, 5.0], [0.0, 0.0, 0.0, 5.1]
    assert calc_num_session(ours, theirs) == 4
    found = compare(ours, theirs)
    assert not found.is_distinguishable
    assert found.num_session_needed == 5


@pytest.mark.parametrize("effect", [35.0, 50.0, 70.0, 1e3, 1e6])
def test_an_effect_of_any_size_has_a_power(effect: float) -> None:
    assert calc_num_session([-1.0, 1.0], [math.sqrt(2) * effect - 1, math.sqrt(2) * effect + 1]) == 2


def test_verdict_in_words() -> None:
    close = describe_improvement(compare([500.0, 499.0, 498.0, 497.0], [480.0, 470.0, 490.0, 499.5]))
    assert close.startswith("probability of improvement 0.81 [")
    assert close.endswith("]: not distinguishable, about 8 sessions each would tell")
    assert "not" not in describe_improvement(compare([9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]))
    # a difference as clear as can be, which two or three sessions each cannot show
    for count in (2, 3):
        few = describe_improvement(compare([500.0 + i for i in range(count)], [100.0 + i for i in range(count)]))
        assert few.endswith("not distinguishable, about 4 sessions each would tell")
    same = describe_improvement(compare([1.0, 2.0], [1.0, 2.0]))
    assert same.endswith("not distinguishable, no number of sessions would tell")
