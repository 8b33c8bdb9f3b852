"""Graphs of sessions and trials are written whole, show the data and open offline."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import plotly.graph_objects
import pytest
from plotly.offline import get_plotlyjs

from slm_lab.results import plot
from slm_lab.results.curve import NUM_RESAMPLE, average_curves, find_limits, read_curve
from slm_lab.results.metrics import calc_interval, calc_spread
from slm_lab.results.plot import DrawnRun, DrawnSession, Table, plot_runs, plot_sessions, plot_trial

RETURNS = ("mean_returns", "mean_returns_ma")


def make_table(rows: int = 30, step: int = 1000, seed: int = 0, **columns: np.ndarray) -> dict[str, np.ndarray]:
    """A session that learns, noisily."""
    rng = np.random.default_rng(seed)
    frame = np.arange(1, rows + 1) * float(step)
    reward = np.linspace(20, 480, rows) + rng.normal(0, 15, rows)
    table = dict(total_reward=reward, total_reward_ma=reward / 2, loss=rng.random(rows), fps=np.full(rows, 900.0))
    table |= dict(frame=frame, wall_t=frame / 900, t=frame, epi=frame / 100, opt_step=frame / 32)
    return table | dict(lr=np.full(rows, 3e-4), entropy=rng.random(rows)) | columns


def names(paths: list[Path]) -> set[str]:
    return {path.name for path in paths}


def read_page(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The traces and the layout inside a page."""
    text = path.read_text()
    match = re.search(r'Plotly\.newPlot\(\s*"graph",\s*', text)
    assert match
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(text, match.end())
    layout, _ = decoder.raw_decode(text, re.compile(r",\s*").match(text, end).end())
    return traces, layout


def draw_trial(tables: Sequence[Table], prefix: Path, title: str) -> list[Path]:
    """Sessions numbered from 0 on."""
    return plot_trial(dict(enumerate(tables)), prefix, title, "PPO", {})


def assert_drawn(path: Path) -> None:
    """A readable picture that is not blank."""
    image = matplotlib.image.imread(path)
    assert min(image.shape[:2]) >= 700
    assert image[..., :3].std() > 0.01


def plot_session(table: Table, prefix: Path, title: str, kind: str = "train") -> list[Path]:
    return plot_sessions([DrawnSession(prefix, title, table)], "PPO", kind)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_session_files(tmp_path, kind) -> None:
    paths = plot_session(make_table(), tmp_path / "graph" / "demo_t0_s0", "demo", kind=kind)
    stem = f"demo_t0_s0_session_graph_{kind}"
    expected = {f"{stem}_{name}_vs_frames.{ending}" for name in RETURNS for ending in ("png", "html")}
    assert names(paths) == expected | {f"{stem}_metrics_vs_frames.png"}
    # Nothing half written stays behind.
    assert set((tmp_path / "graph").iterdir()) == {*paths, tmp_path / "graph" / "plotly.min.js"}
    for path in paths:
        if path.suffix == ".png":
            assert_drawn(path)


def test_trial_files(tmp_path) -> None:
    paths = draw_trial([make_table(seed=i) for i in range(3)], tmp_path / "demo_t0", "demo")
    expected = {f"demo_t0_trial_graph_{name}_vs_frames.{ending}" for name in RETURNS for ending in ("png", "html")}
    assert names(paths) == expected
    for path in paths:
        if path.suffix == ".png":
            assert_drawn(path)


def test_prefix_with_a_dot_keeps_its_name(tmp_path) -> None:
    paths = draw_trial([make_table()], tmp_path / "lr_0.1", "demo")
    assert all(path.name.startswith("lr_0.1_trial_graph_") for path in paths)


def test_page_holds_the_data_and_opens_offline(tmp_path) -> None:
    table = make_table()
    _, page = plot_session(table, tmp_path / "demo", "demo <b>&</b> $x")[:2]
    traces, layout = read_page(page)
    np.testing.assert_allclose(traces[0]["x"], table["frame"])
    np.testing.assert_allclose(traces[0]["y"], table["total_reward"])
    assert layout["xaxis"]["title"]["text"] == "frames (env steps)"
    assert layout["yaxis"]["title"]["text"] == "total reward, mean of the last 100 episodes"
    assert "<title>demo &lt;b&gt;&amp;&lt;/b&gt; $x</title>" in page.read_text()
    sources = re.findall(r"<script[^>]*\ssrc=\"([^\"]*)\"", page.read_text())
    assert sources == ["plotly.min.js"]
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


