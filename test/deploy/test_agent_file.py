"""agent.slm: the same actions as in the lab, without the env or its module."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import slm_lab
from slm_lab.cli import export
from slm_lab.deploy import loading
from slm_lab.deploy.agent_file import read_agent, write_agent
from slm_lab.deploy.contract import describe_agent
from slm_lab.deploy.export import export_agent
from slm_lab.deploy.policy import list_leaves
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.experiment.play import Saved, load_saved
from slm_lab.lib.errors import LabError
from test.deploy.agents import (
    ACTIONS,
    COMBINATIONS,
    FAMILIES,
    MLP,
    OBSERVATIONS,
    build,
    make_agent,
    make_facts,
    make_spec,
    sample,
    take,
)
from test.tiny import make_tiny_spec

NUM = 32


def to_torch(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: to_torch(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(to_torch(part) for part in tree)
    return torch.from_numpy(tree)


def is_same(first: Any, second: Any) -> bool:
    """Whether actions have the same structure, types and bits."""
    pairs = zip(list_leaves(first), list_leaves(second), strict=True)
    return all(np.array_equal(one, two) and np.asarray(one).dtype == np.asarray(two).dtype for one, two in pairs)


def check_round_trip(trained: TrainedAgent, path: Path) -> None:
    """What is read back acts the same, for one and for many, and so does its module."""
    write_agent(path, trained, describe_agent(trained))
    read = read_agent(path)
    assert read.observation_space == trained.observation_space
    assert read.action_space == trained.action_space
    obs = sample(trained.observation_space, NUM)
    state = trained.init_state(NUM) + np.float32(0.3)
    action, next_state = trained.act(obs, state=state)
    again, same_state = read.act(obs, state=state)
    assert is_same(action, again)
    assert np.array_equal(next_state, same_state)
    one, _ = read.act(take(obs, 3), state=state[3:4])
    assert trained.action_space.contains(one)
    with torch.inference_mode():
        out = read.policy(to_torch(obs), state=torch.from_numpy(state) if state.shape[1] else None)
    if state.shape[1]:
        out, last = out
        assert np.array_equal(last.numpy(), next_state)
    assert is_same(action, to_numpy(out))
    # as at the end of training
    sampled, _ = read.act(obs, deterministic=False, state=state)
    assert all(trained.action_space.contains(take(sampled, index)) for index in range(0, NUM, 8))


def to_numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: to_numpy(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(to_numpy(part) for part in tree)
    return tree.numpy()


@pytest.mark.parametrize(("family", "kind"), COMBINATIONS)
def test_every_algorithm_acts_the_same_from_its_file(family: str, kind: str, tmp_path: Path) -> None:
    check_round_trip(build(family, kind), tmp_path / "agent.slm")


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_every_kind(kind: str, tmp_path: Path) -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(OBSERVATIONS["vector"][0], ACTIONS[kind])
    check_round_trip(make_agent(make_spec(algorithm, memory, MLP), facts), tmp_path / "agent.slm")


@pytest.mark.parametrize("env", [{}, {"normalize_obs": True}])
@pytest.mark.parametrize("observation", ["vector", "Dict"])
def test_masks_travel_with_the_file(env: dict[str, Any], observation: str, tmp_path: Path) -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    space, net, _ = OBSERVATIONS[observation]
    spec = make_spec(algorithm, memory, net, env)
    trained = make_agent(spec, make_facts(space, FAMILIES["PPO"][3], is_masked=True))
    path = tmp_path / "agent.slm"
    write_agent(path, trained, describe_agent(trained))
    read = read_agent(path)
    obs = sample(trained.observation_space, NUM)
    mask = np.random.default_rng(0).random((NUM, 5)) < 0.4
    mask[np.arange(NUM), np.arange(NUM) % 5] = True
    action = trained.act(obs, mask=mask)
    assert np.array_equal(action, read.act(obs, mask=mask))
    assert mask[np.arange(NUM), action].all()
    with torch.inference_mode():
        assert np.array_equal(read.policy(to_torch(obs), torch.from_numpy(mask)).numpy(), action)
    with pytest.raises(LabError, match="trained with masks"):
        read.act(obs)


# --- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with kept models."""
    spec = make_tiny_spec(env={"normalize_obs": True}, meta={"keep_checkpoints": 200, "final_eval": 2})
    return slm_lab.run(spec, tmp_path_factory.mktemp("data"), log_level="ERROR").folder


def test_a_run_is_exported_with_its_score(run: Path, tmp_path: Path) -> None:
    done = export_agent(run, tmp_path / "agent.slm")
    agent = slm_lab.load_agent(tmp_path / "agent.slm")
    assert agent.contract == done.contract
    assert done.contract["score"]["mean"] == pytest.approx(slm_lab.read(run).score)
    assert done.contract["score"]["num_session"] == 1
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(agent.act(obs), slm_lab.load_agent(run).act(obs))
    # the same run gives the same bytes
    assert export_agent(run, tmp_path / "again.slm").sha256 == done.sha256
    # and so does the file itself
    assert export_agent(tmp_path / "agent.slm", tmp_path / "third.slm").sha256 == done.sha256


