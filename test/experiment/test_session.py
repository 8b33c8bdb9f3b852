"""Sessions and trials on real folders: files, columns, best and last models, evaluation, failures, checkpoints."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.compile.engine import CompileClock
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment import evaluation, launch
from slm_lab.experiment.build import FINAL_ENV, build_env, build_session_agent
from slm_lab.experiment.checkpoint import state as checkpoint
from slm_lab.experiment.checkpoint.state import check_form, load_latest, load_state, save_state
from slm_lab.experiment.clock import Stopwatch
from slm_lab.experiment.control import Session
from slm_lab.experiment.executor import SessionTask
from slm_lab.experiment.launch import resume, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import best_session, load_trained, play_episodes
from slm_lab.experiment.trial import Trial
from slm_lab.lib.due import Due
from slm_lab.lib.errors import CheckpointError, LabError, RunFolderError, SpecError
from slm_lab.lib.io import write_json, write_yaml
from slm_lab.results.folder import RunFolder, open_run_folder
from slm_lab.results.run import read_run
from slm_lab.results.table import read_table
from slm_lab.spec.loading import dump_spec, load_spec
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

NAME = "tiny"


def run_session(spec: Spec, path: Path, **options: Any) -> Session:
    session = Session(spec, RunFolder(path, spec.name), **options)
    session.run()
    return session


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sessions in processes, with normalised observations and a last evaluation."""
    spec = make_tiny_spec(
        env={"normalize_obs": True, "clip_obs": 10.0},
        meta={"max_session": 2, "log_frequency": 100, "final_eval": 2},
    )
    result = start(spec, Options(data_dir=tmp_path_factory.mktemp("finished")))
    assert result.exit_code == 0
    return result.folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One session of this process, with two checkpoints."""
    path = tmp_path_factory.mktemp("trained")
    run_session(make_tiny_spec(meta={"checkpoint_frequency": 300}), path)
    return path


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> RunFolder:
    """That session, to be spoiled."""
    return RunFolder(Path(shutil.copytree(trained, tmp_path / "copy")), NAME)


@pytest.mark.parametrize("hid_layers", [[10_000_000, 10_000_000], [2**62]])
def test_a_net_too_large_for_the_machine_is_refused(hid_layers: list[int]) -> None:
    spec = make_tiny_spec(net={"type": "MLPNet", "hid_layers": hid_layers})
    with pytest.raises(SpecError, match=r"^agent\.net: its weights do not fit into the memory .*; use smaller layers$"):
        launch.prepare(spec)


def test_a_net_too_large_for_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.73 GiB.")

    monkeypatch.setattr(launch, "build_session_agent", build)
    with pytest.raises(SpecError, match=r"^agent\.net: its weights do not fit"):
        launch.prepare(make_tiny_spec())


# --- what a run leaves behind


def test_a_run_leaves_the_documented_files(finished: Path) -> None:
    files = {str(path.relative_to(finished).with_suffix("")) for path in finished.rglob("*") if path.is_file()}
    expected = {f"{NAME}_spec", f"{NAME}_t0_spec", f"{NAME}_t0_trial_metrics", "report"}
    for prefix in (f"{NAME}_t0_s{session}" for session in (0, 1)):
        models = {f"model/{prefix}_ckpt-{which}" for which in ("last_net_model", "best_net_model", "last_resume")}
        tables = {f"info/{prefix}_session_df_train", f"info/{prefix}_session_metrics"}
        graph = f"graph/{prefix}_session_graph_train_mean_returns_ma_vs_frames"
        expected |= models | tables | {graph, f"log/{prefix}"}
    expected |= {f"graph/{NAME}_t0_trial_graph_mean_returns_ma_vs_frames", f"info/{NAME}_provenance"}
    assert expected | {f"log/{NAME}", f"log/{NAME}_t0"} <= files
    drawn = [path for path in finished.rglob("*") if path.suffix in (".png", ".html", ".js")]
    assert sum(path.stat().st_size for path in drawn) < 1_000_000


def test_the_table_has_its_columns_and_a_row_per_checkpoint(finished: Path) -> None:
    table = read_table(RunFolder(finished, NAME).table_file(0, 1, "train"))
    core = ["total_reward", "total_reward_ma", "loss", "fps", "frame", "wall_t", "t", "epi", "opt_step", "lr"]
    assert list(table)[:10] == core
    assert table["frame"].tolist() == [100, 200, 300, 400, 500, 600]
    assert table["t"].tolist() == [25, 50, 75, 100, 125, 150]
    # trained after every 32 steps of 4 envs, in 4 minibatches
    assert table["opt_step"].tolist() == [0, 4, 8, 12, 12, 16]
    assert math.isnan(table["loss"][0])
    assert math.isfinite(table["loss"][1])


def test_the_score_is_the_mean_of_the_sessions_values(finished: Path) -> None:
    metrics = json.loads((finished / f"{NAME}_t0_trial_metrics.json").read_text())
    values = metrics["total_reward_ma"]["values"]
    assert len(values) == 2
    assert metrics["scalar"]["total_reward_ma"] == pytest.approx(sum(values) / 2)
    assert values[0] != values[1]
    assert metrics["is_complete"]


def test_the_saved_spec_repeats_the_run(finished: Path, tmp_path: Path) -> None:
    spec = load_spec(finished / f"{NAME}_spec.yaml").spec
    for session in (0, 1):
        run_session(spec, tmp_path, session=session)
        one, two = (read_table(RunFolder(path, NAME).table_file(0, session, "train")) for path in (finished, tmp_path))
        for name in set(one) - {"wall_t", "fps"}:
            assert np.array_equal(one[name], two[name], equal_nan=True), name


@pytest.mark.usefixtures("inline", "undrawn")
def test_a_finished_run_is_not_trained_again(finished: Path) -> None:
    file = RunFolder(finished, NAME).table_file(0, 0, "train")
    before = file.read_text()
    os.utime(finished / f"{NAME}_t0_trial_metrics.json")  # newer than the report: as if it had not been drawn
    assert resume(str(finished), Options()).exit_code == 0
    assert file.read_text() == before


def test_a_complete_run_shows_its_result_without_a_session(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(finished, tmp_path / "run"))
    metrics, report = path / f"{NAME}_t0_trial_metrics.json", path / "report.html"
    os.utime(metrics, (1, 1))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a session was started")

    for name in ("prepare", "Trial"):
        monkeypatch.setattr(launch, name, refuse)
    result = resume(str(path), Options())
    assert (result.exit_code, result.report, result.curve.exists()) == (0, report, True)
    assert result.score == pytest.approx(json.loads(metrics.read_text())["final_eval"]["mean"])
    assert [(one.session, one.is_done, len(one.final_eval)) for one in result.results] == [(0, True, 2), (1, True, 2)]
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()} == before
    # whatever is missing is made again
    session = path / "info" / f"{NAME}_t0_s1_session_metrics.json"
    for file, text in ((report, None), (session, '{"is_done": false}'), (session, "{")):
        kept = file.read_text()
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(AssertionError, match="a session was started"):
            resume(str(path), Options())
        file.write_text(kept)


# --- play


def test_enjoy_plays_the_trained_policy_and_writes_nothing(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    agent, env, spec = load_trained(str(finished))
    first = list(play_episodes(env, agent, 3))
    assert first == list(play_episodes(env, agent, 3))
    assert len(first) == 3
    # acting does not move the saved statistics of the normaliser
    folder = RunFolder(finished, spec.name)
    best = best_session(folder, spec)
    state = load_state(folder.model_file(0, best, "best"))
    assert state["obs_normalizer"]["count"] > 100
    agent.act(np.full((1, 4), 1e6, np.float32))
    assert agent.encode.stats is not None
    assert np.array_equal(agent.encode.stats.mean, state["obs_normalizer"]["mean"])
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    scores = [json.loads(folder.session_metrics_file(0, s).read_text())["total_reward_ma"] for s in (0, 1)]
    assert scores[best] == max(scores)


def test_evaluation_counts_one_episode_of_each_env_first() -> None:
    spec = make_tiny_spec()
    env = build_vec_env(build_settings(spec.env, (5,), 3))
    agent = build_session_agent(spec, env, 0, 3)
    seen = []
    step = env.step

    def recording(action: Any) -> Any:
        result = step(action)
        seen.extend(np.flatnonzero(result.done).tolist())
        return result

    env.step = recording  # type: ignore[method-assign]
    assert len(list(play_episodes(env, agent, 3))) == 3
    assert set(seen) == {0, 1, 2}


def test_a_score_of_null_is_no_reason_to_fail(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "x")
    folder.model_file(0, 1, "best").parent.mkdir(parents=True)
    folder.model_file(0, 1, "best").touch()
    write_json(folder.session_metrics_file(0, 1), {"total_reward_ma": None})
    assert best_session(folder, make_tiny_spec(meta={"max_session": 2})) == 1


def test_the_best_session_of_learning_from_a_file_has_the_best_evaluation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "x")
    folder.model_file(0, 0, "best").parent.mkdir(parents=True)
    folder.spec_file.touch()
    for session, score in enumerate((1.0, 3.0, 2.0)):
        folder.model_file(0, session, "best").touch()
        write_json(folder.session_metrics_file(0, session), {"total_reward_ma": None, "final_eval": [score, score + 1]})
    assert best_session(folder, make_tiny_spec(meta={"max_session": 3})) == 1


# --- evaluation


def test_evaluation_is_deterministic_and_leaves_training_alone(trained: Path, tmp_path: Path) -> None:
    run_session(make_tiny_spec(meta={"rigorous_eval": 3, "eval_frequency": 140}), tmp_path)
    plain, evaluated = (RunFolder(path, NAME) for path in (trained, tmp_path))
    tables = [read_table(folder.table_file(0, 0, "train")) for folder in (plain, evaluated)]
    assert np.array_equal(tables[0]["total_reward"], tables[1]["total_reward"], equal_nan=True)
    assert read_table(evaluated.table_file(0, 0, "eval"))["frame"].tolist() == [140, 280, 420, 560]
    # the table is there all the same
    empty = plain.table_file(0, 0, "eval").read_text()
    assert empty.startswith("total_reward,total_reward_ma,")
    assert empty.count("\n") == 1


def test_evaluations_by_default_stay_within_their_share_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluation.EVAL_SHARE == 0.05
    # a run long enough for that share would take minutes
    monkeypatch.setattr(evaluation, "EVAL_SHARE", 0.5)
    spec = make_tiny_spec(env={"max_frame": 4000}, meta={"rigorous_eval": None})
    assert (spec.meta.num_eval_episode, spec.eval_every) == (4, 200)
    session = Session(spec, RunFolder(tmp_path, NAME))
    held: list[tuple[int, int]] = []
    evaluate = session._evaluate

    def watch() -> None:
        before = session.evaluation.num_step
        evaluate()
        held.append((session.frame, session.evaluation.num_step - before))

    session._evaluate = watch  # type: ignore[method-assign]
    session.run()
    table = read_table(RunFolder(tmp_path, NAME).table_file(0, 0, "eval"))
    assert 1 < len(held) < 20
    assert table["frame"].tolist() == [frame for frame, _ in held]
    # a vector step of the four envs counts once, a gradient step (on 32 of the frames) eight times
    budget = 0.5 * 4000 * (1 / 4 + 8 / 32)
    longest = max(steps for _, steps in held)
    assert session.evaluation.num_step == sum(steps for _, steps in held) <= budget + longest
    assert all(frame % 200 == 0 for frame, _ in held)


def test_episodes_that_do_not_end_leave_no_evaluation(tmp_path: Path) -> None:
    # 5 % of 400 steps, where an episode of Pendulum takes 200; ten of them do not end within 1,600 either
    meta = {"rigorous_eval": None, "final_eval": 10}
    spec = make_tiny_spec(env={"name": "Pendulum-v1", "max_frame": 1600}, meta=meta)
    session = Session(spec, RunFolder(tmp_path, NAME))
    assert session.run().final_eval == []
    assert 0 < session.evaluation.num_step < 200
    assert not session.evaluation.tracker.rows
    assert not session.evaluation.is_owed


def test_a_session_ends_with_deterministic_episodes_of_its_last_weights(finished: Path) -> None:
    spec, folder = load_spec(finished / f"{NAME}_spec.yaml").spec, RunFolder(finished, NAME)
    means = []
    for session in (0, 1):
        returns = json.loads(folder.session_metrics_file(0, session).read_text())["final_eval"]
        env = build_env(spec, FINAL_ENV, session, 2)
        agent = build_session_agent(spec, env, session, 2)
        agent.load_model_state(load_state(folder.model_file(0, session, "last")))
        assert [one.total_reward for one in play_episodes(env, agent, 2)] == returns
        means.append(float(np.mean(returns)))
    metrics = json.loads((finished / f"{NAME}_t0_trial_metrics.json").read_text())
    assert metrics["final_eval"]["values"] == means
    assert read_run(finished).final_evals == dict(enumerate(means))


def test_a_last_evaluation_that_was_stopped_is_made_up_for(tmp_path: Path) -> None:
    spec = make_tiny_spec(meta={"final_eval": 2})
    folder = RunFolder(tmp_path, NAME)
    stopped = Session(spec, folder)
    stopped.should_stop = lambda: stopped.frame >= spec.env.max_frame
    result = stopped.run()
    assert (result.is_done, result.final_eval) == (True, [])
    resumed = Session(spec, folder).run()
    whole = Session(spec, RunFolder(tmp_path / "whole", NAME)).run()
    assert resumed.final_eval == whole.final_eval
    assert len(whole.final_eval) == 2


# --- clocks


def test_compiling_is_a_phase_of_its_own_and_not_in_the_speed() -> None:
    clock = CompileClock()
    told: list[bool] = []
    clock.on_change = told.append
    watch = Stopwatch(clock)
    watch.start()
    with clock:
        time.sleep(0.02)
    watch.lap("act")
    watch.lap("env")
    assert told == [True, False]
    assert watch.phases["compile"] == clock.seconds >= 0.02
    assert watch.phases["act"] + watch.phases["env"] == pytest.approx(watch.working)
    assert watch.total == pytest.approx(watch.working + clock.seconds)


def test_periodic_work_is_due_at_each_multiple_passed() -> None:
    # a modulo test (frame % 10 < num_envs) would fire at every step of 16
    due = Due(10)
    assert [frame for frame in range(16, 100, 16) if due(frame)] == [16, 32, 48, 64, 80, 96]
    due = Due(100)
    assert [frame for frame in range(3, 400, 3) if due(frame)] == [102, 201, 300]


# --- checkpoints


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(copied: RunFolder) -> None:
    path = copied.resume_file(0, 0)
    whole = load_state(path)
    path.write_bytes(path.read_bytes()[:-1])
    run_session(make_tiny_spec(meta={"checkpoint_frequency": 300}), copied.path)
    again = load_state(path)
    assert again["frame"] == whole["frame"] == 600
    weights = [state["agent"]["algorithm"]["modules"]["net"] for state in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.fixture
def two_states(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint and the one before it."""
    path = tmp_path / RunFolder(trained, NAME).resume_file(0, 0).name
    save_state(path, {"frame": 1}, keep_previous=True)
    save_state(path, {"frame": 2}, keep_previous=True)
    return path