def test_a_script_of_others_is_replaced(tmp_path) -> None:
    own, script = get_plotlyjs().encode(), tmp_path / "plotly.min.js"
    elsewhere = tmp_path / "elsewhere.js"
    elsewhere.write_bytes(own)
    # of another size, of the same size, a link, a pipe
    for plant in (
        lambda: script.write_text("alert(1)"),
        lambda: script.write_bytes(own[:-1] + b"!"),
        lambda: script.symlink_to(elsewhere),
        lambda: os.mkfifo(script),
    ):
        script.unlink(missing_ok=True)
        plant()
        plot_session(make_table(), tmp_path / "demo", "demo")
        assert stat.S_ISREG(script.lstat().st_mode)
        assert script.read_bytes() == own
    assert elsewhere.read_bytes() == own


def test_pages_share_one_script(tmp_path) -> None:
    plot_session(make_table(), tmp_path / "demo", "demo")
    before = (tmp_path / "plotly.min.js").stat().st_ino
    plot_session(make_table(), tmp_path / "other", "demo")
    assert (tmp_path / "plotly.min.js").stat().st_ino == before


def test_plotly_accepts_every_option(tmp_path) -> None:
    page = draw_trial([make_table(), make_table(rows=20)], tmp_path / "demo", "demo")[1]
    traces, layout = read_page(page)
    plotly.graph_objects.Figure(data=traces, layout=layout)  # raises on an unknown option


