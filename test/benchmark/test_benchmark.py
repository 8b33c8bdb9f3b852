"""The benchmark: its matrix fits the shipped specs, and only whole, honest runs become rows of the page."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slm_lab.benchmark import local
from slm_lab.benchmark.curves import curves_file, find_reach, load_curves, pick_column, save_curves, thin
from slm_lab.benchmark.intake import take_in
from slm_lab.benchmark.local import Outcome, launch_command, order_by_cost, run_rows, wait_for_core
from slm_lab.benchmark.match import find_obstacles, find_row
from slm_lab.benchmark.matrix import Row, load_matrix, select_rows
from slm_lab.benchmark.plan import estimate, find_open, load_costs, measure_fps
from slm_lab.benchmark.result import Result, load_results, save_results
from slm_lab.benchmark.state import Standing, find_locked, find_states
from slm_lab.benchmark.table import build_page, judge, plot_file, status
from slm_lab.cli import bench
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import lock_file, write_json, write_yaml
from slm_lab.lib.parent import VARIABLE
from slm_lab.results.metrics import calc_trial_metrics
from slm_lab.results.run import load_run
from slm_lab.results.table import read_table
from slm_lab.spec.loading import dump_spec, read_specs

PPO, A2C = select_rows(["CartPole-v1 PPO"])[0], select_rows(["CartPole-v1 A2C"])[0]
PONG = select_rows(["Pong ppo"])[0]
SAC, SHORT = select_rows(["mujoco hopper sac"])[0], select_rows(["short hopper sac"])[0]


def make_run(data: Path, row: Row, final: float = 480.0, stamp: str = "2026_01_01_000000") -> Path:
    """A finished run of a row, as training leaves it but for its models."""
    spec = row.load_spec()
    path = data / f"{spec.name}_{stamp}"
    (path / "info").mkdir(parents=True)
    tables = {}
    for session in range(row.max_session):
        file = path / "info" / f"{spec.name}_t0_s{session}_session_df_train.csv"
        frames = np.linspace(row.max_frame / 40, row.max_frame, 40).astype(int)
        rewards = np.linspace(20.0, final + session, 40)
        with file.open("w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["total_reward", "total_reward_ma", "fps", "frame", "opt_step"])
            writer.writerows(zip(rewards, rewards, [1000.0] * 40, frames, frames, strict=True))
        tables[session] = read_table(file)
    ended = {"num_session": 4, "failed": (), "is_complete": True}
    metrics = calc_trial_metrics(tables, 20.0).model_copy(update=ended)
    metrics.write(path / f"{spec.name}_t0_trial_metrics.json")
    write_yaml(path / f"{spec.name}_spec.yaml", dump_spec(spec))
    facts = {"git_sha": "0" * 40, "versions": {"slm-lab": "0.1.0"}, "imports": []}
    write_json(path / "info" / f"{spec.name}_provenance.json", facts)
    return path


def edit_spec(path: Path, section: str, key: str, value: Any, name: str = PPO.spec_name) -> None:
    document = dump_spec(PPO.load_spec())
    node = document[name]
    for part in section.split("."):
        node = node[part]
    node[key] = value
    write_yaml(path / f"{name}_spec.yaml", document)


def edit_metrics(path: Path, **changes: Any) -> None:
    (file,) = path.glob("*_trial_metrics.json")
    write_json(file, json.loads(file.read_text()) | changes)


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(bench.app, list(arguments))
    return result.exit_code, result.output


def make_result(score: float, **changes: Any) -> Result:
    fields = dict(
        run="a_run", url=None, score=score, low=score - 5, high=score + 5, values=(score,) * 4, final_eval=None,
        fps=1000.0, date="2026-01-01", version="0.1.0", git_sha=None, spec=dump_spec(PPO.load_spec())[PPO.spec_name],
    )  # fmt: skip
    return Result(**{**fields, **changes})


# --- the matrix


def test_matrix_has_every_row_of_the_reference() -> None:
    rows = load_matrix()
    assert len({row.key for row in rows}) == len(rows)
    assert sum(row.phase not in ("further", "short") for row in rows) == 292
    phases = {phase: sum(row.phase == phase for row in rows) for phase in {row.phase for row in rows}}
    assert phases == {
        "classic": 18, "box2d": 10, "mujoco": 33, "atari": 177, "playground": 54, "further": 15, "short": 27
    }  # fmt: skip


@pytest.mark.parametrize("spec_name", sorted({row.spec_name for row in load_matrix()}))
def test_settings_of_the_matrix_are_those_of_the_specs(spec_name) -> None:
    # rows that share a spec differ in their placeholders only, or in their frames
    published = [row for row in load_matrix() if not row.is_short]
    for row in [row for row in load_matrix() if row.spec_name == spec_name][:2]:
        spec = row.load_spec()
        # a short row stands beside the published one of the same algorithm
        rivals = [other for other in published if (other.env, other.algorithm) == (row.env, row.algorithm)]
        assert not row.is_short or all(row.max_frame < other.max_frame for other in rivals)
        assert spec.env.name == row.env
        assert spec.env.max_frame == row.max_frame
        assert spec.env.num_envs == row.num_envs
        assert spec.meta.max_session == row.max_session
        assert spec.meta.log_frequency == row.log_frequency


def test_a_spec_as_torcharc_has_the_values_of_its_twin() -> None:
    folder = Path(load_matrix()[0].spec_file).parents[2]
    plain, arc = (
        {name: spec for file in (folder / kind).rglob("*.*") for name, spec in read_specs(file).items()}
        for kind in ("benchmark", "benchmark_arc")
    )
    twins = {name: f"{name}_arc" for name in plain if f"{name}_arc" in arc}
    assert len(twins) > 50
    shape = {"type", "arc", "hid_layers", "layer_norm", "conv_hid_layers", "fc_hid_layers"}
    for spec in (spec for name, twin in twins.items() for spec in (plain[name], arc[twin])):
        spec["agent"]["net"] = {key: value for key, value in spec["agent"]["net"].items() if key not in shape}
    assert [name for name, twin in twins.items() if plain[name] != arc[twin]] == []


def test_filters_are_words_that_all_fit() -> None:
    assert len(select_rows(["classic"])) == 18
    assert {row.algorithm for row in select_rows(["atari ppo"])} == {"PPO"}
    assert len(select_rows(["CartPole-v1 PPO", "box2d"])) == 11
    with pytest.raises(LabError, match=r"no row matches 'clasic'; did you mean 'classic'"):
        select_rows(["clasic"])


def test_command_of_a_row_fills_placeholders() -> None:
    assert PONG.command[:3] == ["run", "-s", "env=ALE/Pong-v5"]
    assert PPO.command == ["run", PPO.spec_file, "ppo_cartpole_arc", "train"]


# --- which runs may stand in a row


def test_a_finished_run_fits_its_row(tmp_path) -> None:
    run = load_run(str(make_run(tmp_path, PPO)), tmp_path)
    assert find_row(run, load_matrix()) == PPO
    assert find_obstacles(run, PPO) == []
    pong = load_run(str(make_run(tmp_path, PONG)), tmp_path)
    assert find_row(pong, load_matrix()) == PONG


def test_a_run_of_fewer_frames_stands_in_the_short_row_alone(tmp_path) -> None:
    assert SHORT.command[1:5] == ["-s", "env.max_frame=200000", "-s", "meta.log_frequency=2000"]
    make_run(tmp_path, SHORT)
    assert [state.standing for state in find_states([SAC, SHORT], {}, tmp_path)] == [Standing.MISSING, Standing.READY]
    # nor is it looked at where the short rows are filtered out, or a full run where the others are
    assert stand(tmp_path, row=SAC) is Standing.MISSING
    make_run(tmp_path / "full", SAC)
    assert stand(tmp_path / "full", row=SHORT) is Standing.MISSING


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("env", "max_frame", 100_000, "env.max_frame is 100000, the row has 200000"),
        ("env", "num_envs", 8, "env.num_envs is 8, the row has 4"),
        ("meta", "log_frequency", 1000, "meta.log_frequency is 1000, the row has 500"),
        ("meta", "seed", 7, "meta.seed is 7, the row has 0"),
        ("env", "reward_scale", 0.5, "env.reward_scale is 0.5, the row has 1.0"),
        ("agent.algorithm", "gamma", 0.5, "agent.algorithm.gamma is 0.5, the row has 0.9769"),
        # what changes no score may differ
        ("meta", "tensorboard", True, None),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, section, key, value, told) -> None:
    path = make_run(tmp_path, PPO)
    edit_spec(path, section, key, value)
    obstacles = find_obstacles(load_run(str(path), tmp_path), PPO)
    assert (told in obstacles) if told else obstacles == []


def test_incomplete_runs_are_refused(tmp_path) -> None:
    path = make_run(tmp_path, PPO)
    edit_metrics(path, is_complete=False, failed=[2], session_index=[0, 1, 3])
    obstacles = find_obstacles(load_run(str(path), tmp_path), PPO)
    assert "sessions [2] failed" in obstacles
    assert "it has 3 of 4 sessions" in obstacles


def test_a_score_that_the_tables_do_not_have_is_refused(tmp_path) -> None:
    path = make_run(tmp_path, PPO)
    edit_metrics(path, total_reward_ma={"mean": 500.0})
    (obstacle,) = find_obstacles(load_run(str(path), tmp_path), PPO)
    assert "trial_metrics has score 500.0" in obstacle


def test_a_search_is_never_a_row(tmp_path) -> None:
    path = make_run(tmp_path, PPO)
    write_json(path / "info" / "ppo_cartpole_arc_search.json", {"best_trial": 0})
    (obstacle,) = find_obstacles(load_run(str(path), tmp_path), PPO)
    assert obstacle.startswith("it is a search")


# --- where rows stand


def stand(data: Path, results: dict[str, Result] | None = None, row: Row = PPO) -> Standing:
    return find_states([row], results or {}, data)[0].standing


def test_standing_follows_the_run(tmp_path) -> None:
    assert stand(tmp_path) is Standing.MISSING
    path = make_run(tmp_path, PPO)
    assert stand(tmp_path) is Standing.READY
    edit_metrics(path, is_complete=False)
    assert stand(tmp_path) is Standing.STOPPED
    assert find_states([PPO], {}, tmp_path, [PPO.key])[0].standing is Standing.SUBMITTED
    lock = path / "model" / ".ppo_cartpole_arc_t0_s0.lock"
    with lock_file(lock, 0):
        assert stand(tmp_path) is Standing.RUNNING
        (state,) = find_states([PPO], {}, tmp_path)
        assert find_locked(path) == [0]
        # the other sessions are at their end
        assert state.seconds_left == 0
    assert stand(tmp_path) is Standing.STOPPED
    edit_metrics(path, failed=[1])
    assert stand(tmp_path) is Standing.REFUSED


def test_the_run_that_began_last_counts_not_the_best_nor_the_last_copied(tmp_path) -> None:
    newest = make_run(tmp_path, PPO, 300.0, "2026_01_02_000000")
    make_run(tmp_path, PPO, 500.0, "2026_01_01_000000")
    (state,) = find_states([PPO], {}, tmp_path)
    assert state.run is not None
    assert state.run.path == newest
    # nor does a run take the place of a result that is newer
    result = make_result(300.0, run=f"{PPO.spec_name}_2026_01_03_000000")
    assert stand(tmp_path, {PPO.key: result}) is Standing.DONE


def test_runs_of_other_settings_do_not_hide_a_good_one(tmp_path) -> None:
    good = make_run(tmp_path, PPO)
    edit_spec(make_run(tmp_path, PPO, stamp="2026_01_02_000000"), "meta", "max_session", 1)
    study = make_run(tmp_path, PPO, stamp="2026_01_03_000000") / "info" / f"{PPO.spec_name}_study.log"
    study.write_text("")
    (state,) = find_states([PPO], {}, tmp_path)
    assert state.standing is Standing.READY
    assert state.run is not None
    assert state.run.path == good


def test_a_result_of_a_spec_that_has_changed_is_to_be_run_again(tmp_path) -> None:
    old = make_result(300.0, run=f"{PPO.spec_name}_2026_01_03_000000")
    # a key that the lab has learned since needs no new run
    del old.spec["agent"]["algorithm"]["normalize_v_targets"]
    assert stand(tmp_path, {PPO.key: old}) is Standing.DONE
    old.spec["agent"]["algorithm"]["lam"] = 0.5
    states = find_states([PPO], {PPO.key: old}, tmp_path)
    assert states[0].standing is Standing.STALE
    assert find_open(states) == states


# --- training rows


class FakeLab:
    """Stands in for `slm-lab run`: notes what it is asked for, and leaves a finished run unless told to fail."""

    def __init__(self, data: Path, codes: list[int]) -> None:
        self.data = data
        self.codes = codes
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Any) -> int:
        self.calls.append(list(arguments))
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            row = next(row for row in load_matrix() if row.spec_name in arguments)
            make_run(self.data, row, stamp=f"2026_01_01_00000{len(self.calls)}")
        return code


def test_missing_rows_are_trained_once(tmp_path) -> None:
    lab = FakeLab(tmp_path, [])
    assert [outcome.exit_code for outcome in run_rows([PPO, A2C], {}, tmp_path, 1, lab)] == [0, 0]
    assert run_rows([PPO, A2C], {}, tmp_path, 1, lab) == []
    assert [words[2] for words in lab.calls] == ["ppo_cartpole_arc", "a2c_gae_cartpole_arc"]


def test_a_row_keeps_what_it_took(tmp_path, monkeypatch) -> None:
    times = iter([10.0, 110.0])
    monkeypatch.setattr(local.os, "times", lambda: SimpleNamespace(children_user=next(times), children_system=0.0))
    (outcome,) = run_rows([PPO], {}, tmp_path, 1, FakeLab(tmp_path, []))
    assert outcome.core_seconds == 100
    assert load_costs(tmp_path) == {PPO.key: (100.0, 800_000.0)}
    # which is what the next estimate goes by, whatever the clock on the wall said
    states = find_states([PPO], {}, tmp_path)
    assert estimate(PPO, measure_fps(states, load_costs(tmp_path)), 1).core_seconds == pytest.approx(100)


def test_idle_machines_train_the_cheapest_row_first(tmp_path) -> None:
    measured = {("CartPole-v1", "PPO"): 1000.0, ("CartPole-v1", "A2C"): 2000.0}
    rows = [PPO, A2C]
    costs = order_by_cost(find_states(rows, {}, tmp_path), measured)
    assert [(row.key, seconds) for row, seconds in costs] == [(A2C.key, 400.0), (PPO.key, 800.0)]
    # a stopped run costs what it has left
    edit_metrics(make_run(tmp_path, PPO), is_complete=False)
    assert order_by_cost(find_states(rows, {}, tmp_path), measured)[0] == (PPO, 0.0)
    # a row with a result costs nothing
    result = make_result(300.0, run=f"{PPO.spec_name}_2026_01_03_000000")
    assert [row for row, _ in order_by_cost(find_states([PPO], {PPO.key: result}, tmp_path), measured)] == []


def test_idle_waits_until_others_leave_a_core(monkeypatch) -> None:
    slept: list[float] = []
    # idle or at low priority, and in total: both cores busy, then one of them free
    times = iter([(0, 0), (1, 100), (1, 100), (51, 200)])
    monkeypatch.setattr(local, "num_cores", lambda: 2)
    monkeypatch.setattr(local, "_read_times", lambda: next(times))
    monkeypatch.setattr(local.time, "sleep", slept.append)
    wait_for_core()
    assert slept == [local.WATCH_SECONDS, local.POLL_SECONDS, local.WATCH_SECONDS]


def test_idle_lowers_the_priority_and_says_what_rows_take(tmp_path, monkeypatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(local.os, "nice", seen.append)
    monkeypatch.setattr(local, "share_niceness", lambda: seen.append("group"))

    def run(rows: list[Row], *_: object, wait: object, **__: object) -> list[Outcome]:
        seen.append((rows, wait))
        return []

    monkeypatch.setattr(bench, "run_rows", run)
    where = ("--data-dir", str(tmp_path), "--docs", str(tmp_path))
    code, text = call("run", "--idle", "--filter", "CartPole-v1 PPO", *where)
    assert code == 0
    assert seen == [19, "group", ([PPO], wait_for_core)]
    assert re.search(r"CartPole-v1 PPO +0\.1 core-hours", text)
    save_results(tmp_path, {PPO.key: make_result(300.0, run=f"{PPO.spec_name}_2026_01_03_000000")})
    for more, rows in (([], []), (["--again"], [PPO])):
        assert call("run", "--idle", "--filter", "CartPole-v1 PPO", *more, *where)[0] == 0
        assert seen[-1] == (rows, wait_for_core)
    code, text = call("run", "--idle", "--remote", *where)
    assert (code, "--idle needs --local" in text) == (2, True)


def test_a_failure_is_tried_again_in_a_new_folder(tmp_path) -> None:
    lab = FakeLab(tmp_path, [1])
    (outcome,) = run_rows([PPO], {}, tmp_path, 1, lab)
    assert (outcome.exit_code, outcome.num_attempt) == (0, 2)
    (outcome,) = run_rows([A2C], {}, tmp_path, 1, FakeLab(tmp_path, [1, 1]))
    assert (outcome.exit_code, outcome.num_attempt) == (1, 2)


def test_a_stop_ends_the_batch_and_the_next_start_continues(tmp_path) -> None:
    stopped = make_run(tmp_path, PPO)
    edit_metrics(stopped, is_complete=False)
    lab = FakeLab(tmp_path, [130])
    outcomes = run_rows([PPO, A2C], {}, tmp_path, 1, lab)
    assert [outcome.exit_code for outcome in outcomes] == [130]
    assert lab.calls == [["run", f"train@{stopped}", "--data-dir", str(tmp_path)]]


# --- the page


def test_intake_writes_result_figure_and_row(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    make_run(data, PPO)
    urls: list[Path] = []

    def share(path: Path) -> str:
        urls.append(path)
        return f"https://hub.example/{path.name}"

    done = take_in(find_states(list(load_matrix()), {}, data), docs, data, share)
    assert [row.key for row in done.taken] == ["CartPole-v1 PPO"]
    assert not done.refused
    assert len(urls) == 1
    result = load_results(docs)["CartPole-v1 PPO"]
    tables = [read_table(file) for file in sorted(data.glob("*/info/*df_train.csv"))]
    assert result.values == pytest.approx([table["total_reward"].mean() for table in tables])
    assert (docs / plot_file("CartPole-v1")).read_bytes().startswith(b"\x89PNG")
    page = (docs / "BENCHMARKS.md").read_text()
    assert f"[{result.run}](https://hub.example/{result.run})" in page
    assert f"{result.score:.2f} [{result.low:.2f}, {result.high:.2f}]" in page
    assert "1 of 18" in page
    # taking in twice changes nothing
    again = take_in(find_states(list(load_matrix()), load_results(docs), data), docs, data, share)
    assert not again.taken
    assert len(urls) == 1


def test_settings_that_differ_name_their_rows(tmp_path) -> None:
    rows = select_rows(["further lunarlandercontinuous"])
    page = build_page(tmp_path, rows, {rows[0].key: make_result(200)})
    assert "**Settings** of TD3: max_frame 300,000 | num_envs 4 " in page
    assert "**Settings** of TQC: max_frame 300,000 | num_envs 8 " in page


def test_a_row_of_one_session_has_no_interval(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    row, *_ = select_rows(["short ppo pong"])
    make_run(data, row)
    assert take_in(find_states([row], {}, data), docs, data, lambda _: None).taken == (row,)
    result = load_results(docs)[row.key]
    assert (result.low, result.high, len(result.values)) == (None, None, 1)
    assert "| ALE/Pong-v5 | PPO | 16.69 |" in (docs / "BENCHMARKS.md").read_text()


def test_a_failed_upload_leaves_the_row_out(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    make_run(data, PPO)

    def share(path: Path) -> str:
        raise LabError("no token")

    done = take_in(find_states([PPO], {}, data), docs, data, share)
    assert done.refused == {f"{PPO.spec_name}_2026_01_01_000000": ("no token",)}
    assert load_results(docs) == {}


def test_a_row_taken_in_without_a_link_gets_it_later(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    path = make_run(data, PPO)
    take_in(find_states([PPO], {}, data), docs, data, None)
    assert load_results(docs)[PPO.key].url is None
    states = find_states([PPO], load_results(docs), data)
    assert states[0].standing is Standing.DONE
    take_in(states, docs, data, lambda run: f"https://hub.example/{run.name}")
    assert load_results(docs)[PPO.key].url == f"https://hub.example/{path.name}"


def test_a_note_on_no_row_is_told(tmp_path) -> None:
    write_json(tmp_path / "benchmark" / "notes.json", {"CartPole-v1 PPOO": "hm"})
    with pytest.raises(LabError, match="did you mean 'CartPole-v1 PPO'"):
        build_page(tmp_path, load_matrix(), {})


def test_a_figure_shows_runs_that_are_no_longer_here(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    old = make_run(data, A2C)
    take_in(find_states([A2C], {}, data), docs, data, None)
    kept = load_curves(docs, A2C.env)
    assert list(kept) == [old.name]
    table = read_table(next(old.glob("info/*s3_session_df_train.csv")))
    for column in ("frame", "total_reward"):
        np.testing.assert_allclose(kept[old.name][3][column], table[column], rtol=1e-5)
    # fewer rows than the window of a moving average
    assert np.isnan(kept[old.name][3]["total_reward_ma"]).all()
    shutil.rmtree(old)
    alone = (docs / plot_file(PPO.env)).read_bytes()
    new = make_run(data, PPO)
    assert not take_in(find_states([PPO], load_results(docs), data), docs, data, None).refused
    assert list(load_curves(docs, PPO.env)) == [old.name, new.name]
    assert (docs / plot_file(PPO.env)).read_bytes() != alone
    # a row that is trained again leaves nothing of the old curve
    newer = make_run(data, PPO, stamp="2026_01_02_000000")
    take_in(find_states([PPO], load_results(docs), data), docs, data, None)
    assert list(load_curves(docs, PPO.env)) == [old.name, newer.name]


def test_a_curve_that_is_not_kept_is_taken_from_its_run_or_asked_for(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    old = make_run(data, A2C)
    take_in(find_states([A2C], {}, data), docs, data, None)
    curves_file(docs, A2C.env).unlink()
    figure = (docs / plot_file(PPO.env)).read_bytes()
    new = make_run(data, PPO)
    old.rename(tmp_path / "elsewhere")
    done = take_in(find_states([PPO], load_results(docs), data), docs, data, None)
    ((reason,),) = done.refused.values()
    assert f"slm-lab pull {old.name}" in reason
    assert list(load_results(docs)) == [A2C.key]
    assert (docs / plot_file(PPO.env)).read_bytes() == figure
    (tmp_path / "elsewhere").rename(old)
    assert not take_in(find_states([PPO], load_results(docs), data), docs, data, None).refused
    assert sorted(load_curves(docs, PPO.env)) == sorted([old.name, new.name])


def test_kept_curves_are_short_and_skip_what_is_not_known(tmp_path) -> None:
    path = make_run(tmp_path, PPO)
    for session in range(4):
        file = path / "info" / f"{PPO.spec_name}_t0_s{session}_session_df_train.csv"
        rows = [f"{'' if i < 50 else i},{'' if i < 50 else i},1.0,{i * 10},{i}" for i in range(1, 1001)]
        file.write_text("\n".join(["total_reward,total_reward_ma,fps,frame,opt_step", *rows, ""]))
    curves = thin(load_run(str(path), tmp_path))
    assert list(curves) == [0, 1, 2, 3]
    frame, value, average = (curves[0][name] for name in ("frame", "total_reward", "total_reward_ma"))
    assert 90 <= len(frame) <= 100
    assert np.array_equal(frame, value * 10)
    assert (frame[0] >= 500, frame[-1]) == (True, 10_000)
    # a moving average counts from where its window is full: a hundred rows after the first that is known
    assert frame[np.isfinite(average)][0] == frame[frame >= 1490][0]
    save_curves(tmp_path, PPO.env, {path.name: curves})
    again = load_curves(tmp_path, PPO.env)[path.name]
    for name in curves[0]:
        np.testing.assert_array_equal(again[0][name], curves[0][name])


def test_a_score_is_reached_where_the_mean_of_sessions_stays() -> None:
    frame = np.arange(1.0, 7.0)
    # the mean is 1, 5, 3, 5, 6, 7: at 4 it was there before, and was lost again
    values = np.array([1.0, 5.0, 3.0, 5.0, 6.0, 7.0])
    sessions = {s: {"frame": frame, "total_reward": values + shift} for s, shift in enumerate((-1.0, 1.0))}
    assert find_reach(sessions, 4.0) == 4
    assert find_reach(sessions, 1.0) == 1
    assert find_reach(sessions, 7.5) is None


def test_short_budgets_have_a_table_of_their_own(tmp_path) -> None:
    make_run(tmp_path / "data", SHORT, final=2000.0)
    docs = tmp_path / "docs"
    take_in(find_states([SHORT], {}, tmp_path / "data"), docs, tmp_path / "data", None)
    page = (docs / "BENCHMARKS.md").read_text()
    table = page.partition("### Short budgets")[2].partition("## ")[0]
    assert "| Hopper-v5 | SAC | 1416.52 | 145,000 | 200,000 | 2001.50 |" in table
    assert "Hopper-v5_in_200_000_frames.png" in table
    # the published row is still missing
    assert "| MuJoCo (`mujoco`) | 0 of 33 |" in page
    assert "| Hopper-v5 |" not in page.partition("## Summary")[2].partition("## ")[0]


def test_rows_without_a_reference_stand_beside_those_with_one(tmp_path) -> None:
    rows = [row for row in select_rows(["short hopper"]) if row.max_frame == 300_000]
    chosen = [row for row in rows if row.algorithm in ("SAC", "TD3")]
    for row, final in zip(chosen, (2000.0, 2400.0), strict=True):
        make_run(tmp_path / "data", row, final=final)
    docs = tmp_path / "docs"
    take_in(find_states(chosen, {}, tmp_path / "data"), docs, tmp_path / "data", None)
    page = (docs / "BENCHMARKS.md").read_text()
    table = page.partition("### Beside SAC")[2].partition("## ")[0]
    assert re.findall(r"\| Hopper-v5 \| 300,000 \| (\w+) \| ([\d.]+) \|", table) == [
        ("SAC", "2001.50"), ("TD3", "2400.50")
    ]  # fmt: skip
    # one figure, with both
    assert page.count("![Learning curves in Hopper-v5 in 300,000 frames]") == 1
    assert set(load_curves(docs, "Hopper-v5 in 300,000 frames")) == {
        result.run for result in load_results(docs).values()
    }
    assert "| Hopper-v5 | TD3 |" not in page.partition("### Short budgets")[2].partition("### ")[0]


def test_summary_has_score_reference_and_verdict(tmp_path) -> None:
    page = build_page(tmp_path, load_matrix(), {PPO.key: make_result(499.8)})
    # the rows of the published lab, and those of our own
    line, _ = [line for line in page.partition("## Summary")[2].splitlines() if line.startswith("| CartPole-v1 |")]
    assert "| 499.80<br>[495, 505]<br>498.94 within |" in line
    assert "| -<br>496.68 |" in line


def test_summary_counts_verdicts_and_marks_the_best_of_an_env(tmp_path) -> None:
    keys = ("CartPole-v1 SARSA", "CartPole-v1 SAC")
    results = {PPO.key: make_result(499.8)} | dict(zip(keys, (make_result(499.9), make_result(300.0)), strict=True))
    summary = build_page(tmp_path, load_matrix(), results).partition("## Summary")[2].partition("## ")[0]
    text = " ".join(summary.split())
    assert "3 of the 292 rows of the published SLM-Lab have a result." in text
    assert "The whole interval of 1 is above the reference, that of 1 below; 1 contain it." in text
    assert "| **499.90**<br>" in text
    assert summary.count("**") == 4  # the best, and the verdict "below"


def test_a_figure_of_runs_that_kept_averages_alone_draws_averages(tmp_path) -> None:
    frame = np.arange(3.0)
    old = {"frame": frame, "total_reward": np.full(3, np.nan), "total_reward_ma": frame}
    new = {"frame": frame, "total_reward": frame, "total_reward_ma": frame}
    assert pick_column([old, new]) == "total_reward_ma"
    assert pick_column([new]) == "total_reward"


def test_page_names_rows_below_the_reference_and_changed_specs(tmp_path) -> None:
    write_json(tmp_path / "benchmark" / "notes.json", {"CartPole-v1 PPO": "tried more epochs"})
    page = build_page(tmp_path, load_matrix(), {PPO.key: make_result(300.0, spec={})})
    line = next(line for line in page.splitlines() if line.startswith("| PPO | "))
    assert "**below**" in line
    assert "spec changed since" in line
    assert "- **PPO**: tried more epochs" in page
    # every env is on the page, with or without a result
    assert all(row.env in page for row in load_matrix())


def test_damaged_files_are_told(tmp_path) -> None:
    file = curves_file(tmp_path, "ALE/Pong-v5")
    assert file.name == "ALE_Pong-v5.csv"
    file.parent.mkdir(parents=True)
    file.write_text("run,curve,frame,0\na,total_reward,x,1\n")
    with pytest.raises(LabError, match="damaged"):
        load_curves(tmp_path, "ALE/Pong-v5")
    (tmp_path / "benchmark" / "results.json").write_text('{"CartPole-v1 PPO": {"run": 1}}')
    with pytest.raises(LabError, match="damaged"):
        load_results(tmp_path)


def test_words_for_scores() -> None:
    assert status(410, 400, 20) == "solved"
    assert status(390, 400, 20) == "close"
    assert status(100, 400, 20) == "below"
    assert status(-150, -200, -1200) == "solved"
    assert status(100, None, 20) == ""
    assert judge(make_result(505), 499) == "above"
    assert judge(make_result(500), 499) == "within"
    assert judge(make_result(497), 499) == "within"
    assert judge(make_result(400), 499) == "**below**"
    assert judge(make_result(400), None) == ""
    # one session has no interval
    assert judge(make_result(400, low=None, high=None), 499) == ""


def test_estimates_take_what_was_measured() -> None:
    rough = estimate(PPO, {}, 2)
    measured = estimate(PPO, {("classic", "PPO"): 1000.0}, 2)
    assert not rough.is_measured
    assert measured.is_measured
    # 4 sessions, two at once, 200,000 frames at 1,000 a second
    assert measured.seconds == pytest.approx(400)
    assert estimate(PPO, {("classic", "PPO"): 1000.0}, 8).seconds == pytest.approx(200)


# --- the command


def test_commands_say_where_the_benchmark_is(tmp_path) -> None:
    data, docs = tmp_path / "data", tmp_path / "docs"
    where = ("--data-dir", str(data), "--docs", str(docs))
    code, text = call("plan", "--filter", "classic", *where)
    assert code == 0
    assert "18 of 18 rows need a run" in text
    # as wide as the names are
    assert text.startswith(f"{'row':<{len('CartPole-v1 REINFORCE')}} {'time':>9}")
    make_run(data, PPO)
    code, text = call("status", *where)
    assert "17 missing" in text
    assert "to take in" in text
    assert "slm-lab bench intake" in text
    code, text = call("intake", "--no-upload", *where)
    assert (code, "Taken in 1 row(s)" in text) == (0, True)
    code, text = call("table", "--docs", str(docs))
    assert (code, text.strip()) == (0, str(docs / "BENCHMARKS.md"))
    later = make_run(data, PPO, stamp="2026_01_03_000000")
    edit_metrics(later, is_complete=False)
    code, text = call("status", *where)
    assert (
        f"CartPole-v1 PPO: stopped, {later.name}, sessions at frame 200,000, 200,000, 200,000, 200,000 of 200,000"
        in text
    )


def test_intake_of_a_bad_run_exits_non_zero(tmp_path) -> None:
    edit_spec(make_run(tmp_path, PPO), "env", "num_envs", 8)
    code, text = call("intake", "--no-upload", "--data-dir", str(tmp_path), "--docs", str(tmp_path / "docs"))
    assert code == 1
    assert "env.num_envs is 8, the row has 4" in text
    code, text = call("plan", "--filter", "nonsense")
    assert code == 2


def test_commit_holds_the_page_and_nothing_else(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", *words], check=True)
    Path("mine.txt").write_text("unfinished work")
    subprocess.run(["git", "add", "mine.txt"], check=True)
    make_run(tmp_path / "data", PPO)
    code, text = call("intake", "--no-upload", "--commit")
    assert code == 0, text
    shown = subprocess.run(["git", "show", "--stat", "--format=%s"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("docs: benchmark results, 1 rows")
    assert "BENCHMARKS.md" in shown
    assert "results.json" in shown
    assert "CartPole-v1.png" in shown
    assert "mine.txt" not in shown
    # nothing new, nothing committed
    code, text = call("intake", "--no-upload", "--commit")
    assert (code, "committed" in text) == (0, False)


def test_a_row_that_is_trained_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Started:
        def __init__(self, words: list[str], env: dict[str, str] | None = None) -> None:
            seen.append((env or {}).get(VARIABLE))

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("slm_lab.benchmark.local.subprocess.Popen", Started)
    assert launch_command(["run"]) == 0
    assert seen == [str(os.getpid())]