def test_the_command_tells_the_scores_of_the_run_and_of_the_session(tmp_path: Path) -> None:
    spec = make_tiny_spec(meta={"max_session": 2, "final_eval": 2})
    result = slm_lab.run(spec, tmp_path, log_level="ERROR")
    done = CliRunner().invoke(
        export.app, [str(result.folder), "-o", str(tmp_path / "agent.slm"), "--session", "1"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert f"Score    {result.score:.2f}, this session {result.session_scores[1]:.2f} (" in done.stdout
    assert f'slm_lab.load_agent("{tmp_path / "agent.slm"}")' in done.stdout


def test_a_model_or_a_checkpoint_of_a_run_can_be_named(run: Path) -> None:
    kept = slm_lab.load_agent(run, at=400)
    (file,) = run.glob("model/*_ckpt-400_net_model.safetensors")
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(slm_lab.load_agent(file).act(obs), kept.act(obs))
    first, last = (
        slm_lab.load_agent(next(run.glob(f"model/*_ckpt-last_{name}.safetensors"))) for name in ("net_model", "resume")
    )
    weights = [one.agent.algorithm.net.state_dict()["actor.head.weight"] for one in (first, last)]
    assert np.array_equal(*weights)
    assert np.array_equal(first.act(obs), last.act(obs))


def test_a_run_of_an_older_version_needs_its_env(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = run.glob("info/*_spaces.json")
    text = file.read_text()
    obs = np.zeros(4, np.float32)
    action = slm_lab.load_agent(run).act(obs)
    try:
        file.unlink()
        assert slm_lab.load_agent(run).act(obs) == action
        # the device that was asked for is that of the agent, whatever the run was trained on
        asked: list[str] = []

        def note(saved: Saved) -> Any:
            asked.append(saved.spec.meta.device)
            return load_saved(saved)

        monkeypatch.setattr(loading, "load_saved", note)
        loading.load(run, device="auto")
        assert asked == ["auto"]
        file.write_text(json.dumps({"observation": {"type": "Nothing"}}))
        with pytest.raises(LabError, match=r"_spaces.json: a space is not one that the lab knows"):
            slm_lab.load_agent(run)
    finally:
        file.write_text(text)


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("agent.zip", {}, "its ending is none of .slm, .onnx, .pt2"),
        ("agent.slm", {"session": 7}, "has no session 7"),
        ("agent.slm", {"form": "onnx"}, r"agent\.slm: --format onnx has the ending \.onnx; change one of them"),
    ],
)
def test_a_mistake_writes_nothing(
    run: Path, tmp_path: Path, output: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LabError, match=message):
        export_agent(run, tmp_path / output, **options)
    assert not list(tmp_path.iterdir())


def test_a_file_has_no_sessions_to_choose_from(tmp_path: Path) -> None:
    trained = build("PPO", "vector")
    write_agent(tmp_path / "agent.slm", trained, describe_agent(trained))
    with pytest.raises(LabError, match="holds one agent; session and at are for run folders"):
        export_agent(tmp_path / "agent.slm", tmp_path / "copy.slm", session=1)
    assert not (tmp_path / "copy.slm").exists()


def test_random_play_has_no_policy(tmp_path: Path) -> None:
    spec = make_tiny_spec().model_dump(mode="json", serialize_as_any=True)
    spec["agent"]["algorithm"] = {"name": "Random"}
    folder = slm_lab.run(spec, tmp_path / "data", log_level="ERROR").folder
    assert slm_lab.load_agent(folder).act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(LabError, match="Random has no net, so it has no policy"):
        export_agent(folder, tmp_path / "agent.slm")


# The module of the env is not there, and gymnasium makes no env.
PLAY = """
import sys
import numpy as np
import slm_lab
import gymnasium
def refuse(*args, **kwargs):
    raise SystemExit("an env was made")
gymnasium.make = refuse
agent = slm_lab.load_agent(sys.argv[1])
assert agent.spec.env.name == "no.such.module:Env-v0"
assert "no" not in sys.modules
print(agent.act(np.zeros(6, np.float32)))
"""


def test_neither_env_nor_module_is_needed(tmp_path: Path) -> None:
    trained = build("DQN", "vector")
    write_agent(tmp_path / "agent.slm", trained, describe_agent(trained))
    command = [sys.executable, "-c", PLAY, "agent.slm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == trained.act(np.zeros(6, np.float32))


def test_hidden_state_is_kept_or_handed_over() -> None:
    trained = build("PPO", "recurrent")
    obs = sample(trained.observation_space, 5)
    kept = [trained.act(take(obs, index)) for index in range(5)]
    trained.reset()
    state, given = trained.init_state(), []
    for index in range(5):
        action, state = trained.act(take(obs, index), state=state)
        given.append(action)
    assert kept == given
    assert np.abs(state).max() > 0
    # what was handed over did not touch what is kept
    assert trained._carry is None
    with pytest.raises(LabError, match=r"state has the shape \(1, 24\); expected \(5, 24\): init_state\(5\)"):
        trained.act(obs, state=state)