def test_same_data_gives_the_same_files(tmp_path) -> None:
    first, second = (draw_trial([make_table(), make_table()], tmp_path / name / "demo", "demo") for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_trial_on_the_same_frames_is_the_plain_mean(tmp_path) -> None:
    tables = [make_table(seed=i) for i in range(4)]
    traces, layout = read_page(draw_trial(tables, tmp_path / "demo", "demo")[1])
    assert [trace["name"] for trace in traces] == [
        *(f"session {i}" for i in range(4)),
        "mean of 4 sessions",
        "95 % interval of the mean",
    ]
    rewards = np.stack([table["total_reward"] for table in tables])
    np.testing.assert_allclose(traces[4]["y"], rewards.mean(axis=0))
    high, low = np.split(np.array(traces[5]["y"]), 2)
    interval = calc_interval(rewards, NUM_RESAMPLE)
    assert interval is not None
    np.testing.assert_allclose((low[::-1], high), interval)
    assert layout["title"]["subtitle"]["text"] == ""
    assert layout["showlegend"]


def test_trial_of_unequal_sessions_stops_at_the_shortest(tmp_path) -> None:
    def line(rows: int, step: int) -> Table:
        table = make_table(rows, step)
        return table | dict(total_reward=table["frame"] / 1000)

    # The reward is linear in the frame, so interpolating must give it back.
    traces, layout = read_page(
        draw_trial([line(30, 1000), line(10, 2000), line(50, 700)], tmp_path / "demo", "demo")[1]
    )
    mean, band = traces[3], traces[4]
    assert (mean["x"][0], mean["x"][-1]) == (2000, 20_000)
    np.testing.assert_allclose(mean["y"], np.array(mean["x"]) / 1000)
    np.testing.assert_allclose(band["y"], np.array(band["x"]) / 1000)
    assert "up to the shortest (20k frames)" in layout["title"]["subtitle"]["text"]


def test_trial_without_common_frames_has_no_mean(tmp_path) -> None:
    late = make_table() | dict(frame=make_table()["frame"] + 1e6)
    traces, layout = read_page(draw_trial([make_table(), late], tmp_path / "demo", "demo")[1])
    assert [trace["name"] for trace in traces] == ["session 0", "session 1"]
    assert "no mean" in layout["title"]["subtitle"]["text"]


def test_trial_of_one_session_is_its_line(tmp_path) -> None:
    traces, layout = read_page(draw_trial([make_table()], tmp_path / "demo", "demo")[1])
    assert [trace["name"] for trace in traces] == ["session 0"]
    assert not layout["showlegend"]


def test_curves_have_the_numbers_of_their_sessions(tmp_path) -> None:
    """Session 1 failed, say, and is not among them."""
    page = plot_trial({0: make_table(), 2: make_table(seed=2)}, tmp_path / "demo", "demo", "PPO", {})[1]
    assert [trace["name"] for trace in read_page(page)[0][:2]] == ["session 0", "session 2"]


def test_session_without_rows_keeps_the_numbers_of_the_others(tmp_path) -> None:
    traces, _ = read_page(draw_trial([{}, make_table(), make_table()], tmp_path / "demo", "demo")[1])
    assert [trace["name"] for trace in traces][:3] == ["session 1", "session 2", "mean of 2 sessions"]


def test_many_sessions_and_one_row_in_one_of_them(tmp_path) -> None:
    tables = [make_table(rows=1 if i == 0 else 5, seed=i) for i in range(30)]
    for path in draw_trial(tables, tmp_path / "demo", "a long title " * 20):
        assert path.stat().st_size


def test_one_row_is_a_point(tmp_path) -> None:
    paths = plot_session(make_table(rows=1), tmp_path / "demo", "demo")
    assert len(paths) == 5
    assert read_page(paths[1])[0][0]["mode"] == "markers"
    assert len(draw_trial([make_table(rows=1)] * 2, tmp_path / "demo", "demo")) == 4


@pytest.mark.parametrize(
    "table",
    [
        {},
        {name: np.array([]) for name in make_table()},
        {name: np.full(5, np.nan) for name in make_table()},
        {name: np.full(5, np.inf) for name in make_table()},
        make_table() | dict(frame=np.full(30, np.nan)),
    ],
    ids=["no columns", "no rows", "nan", "inf", "no frames"],
)
def test_nothing_to_draw_writes_nothing(tmp_path, table) -> None:
    assert plot_session(table, tmp_path / "demo", "demo") == []
    assert draw_trial([table, table], tmp_path / "demo", "demo") == []
    assert list(tmp_path.iterdir()) == []


def test_no_tables_write_nothing(tmp_path) -> None:
    assert draw_trial([], tmp_path / "demo", "demo") == []


def test_rows_that_cannot_be_drawn_are_left_out(tmp_path) -> None:
    table = make_table(rows=6) | dict(total_reward=np.array([1, np.nan, np.inf, -np.inf, 1e308, 6]))
    paths = plot_session(table | dict(kl=np.full(6, np.nan)), tmp_path / "demo", "demo")
    traces, _ = read_page(paths[1])
    assert (traces[0]["x"], traces[0]["y"]) == ([1000, 6000], [1, 6])
    assert_drawn(paths[0])


def test_rows_are_sorted_and_the_last_of_a_frame_counts(tmp_path) -> None:
    table = dict(frame=np.array([2.0, 1.0, 2.0, 3.0]), total_reward=np.array([5.0, 4.0, 6.0, 7.0]))
    traces, _ = read_page(plot_session(table, tmp_path / "demo", "demo")[1])
    assert (traces[0]["x"], traces[0]["y"]) == ([1, 2, 3], [4, 6, 7])


def test_extreme_values_are_drawn(tmp_path) -> None:
    table = make_table(rows=3) | dict(total_reward=np.array([-1e99, 0, 1e99]), loss=np.array([1e38, 1e-38, -1e38]))
    assert len(plot_session(table, tmp_path / "demo", "demo")) == 5
    assert len(draw_trial([table, make_table(rows=4)], tmp_path / "demo", "demo")) == 4


def test_sessions_share_their_axes_and_have_curves_of_their_own(tmp_path) -> None:
    tables = [make_table(seed=0), make_table(seed=1, total_reward=np.linspace(0, 5000, 30))]
    sessions = [DrawnSession(tmp_path / f"demo_s{i}", f"demo, session {i}", table) for i, table in enumerate(tables)]
    assert len(plot_sessions(sessions, "PPO")) == 10
    name = "session_graph_train_mean_returns_vs_frames.png"
    first, second = (matplotlib.image.imread(tmp_path / f"demo_s{i}_{name}") for i in (0, 1))
    # labels and ticks of the y axis are the same, the curves are not
    assert np.array_equal(first[100:, :90], second[100:, :90])
    assert not np.array_equal(first[100:], second[100:])
    plot_session(tables[0], tmp_path / "alone", "demo, session 0")
    alone = matplotlib.image.imread(tmp_path / f"alone_{name}")
    assert not np.array_equal(alone[100:, :90], first[100:, :90])


@pytest.mark.parametrize("count", [1, 4, 10])
def test_metrics_have_a_panel_each(tmp_path, count, monkeypatch) -> None:
    drawn: list[list[str]] = []
    notes: list[str] = []
    draw = plot._Sheet.draw

    def record(sheet: plot._Sheet, *arguments: Any) -> bytes:
        drawn.append([axes.get_title() for axes in sheet.figure.axes])
        notes.extend(text.get_text() for text in sheet.figure.texts if "constant" in text.get_text())
        return draw(sheet, *arguments)

    monkeypatch.setattr(plot._Sheet, "draw", record)
    metrics = [f"metric_{i}$" for i in range(count - 1)]
    table = {"lr": np.array([3.0, 2, 1]), "frame": np.arange(3.0), "fps": np.ones(3), "kl": np.full(3, np.nan)}
    table |= {"clip_eps": np.full(3, 0.2)} | {name: np.arange(3.0) for name in metrics}
    (path,) = plot_session(table, tmp_path / "demo", "demo")
    # a metric that never changes needs no panel
    assert drawn == [[*metrics, "lr"]]
    assert notes == ["constant: clip_eps 0.2"]
    assert_drawn(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (500, "500"), (2500, "2.5k"), (200_000, "200k"), (1_500_000, "1.5M"), (-50_000, "-50k"), (3e9, "3G")],
)
def test_short_numbers(value, text) -> None:
    assert plot.shorten(value) == text


