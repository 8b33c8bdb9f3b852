"""The lab's metrics on series worked out by hand."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from slm_lab.results.curve import MAX_POINTS, read_curve
from slm_lab.results.metrics import (
    MA_WINDOW,
    calc_consistency,
    calc_session_metrics,
    calc_spread,
    calc_total_reward_ma,
    calc_trial_metrics,
    format_spread,
    format_trial_metrics,
    mask_partial_ma,
)


def table(reward: list[float], frame: list[float] | None = None, opt_step: list[float] | None = None) -> dict:
    count = len(reward)
    return {
        "total_reward": np.array(reward, float),
        "frame": np.array(frame or [100.0 * (index + 1) for index in range(count)]),
        "opt_step": np.array(opt_step or [float(index) for index in range(count)]),
    }


def test_metrics_of_a_session() -> None:
    # strengths over a random return of 10: 0, 20, 10, 30 at frames 100, 200, 300, 400 and opt steps 0, 1, 2, 4
    metrics = calc_session_metrics(table([10.0, 30.0, 20.0, 40.0], opt_step=[0.0, 1.0, 2.0, 4.0]), 10.0)
    assert metrics.frame == 400
    assert metrics.total_reward_ma == 25.0
    assert metrics.strength == 15.0
    assert metrics.max_strength == 30.0
    assert metrics.final_strength == 30.0
    # (0/100 + 20/200 + 10/300 + 30/400) / (1/100 + 1/200 + 1/300 + 1/400) = (0.625/3) / (0.0625/3)
    assert metrics.sample_efficiency == pytest.approx(10.0)
    # opt step 0 counts as 1: (0/1 + 20/1 + 10/2 + 30/4) / (1 + 1 + 1/2 + 1/4)
    assert metrics.training_efficiency == pytest.approx(32.5 / 2.75)
    # one fall of 10, from strengths that sum to 0 + 20 + 10
    assert metrics.stability == pytest.approx(1 - 10 / 30)


def test_metrics_of_a_trial_are_means_and_consistency() -> None:
    tables = [table([20.0, 40.0]), table([30.0, 60.0])]
    metrics = calc_trial_metrics(dict(enumerate(tables)), 10.0)
    scalar = metrics.scalar
    assert scalar is not None
    assert scalar.frame == 200
    assert scalar.total_reward_ma == (30.0 + 45.0) / 2
    assert scalar.strength == (20.0 + 35.0) / 2
    assert scalar.max_strength == scalar.final_strength == (30.0 + 50.0) / 2
    assert scalar.stability == 1.0
    # strengths 10, 30 and 20, 50: sample stds 5 and 10 times the root of 2, means 15 and 40
    assert scalar.consistency == pytest.approx(1 - 2 * 15 * math.sqrt(2) / 55)
    assert metrics.total_reward_ma is not None
    assert metrics.total_reward_ma.values == (30.0, 45.0)
    assert [session.strength for session in metrics.sessions or ()] == [20.0, 35.0]


def test_consistency_counts_up_to_the_shortest_session() -> None:
    sessions = [np.array([10.0, 30.0, 7.0]), np.array([20.0, 50.0])]
    assert calc_consistency(sessions) == pytest.approx(1 - 2 * 15 * math.sqrt(2) / 55)
    assert calc_consistency([np.array([1.0, 2.0])]) == 1.0


def test_the_score_is_the_mean_of_the_last_hundred_rows() -> None:
    reward = np.concatenate([np.zeros(50), np.full(MA_WINDOW, 7.0)])
    assert calc_total_reward_ma(reward) == 7.0
    assert calc_total_reward_ma(reward[:-50]) == 3.5
    assert calc_total_reward_ma(np.array([math.nan, 4.0])) == 4.0
    assert math.isnan(calc_total_reward_ma(np.array([math.nan])))


def test_rows_before_the_first_episode_do_not_count() -> None:
    known = calc_session_metrics(table([12.0, 14.0], frame=[200.0, 300.0], opt_step=[1.0, 2.0]), 10.0)
    late = table([math.nan, 12.0, 14.0], frame=[100.0, 200.0, 300.0], opt_step=[0.0, 1.0, 2.0])
    assert calc_session_metrics(late, 10.0) == known
    nothing = calc_session_metrics(table([math.nan]), 10.0)
    assert nothing.frame == 100
    assert math.isnan(nothing.total_reward_ma)


def test_spread_by_hand() -> None:
    spread = calc_spread([1.0, 2.0, 3.0, 10.0])
    assert spread.mean == 4.0
    assert spread.std == pytest.approx(math.sqrt(50 / 3))
    assert spread.iqm == 2.5
    # of four sessions the range of all of them, of more the middle of their means
    assert (spread.low, spread.high) == pytest.approx((1.0, 10.0), abs=0.3)
    six = calc_spread([1.0, 2.0, 3.0, 10.0, 4.0, 4.0])
    means = [float(np.mean(drawn)) for drawn in itertools.product(six.values, repeat=6)]
    assert (six.low, six.high) == pytest.approx(np.percentile(means, (0.2432, 99.7568)), abs=0.2)
    assert calc_spread([1.0, 2.0, 3.0, 10.0]) == spread
    one = calc_spread([5.0])
    assert (one.mean, one.iqm) == (5.0, 5.0)
    assert math.isnan(one.std)
    assert math.isnan(one.low)


def test_the_interval_of_many_sessions_takes_little_memory() -> None:
    tracemalloc.start()
    calc_spread(np.random.default_rng(0).normal(size=300).tolist())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300e6


def test_an_interval_holds_only_what_is_possible_and_needs_three_sessions() -> None:
    # Student's t has [-8.5, 1008.5] and more for these returns of CartPole, which end at 500
    spread = calc_spread([500.0, 500.0, 499.0, 20.0])
    assert 20.0 <= spread.low < spread.mean < spread.high <= 500.0
    same = calc_spread([500.1] * 4)
    assert (same.low, same.high) == (500.1, 500.1)
    two = calc_spread([20.0, 500.0])
    assert math.isnan(two.low)
    assert math.isnan(two.high)
    assert format_spread(two) == "260.00, 2 sessions: 20.00, 500.00"
    assert format_spread(calc_spread([5.0])) == "5.00"
    assert format_spread(same) == "500.10, 95% interval [500.10, 500.10], 4 sessions: 500.10, 500.10, 500.10, 500.10"


def test_a_curve_has_no_average_over_a_window_that_is_not_full() -> None:
    reward = np.concatenate([[math.nan], np.arange(101.0)])
    masked = mask_partial_ma({"total_reward": reward, "total_reward_ma": reward})
    assert np.isnan(masked[:100]).all()
    assert masked[100:].tolist() == [99.0, 100.0]


def test_the_line_that_people_grep_for() -> None:
    scalar = calc_trial_metrics({0: table([10.0, 30.0])}, 10.0).scalar
    assert scalar is not None
    line = format_trial_metrics(scalar)
    assert line.startswith("trial_metrics: frame:2.00e+02 | total_reward_ma:20.00 | strength:10 | max_strength:20 | ")
    assert line.endswith(" | stability:1 | consistency:1")


def test_a_curve_of_a_long_table_has_fewer_points() -> None:
    count = 10 * MAX_POINTS + 7
    long = {"frame": np.arange(count) * 10.0, "loss": np.arange(count) * 1.0}
    x, y = read_curve(long, "loss")
    assert MAX_POINTS / 2 < x.size <= MAX_POINTS
    assert np.array_equal(x, y * 10)
    assert x[-1] == long["frame"][-1]
    assert (np.diff(x) == np.diff(x)[0]).all()
    short = {name: column[:MAX_POINTS] for name, column in long.items()}
    assert np.array_equal(read_curve(short, "loss")[1], short["loss"])
