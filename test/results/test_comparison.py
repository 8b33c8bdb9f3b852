"""Runs side by side: each against the first of its env, normalised over envs, and written as CSV and LaTeX."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from slm_lab.cli import compare
from slm_lab.results.aggregate import aggregate_rows, aggregate_scores, calc_aggregate_iqm
from slm_lab.results.comparison import ComparisonRow, build_rows, escape_latex, format_latex
from slm_lab.results.metrics import calc_iqm
from slm_lab.results.run import load_run
from slm_lab.results.statistics import calc_improvement
from test.results.test_run import call, make_run


def make_row(algorithm: str, env: str, *scores: float, random_return: float | None = 0.0) -> ComparisonRow:
    return ComparisonRow(f"{algorithm}_{env}", algorithm, env, 1000, scores, random_return, None)


# --- rows


def test_rows_are_compared_with_the_first_of_their_env(tmp_path: Path) -> None:
    make_run(tmp_path, "a", finals=(300.0, 310.0, 290.0, 305.0))
    make_run(tmp_path, "b", env="Acrobot-v1", finals=(-90.0, -80.0))
    make_run(tmp_path, "c", finals=(500.0, 490.0, 495.0, 480.0), algorithm="ActorCritic")
    runs = [load_run(name, tmp_path) for name in "abc"]
    rows = build_rows(runs, "abc")
    assert [(row.run, row.algorithm, row.env) for row in rows] == [
        ("a", "PPO", "CartPole-v1"),
        ("c", "A2C", "CartPole-v1"),
        ("b", "PPO", "Acrobot-v1"),
    ]
    assert [list(row.scores) for row in rows] == [run.scores for run in (runs[0], runs[2], runs[1])]
    assert [row.comparison is None for row in rows] == [True, False, True]
    assert rows[1].comparison is not None
    assert rows[1].comparison.improvement == calc_improvement([(runs[2].scores, runs[0].scores)])
    assert rows[2].cells[5:] == ["–", "2", "–"]
    assert [row.algorithm for row in build_rows(runs, "abc", ["x", "y", "z"])] == ["x", "z", "y"]


def test_compare_of_several_runs_is_a_table(tmp_path: Path) -> None:
    for algorithm, level in (("PPO", 500.0), ("ActorCritic", 300.0)):
        for env in ("CartPole-v1", "Acrobot-v1"):
            make_run(tmp_path, f"{algorithm}_{env}", (level, level - 10, level - 20), algorithm=algorithm, env=env)
    # the second of PPO is in another env: rows of one env stand together
    names = ["PPO_CartPole-v1", "PPO_Acrobot-v1", "ActorCritic_CartPole-v1", "ActorCritic_Acrobot-v1"]
    files = [tmp_path / "out" / "table.csv", tmp_path / "out" / "table.tex"]
    code, stdout, stderr = call(compare, *names, "-d", str(tmp_path), "--csv", str(files[0]), "--latex", str(files[1]))
    assert (code, stderr) == (0, "")
    lines = stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["1", names[0]],
        ["2", names[2]],
        [],
        ["3", names[1]],
        ["4", names[3]],
    ]
    assert lines[2].endswith("0.00 [0.00, 0.55]")
    assert "Scores  exploring policy, last 100 episodes each" in stdout
    # both envs have a shipped return of random play
    assert [line.split()[:2] for line in lines if line.startswith(("PPO ", "A2C "))] == [["PPO", "2"], ["A2C", "2"]]
    assert "CartPole-v1: 0 is random play (" in stdout
    (keys,) = [line for line in lines if line.startswith("agent.algorithm.name")]
    assert keys.split()[1:] == ['"PPO"', '"ActorCritic"', '"PPO"', '"ActorCritic"']
    rows = list(csv.DictReader(files[0].open()))
    assert [row["run"] for row in rows] == [names[0], names[2], names[1], names[3]]
    run = load_run(names[2], tmp_path)
    assert run.spread is not None
    assert float(rows[1]["score"]) == run.spread.mean
    assert (rows[0]["improvement"], rows[1]["improvement"], rows[1]["sessions"]) == ("", "0.0", "3")
    tex = files[1].read_text()
    assert "\\begin{tabular}{lllrrrrr}" in tex
    assert tex.count("\\midrule") == 2
    assert "\nActorCritic\\_CartPole-v1 & A2C & CartPole-v1 & " in tex


def test_compare_refuses_a_single_run_and_names_one_without_a_score(tmp_path: Path) -> None:
    for name in "abc":
        make_run(tmp_path, name)
    code, _, stderr = call(compare, "a", "-d", str(tmp_path))
    assert (code, stderr) == (2, "Error: compare: give at least two runs; `slm-lab list` shows them\n")
    for table in (tmp_path / "a" / "info").glob("*_train.csv"):
        table.write_text("frame,total_reward\n1000,\n")
    stdout = call(compare, "a", "b", "c", "b", "-d", str(tmp_path))[1]
    rows = [line.split() for line in stdout.splitlines()[1:5]]
    # the first with a score is what the others are compared with
    assert [row[-1] for row in rows[:2]] == ["–", "–"]
    assert rows[0][-2] == "0"
    assert [row[-3] for row in rows[2:]] == ["0.50", "0.50"]
    assert "Specs   the same" in stdout


def test_latex_is_escaped() -> None:
    assert escape_latex(r"a_b & 50 % {x} \y ~^ $#") == (
        r"a\_b \& 50 \% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{} \$\#"
    )
    row = ComparisonRow("[x]", "PPO", "E", 1, (1.0,), None, None)
    # a bracket after a line break would be its option
    assert "\n{}[x] & PPO" in format_latex([row])


# --- aggregates over envs


def test_scores_are_normalised_by_random_play_and_the_best_mean() -> None:
    # means 40 and 20 over random 0; 8 and 4 over random 2: 1 and 0.5, 1 and a third
    scores = {
        "A": {"one": [30.0, 40.0, 50.0], "two": [6.0, 8.0, 10.0]},
        "B": {"one": [10.0, 20.0, 30.0], "two": [4.0, 4.0, 4.0]},
    }
    found = aggregate_scores(scores, {"one": 0.0, "two": 2.0})
    assert found.scales == {"one": (0.0, 40.0), "two": (2.0, 8.0)}
    first, second = found.rows
    # A: 3/4, 1, 5/4 and 2/3, 1, 4/3; the middle four of six are 3/4, 1, 1, 5/4
    assert first.iqm.value == pytest.approx(1.0)
    # B: 1/4, 1/2, 3/4 and three times 1/3; the middle four are 1/3, 1/3, 1/3, 1/2
    assert second.iqm.value == pytest.approx(1.5 / 4)
    assert first.improvement is None
    # B wins no pair and ties one of nine in the first env, and none in the second
    assert second.improvement is not None
    assert second.improvement.value == pytest.approx(0.5 / 9 / 2)
    # the same draws every time, and bounds within what the sessions reached
    assert found == aggregate_scores(scores, {"one": 0.0, "two": 2.0})
    assert 2 / 3 < first.iqm.low < 1 < first.iqm.high < 4 / 3


def test_the_interval_is_that_of_all_draws() -> None:
    """Three sessions in each of two envs can be drawn in 27 x 27 ways; one env of equal scores adds nothing."""
    values, constant = np.array([0.0, 3.0, 9.0]), np.array([5.0, 5.0, 5.0])
    ways = np.stack(np.meshgrid(values, values, values), axis=-1).reshape(-1, 3)
    exact = calc_iqm(np.concatenate([ways, np.broadcast_to(constant, (27, 3))], axis=1))
    low, high = np.percentile(np.repeat(exact, 1000), (2.5, 97.5))
    found = calc_aggregate_iqm([values, constant])
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    # six values: one is cut at each end
    assert found.value == pytest.approx((3 + 5 + 5 + 5) / 4)


def test_few_sessions_have_no_interval() -> None:
    found = calc_aggregate_iqm([np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0])])
    assert (found.value, math.isnan(found.low)) == (pytest.approx(5 / 3), True)


def test_envs_that_cannot_be_normalised_are_left_out_by_name() -> None:
    rows = [
        make_row("A", "good", 5.0, 7.0),
        make_row("B", "good", 1.0),
        make_row("A", "missing", 5.0),
        make_row("A", "unknown", 5.0, random_return=None),
        make_row("B", "unknown", 5.0, random_return=None),
        make_row("A", "hopeless", -5.0),
        make_row("B", "hopeless", -7.0),
        make_row("A", "empty", 3.0),
        make_row("B", "empty"),
    ]
    found = aggregate_rows(rows)
    assert found is not None
    assert found.scales == {"good": (0.0, 6.0)}
    assert found.notes == [
        "good: 0 is random play (0.00), 1 the best mean (6.00)",
        "missing left out: no score of B",
        "unknown left out: the return of random play is unknown",
        "hopeless left out: no algorithm is better than random play",
        "empty left out: no score of B",
    ]
    assert found.rows[0].cells == ["A", "1", "1.00", "–"]
    assert aggregate_rows(rows[2:4] + rows[5:6]) is None
    # two runs of one algorithm in one env cannot stand for it
    assert aggregate_rows([*rows, rows[0]]) is None
