"""ONNX and torch.export: the same actions as in the lab, run without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from slm_lab.deploy.agent_file import write_agent
from slm_lab.deploy.contract import describe_agent
from slm_lab.deploy.export import export_agent
from slm_lab.deploy.graph import Graph
from slm_lab.deploy.onnx_file import encode_onnx, open_onnx
from slm_lab.deploy.parity import TOLERANCE, Parity, check_parity, compare
from slm_lab.deploy.program_file import encode_program, open_program
from slm_lab.deploy.trained import TrainedAgent
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
)

# one of each kind of observation, net output and action; the others are slow tests
FAST = [("PPO continuous", "vector"), ("Rainbow", "image"), ("SAC", "Dict"), ("PPO", "recurrent"), ("IQN", "vector")]


def compare_onnx(trained: TrainedAgent) -> Parity:
    graph = Graph(trained)
    data = encode_onnx(graph, describe_agent(trained))
    parity = compare(graph, open_onnx(data, graph.output_names))
    # a policy that does one thing whatever it sees would be equal to any other
    actions = open_onnx(data, graph.output_names)(graph.sample(200))[0]
    assert len(np.unique(actions.reshape(200, -1), axis=0)) > 1
    return parity


@pytest.mark.parametrize(("family", "kind"), FAST)
def test_onnx_acts_as_the_lab(family: str, kind: str) -> None:
    parity = compare_onnx(build(family, kind))
    assert parity.is_equal, parity


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), [pair for pair in COMBINATIONS if pair not in FAST])
def test_onnx_of_every_algorithm(family: str, kind: str) -> None:
    parity = compare_onnx(build(family, kind))
    assert parity.is_equal, parity


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ACTIONS])
def test_onnx_of_every_action(kind: str) -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(OBSERVATIONS["vector"][0], ACTIONS[kind])
    assert compare_onnx(make_agent(make_spec(algorithm, memory, MLP), facts)).is_equal


def test_onnx_with_masks_and_hybrid_actions() -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(OBSERVATIONS["vector"][0], ACTIONS["hybrid"], is_masked=True)
    trained = make_agent(make_spec(algorithm, memory, MLP, {"normalize_obs": True}), facts)
    graph = Graph(trained)
    assert graph.input_names == ["obs", "mask"]
    assert graph.output_names == ["action.gear", "action.pedals.0", "action.pedals.1"]
    assert compare_onnx(trained).is_equal


@pytest.mark.parametrize(("family", "kind"), [("PPO continuous", "recurrent"), ("DQN", "Dict")])
def test_programs_of_torch_act_as_the_lab(family: str, kind: str) -> None:
    graph = Graph(build(family, kind))
    assert compare(graph, open_program(encode_program(graph, {}))).is_equal


def test_the_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    trained = build("PPO continuous", "recurrent")
    contract = describe_agent(trained)
    write_agent(tmp_path / "agent.slm", trained, contract)
    done = export_agent(tmp_path / "agent.slm", tmp_path / "agent.onnx")
    assert "1,000 observations, largest difference" in done.checks[0]
    onnx.checker.check_model(tmp_path / "agent.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["slm_lab"]) == contract
    inputs = {one.name: (one.type, one.shape[1:]) for one in session.get_inputs()}
    assert inputs == {"obs": ("tensor(double)", [6]), "state": ("tensor(float)", [24])}
    assert [one.name for one in session.get_outputs()] == ["action", "next_state"]
    assert isinstance(session.get_inputs()[0].shape[0], str)


# --- what must be noticed


def wrap(run: Any, change: Any) -> Any:
    return lambda inputs: change(run(inputs))


def test_a_file_that_acts_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = build("PPO continuous", "vector")
    write_agent(tmp_path / "agent.slm", trained, describe_agent(trained))
    monkeypatch.setattr(
        "slm_lab.deploy.export.open_onnx",
        lambda data, names: wrap(open_onnx(data, names), lambda outputs: [outputs[0] + np.float32(1e-4)]),
    )
    with pytest.raises(LabError, match="does not act as the lab does, so nothing was written"):
        export_agent(tmp_path / "agent.slm", tmp_path / "agent.onnx")
    assert not (tmp_path / "agent.onnx").exists()


def test_ties_are_told_from_mistakes() -> None:
    trained = build("PPO", "vector")
    graph = Graph(trained)

    def act(inputs: dict[str, Any]) -> list[Any]:
        with torch.inference_mode():
            return [graph(*(torch.from_numpy(value) for value in inputs.values()))[0].numpy()]

    assert compare(graph, act) == Parity(1000, 0.0, 0, 0)
    wrong = compare(graph, wrap(act, lambda outputs: [(outputs[0] + 1) % 5]))
    assert wrong.num_wrong == 1000
    assert not wrong.is_equal
    # all choices equally good: any is right
    head: nn.Linear = trained.agent.algorithm.net.actor.head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(0.25)
    graph = Graph(trained)
    tied = compare(graph, wrap(act, lambda outputs: [(outputs[0] + 1) % 5]))
    assert tied == Parity(1000, 0.0, 1000, 0)
    assert "1000 other choice(s) among equals" in check_parity(graph, wrap(act, lambda out: [(out[0] + 1) % 5]), "x")
    assert Parity(1, 2 * TOLERANCE, 0, 0).is_equal is False


@pytest.mark.parametrize("kind", ["hybrid", "whole Box"])
def test_wrong_choices_beside_numbers_are_no_ties(kind: str) -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(OBSERVATIONS["vector"][0], ACTIONS[kind])
    graph = Graph(make_agent(make_spec(algorithm, memory, MLP), facts))

    def act(inputs: dict[str, Any]) -> list[Any]:
        with torch.inference_mode():
            return [leaf.numpy() for leaf in graph(*(torch.from_numpy(value) for value in inputs.values()))]

    assert compare(graph, act).is_equal
    # the first part of either action is a whole number
    wrong = compare(graph, wrap(act, lambda outputs: [outputs[0] + 1, *outputs[1:]]))
    assert wrong.num_wrong >= 990
    assert not wrong.is_equal


def test_without_the_packages_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(LabError, match=r"--format onnx needs the package 'onnxscript'.*pip install '.\[export\]'"):
        encode_onnx(Graph(build("PPO", "vector")), {})


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "play_onnx.py"
# torch and the lab cannot be imported
ALONE = "import runpy, sys; sys.modules['torch'] = sys.modules['slm_lab'] = None; runpy.run_path(sys.argv.pop(1))"


def test_the_example_plays_without_torch(tmp_path: Path) -> None:
    space = gym.make("CartPole-v1")
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(space.observation_space, space.action_space)
    trained = make_agent(make_spec(algorithm, memory, MLP, {"normalize_obs": True}), facts)
    write_agent(tmp_path / "agent.slm", trained, describe_agent(trained))
    export_agent(tmp_path / "agent.slm", tmp_path / "agent.onnx")
    command = [sys.executable, "-c", ALONE, str(EXAMPLE), "agent.onnx", "CartPole-v1", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = []
    for episode in range(2):
        obs, _ = space.reset(seed=episode)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = space.step(trained.act(obs))
            total, is_over = total + float(reward), terminated or truncated
        expected.append(f"episode {episode}: return {total!r}")
    assert done.stdout.splitlines() == expected