def test_the_good_checkpoint_survives_a_failed_write_after_a_damaged_one(
    two_states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_states.write_bytes(b"damaged")
    assert load_latest(two_states)[0] == {"frame": 1}

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        save_state(two_states, {"frame": 3}, keep_previous=True)
    assert load_latest(two_states)[0] == {"frame": 1}


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_machine_without_memory_makes_no_checkpoint_bad(two_states: Path, error: type[Exception]) -> None:
    def finish(_: dict[str, Any]) -> None:
        raise error

    with pytest.raises(error):
        load_latest(two_states, finish)
    assert load_latest(two_states) == ({"frame": 2}, [])


def test_what_an_own_net_keeps_beside_tensors_is_its_own() -> None:
    like = {"net": {"weight": torch.zeros(2), "extra": {"grid": (3, 4)}}}
    check_form({"net": {"weight": torch.ones(2), "extra": {"grid": [3, 4]}}}, like, "best_model")
    for odd in ({}, {"net": {"weight": torch.zeros(3), "extra": {"grid": [3, 4]}}}, {"net": 5}):
        with pytest.raises(ValueError, match="best_model"):
            check_form(odd, like, "best_model")


def test_a_hidden_state_that_begins_as_none_is_continued(copied: RunFolder) -> None:
    path = copied.resume_file(0, 0)
    state = load_state(path)
    carry = torch.rand(4, 3)
    for saved, is_taken in ((carry, True), (carry[:1], False), ("x", False)):
        save_state(path, {**state, "carry": saved})
        session = Session(make_tiny_spec(), copied)
        if is_taken:
            assert torch.equal(session._begin()[1], carry)
            continue
        with pytest.raises(CheckpointError, match="hidden states"):
            session._begin()


def test_a_checkpoint_of_another_session_or_spec_is_refused(copied: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="another spec"):
        Session(make_tiny_spec(meta={"seed": 9}), copied).run()
    copied.resume_file(0, 1).write_bytes(copied.resume_file(0, 0).read_bytes())
    with pytest.raises(CheckpointError, match=r"s1_ckpt-last_resume\.\w+: is that of trial 0 session 0; was it copied"):
        Session(make_tiny_spec(), copied, session=1).run()


# --- folders


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("photos", "not a run of this lab"),
        ("photo", "did you mean 'photos'"),
        ("latest", "no run in"),
        ("{}/a_*", r"(?s)matches.*a_1.*a_2"),
        ("{}/b_*", "matches nothing"),
    ],
)
def test_what_is_no_run_is_refused(where: str, message: str, tmp_path: Path) -> None:
    for name in ("photos", "a_1", "a_2"):
        (tmp_path / name).mkdir()
    with pytest.raises(RunFolderError, match=message):
        open_run_folder(where.format(tmp_path), tmp_path)


