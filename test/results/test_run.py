"""Runs are read back from their folders, also foreign and broken ones, and compared, drawn and listed."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slm_lab.cli import compare, plot, retro
from slm_lab.cli import list as list_module
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import write_json, write_yaml
from slm_lab.results.aggregate import aggregate_rows
from slm_lab.results.comparison import build_rows
from slm_lab.results.metrics import MeanMetrics, TrialMetrics, calc_trial_metrics
from slm_lab.results.plot import to_drawn
from slm_lab.results.run import find_runs, load_run, name_algorithm
from slm_lab.spec.loading import dump_spec, find_placeholders, load_spec
from test.cli.command import call as call_main
from test.results.sample import HOSTILE, make_spec, make_table, write_run, write_table
from test.results.test_report import read_data

COLUMNS = tuple(make_table(1))
ENV = "CartPole-v1"


def make_run(
    data: Path, folder: str, finals: tuple[float, ...] = (400.0, 410.0, 420.0), name: str = "demo", **spec: str
) -> Path:
    """A run under way, whose sessions have 20 rows of 50 frames."""
    tables = {session: make_table(20, 50, session, final) for session, final in enumerate(finals)}
    return write_run(data / folder, tables, name=name, spec=make_spec(**spec), provenance={}, has_end=False).path


def write_evals(path: Path, session: int, rows: int = 20) -> None:
    write_table(path / "info" / f"demo_t0_s{session}_session_df_eval.csv", make_table(rows, 50, 10 + session, 500.0))


def fail_session(path: Path, failed: int, count: int = 3) -> None:
    """Let a run be one that has ended, with a session that failed early and far behind the others."""
    write_table(path / "info" / f"demo_t0_s{failed}_session_df_train.csv", make_table(7, 50, level=21.0))
    ended = [session for session in range(count) if session != failed]
    metrics = {"session_index": ended, "failed": [failed], "num_session": count, "is_complete": False}
    write_json(path / "demo_t0_trial_metrics.json", metrics)


def call(module: Any, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(module.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("algorithm", "memory", "label"),
    [
        ("Reinforce", "OnPolicyReplay", "REINFORCE"),
        ("VanillaDQN", "Replay", "DQN"),
        ("DoubleDQN", "PrioritizedReplay", "DDQN+PER"),
        ("DoubleDQN", "Replay", "DDQN"),
        ("ActorCritic", "OnPolicyBatchReplay", "A2C"),
        ("PPO", "OnPolicyBatchReplay", "PPO"),
        ("SoftActorCritic", "PrioritizedReplay", "SAC"),
        ("CrossQ", "Replay", "CrossQ"),
    ],
)
def test_algorithms_have_the_names_of_papers(algorithm: str, memory: str, label: str) -> None:
    assert name_algorithm(make_spec(algorithm, memory=memory)) == label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("qr_dqn_cartpole", "QR-DQN"),
        ("c51_cartpole", "C51"),
        ("iqn_cartpole", "IQN"),
        ("rainbow_cartpole", "Rainbow"),
        ("tqc_pendulum", "TQC"),
        ("td3_pendulum", "TD3"),
        ("xqc_mujoco", "XQC"),
        ("simba_sac_mujoco", "SimBa-SAC"),
    ],
)
def test_combinations_have_the_names_of_papers(name: str, label: str) -> None:
    values = {"env": "Hopper-v5", "max_frame": 100_000}
    filled = {key: values[key] for key in find_placeholders(name, name)}
    spec = load_spec(name, overrides=filled).spec
    assert name_algorithm(dump_spec(spec)[spec.name]) == label


def test_a_run_is_read_by_name_path_and_file(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    (file,) = path.glob("*_spec.yaml")
    for where in ("run", str(path), str(file)):
        run = load_run(where, tmp_path)
        assert (run.name, run.env_name, list(run.tables), run.frame) == ("demo", "CartPole-v1", [0, 1, 2], 1000)
        assert run.problems == ()
    assert run.scores == [table["total_reward"][-1] for table in run.tables.values()]
    assert list(run.session_ma.values()) == pytest.approx([t["total_reward"].mean() for t in run.tables.values()])


def add_final_evals(path: Path, **returns: list[float]) -> None:
    """Let sessions, such as s0, have an evaluation at their end."""
    for session, values in returns.items():
        write_json(path / "info" / f"demo_t0_{session}_session_metrics.json", {"frame": 1000, "final_eval": values})


def test_the_score_is_of_the_first_kind_that_every_session_has(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    run = load_run("run", tmp_path)
    assert run.score_kind == "train"
    assert run.score_meaning == "exploring policy, last 100 episodes each"
    for session in range(3):
        write_evals(path, session)
    run = load_run("run", tmp_path)
    assert run.score_kind == "eval"
    assert run.scores == [table["total_reward"][-1] for table in run.eval_tables.values()]
    add_final_evals(path, s0=[480.0, 500.0], s1=[500.0, 500.0])
    run = load_run("run", tmp_path)
    assert (run.score_kind, run.final_evals) == ("eval", {0: 490.0, 1: 500.0})
    assert run.score_notes == ["no final evaluation of session 2, so the score is of another kind for all"]
    add_final_evals(path, s2=[300.0, 320.0])
    run = load_run("run", tmp_path)
    assert (run.score_kind, run.session_scores) == ("final", {0: 490.0, 1: 500.0, 2: 310.0})
    assert (run.score_meaning, run.score_notes) == ("deterministic policy, 2 episodes each", [])
    # what the tables held before it stays to be had
    assert list(run.get_scores("train").values()) == [table["total_reward"][-1] for table in run.tables.values()]


def test_an_evaluation_from_long_before_the_end_is_no_score(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run", finals=(400.0,))
    # rows are 50 frames apart, training ends at frame 1,000
    write_evals(path, 0, rows=9)
    assert load_run("run", tmp_path).score_kind == "train"
    write_evals(path, 0, rows=10)
    assert load_run("run", tmp_path).score_kind == "eval"
    # the session was continued after its final evaluation
    write_json(path / "info" / "demo_t0_s0_session_metrics.json", {"frame": 500, "final_eval": [7.0]})
    assert load_run("run", tmp_path).score_kind == "eval"


def test_a_table_of_evaluations_without_rows_or_copied_from_training_is_none(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run", finals=(400.0, 410.0))
    (path / "info" / "demo_t0_s0_session_df_eval.csv").write_text(",".join(COLUMNS) + "\n")
    # as the published lab writes it without evaluations
    train = path / "info" / "demo_t0_s1_session_df_train.csv"
    (path / "info" / "demo_t0_s1_session_df_eval.csv").write_text(train.read_text())
    run = load_run("run", tmp_path)
    assert (run.eval_tables, run.problems, run.score_kind) == ({}, (), "train")


def test_a_session_without_an_ended_episode_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    (path / "info" / "demo_t0_s1_session_df_train.csv").write_text("frame,total_reward\n1000,\n")
    run = load_run("run", tmp_path)
    assert run.spread is not None
    assert len(run.spread.values) == 2
    assert run.score_notes == ["session 1 left out: no episode has ended"]


def test_a_folder_of_the_published_lab_is_read(tmp_path: Path) -> None:
    """Its specs are JSON without a name on top, its metrics are in info/, and agents may be lists of one."""
    path = tmp_path / "old"
    write_table(path / "info" / "old_ppo_t0_s0_session_df_train.csv", make_table(level=300.0))
    write_table(path / "info" / "old_ppo_t0_s0_session_df_eval.csv", make_table(level=310.0))
    spec = {"name": "old_ppo", **make_spec("PPO", "ALE/Pong-v5")}
    write_json(path / "old_ppo_spec.json", {**spec, "agent": [spec["agent"]], "env": [spec["env"]]})
    write_json(path / "info" / "old_ppo_t0_trial_metrics.json", {"scalar": {"total_reward_ma": 1.0}})
    run = load_run("old", tmp_path)
    assert (run.label, run.env_name, list(run.eval_tables)) == ("PPO", "ALE/Pong-v5", [0])
    assert run.metrics == TrialMetrics(scalar=MeanMetrics(total_reward_ma=1.0))
    # the baseline of its env is shipped
    assert run.random_return == pytest.approx(-20.3, abs=0.5)


def test_what_cannot_be_read_is_told_and_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    (path / "info" / "demo_t0_s3_session_df_train.csv").write_text("a,b\n1,2\n")
    (path / "info" / "demo_t0_s4_session_df_train.csv").write_text("frame,total_reward\n1,what\n")
    (path / "info" / "demo_t0_s5_session_df_train.csv").write_text("frame,total_reward\n")
    (path / "info" / "demo_t0_s6_session_df_train.csv").write_text("frame,total_reward\n1,2\nnan,3\n")
    (path / "demo_spec.yaml").unlink()
    run = load_run("run", tmp_path)
    assert list(run.tables) == [0, 1, 2]
    assert run.label == "unknown algorithm"
    told = "\n".join(run.problems)
    assert "demo_t0_s3_session_df_train.csv is left out: it has no column frame and no column total_reward" in told
    assert "demo_t0_s4_session_df_train.csv is left out: could not convert" in told
    assert "demo_t0_s5_session_df_train.csv is left out: it has no rows yet" in told
    assert "demo_t0_s6_session_df_train.csv is left out: a frame is not a number" in told
    assert "so env and algorithm are unknown" in told


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="has no results"):
        load_run("empty", tmp_path)
    with pytest.raises(RunFolderError, match="no run folder 'emty'; did you mean 'empty'"):
        load_run("emty", tmp_path)


def test_a_folder_that_is_not_there_says_how_to_see_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = "no run folder 'nope' (`slm-lab list` shows the runs in data)"
    elsewhere = "no run folder 'nope' (`slm-lab list --data-dir 'my runs'` shows the runs in my runs)"
    for options, message in (((), here), (("-d", "my runs"), elsewhere)):
        assert call(compare, "nope", "nope", *options) == (2, "", f"Error: {message}\n")
    make_run(Path("my runs"), "one")
    code, stdout, _ = call(list_module, "--data-dir", "my runs")
    assert (code, stdout.count("one ")) == (0, 1)


def test_plot_draws_a_figure_per_env(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two", algorithm="ActorCritic", finals=(100.0,))
    make_run(tmp_path, "three", env="ALE/Pong-v5")
    out = tmp_path / "plots"
    code, stdout, _ = call(plot, "-f", "one, two,three", "-d", str(tmp_path), "-o", str(out))
    assert code == 0
    stem = "multi_trial_graph_mean_returns"
    ends = (f"{stem}_vs_frames.png", f"{stem}_ma_vs_frames.png", f"{stem}_vs_frames.html")
    assert {path.name for path in out.iterdir()} == {
        f"{env}_{end}" for env in ("CartPole-v1", "Pong-v5") for end in ends
    }
    assert stdout.count("\n") == 6
    data = read_data((out / f"CartPole-v1_{ends[2]}").read_text())
    assert [run["name"] for run in data["runs"]] == ["PPO", "A2C"]


def test_plot_names_runs_apart(tmp_path: Path) -> None:
    make_run(tmp_path, "one", name="wide")
    make_run(tmp_path, "two", name="deep")
    args = ["-f", "one,two", "-d", str(tmp_path), "-o", str(tmp_path / "plots"), "-t", "Mine"]
    assert call(plot, *args)[0] == 0
    (page,) = (tmp_path / "plots").glob("Mine_*.html")
    for more, names, has_legend in (
        ([], ["wide", "deep"], True),
        (["-l", "a,b"], ["a", "b"], True),
        (["--no-legend"], ["wide", "deep"], False),
    ):
        assert call(plot, *args, *more)[0] == 0
        data = read_data(page.read_text())
        assert ([run["name"] for run in data["runs"]], data["has_legend"]) == (names, has_legend)


def test_plot_keeps_envs_apart_whose_names_end_alike(tmp_path: Path) -> None:
    for name, env in (("one", "CartPole-v1"), ("two", "phys2d/CartPole-v1"), ("three", "ALE/Pong-v5")):
        make_run(tmp_path, name, env=env)
    out = tmp_path / "plots"
    assert call(plot, "one", "two", "three", "--format", "png", "-d", str(tmp_path), "-o", str(out))[0] == 0
    names = {path.name.partition("_multi_")[0] for path in out.iterdir()}
    assert names == {"CartPole-v1", "phys2d_CartPole-v1", "Pong-v5"}


def test_plot_writes_what_is_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two", env="ALE/Pong-v5", algorithm="ActorCritic")
    out = tmp_path / "plots"
    place = ["-d", str(tmp_path), "-o", str(out)]
    options = ["--column", "loss", "--x", "updates", "--band", "std", "--smooth", "3"]
    assert call(plot, "one", "-f", "two", *options, "--format", "svg,pdf", *place)[0] == 0
    assert {path.name for path in out.iterdir()} == {
        f"{env}_multi_trial_graph_loss_vs_updates.{form}"
        for env in ("CartPole-v1", "Pong-v5")
        for form in ("svg", "pdf")
    }
    code, stdout, _ = call(plot, "one", "two", "--grid", "-t", "Both", *place)
    names = [f"Both_multi_trial_graph_{name}_vs_frames.png" for name in ("mean_returns", "mean_returns_ma")]
    assert (code, stdout.splitlines()) == (0, [str(out / name) for name in names])
    # an aggregate over envs wants several algorithms in all of them
    for name, algorithm, env in (("three", "ActorCritic", "CartPole-v1"), ("four", "PPO", "ALE/Pong-v5")):
        make_run(tmp_path, name, algorithm=algorithm, env=env)
    runs = [load_run(name, tmp_path) for name in ("one", "two", "three", "four")]
    figures = {env: [to_drawn(run, run.label) for run in runs if run.env_name == env] for env in (ENV, "ALE/Pong-v5")}
    points = plot._aggregate(figures, runs)
    assert [point.name for point in points] == ["PPO", "A2C"]
    found = aggregate_rows(build_rows(runs, "abcd"))
    assert found is not None
    assert [point.value for point in points] == [row.iqm.value for row in found.rows]
    code, stdout, _ = call(plot, "one", "--format", "html", *place)
    assert (code, [Path(line).suffix for line in stdout.splitlines()]) == (0, [".html"])


def test_plot_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two", env="Acrobot-v1")
    (tmp_path / "empty").mkdir()
    place = ["-d", str(tmp_path), "-o", str(tmp_path / "plots")]
    for arguments, words in (
        (["-f", "one,two", "-l", "a"], "--legends: 1 names for 2 runs"),
        (["-f", "one,two", "-t", "x"], "--title: names one figure, but the runs have 2 envs"),
        (["-f", ","], "plot: give at least one run folder"),
        (["one", "--column", "entrpy"], "--column: no column 'entrpy'; did you mean 'entropy'? (known: total_reward, "),
        (["one", "--format", "pgn"], "--format: no format 'pgn'; did you mean 'png'? (known: png, svg, pdf, html)"),
        (["one", "--x", "time", "--format", "html"], "--format html: a page has every column over frames"),
        (["-f", "empty"], "has no results"),
    ):
        code, _, stderr = call(plot, *arguments, *place)
        assert code == 2
        assert words in stderr
        assert stderr.count("\n") == 1
    # what can be drawn is drawn
    code, stdout, stderr = call(plot, "-f", "empty,one", *place)
    assert code == 0
    assert "has no results" in stderr
    assert "CartPole-v1" in stdout


def test_list_shows_and_sorts_runs(tmp_path: Path) -> None:
    make_run(tmp_path, "weak", finals=(50.0,))
    make_run(tmp_path, "strong", finals=(500.0, 490.0), algorithm="SoftActorCritic")
    (tmp_path / "empty").mkdir()
    code, stdout, _ = call(list_module, "-d", str(tmp_path), "--sort", "score", "--local")
    header, *rows = stdout.splitlines()
    assert code == 0
    assert header.split() == list(list_module.HEADER)
    assert [row.split()[0] for row in rows] == ["strong", "weak"]
    assert rows[0].split()[1:6] == ["SAC", "CartPole-v1", rows[0].split()[3], "2", "1,000"]
    assert call(list_module, "eak", "-d", str(tmp_path))[1].count("\n") == 2
    code, _, stderr = call(list_module, "-d", str(tmp_path / "nowhere"))
    assert code == 2
    assert "no run with results" in stderr


def test_list_names_the_ways_to_sort(tmp_path: Path) -> None:
    known = "age, score, env, algorithm, frames, run"
    assert call(list_module, "--sort", "foo") == (2, "", f"Error: --sort: no order 'foo' (known: {known})\n")
    code, _, stderr = call(list_module, "--sort", "scores")
    assert (code, stderr) == (2, f"Error: --sort: no order 'scores'; did you mean 'score'? (known: {known})\n")
    assert known in " ".join(call(list_module, "--help")[1].replace("│", " ").split())


def test_find_runs_has_the_newest_first(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two")
    newer = tmp_path / "one" / "info" / "demo_t0_s0_session_df_train.csv"
    os.utime(newer, (2e9, 2e9))
    assert [run.path.name for run in find_runs(tmp_path)[0]] == ["one", "two"]
    # brackets in a name are no pattern
    make_run(tmp_path, "run[1]")
    make_run(tmp_path, "run1")
    assert load_run("run[1]", tmp_path).path.name == "run[1]"
    assert {run.path.name for run in find_runs(tmp_path)[0]} == {"one", "two", "run[1]", "run1"}


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "denied", "linked", "broken"):
        make_run(tmp_path, name)
    (tmp_path / "no_run").mkdir()
    (tmp_path / "linked" / "graph").symlink_to(tmp_path)
    for table in (tmp_path / "broken" / "info").glob("*.csv"):
        table.write_bytes(b"\xff\xfe")
    whole = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        # as a folder of somebody else's answers; the tests may be root, whom nothing is refused
        if path.parts[-3:-1] == ("denied", "info"):
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    code, stdout, stderr = call(list_module, "-d", str(tmp_path))
    assert code == 0
    assert [line.split()[0] for line in stdout.splitlines()] == ["run", "one"]
    told = stderr.splitlines()
    assert [line[:18] for line in told] == ["Left out: broken: ", "Left out: denied: ", "Left out: linked: "]
    assert "cannot be read (Permission denied)" in told[1]
    assert "is a link" in told[2]


def test_compare_says_whether_runs_differ(tmp_path: Path) -> None:
    make_run(tmp_path, "a", finals=(500.0, 490.0, 495.0, 480.0))
    make_run(tmp_path, "b", finals=(300.0, 310.0, 290.0, 305.0), algorithm="ActorCritic")
    code, stdout, _ = call(compare, "a", "b", "-d", str(tmp_path))
    assert code == 0
    assert "A  a: PPO on CartPole-v1" in stdout
    assert "probability of improvement 1.00 [0.55, 1.00]\n" in stdout
    assert "Speed   900 and 900 frames per second, 1.00 x" in stdout
    assert 'agent.algorithm.name: "PPO" | "ActorCritic"' in stdout
    same = call(compare, "a", "a", "-d", str(tmp_path))[1]
    assert "not distinguishable" in same
    assert "Specs   the same" in same
    # different envs, and too few sessions
    make_run(tmp_path, "c", env="Acrobot-v1", finals=(400.0,))
    other = call(compare, "a", "c", "-d", str(tmp_path))[1]
    assert "Scores of different envs are not compared" in other
    assert 'env.name: "CartPole-v1" | "Acrobot-v1"' in other
    few = call(compare, "c", "c", "-d", str(tmp_path))[1]
    assert "one session on a side is too few: train more (meta.max_session)" in few
    assert "no number of sessions" not in few


def test_retro_makes_metrics_and_graphs_again(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    write_json(path / "info" / "demo_t0_s0_session_metrics.json", {"session": 0, "phases": {"act": 1.0}})
    code, stdout, _ = call(retro, "run", "-d", str(tmp_path))
    assert code == 0
    assert stdout.startswith("trial_metrics: frame:1.00e+03 | total_reward_ma:")
    run = load_run("run", tmp_path)
    assert run.random_return is not None
    assert run.metrics == calc_trial_metrics(run.tables, run.random_return)
    # what only the run itself could know stays
    assert run.session_metrics[0].phases == {"act": 1.0}
    assert run.session_metrics[0].total_reward_ma == pytest.approx(run.session_ma[0])
    assert len(list((path / "graph").glob("*.png"))) == 2 + 3 * 3
    make_run(tmp_path, "other", env="My/Env-v0")
    code, _, stderr = call(retro, "other", "-d", str(tmp_path))
    assert code == 0
    assert "the random baseline of My/Env-v0 is unknown, so strength counts from 0" in stderr
    assert "PPO on CartPole-v1" in (path / "report.html").read_text()


def test_nan_in_a_column_and_unequal_sessions_are_drawn(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    late = make_table(20, 50, total_reward=np.r_[math.nan, np.arange(19.0)])
    for session, table in ((1, make_table(7, 50)), (2, late)):
        write_table(path / "info" / f"demo_t0_s{session}_session_df_train.csv", table)
    run = load_run("run", tmp_path)
    assert all(math.isfinite(score) for score in run.scores)
    assert call(plot, "-f", "run", "-d", str(tmp_path), "-o", str(tmp_path / "plots"))[0] == 0


def test_a_failed_session_does_not_count(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    whole = load_run("run", tmp_path)
    assert list(whole.session_scores) == [0, 1, 2]
    fail_session(path, 1)
    run = load_run("run", tmp_path)
    assert run.session_scores == {session: whole.session_scores[session] for session in (0, 2)}
    assert run.scores == list(run.session_scores.values())
    assert len(to_drawn(run, "a name").tables) == 2
    # what was written names no session there is: all are better than none
    write_json(path / "demo_t0_trial_metrics.json", {"session_index": [7]})
    assert list(load_run("run", tmp_path).session_scores) == [0, 1, 2]


def test_no_command_counts_a_failed_session(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    fail_session(path, 1)
    before = load_run("run", tmp_path)
    mean = sum(before.scores) / 2
    row = call(list_module, "-d", str(tmp_path))[1].splitlines()[1].split()
    assert row[3:5] == [f"{mean:.2f}", "2"]
    told = f"{mean:.2f}: {before.scores[0]:.2f}, {before.scores[1]:.2f} (no interval from fewer than 3"
    assert call(compare, "run", "run", "-d", str(tmp_path))[1].count(told) == 2
    assert call(retro, "run", "-d", str(tmp_path))[0] == 0
    run = load_run("run", tmp_path)
    assert run.random_return is not None
    expected = calc_trial_metrics({0: before.tables[0], 2: before.tables[2]}, run.random_return)
    assert run.metrics == expected.model_copy(update={"failed": (1,), "num_session": 3, "is_complete": False})
    assert run.session_scores == before.session_scores
    # it is drawn all the same
    assert (path / "graph" / "demo_t0_s1_session_graph_train_mean_returns_vs_frames.png").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "place",
    [
        "info/demo_t0_s1_session_df_train.csv",
        "info/demo_t0_s0_session_df_eval.csv",
        "info/demo_t0_s0_session_metrics.json",
        "info/demo_provenance.json",
        "demo_t0_trial_metrics.json",
        "demo_t0_spec.yaml",
        "info/demo_search.json",
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, place: str) -> None:
    path = make_run(tmp_path, "demo")
    (path / place).unlink(missing_ok=True)
    os.mkfifo(path / place)
    if place.endswith("_search.json"):
        with pytest.raises(LabError, match="not a regular file"):
            load_run(str(path), tmp_path)
        return
    run = load_run(str(path), tmp_path)
    assert len(run.tables) == (2 if "_s1_" in place else 3)
    is_told = not place.endswith(".json")
    assert any(Path(place).name in problem for problem in run.problems) == is_told
    code, out, err = call(list_module, "--data-dir", str(tmp_path))
    assert code == 0, err
    assert "demo" in out


def test_metrics_nested_beyond_reason_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path, "demo")
    (path / "demo_t0_trial_metrics.json").write_text("[" * 200_000)
    assert load_run(str(path), tmp_path).metrics is None


def test_results_need_neither_torch_nor_what_takes_long_to_load() -> None:
    code = """
