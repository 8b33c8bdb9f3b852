"""Runs that grow, stop early, keep models, and start from other runs."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from slm_lab.agent.agent import Agent
from slm_lab.api import load_agent
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import prepare, resume, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.schema import Spec

pytestmark = pytest.mark.usefixtures("undrawn")
PENDULUM = {"name": "Pendulum-v1", "max_t": 40}
SCHEDULED = {"lr_scheduler_spec": {"name": "LinearToZero"}}


def train(spec: Spec, place: Path) -> Path:
    """A finished run."""
    return start(spec, Options(place)).folder


def rows(folder: Path, kind: str = "train", session: int = 0) -> list[dict[str, str]]:
    with RunFolder(folder, "tiny").table_file(0, session, kind).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("algorithm", "env"), [("PPO", {}), ("DQN", {}), ("SoftActorCritic", PENDULUM), ("Reinforce", {})]
)
def test_a_longer_run_equals_one_of_that_length(
    algorithm: str, env: dict[str, Any], tiny_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    # 250: the first part ends between two rows, in the middle of a rollout
    meta = {"log_frequency": 250, "rigorous_eval": 2, "eval_frequency": 300}
    short, long = (tiny_spec(algorithm, env={**env, "max_frame": count}, meta=meta) for count in (600, 1200))
    folder = train(short, tmp_path / "grown")
    assert [row["frame"] for row in rows(folder)][-1] == "600"
    resume(str(folder), Options(tmp_path), changes={"env.max_frame": 1200})
    whole = train(long, tmp_path / "whole")
    assert find_difference(whole, folder, "tiny") is None
    assert len(rows(folder)) == 5


def test_more_sessions_equal_a_run_of_as_many(inline: None, tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    folder = train(tiny_spec(meta={"max_session": 2}), tmp_path / "grown")
    before = [load_state(RunFolder(folder, "tiny").model_file(0, session, "last")) for session in (0, 1)]
    result = resume(str(folder), Options(tmp_path), changes={"meta.max_session": 4})
    assert len(result.session_scores) == 4
    whole = train(tiny_spec(meta={"max_session": 4}), tmp_path / "whole")
    assert [find_difference(whole, folder, "tiny", session) for session in range(4)] == [None] * 4
    after = load_state(RunFolder(folder, "tiny").model_file(0, 1, "last"))
    assert before[1]["modules"].keys() == after["modules"].keys()


def test_schedules_that_end_with_the_run_are_asked_about(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    folder = train(tiny_spec(net=SCHEDULED), tmp_path)
    options, longer = Options(tmp_path), {"env.max_frame": 1200}
    with pytest.raises(SpecError, match=r"agent\.net\.lr_scheduler_spec\.frame end\(s\) with the run, at frame 600"):
        resume(str(folder), options, changes=longer)
    assert [row["frame"] for row in rows(folder)][-1] == "600"
    resume(str(folder), options, changes=longer, schedules="keep")
    assert {float(row["lr"]) for row in rows(folder) if int(row["frame"]) > 640} == {0.0}
    # the schedule ends before the run now, so there is nothing to ask
    resume(str(folder), options, changes={"env.max_frame": 1800})
    stretched = train(tiny_spec(net=SCHEDULED), tmp_path / "other")
    resume(str(stretched), options, changes=longer, schedules="stretch")
    rates = {int(row["frame"]): float(row["lr"]) for row in rows(stretched)}
    # the last training before 800 was at 768
    assert rates[800] == pytest.approx(1e-3 * (1 - 768 / 1200))
    grown = json.loads(RunFolder(folder, "tiny").provenance_file.read_text())["grown_from"]
    assert [entry["max_frame"] for entry in grown] == [600, 1200]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent.algorithm.gamma": 0.9}, r"agent\.algorithm\.gamma: a resumed run keeps .* agent\.init_from="),
        ({"meta.seed": 3}, r"meta\.seed: a resumed run keeps"),
        ({"env.max_frames": 900}, r"did you mean 'env\.max_frame'"),
        ({"env.max_frame": 300}, r"it can only grow"),
        ({"env.max_frame": "many"}, r"number expected"),
    ],
)
def test_a_change_of_the_past_is_refused(
    changes: dict[str, Any], message: str, tiny_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    folder = train(tiny_spec(), tmp_path)
    before = RunFolder(folder, "tiny").spec_file.read_bytes()
    with pytest.raises(SpecError, match=message):
        resume(str(folder), Options(tmp_path), changes=changes)
    assert RunFolder(folder, "tiny").spec_file.read_bytes() == before


# --- stopping


def train_until(spec: Spec, folder: RunFolder, frame: int) -> None:
    """Train until a frame, as if the run was stopped there."""
    session = Session(spec, folder)
    session.should_stop = lambda: session.frame >= frame
    session.run()


def test_a_session_stops_where_its_condition_is_met(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    stop = {"total_reward": 10, "epi": 20, "for": "2 rows"}
    spec = tiny_spec(env={"max_frame": 4000}, meta={"stop": stop, "log_frequency": 100})
    folder = train(spec, tmp_path)
    last = [row for row in rows(folder) if float(row["total_reward"]) >= 10 and float(row["epi"]) >= 20]
    assert len(last) == 2
    assert last[-1] == rows(folder)[-1]
    assert int(last[-1]["frame"]) < 4000
    metrics = json.loads(RunFolder(folder, "tiny").trial_metrics_file(0).read_text())
    assert metrics["is_complete"]
    # it goes on once the condition is gone, as if it had never stopped
    resume(str(folder), Options(tmp_path), changes={"meta.stop": None})
    assert find_difference(train(spec.replace(meta={"stop": None}), tmp_path / "whole"), folder, "tiny") is None


def test_a_stop_condition_is_exact_across_kills(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    stop = {"total_reward": 9, "for": "3 evaluations"}
    meta = {"stop": stop, "rigorous_eval": 2, "eval_frequency": 300, "log_frequency": 250}
    spec = tiny_spec(env={"max_frame": 3000}, meta=meta)
    whole, killed = (RunFolder(tmp_path / name, "tiny") for name in ("whole", "killed"))
    frame = Session(spec, whole).run().frame
    assert 900 <= frame < 3000
    for count in range(20):
        train_until(spec, killed, 50 * (count + 1))
    assert Session(spec, killed).run().frame == frame
    assert find_difference(whole.path, killed.path, "tiny") is None


@pytest.mark.parametrize(
    ("stop", "meta", "message"),
    [
        ({"total_rewards": 9, "for": "3 rows"}, {}, r"rows have no such column; did you mean 'total_reward'"),
        ({"entropy": 1}, {"rigorous_eval": 2}, r"evaluations have no such column"),
        ({"total_reward": 9}, {"rigorous_eval": 0}, r"there are no evaluations; count rows"),
    ],
)
def test_a_stop_condition_that_cannot_be_met_is_refused(
    stop: dict[str, Any], meta: dict[str, Any], message: str, tiny_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        train(tiny_spec(meta={"stop": stop, **meta}), tmp_path)
    assert not list(tmp_path.iterdir())


# --- kept models


def test_kept_models_are_played_at_their_frames(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    folder = train(tiny_spec(meta={"keep_checkpoints": 200}), tmp_path)
    kept = RunFolder(folder, "tiny").find_kept_models(0, 0)
    assert sorted(kept) == [200, 400, 600]
    obs = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    weights = []
    for frame in (190, 400, 10_000):
        agent, env, _ = load_trained(str(folder), at=frame)
        env.close()
        weights.append(agent.algorithm.modules["net"].state_dict())
    last = load_state(RunFolder(folder, "tiny").model_file(0, 0, "last"))["modules"]["net"]
    assert all(torch.equal(weights[2][key], last[key]) for key in last)
    assert not all(torch.equal(weights[0][key], weights[1][key]) for key in last)
    assert load_agent(folder, at=200).act(obs).shape == (16,)
    with pytest.raises(LabError, match="has kept no models of session 0"):
        load_trained(str(train(tiny_spec(), tmp_path / "none")), at=3)


# --- starting from another run


def make_three_ways(**kwargs: Any) -> gym.Env[Any, Any]:
    """CartPole with an action that pushes to the right too."""
    env = CartPoleEnv(**kwargs)
    return gym.wrappers.TransformAction(env, lambda action: min(int(action), 1), spaces.Discrete(3))


gym.register("ThreeWays-v0", entry_point=make_three_ways, max_episode_steps=100)


def weights_of(spec: Spec, folder: RunFolder) -> Agent:
    """The agent of a session that has begun and taken no step."""
    session = Session(spec, folder, should_stop=lambda: True)
    session.run()
    return session.agent


def with_init(spec: Spec, path: object, **keys: Any) -> Spec:
    document = dump_spec(spec)[spec.name]
    document["agent"]["init_from"] = {"path": str(path), **keys}
    return parse_spec({**document, "name": spec.name})[0]


@pytest.fixture(scope="module")
def source(tiny_spec: Callable[..., Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a normaliser and kept models."""
    spec = tiny_spec(env={"normalize_obs": True}, meta={"keep_checkpoints": 200})
    return start(spec, Options(tmp_path_factory.mktemp("source"))).folder


