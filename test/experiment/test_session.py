"""Sessions and trials on real folders: files, columns, best and last models, evaluation, failures, signals."""

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

import slm_lab
from slm_lab.agent.compile.engine import CompileClock
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment import evaluation
from slm_lab.experiment.build import FINAL_ENV, build_session_agent
from slm_lab.experiment.checkpoint import state as checkpoint
from slm_lab.experiment.checkpoint.state import load_latest, load_state, save_state
from slm_lab.experiment.clock import Stopwatch
from slm_lab.experiment.control import Session, check_form
from slm_lab.experiment.executor import LocalExecutor, SessionTask, run_tasks
from slm_lab.experiment.launch import resume, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import best_session, load_trained, play_episodes
from slm_lab.experiment.trial import Trial
from slm_lab.lib.due import Due
from slm_lab.lib.errors import CheckpointError, DivergenceError, LabError, RunFolderError, SpecError
from slm_lab.lib.io import lock_file, write_json, write_yaml
from slm_lab.results.folder import RunFolder, open_run_folder
from slm_lab.results.metrics import read_table
from slm_lab.results.run import read_run
from slm_lab.spec.loading import dump_spec, load_spec, parse_spec
from slm_lab.spec.schema import Spec


def tiny(**sections: dict[str, Any]) -> Spec:
    short = {"env.max_frame": 3000, "meta.max_session": 1, "agent.algorithm.training_epoch": 2}
    spec = load_spec("ppo_cartpole", overrides=short).spec
    return spec.replace(**sections) if sections else spec


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sessions in processes, trained once for all test processes."""
    once = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    data = tmp_path_factory.getbasetemp().parent / f"finished-{once}"
    with lock_file(data / "model" / "lock", 120):
        runs = list(data.glob("ppo_cartpole_*"))
        if runs:
            return runs[0]
        result = start(tiny(meta={"max_session": 2}), Options(data_dir=data))
        assert result.exit_code == 0
        return result.folder


def test_a_run_leaves_the_documented_files(finished: Path) -> None:
    name = "ppo_cartpole"
    files = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    expected = {f"{name}_spec.yaml", f"{name}_t0_spec.yaml", f"{name}_t0_trial_metrics.json", "report.html"}
    for session in (0, 1):
        prefix = f"{name}_t0_s{session}"
        expected |= {
            f"info/{prefix}_session_df_train.csv",
            f"info/{prefix}_session_metrics.json",
            f"model/{prefix}_ckpt-last_net_model.pt",
            f"model/{prefix}_ckpt-best_net_model.pt",
            f"model/{prefix}_ckpt-last_resume.pt",
            f"graph/{prefix}_session_graph_train_mean_returns_ma_vs_frames.png",
            f"log/{prefix}.log",
        }
    expected |= {f"graph/{name}_t0_trial_graph_mean_returns_ma_vs_frames.{kind}" for kind in ("png", "html")}
    expected |= {f"info/{name}_provenance.json", f"log/{name}.log", f"log/{name}_t0.log"}
    assert expected <= files


def test_the_table_has_its_columns_and_a_row_per_checkpoint(finished: Path) -> None:
    table = read_table(RunFolder(finished, "ppo_cartpole").table_file(0, 1, "train"))
    core = ["total_reward", "total_reward_ma", "loss", "fps", "frame", "wall_t", "t", "epi", "opt_step", "lr"]
    assert list(table)[:10] == core
    assert table["frame"].tolist() == [500, 1000, 1500, 2000, 2500, 3000]
    assert table["t"].tolist() == [125, 250, 375, 500, 625, 750]
    # trained after frames 1024 and 2048 of 4 envs: 2 epochs of 8 minibatches
    assert table["opt_step"].tolist() == [0, 0, 16, 16, 32, 32]
    assert math.isnan(table["loss"][0])
    assert math.isfinite(table["loss"][2])


def test_the_score_is_the_mean_of_the_sessions_values(finished: Path) -> None:
    metrics = json.loads((finished / "ppo_cartpole_t0_trial_metrics.json").read_text())
    values = metrics["total_reward_ma"]["values"]
    assert len(values) == 2
    assert metrics["scalar"]["total_reward_ma"] == pytest.approx(sum(values) / 2)
    assert values[0] != values[1]
    assert metrics["is_complete"]


def test_the_saved_spec_repeats_the_run(finished: Path, tmp_path: Path) -> None:
    spec = load_spec(finished / "ppo_cartpole_spec.yaml").spec
    again = start(spec, Options(data_dir=tmp_path))
    for session in (0, 1):
        one = read_table(RunFolder(finished, "ppo_cartpole").table_file(0, session, "train"))
        two = read_table(RunFolder(again.folder, "ppo_cartpole").table_file(0, session, "train"))
        for name in set(one) - {"wall_t", "fps"}:
            assert np.array_equal(one[name], two[name], equal_nan=True), name


def test_a_finished_run_is_not_trained_again(finished: Path) -> None:
    file = RunFolder(finished, "ppo_cartpole").table_file(0, 0, "train")
    before = file.read_text()
    assert resume(str(finished), Options()).exit_code == 0
    assert file.read_text() == before


def test_enjoy_plays_the_trained_policy_and_writes_nothing(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    agent, env, spec = load_trained(str(finished))
    first = list(play_episodes(env, agent, 3))
    second = list(play_episodes(env, agent, 3))
    assert first == second
    assert len(first) == 3
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    best = best_session(RunFolder(finished, spec.name), spec)
    scores = [
        json.loads((finished / f"info/ppo_cartpole_t0_s{s}_session_metrics.json").read_text())["total_reward_ma"]
        for s in (0, 1)
    ]
    assert scores[best] == max(scores)


def test_load_agent_acts_on_one_observation(finished: Path) -> None:
    agent = slm_lab.load_agent(finished)
    obs = np.array([0.0, 0.0, 0.1, 0.5], np.float32)
    assert agent.act(obs) in (0, 1)
    assert all(agent.act(obs) == agent.act(obs) for _ in range(20))


def test_enjoy_uses_saved_normaliser_statistics(tmp_path: Path) -> None:
    spec = tiny(env={"normalize_obs": True, "clip_obs": 10.0})
    result = start(spec, Options(data_dir=tmp_path))
    state = load_state(RunFolder(result.folder, spec.name).model_file(0, 0, "best"))
    agent, env, _ = load_trained(str(result.folder))
    env.close()
    assert agent.encode.stats is not None
    assert state["obs_normalizer"]["count"] > 100
    assert np.array_equal(agent.encode.stats.mean, state["obs_normalizer"]["mean"])
    # acting does not move them
    agent.act(np.full((1, 4), 1e6, np.float32))
    assert np.array_equal(agent.encode.stats.mean, state["obs_normalizer"]["mean"])


def test_evaluation_is_deterministic_and_leaves_training_alone(tmp_path: Path) -> None:
    plain, evaluated = (tiny(meta=meta) for meta in ({"rigorous_eval": 0}, {"rigorous_eval": 3, "eval_frequency": 700}))
    one, two = (start(spec, Options(data_dir=tmp_path / str(i))) for i, spec in enumerate((plain, evaluated)))
    tables = [read_table(RunFolder(r.folder, "ppo_cartpole").table_file(0, 0, "train")) for r in (one, two)]
    assert np.array_equal(tables[0]["total_reward"], tables[1]["total_reward"], equal_nan=True)
    table = read_table(RunFolder(two.folder, "ppo_cartpole").table_file(0, 0, "eval"))
    assert table["frame"].tolist() == [700, 1400, 2100, 2800]
    # the table is there all the same
    empty = RunFolder(one.folder, "ppo_cartpole").table_file(0, 0, "eval").read_text()
    assert empty.startswith("total_reward,total_reward_ma,")
    assert empty.count("\n") == 1


def test_evaluations_by_default_stay_within_their_share_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluation.EVAL_SHARE == 0.05
    # a run long enough for that share would take minutes
    monkeypatch.setattr(evaluation, "EVAL_SHARE", 0.5)
    spec = tiny(env={"max_frame": 8000})
    assert (spec.meta.num_eval_episode, spec.eval_every) == (4, 400)
    session = Session(spec, RunFolder(tmp_path, spec.name), 0, 0, lambda _: None, lambda: False)
    held: list[tuple[int, int]] = []
    evaluate = session._evaluate

    def watch() -> None:
        before = session.evaluation.num_step
        evaluate()
        held.append((session.frame, session.evaluation.num_step - before))

    session._evaluate = watch  # type: ignore[method-assign]
    session.run()
    table = read_table(RunFolder(tmp_path, spec.name).table_file(0, 0, "eval"))
    assert 1 < len(held) < 20
    assert table["frame"].tolist() == [frame for frame, _ in held]
    # a vector step of the four envs counts once, a gradient step (two epochs over minibatches of 128) eight times
    budget = 0.5 * 8000 * (1 / 4 + 8 * 2 / 128)
    longest = max(steps for _, steps in held)
    assert session.evaluation.num_step == sum(steps for _, steps in held) <= budget + longest
    assert all(frame % 400 == 0 for frame, _ in held)


def test_an_evaluation_that_does_not_end_leaves_no_row(tmp_path: Path) -> None:
    # 5 % of 400 steps, where an episode of Pendulum takes 200
    short = {"env.max_frame": 1600, "meta.max_session": 1, "meta.compile": False, "agent.algorithm.training_epoch": 1}
    spec = load_spec("ppo_pendulum", overrides=short).spec
    session = Session(spec, RunFolder(tmp_path, spec.name), 0, 0, lambda _: None, lambda: False)
    session.run()
    assert 0 < session.evaluation.num_step < 200
    assert not session.evaluation.tracker.rows
    assert not session.evaluation.is_owed


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


def read_final_eval(folder: Path, session: int) -> list[float]:
    path = RunFolder(folder, "ppo_cartpole").session_metrics_file(0, session)
    values: list[float] = json.loads(path.read_text())["final_eval"]
    return values


def test_a_session_ends_with_deterministic_episodes_of_its_last_weights(finished: Path) -> None:
    spec = load_spec(finished / "ppo_cartpole_spec.yaml").spec
    means = []
    for session in (0, 1):
        returns = read_final_eval(finished, session)
        assert len(returns) == spec.meta.final_eval == 10
        env = build_vec_env(build_settings(spec.env, (FINAL_ENV, spec.meta.seed, session), 10))
        agent = build_session_agent(spec, env, session, 10)
        agent.load_model_state(load_state(RunFolder(finished, spec.name).model_file(0, session, "last")))
        assert list(play_episodes(env, agent, 10)) == returns
        means.append(float(np.mean(returns)))
    metrics = json.loads((finished / "ppo_cartpole_t0_trial_metrics.json").read_text())
    assert metrics["final_eval"]["values"] == means
    assert read_run(finished).final_evals == dict(enumerate(means))


def test_a_last_evaluation_that_was_stopped_is_made_up_for(tmp_path: Path) -> None:
    spec = tiny(meta={"compile": False})
    folder = RunFolder(tmp_path, spec.name)
    stopped = Session(spec, folder, 0, 0, lambda _: None, lambda: False)
    stopped.should_stop = lambda: stopped.frame >= spec.env.max_frame
    result = stopped.run()
    assert (result.is_done, result.final_eval) == (True, [])
    continued = Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    whole = Session(spec, RunFolder(tmp_path / "whole", spec.name), 0, 0, lambda _: None, lambda: False).run()
    assert continued.final_eval == whole.final_eval
    assert len(whole.final_eval) == 10


def test_episodes_without_an_end_leave_no_evaluation(tmp_path: Path) -> None:
    # ten Pendulums of 200 steps do not end within 1,500
    short = {"env.max_frame": 1500, "meta.max_session": 1, "meta.compile": False}
    result = start(load_spec("ppo_pendulum", overrides=short).spec, Options(data_dir=tmp_path))
    assert result.metrics is not None
    assert result.metrics["final_eval"] is None
    log = RunFolder(result.folder, "ppo_pendulum").log_file(0).read_text()
    assert "0 of 10 episodes ended within 1,500 steps" in log


def test_no_last_evaluation_where_none_is_asked_for(tmp_path: Path) -> None:
    spec = tiny(meta={"final_eval": 0, "compile": False})
    assert start(spec, Options(data_dir=tmp_path)).metrics["final_eval"] is None


def test_evaluation_counts_one_episode_of_each_env_first() -> None:
    spec = tiny()
    env = build_vec_env(build_settings(spec.env, (5,), 3))
    agent = build_session_agent(spec, env, 0, 3)
    seen = []
    step = env.step

    def recording(action: Any) -> Any:
        result = step(action)
        seen.extend(np.flatnonzero(result.done).tolist())
        return result

    env.step = recording  # type: ignore[method-assign]
    returns = list(play_episodes(env, agent, 3))
    assert len(returns) == 3
    assert set(seen) == {0, 1, 2}


def test_periodic_work_is_due_at_each_multiple_passed() -> None:
    # a modulo test (frame % 10 < num_envs) would fire at every step of 16
    due = Due(10)
    assert [frame for frame in range(16, 100, 16) if due(frame)] == [16, 32, 48, 64, 80, 96]
    due = Due(100)
    assert [frame for frame in range(3, 400, 3) if due(frame)] == [102, 201, 300]


def test_best_model_is_the_one_of_the_best_row(tmp_path: Path) -> None:
    spec = tiny()
    folder = RunFolder(tmp_path, spec.name)
    session = Session(spec, folder, 0, 0, lambda _: None, lambda: False)
    session.run()
    assert session.tracker.best == max(row[1] for row in session.tracker.rows)


def test_damage_anywhere_in_a_checkpoint_is_noticed(finished: Path, tmp_path: Path) -> None:
    data = RunFolder(finished, "ppo_cartpole").resume_file(0, 0).read_bytes()
    path = tmp_path / "damaged.pt"
    for position in np.linspace(0, len(data) - 1, 100).astype(int):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        for damaged in (bytes(flipped), data[:position]):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                load_state(path)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    spec = tiny(meta={"checkpoint_frequency": 1000})
    folder = RunFolder(tmp_path, spec.name)
    Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    path = folder.resume_file(0, 0)
    whole = load_state(path)
    path.write_bytes(path.read_bytes()[:-1])
    Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    again = load_state(path)
    assert again["frame"] == whole["frame"] == 3000
    weights = [state["agent"]["algorithm"]["modules"]["net"] for state in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_good_checkpoint_survives_a_failed_write_after_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x_ckpt-last_resume.pt"
    save_state(path, {"frame": 1}, keep_previous=True)
    save_state(path, {"frame": 2}, keep_previous=True)
    path.write_bytes(b"damaged")
    assert load_latest(path)[0] == {"frame": 1}

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        save_state(path, {"frame": 3}, keep_previous=True)
    assert load_latest(path)[0] == {"frame": 1}


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_machine_without_memory_makes_no_checkpoint_bad(tmp_path: Path, error: type[Exception]) -> None:
    path = tmp_path / "x_ckpt-last_resume.pt"
    save_state(path, {"frame": 1}, keep_previous=True)
    save_state(path, {"frame": 2}, keep_previous=True)

    def finish(_: dict[str, Any]) -> None:
        raise error

    with pytest.raises(error):
        load_latest(path, finish)
    assert load_latest(path) == ({"frame": 2}, [])


def test_what_an_own_net_keeps_beside_tensors_is_its_own() -> None:
    like = {"net": {"weight": torch.zeros(2), "extra": {"grid": (3, 4)}}}
    check_form({"net": {"weight": torch.ones(2), "extra": {"grid": [3, 4]}}}, like, "best_model")
    for odd in ({}, {"net": {"weight": torch.zeros(3), "extra": {"grid": [3, 4]}}}, {"net": 5}):
        with pytest.raises(ValueError, match="best_model"):
            check_form(odd, like, "best_model")


def test_a_hidden_state_that_begins_as_none_is_continued(tmp_path: Path) -> None:
    spec, folder = tiny(), RunFolder(tmp_path, "ppo_cartpole")
    Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    path = folder.resume_file(0, 0)
    state = load_state(path)
    carry = torch.rand(spec.env.num_envs, 3)
    for saved, is_taken in ((carry, True), (carry[:1], False), ("x", False)):
        save_state(path, {**state, "carry": saved})
        session = Session(spec, folder, 0, 0, lambda _: None, lambda: False)
        if is_taken:
            assert torch.equal(session._begin()[1], carry)
            continue
        with pytest.raises(CheckpointError, match="hidden states"):
            session._begin()


def test_a_checkpoint_of_another_session_is_refused(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    folder, spec = open_run_folder(str(copy), tmp_path)
    folder.resume_file(0, 1).write_bytes(folder.resume_file(0, 0).read_bytes())
    with pytest.raises(CheckpointError, match=r"s1_ckpt-last_resume\.pt: is that of trial 0 session 0; was it copied"):
        Session(spec, folder, 0, 1, lambda _: None, lambda: False).run()


def test_a_checkpoint_of_another_spec_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "ppo_cartpole")
    Session(tiny(), folder, 0, 0, lambda _: None, lambda: False).run()
    with pytest.raises(CheckpointError, match="another spec"):
        Session(tiny(meta={"seed": 9}), folder, 0, 0, lambda _: None, lambda: False).run()


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(RunFolderError, match="not a run of this lab"):
        open_run_folder("photos", tmp_path)
    with pytest.raises(RunFolderError, match="did you mean 'photos'"):
        open_run_folder("photo", tmp_path)
    with pytest.raises(RunFolderError, match="no run in"):
        open_run_folder("latest", tmp_path)


def test_a_glob_must_match_one_run(tmp_path: Path) -> None:
    for name in ("a_1", "a_2"):
        (tmp_path / name).mkdir()
    with pytest.raises(RunFolderError, match=r"(?s)matches.*a_1.*a_2"):
        open_run_folder(f"{tmp_path}/a_*", tmp_path)
    with pytest.raises(RunFolderError, match="matches nothing"):
        open_run_folder(f"{tmp_path}/b_*", tmp_path)


def test_nothing_is_written_for_a_spec_that_cannot_run(tmp_path: Path) -> None:
    spec = tiny()
    bad_env = spec.model_copy(update={"env": spec.env.model_copy(update={"name": "NoSuchEnv-v0"})})
    with pytest.raises(LabError):
        start(bad_env, Options(data_dir=tmp_path / "data"))
    raw = {
        "name": "x",
        "agent": {
            "algorithm": {"name": "PPO", "action_pdtype": "Categorical"},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "Pendulum-v1", "max_frame": 1000},
    }
    with pytest.raises(SpecError, match="Categorical does not fit"):
        start(parse_spec(raw)[0], Options(data_dir=tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_a_crashed_session_is_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Faulty(CartPoleEnv):\n"
        "    count = 0\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        # the seeds of one session are even or odd by chance: break one of two sessions\n"
        "        if seed == BAD: raise RuntimeError('planted fault')\n"
        "        return super().reset(seed=seed, options=options)\n"
        "from slm_lab.lib.runtime import derive_seed\n"
        "BAD = derive_seed(1, 0, 1, 2, 3)\n"
        "gym.register('Faulty-v0', entry_point=Faulty)\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = tiny(env={"name": "faulty:Faulty-v0"}, meta={"max_session": 2})
    result = start(spec, Options(data_dir=tmp_path / "data"))
    assert result.exit_code == 1
    assert list(result.failures) == [1]
    assert "planted fault" in result.failures[1]
    assert "Traceback" in result.failures[1]
    assert result.metrics is not None
    assert result.metrics["failed"] == [1]
    assert not result.metrics["is_complete"]
    assert len(result.session_scores) == 1


def test_nan_stops_the_session_with_its_name(tmp_path: Path) -> None:
    spec = tiny()
    session = Session(spec, RunFolder(tmp_path, spec.name), 0, 0, lambda _: None, lambda: False)
    step = session.env.step

    def poisoned(action: Any) -> Any:
        result = step(action)
        return result._replace(reward=result.reward * np.nan)

    session.env.step = poisoned  # type: ignore[method-assign]
    with pytest.raises(DivergenceError, match="frame 1024"):
        session.run()


@pytest.mark.parametrize(("stop_code", "is_drawn"), [(0, True), (130, True), (143, False)])
def test_who_is_told_to_end_at_once_draws_nothing(stop_code: int, is_drawn: bool, tmp_path: Path) -> None:
    spec = tiny(env={"max_frame": 1000}, meta={"compile": False, "final_eval": 0})
    folder = RunFolder(tmp_path, spec.name)
    for file in (folder.spec_file, folder.trial_spec_file(0)):
        write_yaml(file, dump_spec(spec))
    session = Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    result = Trial(spec, folder, Options())._conclude([session], {}, stop_code)
    assert folder.trial_metrics_file(0).exists()
    assert (result.report is not None) == is_drawn == result.curve.exists()


def test_a_killed_process_is_an_outcome(tmp_path: Path) -> None:
    task = SessionTask(tmp_path, "missing", 0, 0)
    (end,) = run_tasks(LocalExecutor(), [task])
    assert (end.result, end.reason) == (None, "input")
    assert "no spec file" in end.error


def test_a_session_whose_parent_was_killed_while_it_loaded_does_not_train(tmp_path: Path) -> None:
    spec = tiny(env={"max_frame": 10_000_000}, meta={"compile": False})
    folder = RunFolder(tmp_path, spec.name)
    write_yaml(folder.trial_spec_file(0), dump_spec(spec))
    task = SessionTask(tmp_path, spec.name, 0, 0).to_json()
    gone = subprocess.Popen(["true"])
    gone.wait()
    read_end, write_end = os.pipe()
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
        start(tiny(), Options(data_dir=tmp_path / "data", ray_address="auto"))
    assert not (tmp_path / "data").exists()


def test_a_score_of_null_is_no_reason_to_fail(finished: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "x")
    folder.model_file(0, 1, "best").parent.mkdir(parents=True)
    folder.model_file(0, 1, "best").touch()
    write_json(folder.session_metrics_file(0, 1), {"total_reward_ma": None})
    assert best_session(folder, tiny(meta={"max_session": 2})) == 1