def test_neither_pyplot_nor_torch_is_imported(tmp_path) -> None:
    code = f"""
import sys
from pathlib import Path
import numpy as np
from slm_lab.results.plot import plot_trial
table = dict(frame=np.arange(3.0), total_reward=np.arange(3.0))
assert plot_trial({{0: table}}, Path({str(tmp_path)!r}) / "demo", "demo", "PPO", {{}})
assert not {{"matplotlib.pyplot", "torch", "pandas"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
def test_few_sessions_have_no_interval(count, tmp_path) -> None:
    assert calc_interval(np.zeros((count, 5))) is None
    traces, _ = read_page(draw_trial([make_table(seed=i) for i in range(count)], tmp_path / "demo", "demo")[1])
    assert not any("interval" in trace["name"] for trace in traces)
    run = DrawnRun("PPO", "PPO", [make_table(seed=i) for i in range(count)])
    _, layout = read_page(plot_runs([run], tmp_path, "demo")[1])
    assert layout["title"]["subtitle"]["text"] == "no interval: fewer than 3 sessions each"


def make_long(seed: int = 0) -> Table:
    """More rows than the moving average has in its window."""
    table = make_table(rows=150, seed=seed)
    count = np.minimum(np.arange(1, 151), 100)
    sums = np.cumsum(table["total_reward"])
    sums[100:] -= sums[:-100].copy()
    return table | dict(total_reward_ma=sums / count)


def test_a_moving_average_starts_where_its_window_is_full(tmp_path) -> None:
    table = make_long()
    paths = {path.name: path for path in draw_trial([table], tmp_path / "demo", "demo")}
    traces, layout = read_page(paths["demo_trial_graph_mean_returns_ma_vs_frames.html"])
    assert traces[0]["x"] == table["frame"][99:].tolist()
    assert layout["yaxis"]["title"]["text"] == "total_reward_ma, mean of the last 100 rows"
    assert layout["title"]["subtitle"]["text"] == ""
    # an episode that has not ended yet leaves a row that does not count
    late = table | dict(total_reward=np.where(np.arange(150) < 20, np.nan, table["total_reward"]))
    assert read_curve(late, "total_reward_ma")[0][0] == table["frame"][119]


def test_a_short_run_has_its_returns_in_place_of_a_moving_average(tmp_path) -> None:
    tables = [make_table(seed=i) for i in range(2)]
    pages = [path for path in draw_trial(tables, tmp_path / "demo", "demo") if path.suffix == ".html"]
    pages += [path for path in plot_session(tables[0], tmp_path / "demo_s0", "demo") if path.suffix == ".html"]
    pages += [path for path in plot_runs([DrawnRun("a", "PPO", tables)], tmp_path, "runs") if path.suffix == ".html"]
    assert len(pages) == 6
    for returns, average in zip(pages[::2], pages[1::2], strict=True):
        assert "mean_returns_ma" in average.name
        assert read_page(average)[0] == read_page(returns)[0]
        subtitle = read_page(average)[1]["title"]["subtitle"]["text"]
        assert subtitle.startswith("fewer than 100 rows, so no moving average")


def test_evaluations_are_dots_over_the_returns(tmp_path) -> None:
    tables = {i: make_long(seed=i) for i in range(3)}
    evals = {i: make_table(rows=5, step=30_000, seed=i) for i in range(3)}
    returns, average = (
        read_page(path)[0]
        for path in plot_trial(tables, tmp_path / "demo", "demo", "PPO", evals)
        if path.suffix == ".html"
    )
    dots = next(trace for trace in returns if trace["name"] == "evaluation, deterministic policy")
    assert dots["mode"] == "markers"
    np.testing.assert_allclose(dots["y"], np.mean([table["total_reward"] for table in evals.values()], axis=0))
    assert not any("evaluation" in trace["name"] for trace in average)
    session = DrawnSession(tmp_path / "demo_s0", "demo", tables[0], evals[0])
    traces, _ = read_page(plot_sessions([session], "PPO")[1])
    assert [trace["name"] for trace in traces] == ["training", "evaluation, deterministic policy"]


def test_one_algorithm_has_one_colour_in_every_figure(tmp_path) -> None:
    table = make_table()
    colors = {read_page(plot_session(table, tmp_path / "session", "demo")[1])[0][0]["line"]["color"]}
    trial = read_page(draw_trial([table] * 4, tmp_path / "trial", "demo")[1])[0]
    colors |= {trace["line"]["color"] for trace in trial[:5]}
    runs = [DrawnRun("a", "SAC", [table]), DrawnRun("b", "PPO", [table]), DrawnRun("c", "PPO", [table])]
    traces = {trace["name"][0]: trace["line"] for trace in read_page(plot_runs(runs, tmp_path, "demo")[1])[0]}
    assert colors == {traces["b"]["color"]} == {traces["c"]["color"]} != {traces["a"]["color"]}
    assert traces["b"]["dash"] != traces["c"]["dash"]
    # an algorithm from elsewhere has the same one whatever it is drawn with
    other = [read_page(plot_runs([*runs[:n], DrawnRun("x", "TD3", [table])], tmp_path, "demo")[1])[0] for n in (0, 3)]
    assert other[0][-1]["line"] == other[1][-1]["line"]


def test_a_spike_at_the_start_does_not_flatten_a_panel() -> None:
    x = np.arange(400.0)
    rng = np.random.default_rng(0)
    calm = 1 + rng.normal(0, 0.1, 400)
    assert find_limits([(x, calm)]) is None
    limits = find_limits([(x, np.where(x < 4, 1000.0, calm))])
    assert limits is not None
    assert (limits.low, limits.high) == (calm[4:].min(), calm[4:].max())
    assert limits.highest == 1000
    # what falls over a good part of the run is no spike, nor is a step
    assert find_limits([(x, np.exp(-x / 100))]) is None
    assert find_limits([(x, np.where(x < 4, 1.0, 0.1))]) is None


def test_what_is_cut_off_is_marked(tmp_path, monkeypatch) -> None:
    marks: list[str] = []
    limits: list[tuple[float, float]] = []
    draw = plot._Sheet.draw

    def record(sheet: plot._Sheet, *arguments: Any) -> bytes:
        for axes in sheet.figure.axes:
            marks.extend(text.get_text() for text in axes.texts if text.get_text())
            limits.append(axes.get_ylim())
        return draw(sheet, *arguments)

    monkeypatch.setattr(plot._Sheet, "draw", record)
    loss = np.linspace(1, 2, 200)
    loss[0] = 12_345
    table = dict(frame=np.arange(200.0), loss=loss)
    plot_session(table, tmp_path / "demo", "demo")
    assert marks == ["to 12.3k"]
    assert limits[0][1] < 3