def test_a_run_starts_from_weights(source: Path, tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec(env={"normalize_obs": True, "kwargs": {"sutton_barto_reward": True}})
    model = load_state(RunFolder(source, "tiny").model_file(0, 0, "best"))
    agent = weights_of(with_init(spec, source), RunFolder(tmp_path / "best", "tiny"))
    own = agent.algorithm.modules["net"].state_dict()
    assert all(torch.equal(own[key], model["modules"]["net"][key]) for key in own)
    assert agent.encode.stats is not None
    assert agent.encode.stats.count == model["obs_normalizer"]["count"]
    kept = load_state(RunFolder(source, "tiny").find_kept_models(0, 0)[200])
    agent = weights_of(with_init(spec, f"{source}@200"), RunFolder(tmp_path / "kept", "tiny"))
    own = agent.algorithm.modules["net"].state_dict()
    assert all(torch.equal(own[key], kept["modules"]["net"][key]) for key in own)
    state = load_state(RunFolder(source, "tiny").resume_file(0, 0))["agent"]["algorithm"]["optimizers"]["actor"]
    agent = weights_of(with_init(spec, source, optimizer=True), RunFolder(tmp_path / "optimizer", "tiny"))
    for key, value in agent.algorithm.optimizers["actor"].state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, state[key]), key