# --- failures


FAULTY = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from slm_lab.lib.runtime import derive_seed

class Faulty(CartPoleEnv):
    def reset(self, *, seed=None, options=None):
        # of the second session
        if seed == derive_seed(1, 0, 1, 2, 3):
            raise RuntimeError("planted fault")
        return super().reset(seed=seed, options=options)

gym.register("Faulty-v0", entry_point=Faulty)
"""


@pytest.mark.usefixtures("inline", "undrawn")
def test_a_crashed_session_is_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    spec = make_tiny_spec(env={"name": "faulty:Faulty-v0", "max_frame": 800}, meta={"max_session": 2})
    result = start(spec, Options(data_dir=tmp_path / "data"))
    assert result.exit_code == 1
    assert list(result.failures) == [1]
    assert "planted fault" in result.failures[1]
    assert "Traceback" in result.failures[1]
    metrics = json.loads(RunFolder(result.folder, NAME).trial_metrics_file(0).read_text())
    assert (metrics["failed"], metrics["is_complete"]) == ([1], False)
    assert len(result.session_scores) == 1


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("stop_code", "is_drawn"), [(0, True), (130, True), (143, False)])
def test_who_is_told_to_end_at_once_draws_nothing(stop_code: int, is_drawn: bool, copied: RunFolder) -> None:
    spec = make_tiny_spec()
    for file in (copied.spec_file, copied.trial_spec_file(0)):
        write_yaml(file, dump_spec(spec))
    result = Trial(spec, copied, Options())._conclude([Session(spec, copied).run()], {}, stop_code)
    assert copied.trial_metrics_file(0).exists()
    assert (result.report is not None) == is_drawn


def test_a_session_whose_parent_was_killed_while_it_loaded_does_not_train(tmp_path: Path) -> None:
    write_yaml(RunFolder(tmp_path, NAME).trial_spec_file(0), dump_spec(make_tiny_spec(env={"max_frame": 10_000_000})))
    gone = subprocess.Popen(["true"])
    gone.wait()
    read_end, write_end = os.pipe()
    task = SessionTask(tmp_path, NAME, 0, 0).to_json()
    words = [sys.executable, "-m", "slm_lab.experiment.worker", task, str(write_end), str(gone.pid)]
    subprocess.run(words, pass_fds=[write_end], timeout=120, check=True)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        kind, content = json.loads(pipe.read().splitlines()[-1])
    assert kind == "end"
    assert (content["result"]["is_done"], content["result"]["frame"]) == (False, 0)


def test_a_ray_address_without_ray_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "slm_lab.experiment.ray_executor", raising=False)
    with pytest.raises(LabError, match=r"needs the package 'ray'.*uv sync --group ray"):
        start(make_tiny_spec(), Options(data_dir=tmp_path / "data", ray_address="auto"))
    assert not (tmp_path / "data").exists()
