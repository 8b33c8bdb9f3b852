"""The lab's metrics on series worked out by hand."""

import itertools
import math
import tracemalloc
from pathlib import Path

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
    read_table,
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
    metrics = calc_trial_metrics(tables, 10.0)
    scalar = metrics["scalar"]
    assert scalar["frame"] == 200
    assert scalar["total_reward_ma"] == (30.0 + 45.0) / 2
    assert scalar["strength"] == (20.0 + 35.0) / 2
    assert scalar["max_strength"] == scalar["final_strength"] == (30.0 + 50.0) / 2
    assert scalar["stability"] == 1.0
    # strengths 10, 30 and 20, 50: sample stds 5 and 10 times the root of 2, means 15 and 40
    assert scalar["consistency"] == pytest.approx(1 - 2 * 15 * math.sqrt(2) / 55)
    assert metrics["total_reward_ma"]["values"] == (30.0, 45.0)
    assert [session["strength"] for session in metrics["sessions"]] == [20.0, 35.0]


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
    scalar = calc_trial_metrics([table([10.0, 30.0])], 10.0)["scalar"]
    line = format_trial_metrics(scalar)
    assert line.startswith("trial_metrics: frame:2.00e+02 | total_reward_ma:20.00 | strength:10 | max_strength:20 | ")
    assert line.endswith(" | stability:1 | consistency:1")


def test_a_row_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    # half of 300
    path.write_text("total_reward,frame\n,100\n5,200\n7,3")
    assert read_table(path)["frame"].tolist() == [100.0, 200.0]
    path.write_text("total_reward,frame\n,100\n5,200\n7\n")
    read = read_table(path)
    assert read["frame"].tolist() == [100.0, 200.0]
    assert math.isnan(read["total_reward"][0])


@pytest.mark.parametrize("piece", [100, 1000])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_table_is_read_as_python_reads_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, line_break: str
) -> None:
    monkeypatch.setattr("slm_lab.results.metrics._PIECE", piece)
    cells = [repr(value) for value in np.random.default_rng(0).normal(0, 1e5, 90).tolist()]
    cells += ["5e-324", "1.7976931348623157e308", "inf", "-INF", "nan", "+.5", "1.", "-0", "", "9" * 20, " 7 ", '"8"']
    rows = [cells[index : index + 3] for index in range(0, len(cells), 3)]
    rows += [["", "", ""], ["1", "", ""], ["", "", "2"]]
    lines = ["a,b,c", *(",".join(row) for row in rows), "", "1,2", "1,2,3,4"]
    path = tmp_path / "table.csv"
    path.write_bytes((line_break.join(lines) + line_break + "1,2,3").encode())
    read = read_table(path)
    expected = np.array([[float(cell.strip('"') or "nan") for cell in row] for row in rows])
    assert np.array_equal(np.stack([read[name] for name in "abc"], 1), expected, equal_nan=True)


def test_a_table_of_one_column_has_no_blank_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("frame\n\n1\n\n2\n")
    assert read_table(path)["frame"].tolist() == [1.0, 2.0]
    path.write_text("\n1\n")
    assert read_table(path) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("frame,x\n1,two\n", "could not convert string to float: 'two'"),
        ("frame,x\n1,1-2\n", "could not convert string to float: '1-2'"),
        ("frame,x\n1,2e\n", "could not convert string to float: '2e'"),
        ("frame,x\n" + "1" * 3_000_000 + "1,2\n", "a row of more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_number_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        read_table(tmp_path / "table.csv")


def test_a_table_takes_little_more_memory_than_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    tracemalloc.start()
    try:
        path.write_text("frame,x\n1,2\n" + "\n" * 5_000_000)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert read_table(path)["frame"].tolist() == [1.0]
        assert tracemalloc.get_traced_memory()[1] - before < 60_000_000
        path.write_text("frame,x\n" + "100,2.5\n" * 1_000_000)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert len(read_table(path)["frame"]) == 1_000_000
        # 16 MB of numbers, twice while they are put together, and the work on a piece
        assert tracemalloc.get_traced_memory()[1] - before < 60_000_000
    finally:
        tracemalloc.stop()
    monkeypatch.setattr("slm_lab.results.metrics.MAX_NUMBERS", 1_000_000)
    with pytest.raises(ValueError, match="it holds more than 1,000,000 numbers"):
        read_table(path)


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
