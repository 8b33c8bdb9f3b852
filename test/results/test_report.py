"""The report of a run: what it says is true, nothing in it can run, and a browser draws it without a network."""

import fcntl
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loguru import logger

from slm_lab.cli.main import main
from slm_lab.experiment import trial
from slm_lab.experiment.options import Options
from slm_lab.experiment.trial import Trial
from slm_lab.lib.io import write_json, write_yaml
from slm_lab.results.curve import pick_points, read_curve
from slm_lab.results.doctor import RULES
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import calc_spread, calc_trial_metrics
from slm_lab.results.palette import COLORS
from slm_lab.results.report import PAGE, build_commands, build_report, build_spec_diff, render_page, write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.run import Run, read_run
from slm_lab.spec.loading import load_spec

Tables = dict[int, dict[str, np.ndarray]]
SPEC: dict[str, Any] = {
    "agent": {"algorithm": {"name": "PPO", "gamma": 0.99}, "net": {"hid_layers": [64, 64]}},
    "env": {"name": "CartPole-v1"},
}
HOSTILE = "</script><img src=x onerror='window.hit=1'><!--"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def make_table(rows: int = 40, step: int = 500, seed: int = 0, level: float = 480.0) -> dict[str, np.ndarray]:
    """A session that learns, noisily; its algorithm says nothing before its first training."""
    rng = np.random.default_rng(seed)
    frame = np.arange(1, rows + 1) * float(step)
    reward = np.linspace(20, level, rows) + rng.normal(0, 5, rows)
    table = dict(total_reward=reward, total_reward_ma=reward / 2, loss=rng.random(rows), fps=np.full(rows, 900.0))
    table |= dict(frame=frame, wall_t=frame / 900, t=frame, epi=frame / 100, opt_step=frame / 32)
    entropy = np.where(frame > 3 * step, rng.random(rows), math.nan)
    return table | dict(lr=np.full(rows, 3e-4), entropy=entropy)


def write_tables(folder: Path, name: str, tables: Tables, kind: str) -> None:
    (folder / "info").mkdir(parents=True, exist_ok=True)
    for session, table in tables.items():
        lines = [",".join(table)]
        rows = zip(*table.values(), strict=True)
        lines += [",".join("" if math.isnan(value) else repr(float(value)) for value in row) for row in rows]
        (folder / "info" / f"{name}_t0_s{session}_session_df_{kind}.csv").write_text("\n".join(lines) + "\n")


def write_run(
    folder: Path,
    tables: Tables | None = None,
    evals: Tables | None = None,
    name: str = "demo",
    spec: Mapping[str, Any] = SPEC,
    provenance: Mapping[str, Any] | None = None,
    has_end: bool = True,
) -> Run:
    """A run folder as a run leaves it, read back."""
    tables = {s: make_table(seed=s) for s in range(4)} if tables is None else tables
    write_tables(folder, name, tables, "train")
    write_tables(folder, name, evals or {}, "eval")
    (folder / "model").mkdir()
    if spec:
        write_yaml(folder / f"{name}_spec.yaml", {name: spec})
    if provenance is None:
        provenance = {"command": ["slm-lab", "run"], "versions": {"numpy": "2"}, "machine": {"cores": 2}, "imports": []}
    if provenance:
        write_json(folder / "info" / f"{name}_provenance.json", provenance)
    if has_end:
        metrics = calc_trial_metrics(list(tables.values()), 20.0)
        metrics |= {"num_session": len(tables), "session_index": list(tables), "failed": [], "is_complete": True}
        write_json(folder / f"{name}_t0_trial_metrics.json", metrics)
        for session in tables:
            path = folder / "info" / f"{name}_t0_s{session}_session_metrics.json"
            write_json(path, {"session": session, "is_done": True, "phases": {"act": 1.0, "env": 2.0, "update": 5.0}})
    return read_run(folder)