import sys
import slm_lab.results.report
assert not {"torch", "matplotlib", "scipy.stats"} & set(sys.modules)
import slm_lab.cli.report, slm_lab.cli.list, slm_lab.cli.compare, slm_lab.cli.doctor
assert not {"torch", "gymnasium", "matplotlib"} & set(sys.modules)
import slm_lab.cli.plot, slm_lab.cli.retro
assert not {"torch", "gymnasium", "matplotlib.pyplot", "pandas"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("words", ["list", "compare run other", "doctor run", "retro run", "report run", "plot -f run"])
def test_a_run_of_others_neither_controls_the_terminal_nor_adds_lines(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = make_run(tmp_path / "data", "run", env=HOSTILE, algorithm=HOSTILE)
    spec = make_spec(HOSTILE, HOSTILE)
    spec["agent"]["algorithm"][HOSTILE] = HOSTILE
    write_yaml(path / "demo_spec.yaml", {"demo": spec})
    (path / "info" / "x\x1b[31m\r_t0_s8_session_df_train.csv").write_text("?")
    (path / "info" / "demo_t0_s9_session_df_train.csv").write_text(f'frame,total_reward\n"{HOSTILE}",1\n')
    make_run(tmp_path / "data", "other")
    make_run(tmp_path / "data", f"run{HOSTILE}")
    call_main(monkeypatch, *words.split())
    out, err = capsys.readouterr()
    assert out
    for line in (out + err).split("\n"):
        assert line.replace("\t", "").isprintable()
        assert not line.lstrip().startswith("FAKE")
    # the page says that it is UTF-8, whatever the locale
    for page in path.rglob("*.html"):
        page.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["doctor", "report", "retro", "verify", "push"])
def test_a_folder_whose_name_controls_terminals_is_refused(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = make_run(tmp_path / "data", f"run{HOSTILE}")
    assert call_main(monkeypatch, command, f"data/{path.name}") == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "its name contains a control character; rename it" in err


def test_runs_with_other_kinds_of_score_are_compared_by_what_both_have(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    path = make_run(tmp_path, "b")
    add_final_evals(path, s0=[500.0], s1=[500.0], s2=[500.0])
    run = load_run("b", tmp_path)
    assert run.score_kind == "final"
    stdout = call(compare, "a", "b", "-d", str(tmp_path))[1]
    assert "500.00" not in stdout
    assert "Scores  exploring policy, last 100 episodes each\n" in stdout
    assert "A - B   +0.00" in stdout
    # alone it counts by its own
    assert "500.00" in call(list_module, "b", "-d", str(tmp_path))[1]