def test_new_output_layers_for_other_actions(source: Path, tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    model = load_state(RunFolder(source, "tiny").model_file(0, 0, "best"))["modules"]["net"]
    other = tiny_spec(env={"name": f"{__name__}:ThreeWays-v0", "normalize_obs": True})
    with pytest.raises(
        SpecError, match=r"actor\.head\.weight has the shape \[2, 16\], .* head: new starts with random"
    ):
        prepare(with_init(other, source))
    own = (
        weights_of(with_init(other, source, head="new"), RunFolder(tmp_path, "tiny"))
        .algorithm.modules["net"]
        .state_dict()
    )
    assert own["actor.head.weight"].shape == (3, 16)
    is_same = {key: torch.equal(own[key], model[key]) for key in own}
    assert all(is_same[key] for key in own if "head" not in key)
    assert not is_same["critic.head.weight"]


@pytest.mark.parametrize(
    ("path", "keys", "message"),
    [
        ("{source}", {"env": {"name": "LunarLander-v3", "normalize_obs": True}}, "observations or layers differ"),
        ("{source}", {"net": {"hid_layers": [8]}, "env": {"normalize_obs": True}}, "observations or layers differ"),
        ("{source}", {"net": {"hid_layers": [16, 16]}, "env": {"normalize_obs": True}}, "other layers"),
        ("{source}", {}, "trained with env.normalize_obs on, it is off here"),
        ("{source}@soon", {}, "'soon' is no frame"),
        ("nowhere", {}, "no run folder 'nowhere'"),
        ("nowhere.safetensors", {}, "there is no file"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    path: str, keys: dict[str, Any], message: str, source: Path, tiny_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    spec = with_init(tiny_spec(**keys), path.format(source=source))
    with pytest.raises(SpecError, match=message):
        start(spec, Options(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_another_algorithm_is_refused(source: Path, tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = with_init(tiny_spec("SoftActorCritic", env={"normalize_obs": True}), source)
    with pytest.raises(
        SpecError, match="has the nets net, but this agent trains 'actor'; start from a run of the same"
    ):
        start(spec, Options(tmp_path))