def read_data(page: str) -> dict[str, Any]:
    """The data inside a page, taken out as a browser does: up to the first end of a script."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.S | re.I)
    assert match
    data = json.loads(match[1])
    assert isinstance(data, dict)
    return data


def get_chart(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    charts = [chart for env in data["envs"] for chart in env["charts"] if chart["name"] == name]
    assert len(charts) == 1
    return dict(charts[0])


# --- data


@pytest.mark.parametrize("limit", [10, 300, 1000])
def test_fewer_points_keep_ends_and_extremes(limit) -> None:
    y = np.random.default_rng(0).normal(size=9973)
    y[1234], y[7777] = 50.0, -50.0
    picked = pick_points(y, limit)
    assert len(picked) <= limit
    assert (np.diff(picked) > 0).all()
    assert {0, 1234, 7777, len(y) - 1} <= set(picked.tolist())


def test_a_peak_of_one_row_survives_wherever_it_is() -> None:
    for place in range(0, 5000, 7):
        y = np.zeros(5000)
        y[place] = 1.0
        assert place in pick_points(y, 100)


def test_few_points_stay_as_they_are() -> None:
    assert pick_points(np.arange(1000.0), 1000).tolist() == list(range(1000))
    assert pick_points(np.array([]), 1000).tolist() == []


def test_curves_are_those_of_the_tables(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    data = build_report([run], tmp_path)
    curves = get_chart(data, "train")["raw"]
    assert [curve["session"] for curve in curves] == [0, 1, 2, 3, None]
    for session in range(4):
        np.testing.assert_allclose(curves[session]["y"], run.tables[session]["total_reward"], rtol=1e-6)
        assert curves[session]["x"] == run.tables[session]["frame"].tolist()
    stack = np.stack([table["total_reward"] for table in run.tables.values()])
    np.testing.assert_allclose(curves[4]["y"], stack.mean(0), rtol=1e-5)
    assert (stack.min(0) <= np.array(curves[4]["low"]) + 1e-3).all()
    assert (np.array(curves[4]["high"]) <= stack.max(0) + 1e-3).all()
    # no moving average of fewer rows than its window
    assert get_chart(data, "train")["ma"] == []
    # the first rows have no entropy, and the learning rate never changes
    assert len(get_chart(data, "entropy")["raw"][0]["y"]) == 37
    assert [chart["name"] for chart in data["envs"][0]["charts"]] == ["train", "loss", "entropy"]
    assert data["envs"][0]["constants"] == "constant: lr 0.0003"


def test_a_moving_average_starts_where_its_window_is_full(tmp_path) -> None:
    run = write_run(tmp_path / "run", {0: make_table(rows=130)})
    (curve,) = get_chart(build_report([run], tmp_path), "train")["ma"]
    assert curve["x"] == run.tables[0]["frame"][99:].tolist()
    np.testing.assert_allclose(curve["y"], run.tables[0]["total_reward_ma"][99:], rtol=1e-6)


def test_a_spike_is_cut_off_and_told(tmp_path) -> None:
    table = make_table(rows=200)
    table["loss"][0] = 1e6
    chart = get_chart(build_report([write_run(tmp_path / "run", {0: table})], tmp_path), "loss")
    assert chart["limits"][1] < 2
    assert chart["limits"][3] == chart["raw"][0]["y"][0] == 1e6


def test_the_score_is_that_of_the_last_rows(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    (shown,) = build_report([run], tmp_path)["runs"]
    written = asdict(calc_spread([float(table["total_reward"][-1]) for table in run.tables.values()]))
    assert shown["score"]["mean"] == pytest.approx(written["mean"])
    assert shown["score"]["low"] == pytest.approx(written["low"])
    assert [value for _, value in shown["score"]["values"]] == pytest.approx(written["values"])
    facts = {name: value for name, value, _ in shown["facts"]}
    assert facts["Score"] == f"{written['mean']:.2f}"
    assert facts["95 % interval"] == f"[{written['low']:.2f}, {written['high']:.2f}]"
    assert facts["IQM"] == f"{written['iqm']:.2f}"
    assert [row[2] for row in shown["sessions"]["rows"]] == [f"{value:.2f}" for value in written["values"]]
    assert shown["title"] == "PPO on CartPole-v1"
    assert shown["problems"] == []
    metrics = {row[0]: row[1] for row in shown["metrics"]["rows"]}
    assert metrics["strength"] == f"{run.metrics['scalar']['strength']:.2f}"
    assert shown["phases"]["rows"][0] == {"label": "all", "time": "32s", "shares": [0.125, 0.25, 0.625]}


def test_a_failed_session_is_shown_and_does_not_count(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    metrics = {**run.metrics, "session_index": [0, 1, 3], "failed": [2], "is_complete": False}
    write_json(tmp_path / "run" / "demo_t0_trial_metrics.json", metrics)
    (shown,) = build_report([read_run(tmp_path / "run")], tmp_path)["runs"]
    assert [session for session, _ in shown["score"]["values"]] == [0, 1, 3]
    assert [row[1] for row in shown["sessions"]["rows"]] == ["done", "done", "failed", "done"]
    assert "failed and not in the score: session 2" in shown["problems"]


def write_failed_run(folder: Path) -> Run:
    """Three sessions that end well, and one that failed halfway, far behind them."""
    tables = {s: make_table(seed=s) for s in range(4)}
    tables[2] = make_table(rows=20, level=30.0)
    run = write_run(folder, tables, evals={s: {**table, "total_reward": table["loss"]} for s, table in tables.items()})
    write_json(folder / "demo_t0_trial_metrics.json", {**run.metrics, "session_index": [0, 1, 3], "failed": [2]})
    return read_run(folder)


def test_a_failed_session_is_drawn_but_not_in_means(tmp_path) -> None:
    run = write_failed_run(tmp_path / "run")
    data = build_report([run], tmp_path)
    chart = get_chart(data, "train")
    assert [curve["session"] for curve in chart["raw"]] == [0, 1, 2, 3, None]
    assert [curve["session"] for curve in chart["evals"]] == [None]
    for curve, tables in ((chart["raw"][4], run.tables), (chart["evals"][0], run.eval_tables)):
        stack = np.stack([tables[session]["total_reward"] for session in (0, 1, 3)])
        np.testing.assert_allclose(curve["y"], stack.mean(0), rtol=1e-5)
    assert not any("unequal length" in problem for problem in data["runs"][0]["problems"])
    last = np.mean([run.eval_tables[session]["total_reward"][-1] for session in (0, 1, 3)])
    assert ["Score", f"{last:.4g}"] in [fact[:2] for fact in data["runs"][0]["facts"]]


def test_a_failed_session_is_not_compared(tmp_path) -> None:
    runs = [write_failed_run(tmp_path / "a"), write_run(tmp_path / "b", {s: make_table(seed=s) for s in (0, 1, 3)})]
    same = [write_run(tmp_path / "c", {s: make_table(seed=s) for s in (0, 1, 3)}), runs[1]]
    assert compare_runs(runs) == compare_runs(same)
    comparison = build_report(runs, tmp_path)["comparison"]
    assert comparison["rows"][0][2:] == comparison["rows"][1][2:]


def test_evaluations_are_the_score_and_over_the_curve(tmp_path) -> None:
    evals = {session: make_table(rows=5, step=4000, seed=session) for session in range(4)}
    run = write_run(tmp_path / "run", evals=evals)
    data = build_report([run], tmp_path)
    last = np.mean([table["total_reward"][-1] for table in evals.values()])
    facts = {name: (value, note) for name, value, note in data["runs"][0]["facts"]}
    assert facts["Score"][0] == f"{last:.2f}"
    assert facts["Score"][1].startswith("deterministic policy")
    training = np.mean([table["total_reward"][-1] for table in run.tables.values()])
    assert facts["While training"] == (f"{training:.2f}", "last 100 episodes, exploring")
    (dots,) = get_chart(data, "train")["evals"]
    assert dots["x"] == evals[0]["frame"].tolist()
    assert [row[2] for row in data["runs"][0]["sessions"]["rows"]] == [
        f"{table['total_reward'][-1]:.2f}" for table in evals.values()
    ]


@pytest.mark.parametrize("rows", [0, 5])
def test_the_last_dot_is_the_score(tmp_path, rows) -> None:
    """The evaluation at the end is on the curve, also where there was none before, or one at the same frame."""
    run = write_run(tmp_path / "run", evals={s: make_table(rows, step=4000, seed=s) for s in range(4) if rows})
    for session in range(4):
        path = tmp_path / "run" / "info" / f"demo_t0_s{session}_session_metrics.json"
        write_json(path, {"session": session, "frame": 20_000, "final_eval": [490.0, 490.0 + session]})
    data = build_report([read_run(run.path)], tmp_path)
    (dots,) = get_chart(data, "train")["evals"]
    assert len(dots["x"]) == max(rows, 1)
    assert dots["x"][-1] == 20_000
    assert dots["y"][-1] == data["runs"][0]["score"]["mean"] == 490.75
    assert data["runs"][0]["facts"][0][:2] == ["Score", "490.75"]


def test_sessions_of_unequal_length(tmp_path) -> None:
    run = write_run(tmp_path / "run", {0: make_table(40), 1: make_table(25, seed=1), 2: make_table(33, seed=2)})
    data = build_report([run], tmp_path)
    curves = get_chart(data, "train")["raw"]
    assert [curve["x"][-1] for curve in curves] == [20_000, 12_500, 16_500, 12_500]
    (problem,) = data["runs"][0]["problems"]
    assert "unequal length" in problem
    assert "12,500 in session 1" in problem


def test_one_session_has_no_mean_and_no_interval(tmp_path) -> None:
    data = build_report([write_run(tmp_path / "run", {0: make_table()})], tmp_path)
    assert [curve["session"] for curve in get_chart(data, "train")["raw"]] == [0]
    assert not {"95 % interval", "IQM"} & {fact[0] for fact in data["runs"][0]["facts"]}
    render_page(data)


def test_columns_without_a_value_are_named(tmp_path) -> None:
    table = make_table() | {"kl": np.full(40, math.nan), "total_reward": np.full(40, math.nan)}
    data = build_report([write_run(tmp_path / "run", {0: table, 1: table})], tmp_path)
    assert "no value in column kl" in data["runs"][0]["problems"]
    assert any("no episode has ended" in problem for problem in data["runs"][0]["problems"])
    assert [chart["name"] for chart in data["envs"][0]["charts"]] == ["loss", "entropy"]
    assert data["runs"][0]["score"]["mean"] is None
    render_page(data)


def test_what_is_missing_is_said_and_the_rest_is_shown(tmp_path) -> None:
    run = write_run(tmp_path / "run", spec={}, provenance={}, has_end=False)
    (tmp_path / "run" / "info" / "demo_t0_s3_session_df_train.csv").write_text("frame,total_reward\n1,x\n")
    run = read_run(tmp_path / "run")
    data = build_report([run], tmp_path)
    problems = "\n".join(data["runs"][0]["problems"])
    for part in ("demo_spec.yaml", "no trial_metrics.json", "no provenance.json", "demo_t0_s3_session_df_train.csv"):
        assert part in problems
    assert len(data["runs"][0]["problems"]) == 4
    assert data["title"] == "unknown algorithm on unknown env"
    assert [curve["session"] for curve in get_chart(data, "train")["raw"]] == [0, 1, 2, None]
    assert data["runs"][0]["metrics"] is None
    render_page(data)


def test_tables_with_few_columns_are_shown(tmp_path) -> None:
    short = {name: make_table()[name] for name in ("frame", "total_reward")}
    run = write_run(tmp_path / "run", {0: short, 1: make_table(rows=110)}, has_end=False)
    data = build_report([run], tmp_path)
    assert ["Time", "1m01s"] in [fact[:2] for fact in data["runs"][0]["facts"]]
    assert data["runs"][0]["sessions"]["rows"][0][-1] == "–"
    assert [curve["session"] for curve in get_chart(data, "train")["ma"]] == [1]


def test_files_of_a_wrong_form_do_no_harm(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    wrong = {"scalar": {"strength": "x"}, "sessions": [1], "session_index": "x", "failed": 3, "num_session": None}
    write_json(tmp_path / "run" / "demo_t0_trial_metrics.json", wrong)
    write_json(tmp_path / "run" / "info" / "demo_provenance.json", {"command": "x", "versions": [1], "imports": {}})
    write_json(tmp_path / "run" / "info" / "demo_t0_s0_session_metrics.json", {"phases": {"act": "x"}})
    (shown,) = build_report([read_run(tmp_path / "run")], tmp_path)["runs"]
    assert len(shown["score"]["values"]) == len(run.tables)
    assert shown["machine"] == []


# --- the doctor


def level_run(folder: Path, **columns: float) -> Run:
    """A run that is done learning, with columns of its algorithm that stay where they are."""
    rows = 100
    level = 480 + np.random.default_rng(0).normal(0, 5, rows)
    constant = {name: np.full(rows, value) for name, value in columns.items()}
    return write_run(folder, {0: make_table(rows) | {"total_reward": level} | constant})


def test_findings_of_the_doctor_are_in_the_report(tmp_path) -> None:
    run = level_run(tmp_path / "run", kl=0.4, explained_var=0.0, val_loss=50.0, clip_frac=0.5)
    doctor = build_report([run], tmp_path)["runs"][0]["doctor"]
    assert [(finding["level"], finding["title"]) for finding in doctor["findings"]] == [
        ("warn", "values explain nothing"),
        ("warn", "KL large"),
        ("info", "clip fraction high"),
    ]
    assert doctor["conclusion"] == ""
    kl = doctor["findings"][1]
    assert kl["seen"].startswith("kl is 0.4, the median")
    assert kl["keys"][0] == "agent.algorithm.target_kl"
    assert all(key in kl["advice"] for key in kl["keys"])
    render_page(build_report([run], tmp_path))


def test_a_run_without_findings_is_told_so(tmp_path) -> None:
    quiet, mentioned = level_run(tmp_path / "quiet"), level_run(tmp_path / "mentioned", clip_frac=0.5)
    short = write_run(tmp_path / "short", {0: make_table(7)})
    runs = build_report([quiet, mentioned, short], tmp_path)["runs"]
    assert [len(run["doctor"]["findings"]) for run in runs] == [0, 1, 0]
    remark = f"No warnings: {len(RULES)} rules looked at 100 rows."
    assert runs[0]["doctor"]["conclusion"] == remark
    # not beside a remark
    assert runs[1]["doctor"]["conclusion"] == ""
    assert runs[2]["doctor"]["conclusion"].startswith("Too short to judge: 7 row(s)")


# --- several runs


def test_runs_side_by_side(tmp_path) -> None:
    other = {**SPEC, "agent": {"algorithm": {"name": "PPO", "gamma": 0.9}, "net": {"hid_layers": [64]}, "memory": {}}}
    first = write_run(tmp_path / "a")
    worse = {session: make_table(seed=session, level=90.0) for session in range(4)}
    second = write_run(tmp_path / "b", worse, spec=other)
    third = write_run(tmp_path / "c", spec={**SPEC, "env": {"name": "Acrobot-v1"}})
    runs = [first, second, third]
    data = build_report(runs, tmp_path, compare_runs(runs))
    assert data["title"] == "PPO on CartPole-v1, Acrobot-v1"
    assert [env["name"] for env in data["envs"]] == ["CartPole-v1", "Acrobot-v1"]
    assert {curve["run"] for curve in data["envs"][0]["charts"][0]["raw"]} == {0, 1}
    assert {curve["run"] for curve in data["envs"][1]["charts"][0]["raw"]} == {2}
    rows = data["comparison"]["rows"]
    assert [len(row) for row in rows] == [len(data["comparison"]["head"])] * 3
    assert re.fullmatch(r"-\d+\.\d\d \[-\d+\.\d\d, -\d+\.\d\d\]", rows[1][-2])
    assert rows[1][-1].startswith("0.00 [0.00, ")
    assert rows[0][-2:] == rows[2][-2:] == ["–", "–"]
    (verdict,) = data["comparison"]["verdicts"]
    assert verdict.startswith("b: probability of improvement 0.00 [0.00, ")
    diff = build_spec_diff([first, second], ["a", "b"])
    assert diff["head"] == ["key", "a", "b"]
    assert diff["rows"] == [
        ["agent.algorithm.gamma", "0.99", "0.9"],
        ["agent.net.hid_layers", "[64, 64]", "[64]"],
        ["agent.memory", "–", "{}"],
    ]


def test_equal_names_become_paths(tmp_path) -> None:
    runs = [write_run(tmp_path / "x" / "run"), write_run(tmp_path / "y" / "run")]
    data = build_report(runs, tmp_path)
    assert [run["name"] for run in data["runs"]] == [str(tmp_path / "x" / "run"), str(tmp_path / "y" / "run")]
    assert data["spec_diff"]["rows"] == []


# --- commands and links


def test_commands_can_be_typed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("my data/run"), provenance={"imports": ["my_algorithm"]})
    assert build_commands(run) == [
        ["Repeat", "slm-lab run 'my data/run/demo_spec.yaml' demo train --import my_algorithm"],
        ["Continue", "slm-lab run 'train@my data/run' --import my_algorithm"],
        ["Replay", "slm-lab run 'enjoy@my data/run' --import my_algorithm"],
        ["Report", "slm-lab report 'my data/run'"],
    ]


def test_videos_are_linked_from_where_the_page_is(tmp_path) -> None:
    run = write_run(tmp_path / "a#b" / "run")
    (run.path / "video").mkdir()
    for name in ("demo_t0_s0_f20000.mp4", "demo_t0_s0_f3000.mp4", "other.mp4"):
        (run.path / "video" / name).touch()
    inside = build_report([run], run.path)["runs"][0]["videos"]
    assert inside == [
        {"label": "frame 3,000", "link": "video/demo_t0_s0_f3000.mp4"},
        {"label": "frame 20,000", "link": "video/demo_t0_s0_f20000.mp4"},
    ]
    outside = build_report([run], tmp_path / "pages")["runs"][0]["videos"]
    assert outside[0]["link"] == "../a%23b/run/video/demo_t0_s0_f3000.mp4"


# --- the page


def hostile_run(folder: Path) -> Run:
    """A run whose every text is an attack on the page."""
    table = make_table() | {HOSTILE: np.ones(40)}
    spec = {"agent": {"algorithm": {"name": HOSTILE}, HOSTILE: HOSTILE}, "env": {"name": HOSTILE}}
    provenance = {"command": [HOSTILE], "git_sha": HOSTILE, "versions": {HOSTILE: HOSTILE}, "imports": [HOSTILE]}
    run = write_run(folder / "<img src=x onerror=alert(1)>", {0: table, 1: table}, spec=spec, provenance=provenance)
    (run.path / "info" / "demo_t0_s2_session_df_train.csv").write_text(f"{HOSTILE}\n1\n")
    return read_run(run.path)


def test_texts_of_strangers_stay_texts(tmp_path) -> None:
    run = hostile_run(tmp_path)
    data = build_report([run], tmp_path, problems=[HOSTILE])
    page = render_page(data)
    assert "<img" not in page
    assert page.lower().count("</script") == 2
    assert "<!--" not in page
    assert read_data(page) == json.loads(json.dumps(data))
    assert data["title"] == f"{HOSTILE} on {HOSTILE}"


def test_page_is_small_with_long_tables(tmp_path) -> None:
    metrics = ("policy_loss", "alpha", "q", "td_error", "grad_norm", "kl", "clip_frac", "explained_var")
    rng = np.random.default_rng(0)
    tables = {s: make_table(10_000, seed=s) | {name: rng.random(10_000) for name in metrics} for s in range(4)}
    run = write_run(tmp_path / "run", tables)
    path = tmp_path / "report.html"
    write_report([run], path)
    assert path.stat().st_size < 1_500_000
    data = read_data(path.read_text())
    for env in data["envs"]:
        for chart in env["charts"]:
            assert max(len(curve["x"]) for curve in chart["raw"]) <= (300 if chart["is_small"] else 1000)
    curve = get_chart(data, "train")["raw"][2]
    _, y = read_curve(tables[2], "total_reward")
    assert [min(curve["y"]), max(curve["y"])] == pytest.approx([y.min(), y.max()], rel=1e-6)


def test_same_run_same_page(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    assert render_page(build_report([run], tmp_path)) == render_page(build_report([run], tmp_path))


def test_colours_are_those_of_the_graphs(tmp_path) -> None:
    """Those of the algorithms, whatever the order of the runs; the page has no other of its own."""
    specs = [{**SPEC, "agent": {"algorithm": {"name": name}}} for name in ("SARSA", "PPO", "PPO")]
    runs = [write_run(tmp_path / f"run_{i}", {0: make_table()}, spec=spec) for i, spec in enumerate(specs)]
    data = build_report(runs, tmp_path)
    assert [run["color"] for run in data["runs"]] == ["var(--color-yellow)", "var(--color-red)", "var(--color-red)"]
    assert data["runs"][1]["dash"] != data["runs"][2]["dash"]
    (alone,) = build_report(runs[2:], tmp_path)["runs"]
    assert alone["color"] == "var(--color-red)"
    page = render_page(data)
    for name, (light, dark) in COLORS.items():
        assert f"--color-{name}:{light}" in page
        assert f"--color-{name}:{dark}" in page
    assert not re.search(r"#[0-9A-Fa-f]{6}", (PAGE / "page.js").read_text())


def test_page_names_no_other_file_and_no_address() -> None:
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.|@import|url\(|<link|innerHTML|insertAdjacent|\beval\b", text), path.name


def test_reports_need_neither_torch_nor_in_a_run_the_slow_statistics() -> None:
    script = """
