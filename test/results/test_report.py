"""The data of a report: what it says is true, and nothing in it can run."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm_lab.lib.io import write_json, write_text, write_yaml
from slm_lab.results.curve import pick_points, read_curve
from slm_lab.results.doctor import RULES
from slm_lab.results.metrics import calc_spread
from slm_lab.results.page import PAGE, render_page
from slm_lab.results.palette import COLORS
from slm_lab.results.report import build_commands, build_report, build_spec_diff, write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.report_search import build_search_report
from slm_lab.results.run import Run, read_run
from test.cli.command import call
from test.results.sample import SPEC, make_table, write_run

HTML = "</script><img src=x onerror='window.hit=1'><!--"


def read_data(page: str) -> dict[str, Any]:
    """The data inside a page, taken out as a browser does: up to the first end of a script."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.S | re.I)
    assert match
    data = json.loads(match[1])
    assert isinstance(data, dict)
    return data


def build(*runs: Run) -> dict[str, Any]:
    """The report of runs, which can be rendered."""
    data = build_report(runs, runs[0].path.parent, compare_runs(runs))
    render_page(data)
    return data


def get_chart(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    charts = [chart for env in data["envs"] for chart in env["charts"] if chart["name"] == name]
    assert len(charts) == 1
    return dict(charts[0])


# --- curves


@pytest.mark.parametrize("limit", [10, 300, 1000])
def test_fewer_points_keep_ends_and_extremes(limit) -> None:
    y = np.random.default_rng(0).normal(size=9973)
    y[1234], y[7777] = 50.0, -50.0
    picked = pick_points(y, limit)
    assert len(picked) <= limit
    assert (np.diff(picked) > 0).all()
    assert {0, 1234, 7777, len(y) - 1} <= set(picked.tolist())
    assert pick_points(np.arange(float(limit)), limit).tolist() == list(range(limit))
    assert pick_points(np.array([]), limit).tolist() == []


def test_curves_are_those_of_the_tables(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    data = build(run)
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


def test_averages_start_with_a_full_window_and_spikes_are_cut_off(tmp_path) -> None:
    table = make_table(rows=200)
    table["loss"][0] = 1e6
    data = build(write_run(tmp_path / "run", {0: table}))
    (curve,) = get_chart(data, "train")["ma"]
    assert curve["x"] == table["frame"][99:].tolist()
    np.testing.assert_allclose(curve["y"], table["total_reward_ma"][99:], rtol=1e-6)
    loss = get_chart(data, "loss")
    assert loss["limits"][1] < 2
    assert loss["limits"][3] == loss["raw"][0]["y"][0] == 1e6


@pytest.mark.parametrize("rows", [0, 5])
def test_the_last_dot_is_the_score(tmp_path, rows) -> None:
    """The evaluation at the end is on the curve, also where there was none before, or one at the same frame."""
    run = write_run(tmp_path / "run", evals={s: make_table(rows, step=4000, seed=s) for s in range(4) if rows})
    for session in range(4):
        path = tmp_path / "run" / "info" / f"demo_t0_s{session}_session_metrics.json"
        write_json(path, {"session": session, "frame": 20_000, "final_eval": [490.0, 490.0 + session]})
    data = build(read_run(run.path))
    (dots,) = get_chart(data, "train")["evals"]
    assert (len(dots["x"]), dots["x"][-1]) == (max(rows, 1), 20_000)
    assert dots["y"][-1] == data["runs"][0]["score"]["mean"] == 490.75
    assert data["runs"][0]["facts"][0][:2] == ["Score", "490.75"]


def test_sessions_of_unequal_length(tmp_path) -> None:
    data = build(write_run(tmp_path / "run", {0: make_table(40), 1: make_table(25, seed=1), 2: make_table(33, seed=2)}))
    assert [curve["x"][-1] for curve in get_chart(data, "train")["raw"]] == [20_000, 12_500, 16_500, 12_500]
    (problem,) = data["runs"][0]["problems"]
    assert "unequal length" in problem
    assert "12,500 in session 1" in problem


# --- one run


def test_the_score_is_that_of_the_last_rows(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    (shown,) = build(run)["runs"]
    written = asdict(calc_spread([float(table["total_reward"][-1]) for table in run.tables.values()]))
    assert shown["score"]["mean"] == pytest.approx(written["mean"])
    assert shown["score"]["low"] == pytest.approx(written["low"])
    assert [value for _, value in shown["score"]["values"]] == pytest.approx(written["values"])
    facts = {name: value for name, value, _ in shown["facts"]}
    assert facts["Score"] == f"{written['mean']:.2f}"
    assert facts["95 % interval"] == f"[{written['low']:.2f}, {written['high']:.2f}]"
    assert facts["IQM"] == f"{written['iqm']:.2f}"
    assert [row[2] for row in shown["sessions"]["rows"]] == [f"{value:.2f}" for value in written["values"]]
    assert (shown["title"], shown["problems"]) == ("PPO on CartPole-v1", [])
    metrics = {row[0]: row[1] for row in shown["metrics"]["rows"]}
    assert metrics["strength"] == f"{run.metrics.scalar.strength:.2f}"
    assert shown["phases"]["rows"][0] == {"label": "all", "time": "32s", "shares": [0.125, 0.25, 0.625]}


def test_evaluations_are_the_score_and_over_the_curve(tmp_path) -> None:
    evals = {session: make_table(rows=5, step=4000, seed=session) for session in range(4)}
    run = write_run(tmp_path / "run", evals=evals)
    data = build(run)
    last = [table["total_reward"][-1] for table in evals.values()]
    facts = {name: (value, note) for name, value, note in data["runs"][0]["facts"]}
    assert facts["Score"][0] == f"{np.mean(last):.2f}"
    assert facts["Score"][1].startswith("deterministic policy")
    training = np.mean([table["total_reward"][-1] for table in run.tables.values()])
    assert facts["While training"] == (f"{training:.2f}", "last 100 episodes, exploring")
    (dots,) = get_chart(data, "train")["evals"]
    assert dots["x"] == evals[0]["frame"].tolist()
    assert [row[2] for row in data["runs"][0]["sessions"]["rows"]] == [f"{value:.2f}" for value in last]


def write_failed_run(folder: Path) -> Run:
    """Three sessions that end well, and one that failed halfway, far behind them."""
    tables = {s: make_table(seed=s) for s in range(4)}
    tables[2] = make_table(rows=20, level=30.0)
    run = write_run(folder, tables, evals={s: {**table, "total_reward": table["loss"]} for s, table in tables.items()})
    assert run.metrics is not None
    ended = {"session_index": (0, 1, 3), "failed": (2,), "is_complete": False}
    run.metrics.model_copy(update=ended).write(folder / "demo_t0_trial_metrics.json")
    return read_run(folder)


def test_a_failed_session_is_shown_and_does_not_count(tmp_path) -> None:
    run = write_failed_run(tmp_path / "run")
    data = build(run)
    (shown,) = data["runs"]
    assert [session for session, _ in shown["score"]["values"]] == [0, 1, 3]
    assert [row[1] for row in shown["sessions"]["rows"]] == ["done", "done", "failed", "done"]
    assert "failed and not in the score: session 2" in shown["problems"]
    assert not any("unequal length" in problem for problem in shown["problems"])
    chart = get_chart(data, "train")
    assert [curve["session"] for curve in chart["raw"]] == [0, 1, 2, 3, None]
    assert [curve["session"] for curve in chart["evals"]] == [None]
    for curve, tables in ((chart["raw"][4], run.tables), (chart["evals"][0], run.eval_tables)):
        stack = np.stack([tables[session]["total_reward"] for session in (0, 1, 3)])
        np.testing.assert_allclose(curve["y"], stack.mean(0), rtol=1e-5)
    last = np.mean([run.eval_tables[session]["total_reward"][-1] for session in (0, 1, 3)])
    assert shown["facts"][0][:2] == ["Score", f"{last:.4g}"]
    # nor is it compared
    same = write_run(tmp_path / "same", {s: make_table(seed=s) for s in (0, 1, 3)})
    other = write_run(tmp_path / "other", {s: make_table(seed=s) for s in (0, 1, 3)})
    rows = [[row[2:] for row in build(one, other)["comparison"]["rows"]] for one in (run, same)]
    assert rows[0] == rows[1]


def test_one_session_has_no_mean_and_no_interval(tmp_path) -> None:
    data = build(write_run(tmp_path / "run", {0: make_table()}))
    assert [curve["session"] for curve in get_chart(data, "train")["raw"]] == [0]
    assert not {"95 % interval", "IQM"} & {fact[0] for fact in data["runs"][0]["facts"]}


def test_what_is_missing_is_named(tmp_path) -> None:
    table = make_table() | {"kl": np.full(40, math.nan), "total_reward": np.full(40, math.nan)}
    data = build(write_run(tmp_path / "run", {0: table, 1: table}))
    (shown,) = data["runs"]
    assert [chart["name"] for chart in data["envs"][0]["charts"]] == ["loss", "entropy"]
    assert shown["score"]["mean"] is None
    assert "no value in column kl" in shown["problems"]
    assert any("no episode has ended" in problem for problem in shown["problems"])
    run = write_run(tmp_path / "killed", has_end=False, provenance={}, spec={})
    (run.path / "info" / "demo_t0_s3_session_df_train.csv").write_text("frame,total_reward\n500,what\n")
    data = build(read_run(run.path))
    told = "\n".join(data["runs"][0]["problems"])
    for words in ("demo_spec.yaml", "no trial_metrics.json", "no provenance.json", "demo_t0_s3_session_df_train.csv"):
        assert words in told
    assert len(data["runs"][0]["problems"]) == 4
    assert data["title"] == "unknown algorithm on unknown env"
    assert [curve["session"] for curve in get_chart(data, "train")["raw"]] == [0, 1, 2, None]
    assert data["runs"][0]["metrics"] is None


def test_tables_with_few_columns_are_shown(tmp_path) -> None:
    short = {name: make_table()[name] for name in ("frame", "total_reward")}
    data = build(write_run(tmp_path / "run", {0: short, 1: make_table(rows=110)}, has_end=False))
    assert ["Time", "1m01s"] in [fact[:2] for fact in data["runs"][0]["facts"]]
    assert data["runs"][0]["sessions"]["rows"][0][-1] == "–"
    assert [curve["session"] for curve in get_chart(data, "train")["ma"]] == [1]


def test_files_of_a_wrong_form_do_no_harm(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    wrong = {"scalar": {"strength": "x"}, "sessions": [1], "session_index": "x", "failed": 3, "num_session": None}
    write_json(tmp_path / "run" / "demo_t0_trial_metrics.json", wrong)
    write_json(tmp_path / "run" / "info" / "demo_provenance.json", {"command": "x", "versions": [1], "imports": {}})
    write_json(tmp_path / "run" / "info" / "demo_t0_s0_session_metrics.json", {"phases": {"act": "x"}})
    (shown,) = build(read_run(tmp_path / "run"))["runs"]
    assert len(shown["score"]["values"]) == len(run.tables)
    assert shown["machine"] == []


def level_run(folder: Path, **columns: float) -> Run:
    """A run that is done learning, with columns of its algorithm that stay where they are."""
    level = 480 + np.random.default_rng(0).normal(0, 5, 100)
    constant = {name: np.full(100, value) for name, value in columns.items()}
    return write_run(folder, {0: make_table(100) | {"total_reward": level} | constant})


def test_what_the_doctor_says_is_in_the_report(tmp_path) -> None:
    bad = level_run(tmp_path / "bad", kl=0.4, explained_var=0.0, val_loss=50.0, clip_frac=0.5)
    short = write_run(tmp_path / "short", {0: make_table(7)})
    runs = build(bad, level_run(tmp_path / "quiet"), level_run(tmp_path / "info", clip_frac=0.5), short)["runs"]
    found, quiet, mentioned, few = (run["doctor"] for run in runs)
    assert [(symptom["level"], symptom["title"]) for symptom in found["symptoms"]] == [
        ("warn", "values explain nothing"),
        ("warn", "KL large"),
        ("info", "clip fraction high"),
    ]
    kl = found["symptoms"][1]
    assert kl["seen"].startswith("kl is 0.4, the median")
    assert kl["keys"][0] == "agent.algorithm.target_kl"
    assert quiet == {"symptoms": [], "conclusion": f"No warnings: {len(RULES)} rules looked at 100 rows."}
    # not beside a remark
    assert (len(mentioned["symptoms"]), found["conclusion"], mentioned["conclusion"]) == (1, "", "")
    assert few["conclusion"].startswith("Too short to judge: 7 row(s)")


# --- several runs


def test_runs_side_by_side(tmp_path) -> None:
    other = {**SPEC, "agent": {"algorithm": {"name": "PPO", "gamma": 0.9}, "net": {"hid_layers": [64]}, "memory": {}}}
    first = write_run(tmp_path / "a")
    worse = {session: make_table(seed=session, level=90.0) for session in range(4)}
    second = write_run(tmp_path / "b", worse, spec=other)
    data = build(first, second, write_run(tmp_path / "c", spec={**SPEC, "env": {"name": "Acrobot-v1"}}))
    assert data["title"] == "PPO on CartPole-v1, Acrobot-v1"
    assert [env["name"] for env in data["envs"]] == ["CartPole-v1", "Acrobot-v1"]
    assert [{curve["run"] for curve in env["charts"][0]["raw"]} for env in data["envs"]] == [{0, 1}, {2}]
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


def test_differences_of_specs_leave_out_what_changes_no_run(tmp_path) -> None:
    agent = {**SPEC["agent"], "net": {**SPEC["agent"]["net"], "actor": {}, "critic": {}}}
    searched = {**SPEC, "agent": agent, "search": {"agent.algorithm.gamma__uniform": [0.9, 0.99]}}
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", spec=searched)]
    assert build_spec_diff(runs, ["a", "b"])["rows"] == []


def test_equal_names_become_paths(tmp_path) -> None:
    data = build(write_run(tmp_path / "x" / "run"), write_run(tmp_path / "y" / "run"))
    assert [run["name"] for run in data["runs"]] == [str(tmp_path / "x" / "run"), str(tmp_path / "y" / "run")]
    assert data["spec_diff"]["rows"] == []


def test_colours_are_those_of_the_graphs(tmp_path) -> None:
    """Those of the algorithms, whatever the order of the runs; the page has no other of its own."""
    specs = [{**SPEC, "agent": {"algorithm": {"name": name}}} for name in ("SARSA", "PPO", "PPO")]
    runs = [write_run(tmp_path / f"run_{i}", {0: make_table()}, spec=spec) for i, spec in enumerate(specs)]
    data = build(*runs)
    assert [run["color"] for run in data["runs"]] == ["var(--color-yellow)", "var(--color-red)", "var(--color-red)"]
    assert data["runs"][1]["dash"] != data["runs"][2]["dash"]
    (alone,) = build(runs[2])["runs"]
    assert alone["color"] == "var(--color-red)"
    page = render_page(data)
    for name, (light, dark) in COLORS.items():
        assert f"--color-{name}:{light}" in page
        assert f"--color-{name}:{dark}" in page
    for script in PAGE.glob("*.js"):
        assert not re.search(r"#[0-9A-Fa-f]{6}", script.read_text())


def write_search(path: Path) -> Path:
    """A search of three trials, whose first was the best."""
    write_run(path, {0: make_table(level=90.0)}, name="demo")
    write_yaml(path / "demo_spec.yaml", {"demo": SPEC | {"search": {"agent.net.optim_spec.lr__log_uniform": [0, 1]}}})
    head = "trial,state,frame,num_session,agent.net.optim_spec.lr,score,total_reward_ma,error"
    rows = ["0,done,20000,1,0.001,90,80,", "1,stopped,5000,1,0.01,30,20,", "2,done,20000,1,0.1,40,20,"]
    write_text(path / "demo_experiment_df.csv", "\n".join([head, *rows]) + "\n")
    importance = {"agent.net.optim_spec.lr": 0.5}
    write_json(path / "info" / "demo_search.json", {"best_trial": 0, "best_score": 90.0, "importance": importance})
    return path


def test_a_cut_row_of_the_table_of_trials_is_left_out(tmp_path) -> None:
    path = write_search(tmp_path / "search")
    table = path / "demo_experiment_df.csv"
    # of a foreign table, in which the number of a trial is not first
    lines = [",".join(reversed(line.split(","))) for line in table.read_text().splitlines()]
    write_text(table, "\n".join([*lines, "lost,20"]) + "\n")
    assert [row[0] for row in build_search_report(path, path)["search"]["trials"]["rows"]] == ["0", "1", "2"]


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
    assert build_report([run], run.path)["runs"][0]["videos"] == [
        {"label": "frame 3,000", "link": "video/demo_t0_s0_f3000.mp4"},
        {"label": "frame 20,000", "link": "video/demo_t0_s0_f20000.mp4"},
    ]
    outside = build_report([run], tmp_path / "pages")["runs"][0]["videos"]
    assert outside[0]["link"] == "../a%23b/run/video/demo_t0_s0_f3000.mp4"


# --- the page


def write_hostile(folder: Path) -> Run:
    """A run whose every text is an attack on the page."""
    table = make_table() | {HTML: np.ones(40)}
    spec = {"agent": {"algorithm": {"name": HTML}, HTML: HTML}, "env": {"name": HTML}}
    provenance = {"command": [HTML], "git_sha": HTML, "versions": {HTML: HTML}, "imports": [HTML]}
    run = write_run(folder / "<img src=x onerror=alert(1)>", {0: table, 1: table}, spec=spec, provenance=provenance)
    (run.path / "info" / "demo_t0_s2_session_df_train.csv").write_text(f"{HTML}\n1\n")
    return read_run(run.path)


def test_texts_of_strangers_stay_texts(tmp_path) -> None:
    data = build_report([write_hostile(tmp_path)], tmp_path, problems=[HTML])
    page = render_page(data)
    assert "<img" not in page
    assert page.lower().count("</script") == 2
    assert "<!--" not in page
    assert read_data(page) == json.loads(json.dumps(data))
    assert data["title"] == f"{HTML} on {HTML}"
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.|@import|url\(|<link|innerHTML|insertAdjacent|\beval\b", text), path.name


def test_page_is_small_with_long_tables(tmp_path) -> None:
    metrics = ("policy_loss", "alpha", "q", "td_error", "grad_norm", "kl", "clip_frac", "explained_var")
    rng = np.random.default_rng(0)
    tables = {s: make_table(4000, seed=s) | {name: rng.random(4000) for name in metrics} for s in range(4)}
    run = write_run(tmp_path / "run", tables)
    path = tmp_path / "report.html"
    write_report([run], path)
    assert path.stat().st_size < 1_000_000
    data = read_data(path.read_text())
    for chart in data["envs"][0]["charts"]:
        assert max(len(curve["x"]) for curve in chart["raw"]) <= (300 if chart["is_small"] else 1000)
    curve = get_chart(data, "train")["raw"][2]
    _, y = read_curve(tables[2], "total_reward")
    assert [min(curve["y"]), max(curve["y"])] == pytest.approx([y.min(), y.max()], rel=1e-6)
    before = path.read_bytes()
    write_report([run], path)
    assert path.read_bytes() == before


# --- the command


def test_command_writes_into_the_folder_or_where_it_is_told(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("data/one"))
    write_run(Path("runs/two"))
    assert call(monkeypatch, "report", "one") == 0
    assert capsys.readouterr().out == "Report   data/one/report.html\n"
    assert "</html>" in Path("data/one/report.html").read_text()
    assert call(monkeypatch, "report", "two", "--data-dir", "runs", "-o", "pages/two.html") == 0
    assert read_data(Path("pages/two.html").read_text())["runs"][0]["name"] == "two"
    assert call(monkeypatch, "report", "one", "-o", "pages") == 0
    assert Path("pages/report.html").exists()


def test_command_compares_several_runs_and_says_what_it_left_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("data/one"))
    write_run(Path("data/two"))
    assert call(monkeypatch, "report", "one", "two") == 2
    assert "add -o FILE.html" in capsys.readouterr().err
    assert call(monkeypatch, "report", "one", "two", "three", "-o", "all.html") == 0
    assert "Left out: no run folder 'three'" in capsys.readouterr().err
    data = read_data(Path("all.html").read_text())
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    assert data["problems"] == ["left out: no run folder 'three' (`slm-lab list` shows the runs in data)"]
    assert "two: probability of improvement 0.50" in data["comparison"]["verdicts"][0]
    assert call(monkeypatch, "report", "three") == 2
    assert capsys.readouterr().err.startswith("Error: no run folder 'three'")
