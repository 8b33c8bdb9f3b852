"""Graphs show the curves of the tables, and are written whole as small pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from slm_lab.lib.array import Array
from slm_lab.results import figure
from slm_lab.results.curve import NUM_RESAMPLE, average_curves, find_limits, read_curve
from slm_lab.results.figure import Chart, Line
from slm_lab.results.metrics import calc_interval, calc_spread
from slm_lab.results.palette import find_look
from slm_lab.results.plot import (
    Drawing,
    DrawnRun,
    build_runs_chart,
    build_session_charts,
    build_trial_chart,
    plot_run,
    plot_runs,
)
from slm_lab.results.run import Run
from slm_lab.results.table import Table
from test.results.sample import make_run, make_table

EVALUATION = "evaluation, deterministic policy"


def build_trial(tables: Sequence[Table], name: str = "mean_returns", evals: Sequence[Table] = ()) -> Chart:
    chart = build_trial_chart(make_run(dict(enumerate(tables)), dict(enumerate(evals))), name)
    assert chart is not None
    return chart


def build_runs(*runs: DrawnRun, column: str = "total_reward", **drawing: Any) -> Chart:
    chart = build_runs_chart(runs, "demo", column, Drawing(**drawing))
    assert chart is not None
    return chart


def build_session(table: Table) -> Line:
    return build_session_charts(make_run({0: table}), "train", "mean_returns")[0].lines[0]


def names(chart: Chart) -> list[str]:
    return [line.name for line in chart.lines]


def assert_drawn(path: Path) -> None:
    """A readable picture that is not blank, on white, and small."""
    image = matplotlib.image.imread(path)
    assert min(image.shape[:2]) >= 700
    assert image[..., :3].std() > 0.01
    assert image[0, 0, :3].min() > 0.99
    assert path.stat().st_size < 80_000


def draw(path: Path, tables: Sequence[Table], evals: Sequence[Table] = ()) -> set[str]:
    """Which graphs a run gets."""
    plot_run(make_run(dict(enumerate(tables)), dict(enumerate(evals)), path=path))
    return {file.name for file in path.glob("graph/*")}


# --- files


def test_a_run_has_its_graphs_and_nothing_else(tmp_path) -> None:
    written = draw(tmp_path, [make_table(seed=i) for i in range(3)], [make_table(5, 4000)])
    returns = ("mean_returns", "mean_returns_ma")
    expected = {f"demo_t0_trial_graph_{name}_vs_frames.png" for name in returns}
    for session, kinds in enumerate((("train", "eval"), ("train",), ("train",))):
        expected |= {
            f"demo_t0_s{session}_session_graph_{kind}_{name}_vs_frames.png"
            for kind in kinds
            for name in (*returns, "metrics")
        }
    assert written == expected
    for path in tmp_path.glob("graph/*"):
        assert_drawn(path)
    before = {path: path.read_bytes() for path in tmp_path.glob("graph/*")}
    draw(tmp_path, [make_table(seed=i) for i in range(3)], [make_table(5, 4000)])
    assert {path: path.read_bytes() for path in tmp_path.glob("graph/*")} == before


@pytest.mark.parametrize(
    "table",
    [
        {},
        {name: np.array([]) for name in make_table()},
        {name: np.full(5, np.nan) for name in make_table()},
        {name: np.full(5, np.inf) for name in make_table()},
        make_table(30) | dict(frame=np.full(30, np.nan)),
    ],
    ids=["no columns", "no rows", "nan", "inf", "no frames"],
)
def test_nothing_to_draw_writes_nothing(tmp_path, table) -> None:
    assert draw(tmp_path, [table, table]) == set()


def test_what_is_hard_to_draw_is_drawn(tmp_path) -> None:
    extreme = make_table(3) | dict(total_reward=np.array([-1e99, 0, 1e99]), loss=np.array([1e38, 1e-38, -1e38]))
    many = [make_table(rows=1 if i == 0 else 5, seed=i) for i in range(6)]
    assert len(draw(tmp_path / "extreme", [extreme, make_table(4)])) == 8
    assert len(draw(tmp_path / "many", many)) == 20


def test_sessions_share_their_axes_and_have_curves_of_their_own(tmp_path) -> None:
    tables = [make_table(30), make_table(30, seed=1, total_reward=np.linspace(0, 5000, 30))]
    draw(tmp_path / "both", tables)
    draw(tmp_path / "alone", tables[:1])
    name = "session_graph_train_mean_returns_vs_frames.png"
    files = ("both/graph/demo_t0_s0", "both/graph/demo_t0_s1", "alone/graph/demo_t0_s0")
    first, second, alone = (matplotlib.image.imread(tmp_path / f"{file}_{name}")[100:] for file in files)
    # labels and ticks of the y axis are the same, the curves are not
    assert np.abs(first[:, :90] - second[:, :90]).max() < 0.02
    assert not np.array_equal(first, second)
    assert not np.array_equal(alone[:, :90], first[:, :90])


# --- curves


def test_rows_that_cannot_be_drawn_are_left_out() -> None:
    line = build_session(make_table(6) | dict(total_reward=np.array([1, np.nan, np.inf, -np.inf, 1e308, 6])))
    assert (line.x.tolist(), line.y.tolist()) == ([500, 3000], [1, 6])


def test_rows_are_sorted_and_the_last_of_a_frame_counts() -> None:
    line = build_session(dict(frame=np.array([2.0, 1.0, 2.0, 3.0]), total_reward=np.array([5.0, 4.0, 6.0, 7.0])))
    assert (line.x.tolist(), line.y.tolist()) == ([1, 2, 3], [4, 6, 7])


def test_trial_on_the_same_frames_is_the_plain_mean() -> None:
    tables = [make_table(seed=i) for i in range(4)]
    chart = build_trial(tables)
    assert names(chart) == [*(f"session {i}" for i in range(4)), "mean of 4 sessions"]
    rewards = np.stack([table["total_reward"] for table in tables])
    np.testing.assert_allclose(chart.lines[4].y, rewards.mean(axis=0))
    interval = calc_interval(rewards, NUM_RESAMPLE)
    assert interval is not None
    np.testing.assert_allclose((chart.bands[0].low, chart.bands[0].high), interval)
    assert (chart.subtitle, chart.shows_legend) == ("", True)


def test_trial_of_unequal_sessions_stops_at_the_shortest() -> None:
    def line(rows: int, step: int) -> Table:
        table = make_table(rows, step)
        return table | dict(total_reward=table["frame"] / 1000)

    # The reward is linear in the frame, so interpolating must give it back.
    chart = build_trial([line(30, 1000), line(10, 2000), line(50, 700)])
    mean, (band,) = chart.lines[3], chart.bands
    assert (mean.x[0], mean.x[-1]) == (2000, 20_000)
    for values in (mean.y, band.low, band.high):
        np.testing.assert_allclose(values, mean.x / 1000)
    assert "up to the shortest (20k frames)" in chart.subtitle


def test_trial_without_common_frames_has_no_mean() -> None:
    chart = build_trial([make_table(), make_table() | dict(frame=make_table()["frame"] + 1e6)])
    assert names(chart) == ["session 0", "session 1"]
    assert "no mean" in chart.subtitle


def test_sessions_keep_their_numbers_and_one_alone_needs_no_legend() -> None:
    assert names(build_trial([{}, make_table(), make_table()]))[:3] == ["session 1", "session 2", "mean of 2 sessions"]
    alone = build_trial([make_table()])
    assert (names(alone), alone.shows_legend) == (["session 0"], False)
    many = build_trial([make_table(5, seed=i) for i in range(5)])
    assert set(names(many)) == {"each session", "mean of 5 sessions"}


def test_intervals_stay_within_what_sessions_reached() -> None:
    """Three of four sessions at the best return there is: a band of ±1 std would go beyond it."""
    returns = [500.0, 500.0, 500.0, 100.0]
    average = average_curves([(np.arange(3.0), np.full(3, value)) for value in returns])
    assert average is not None
    assert average.interval is not None
    low, high = average.interval
    assert 100 <= low[0] < 400 < high[0] <= 500
    spread = calc_spread(returns)
    assert (low[0], high[0]) == (spread.low, spread.high)


@pytest.mark.parametrize("count", [1, 2])
def test_few_sessions_have_no_interval(count) -> None:
    tables = [make_table(seed=i) for i in range(count)]
    assert calc_interval(np.zeros((count, 5))) is None
    assert build_trial(tables).bands == ()
    assert build_runs(DrawnRun("PPO", "PPO", tables)).subtitle == "no interval: fewer than 3 sessions each"


def make_long(seed: int = 0) -> dict[str, Array]:
    """More rows than the moving average has in its window."""
    table = make_table(rows=150, seed=seed)
    sums = np.cumsum(table["total_reward"])
    sums[100:] -= sums[:-100].copy()
    return table | dict(total_reward_ma=sums / np.minimum(np.arange(1, 151), 100))


def test_a_moving_average_starts_where_its_window_is_full() -> None:
    table = make_long()
    chart = build_trial([table], "mean_returns_ma")
    assert chart.lines[0].x.tolist() == table["frame"][99:].tolist()
    assert (chart.y_label, chart.subtitle) == ("total_reward_ma, mean of the last 100 rows", "")
    # an episode that has not ended yet leaves a row that does not count
    late = table | dict(total_reward=np.where(np.arange(150) < 20, np.nan, table["total_reward"]))
    assert read_curve(late, "total_reward_ma")[0][0] == table["frame"][119]


def test_a_short_run_has_its_returns_in_place_of_a_moving_average() -> None:
    tables = [make_table(seed=i) for i in range(2)]
    run, drawn = make_run(dict(enumerate(tables))), DrawnRun("a", "PPO", tables)
    sessions = [build_session_charts(run, "train", name)[0] for name in ("mean_returns", "mean_returns_ma")]
    trials = [build_trial(tables, name) for name in ("mean_returns", "mean_returns_ma")]
    runs = [build_runs(drawn, column=column) for column in ("total_reward", "total_reward_ma")]
    for returns, average in (sessions, trials, runs):
        assert [line.y.tolist() for line in average.lines] == [line.y.tolist() for line in returns.lines]
        assert average.subtitle.startswith("fewer than 100 rows, so no moving average")


def test_evaluations_are_dots_over_the_returns() -> None:
    tables, evals = [make_long(i) for i in range(3)], [make_table(5, 15_000, seed=i) for i in range(3)]
    (dots,) = [line for line in build_trial(tables, evals=evals).lines if line.is_dotted]
    assert dots.name == EVALUATION
    np.testing.assert_allclose(dots.y, np.mean([table["total_reward"] for table in evals], axis=0))
    assert EVALUATION not in names(build_trial(tables, "mean_returns_ma", evals))
    run: Run = make_run(dict(enumerate(tables)), {0: evals[0]})
    charts = build_session_charts(run, "train", "mean_returns")
    assert names(charts[0]) == names(charts[1]) == ["training", EVALUATION]
    assert charts[1].lines[1].x.size == 0


def test_one_algorithm_has_one_colour_in_every_figure() -> None:
    table = make_table()
    colors = {line.look.color for line in [build_session(table), *build_trial([table] * 4).lines]}
    runs = [DrawnRun("a", "SAC", [table]), DrawnRun("b", "PPO", [table]), DrawnRun("c", "PPO", [table])]
    looks = {line.name[0]: line.look for line in build_runs(*runs).lines}
    assert colors == {looks["b"].color} == {looks["c"].color} != {looks["a"].color}
    assert looks["b"].dash != looks["c"].dash
    # algorithms in their fixed order; one from elsewhere comes last and looks the same whatever it is drawn with
    assert list(looks) == ["b", "c", "a"]
    other = [build_runs(*runs[:n], DrawnRun("x", "TD3", [table])).lines[-1] for n in (0, 3)]
    assert other[0].look == other[1].look


# --- runs side by side, as asked for


def test_bands_of_other_kinds() -> None:
    tables = [make_table(5, total_reward=np.full(5, value)) for value in (0.0, 2.0, 7.0)]
    run = DrawnRun("PPO", "PPO", tables)
    (band,) = build_runs(run, band="minmax").bands
    assert (band.low[0], band.high[0]) == (0, 7)
    chart = build_runs(run, band="std")
    # mean 3, variance (9 + 1 + 16) / 2
    assert (chart.bands[0].low[0], chart.bands[0].high[0]) == pytest.approx((3 - 13**0.5, 3 + 13**0.5))
    assert chart.subtitle == "mean ± 1 std between sessions"
    # two sessions have a std, but no interval of their mean
    two = DrawnRun("PPO", "PPO", tables[:2])
    assert [len(build_runs(two, band=band).bands) for band in ("ci", "std", "minmax")] == [0, 1, 1]


def test_curves_over_time_and_updates() -> None:
    table, evals = make_table(5, wall_t=np.arange(1, 6) * 600.0), make_table(2, 1000)
    table["opt_step"] = np.array([0.0, 0.0, 10.0, 20.0, 30.0])
    run = DrawnRun("PPO", "PPO", [table], [evals])
    chart = build_runs(run, axis="time")
    assert (chart.lines[0].x.tolist(), chart.x_label) == ([10, 20, 30, 40, 50], "training time (minutes)")
    # evaluations are by frame
    assert [len(build_runs(run, axis=axis).lines) for axis in ("frames", "time")] == [2, 1]
    chart = build_runs(run, axis="updates")
    assert (chart.lines[0].x.tolist(), chart.x_label) == ([0, 10, 20, 30], "gradient steps")
    assert chart.lines[0].y.tolist() == table["total_reward"][1:].tolist()


def test_smoothing_is_the_mean_of_the_rows_so_far() -> None:
    table = make_table(5, total_reward=np.array([3.0, 5.0, np.nan, 10.0, 0.0]))
    chart = build_runs(DrawnRun("PPO", "PPO", [table]), smooth=3)
    assert chart.lines[0].y.tolist() == pytest.approx([3, 4, 6, 5])
    assert "each point the mean of 3 rows" in chart.subtitle


def test_a_spike_is_smoothed_away_once_it_has_left_the_window() -> None:
    table = {"frame": np.arange(8.0), "loss": np.array([1e20, *[1.0] * 7])}
    assert read_curve(table, "loss", smooth=2)[1].tolist() == [1e20, 5e19, *[1.0] * 6]


def test_any_column_is_drawn_and_runs_without_it_are_named() -> None:
    runs = [DrawnRun("PPO", "PPO", [make_table()]), DrawnRun("DQN", "DQN", [dict(frame=np.arange(3.0))])]
    chart = build_runs(*runs, column="entropy")
    assert (chart.y_label, len(chart.lines)) == ("entropy", 1)
    assert "nothing to draw of DQN" in chart.subtitle


@pytest.mark.parametrize(("form", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_pictures_in_every_format_repeat(tmp_path, form, start) -> None:
    runs = [DrawnRun("PPO", "PPO", [make_table(seed=i) for i in range(3)])]
    drawings = []
    for part in ("one", "two"):
        paths = plot_runs({"CartPole-v1": runs, "Acrobot-v1": runs}, tmp_path / part, "", Drawing("loss"), [form])
        paths += plot_runs({"CartPole-v1": runs}, tmp_path / f"{part}_alone", "Mine", Drawing("loss"), [form])
        assert [path.name for path in paths] == [
            f"{part}_multi_trial_graph_loss_vs_frames.{form}",
            f"{part}_alone_multi_trial_graph_loss_vs_frames.{form}",
        ]
        drawings.append([path.read_bytes() for path in paths])
    assert drawings[0] == drawings[1]
    assert all(picture.startswith(start) for picture in drawings[0])
    if form == "pdf":
        # curves stay curves, and journals refuse fonts of type 3
        assert not any(b"/Subtype /Image" in picture or b"/Type3" in picture for picture in drawings[0])


def test_a_grid_has_a_panel_per_env_and_one_legend(tmp_path, monkeypatch) -> None:
    drawn: list[figure.Figure] = []

    def record(sheet: figure.Figure, form: str) -> bytes:
        drawn.append(sheet)
        return b""

    monkeypatch.setattr(figure, "_to_bytes", record)
    few, many = ([make_table(seed=i) for i in range(count)] for count in (1, 3))
    both = [DrawnRun("PPO", "PPO", many), DrawnRun("SAC", "SAC", few)]
    plot_runs({"a": both, "b": both[:1]}, tmp_path / "x", "All", Drawing("loss"))
    (sheet,) = drawn
    assert [axes.get_title() for axes in sheet.axes] == ["a", "b"]
    assert [axes.get_ylabel() for axes in sheet.axes] == ["loss", ""]
    (legend,) = sheet.legends
    # without numbers of sessions, in which panels may differ
    assert [text.get_text() for text in legend.get_texts()] == ["PPO", "SAC"]
    assert legend.get_title().get_text() == "mean and its 95 % interval"
    points = [figure.Point("SAC", 0.5, 0.2, 0.9), figure.Point("PPO", 1.0, np.nan, np.nan)]
    plot_runs({"a": both, "b": both}, tmp_path / "x", "All", Drawing("loss"), points=points)
    axes = drawn[1].axes[-1]
    # in the order and the colours of the legend
    assert [text.get_text() for text in axes.get_yticklabels()] == ["PPO", "SAC"]
    bars = [np.asarray(line.get_xdata()) for line in axes.lines]
    np.testing.assert_equal(np.concatenate(bars), [np.nan, np.nan, 1.0, 0.2, 0.9, 0.5])
    assert axes.lines[2].get_color() == find_look("SAC").color


# --- panels of metrics


@pytest.fixture
def sheets(monkeypatch) -> list[figure.Figure]:
    """The figures that are drawn for several sessions."""
    drawn: list[figure.Figure] = []
    draw = figure._Sheet.draw

    def record(sheet: figure._Sheet, *arguments: Any) -> bytes:
        drawn.append(sheet.figure)
        return draw(sheet, *arguments)

    monkeypatch.setattr(figure._Sheet, "draw", record)
    return drawn


@pytest.mark.parametrize("count", [1, 4, 10])
def test_metrics_have_a_panel_each(tmp_path, count, sheets) -> None:
    metrics = [f"metric_{i}$" for i in range(count - 1)]
    table = {"lr": np.array([3.0, 2, 1]), "frame": np.arange(3.0), "fps": np.ones(3), "kl": np.full(3, np.nan)}
    table |= {"clip_eps": np.full(3, 0.2)} | {name: np.arange(3.0) for name in metrics}
    assert draw(tmp_path, [table]) == {"demo_t0_s0_session_graph_train_metrics_vs_frames.png"}
    # a metric that never changes needs no panel
    assert [axes.get_title() for axes in sheets[0].axes] == [*metrics, "lr"]
    assert "constant: clip_eps 0.2" in [text.get_text() for text in sheets[0].texts]


def test_a_spike_at_the_start_does_not_flatten_a_panel() -> None:
    x = np.arange(400.0)
    calm = 1 + np.random.default_rng(0).normal(0, 0.1, 400)
    assert find_limits([(x, calm)]) is None
    limits = find_limits([(x, np.where(x < 4, 1000.0, calm))])
    assert limits is not None
    assert (limits.low, limits.high) == (calm[4:].min(), calm[4:].max())
    assert limits.highest == 1000
    # what falls over a good part of the run is no spike, nor is a step
    assert find_limits([(x, np.exp(-x / 100))]) is None
    assert find_limits([(x, np.where(x < 4, 1.0, 0.1))]) is None
    # nor where all the others are one value, whatever lies between the percentiles
    assert find_limits([(x[:100], np.where(x[:100] < 5, 1.0, 0.1))]) is None


def test_what_is_cut_off_is_marked(tmp_path, sheets) -> None:
    loss = np.linspace(1, 2, 200)
    loss[0] = 12_345
    draw(tmp_path, [dict(frame=np.arange(200.0), loss=loss)])
    (axes,) = sheets[0].axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["to 12.3k"]
    assert axes.get_ylim()[1] < 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (500, "500"), (2500, "2.5k"), (200_000, "200k"), (1_500_000, "1.5M"), (-50_000, "-50k"), (3e9, "3G")],
)
def test_short_numbers(value, text) -> None:
    assert figure.shorten(value) == text