import sys
import slm_lab.results.report
assert not {"torch", "matplotlib", "plotly", "scipy.stats"} & set(sys.modules)
import slm_lab.cli.report
assert not {"torch", "gymnasium", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# --- the command, and the end of a run


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["slm-lab", "report", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_command_writes_into_the_folder_or_where_it_is_told(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("data/one"))
    write_run(Path("runs/two"))
    assert call(monkeypatch, "one") == 0
    assert capsys.readouterr().out == "Report   data/one/report.html\n"
    assert "</html>" in Path("data/one/report.html").read_text()
    assert call(monkeypatch, "two", "--data-dir", "runs", "-o", "pages/two.html") == 0
    assert read_data(Path("pages/two.html").read_text())["runs"][0]["name"] == "two"
    assert call(monkeypatch, "one", "-o", "pages") == 0
    assert Path("pages/report.html").exists()


def test_command_compares_several_runs_and_says_what_it_left_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("data/one"))
    write_run(Path("data/two"))
    assert call(monkeypatch, "one", "two") == 2
    assert "add -o FILE.html" in capsys.readouterr().err
    assert call(monkeypatch, "one", "two", "three", "-o", "all.html") == 0
    assert "Left out: no run folder 'three'" in capsys.readouterr().err
    data = read_data(Path("all.html").read_text())
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    assert data["problems"] == ["left out: no run folder 'three' (`slm-lab list` shows the runs in data)"]
    assert "two: probability of improvement 0.50" in data["comparison"]["verdicts"][0]
    assert call(monkeypatch, "three") == 2
    assert capsys.readouterr().err.startswith("Error: no run folder 'three'")


def test_a_report_that_cannot_be_written_loses_no_run(tmp_path, monkeypatch) -> None:
    run = write_run(tmp_path / "run")
    end = Trial(load_spec("ppo_cartpole").spec, RunFolder(run.path, run.name), Options())
    assert end._write_report(run) == tmp_path / "run" / "report.html"
    lines: list[str] = []
    handle = logger.add(lines.append, format="{level} {message}")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("of no use")

    monkeypatch.setattr(trial, "write_report", fail)
    try:
        assert end._write_report(run) is None
    finally:
        logger.remove(handle)
    assert lines == ["WARNING No report: ZeroDivisionError: of no use\n"]


# --- in a browser


class Browser:
    """A browser without a window, spoken to through a pipe."""

    def __init__(self, profile: Path) -> None:
        # 3 and 4 are the browser's names for the two pipes, so ours must be others
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for _ in range(2) for end in os.pipe()]
        reads, self.writer, self.reader, writes = pipes

        def connect() -> None:
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        assert BROWSER is not None
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-dev-shm-usage"]
        self.process = subprocess.Popen(
            [BROWSER, *flags], preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self.count = 0
        self.buffer = b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self.count += 1
        number = self.count
        message = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def receive(self, wait: float = 60.0) -> dict[str, Any]:
        """The next message; events are kept."""
        deadline = time.monotonic() + wait
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self.reader, 1 << 16)
            assert data, "the browser has ended"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, width: int = 1200) -> None:
        """Show a file, until it is loaded."""
        if self.session is None:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def find_errors(self) -> list[dict[str, Any]]:
        """What the console would show in red."""
        self.run("new Promise((done) => setTimeout(done, 100))")
        return [
            event["params"]
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
            or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))
        ]

    def find_requests(self) -> list[str]:
        """Everything that was asked for, but for the browser's own pictures of buttons."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [url for event in sent if not (url := str(event["request"]["url"])).startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        self.session = None
        try:
            self.send("Browser.close")
            self.process.wait(20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.reader)
        os.close(self.writer)


in_browser = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BROWSER is None:
        pytest.skip(f"no browser found: none of {', '.join(BROWSERS)} is on the PATH")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    """Opens the report of runs."""

    def show(*runs: Run, width: int = 1200) -> Browser:
        path = runs[0].path / "report.html" if len(runs) == 1 else tmp_path / "report.html"
        write_report(runs, path, compare_runs(runs))
        browser.open(path, width)
        return browser

    return show


def drawn(browser: Browser, chart: str) -> dict[str, int]:
    """The curves of a chart and how many points each has."""
    script = f"""Object.fromEntries([...document.querySelectorAll('[data-chart="{chart}"] path.curve')]
        .map((path) => [path.dataset.curve, path.getAttribute("d").split("L").length]))"""
    return dict(browser.run(script))


@in_browser
def test_page_opens_offline_and_draws(tmp_path, show) -> None:
    evals = {session: make_table(rows=5, step=4000, seed=session) for session in range(4)}
    run = write_run(tmp_path / "run", evals=evals)
    page = show(run)
    assert page.find_errors() == []
    assert page.find_requests() == [(run.path / "report.html").as_uri()]
    assert page.run("document.title") == page.run("document.querySelector('h1').textContent") == "PPO on CartPole-v1"
    assert drawn(page, "train") == {"0/0": 40, "0/1": 40, "0/2": 40, "0/3": 40, "0/mean": 40}
    assert page.run("document.querySelectorAll('circle.evaluation').length") == 5
    assert drawn(page, "entropy")["0/2"] == 37
    # of the returns, loss and entropy; the learning rate never changes
    assert page.run("document.querySelectorAll('path.band').length") == 3
    assert "constant: lr 0.0003" in page.run("document.body.innerText")
    assert page.run("document.querySelectorAll('[data-score]').length") == 4
    # what was drawn has a height: the curve rises
    box = page.run("(() => {const b = document.querySelector('path.curve').getBBox(); return [b.width, b.height]})()")
    assert box[0] > 800
    assert box[1] > 150
    text = page.run("document.body.innerText")
    for part in (f"slm-lab run train@{run.path}", f"slm-lab run enjoy@{run.path}", "cores", "update 62.5 %"):
        assert part in text
    assert "20k" in page.run("[...document.querySelectorAll('.tick')].map((tick) => tick.textContent).join(' ')")


@in_browser
def test_a_click_hides_a_session_in_every_chart(tmp_path, show) -> None:
    page = show(write_run(tmp_path / "run", {s: make_table(rows=120, seed=s) for s in range(4)}))
    click = "document.querySelector('[data-toggle=\"{}\"]').click()"
    page.run(click.format("0/1"))
    assert set(drawn(page, "train")) == {"0/0", "0/2", "0/3", "0/mean"}
    assert set(drawn(page, "loss")) == {"0/0", "0/2", "0/3", "0/mean"}
    assert page.run("document.querySelector('[data-toggle=\"0/1\"]').getAttribute('aria-pressed')") == "false"
    page.run(click.format("0/1"))
    assert "0/1" in drawn(page, "train")
    page.run(click.format("0/band"))
    assert page.run("document.querySelectorAll('path.band').length") == 0
    page.run(click.format("0/all"))
    page.run(click.format("0/mean"))
    assert drawn(page, "train") == {}
    assert "all curves are hidden" in page.run("document.querySelector('[data-chart=train]').textContent")
    page.run(click.format("0/all"))
    ticks = "document.querySelector('[data-chart=train] svg').textContent"
    assert "400" in page.run(ticks)
    # the moving average of these tables is half of the reward, and the title says what is drawn
    assert "mean of the last 100 episodes" in page.run("document.querySelector('[data-chart=train]').textContent")
    page.run(click.format("smooth"))
    assert "400" not in page.run(ticks)
    assert "total_reward_ma" in page.run("document.querySelector('[data-chart=train] figcaption').textContent")
    assert page.find_errors() == []


@in_browser
def test_the_doctor_is_drawn_with_keys_as_code(tmp_path, show) -> None:
    page = show(level_run(tmp_path / "run", kl=0.4, clip_frac=0.5))
    assert page.find_errors() == []
    titles = "[...document.querySelectorAll('[data-finding]')].map((box) => [box.className, box.dataset.finding])"
    assert page.run(titles) == [["finding warn", "KL large"], ["finding info", "clip fraction high"]]
    text = page.run("document.querySelector('[data-finding=\"KL large\"]').innerText")
    words = " ".join(text.split())
    assert words.startswith("KL large Seen kl is 0.4, the median")
    assert "Try set agent.algorithm.target_kl (0.02 is common), or lower agent.net.optim_spec.lr or agent" in words
    keys = page.run("[...document.querySelectorAll('[data-finding=\"KL large\"] code')].map((key) => key.textContent)")
    assert keys == ["agent.algorithm.target_kl", "agent.net.optim_spec.lr", "agent.algorithm.training_epoch"]
    assert "No warnings" not in page.run("document.body.innerText")
    page = show(level_run(tmp_path / "quiet"), level_run(tmp_path / "bad", kl=0.4), width=360)
    section = "[...document.querySelectorAll('section')].find((one) => one.firstChild.textContent === 'Doctor')"
    words = " ".join(page.run(f"{section}.innerText").split())
    assert re.match(r"Doctor quiet No warnings: \d+ rules looked at 100 rows. bad KL large Seen", words)
    assert page.run("document.documentElement.scrollWidth") <= 360


@in_browser
def test_a_pointer_reads_values(tmp_path, show) -> None:
    run = write_run(tmp_path / "run")
    page = show(run)
    page.run(
        """(() => {
        const svg = document.querySelector("[data-chart=train] svg");
        const box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 14, clientY: box.top + 50}));
    })()"""
    )
    tip = page.run("document.querySelector('[data-chart=train] .tip').innerText")
    assert "frame 20,000" in tip
    assert re.findall(r"mean|session \d", tip) == ["mean", "session 0", "session 1", "session 2", "session 3"]
    assert f"{run.tables[3]['total_reward'][-1]:.2f}" in tip


@in_browser
def test_a_command_is_copied(tmp_path, show) -> None:
    run = write_run(tmp_path / "run")
    page = show(run)
    page.run(
        """(async () => {
        const clipboard = {writeText: async (text) => { window.copied = text; }};
        Object.defineProperty(navigator, "clipboard", {value: clipboard});
        document.querySelectorAll(".command .copy")[1].click();
        await new Promise((done) => setTimeout(done, 50));
    })()"""
    )
    assert page.run("window.copied") == f"slm-lab run train@{run.path}"
    assert page.run("document.querySelectorAll('.command .copy')[1].textContent") == "Copied"


@in_browser
def test_strangers_run_nothing(tmp_path, show) -> None:
    page = show(hostile_run(tmp_path))
    assert page.find_errors() == []
    assert len(page.find_requests()) == 1
    assert page.run("[window.hit === undefined, document.images.length]") == [True, 0]
    assert page.run("document.querySelector('h1').textContent") == f"{HOSTILE} on {HOSTILE}"
    assert page.run("document.title") == f"{HOSTILE} on {HOSTILE}"
    # a handler that got in all the same would be refused
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')")
    assert page.find_errors() != []
    assert page.run("window.hit === undefined")


@in_browser
def test_a_video_may_be_loaded(tmp_path, show) -> None:
    run = write_run(tmp_path / "run", {0: make_table()})
    (run.path / "video").mkdir()
    (run.path / "video" / "demo_t0_s0_f500.mp4").write_bytes(b"no video, but a file")
    page = show(run)
    assert page.find_errors() == []
    assert page.run("document.querySelector('video').src") == (run.path / "video" / "demo_t0_s0_f500.mp4").as_uri()
    # a refusal by the page's policy would be told as an error, and nothing would be asked for
    assert page.find_requests()[1:] == [(run.path / "video" / "demo_t0_s0_f500.mp4").as_uri()]
    assert drawn(page, "train") == {"0/0": 40}


@in_browser
def test_runs_side_by_side_fit_a_phone(tmp_path, show) -> None:
    other = {**SPEC, "agent": {"algorithm": {"name": "PPO", "gamma": 0.9}}}
    page = show(write_run(tmp_path / "first"), write_run(tmp_path / "second", spec=other), width=360)
    assert page.find_errors() == []
    # sessions are a click away
    assert set(drawn(page, "train")) == {"0/mean", "1/mean"}
    page.run("document.querySelector('[data-toggle=\"1/2\"]').click()")
    assert set(drawn(page, "train")) == {"0/mean", "1/mean", "1/2"}
    assert page.run("document.documentElement.scrollWidth") <= 360
    text = page.run("document.body.innerText")
    assert "probability of improvement 0.50" in text
    assert "agent.algorithm.gamma" in text
