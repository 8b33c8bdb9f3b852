"""Compiled updates do what plain ones do."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from loguru import logger
from torch import Tensor, nn
from torch.testing import assert_close

from slm_lab.agent.action.distribution import bound_log_std
from slm_lab.agent.agent import reset_rows
from slm_lab.agent.compile.engine import MAX_GRAPHS, CompiledFunction, CompileError, warn_once
from slm_lab.agent.learn.gradient import GradientStep, Loss
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.env.probe import Image
from slm_lab.spec.net import MLPNetSpec

# of machine code, and of the traced graph, which is slow
NUM_UPDATE, NUM_TRACED = 50, 8
START: dict[str, Any] = {"training_start_step": 60}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 32, "max_size": 200}
PRIORITIZED = {**REPLAY, "name": "PrioritizedReplay"}
SIL_MEMORY = {"name": "PrioritizedReplay", "batch_size": 32}
PPO: dict[str, Any] = {"name": "PPO", "time_horizon": 32, "minibatch_size": 64, "training_epoch": 2}
SCHEDULE = {"start_val": 0.01, "end_val": 0.0, "end_step": 1000}
CLIP = {"start_val": 0.3, "end_val": 0.2, "end_step": 1000}
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 20}
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True}
IMAGE: dict[str, Any] = {"env": "probe/Image-v0"}
# A weight whose true gradient is 0, such as a bias in front of batch norm or of a dead unit, has a gradient of rounding
# errors alone, which Adam scales up to steps of full length: its way is chance, in either engine.
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1e-3, "momentum": 0.5}}
# small steps: rounding errors grow with the weights' way
ADAM: dict[str, Any] = {"optim_spec": {"name": "Adam", "lr": 1e-4, "eps": 1e-5}}
CONV: dict[str, Any] = {
    "type": "ConvNet",
    # raw pixels make a first step so long that its rounding errors stay for a while
    "normalize": True,
    "conv_hid_layers": [[4, 3, 2]],
    "fc_hid_layers": [16],
    "hid_layers_activation": "relu",
    **SGD,
}
DISCRETE_SAC = {
    "name": "SoftActorCritic",
    **START,
    "training_iter": 2,
    "symlog": True,
    "entropy_anneal": {"end_ratio": 0.1, "frames": 200},
}
RMSPROP = {"name": "RMSprop", "lr": 1e-4, "eps": 1e-5}
# algorithm, memory, nets of vectors in their env; the same algorithm is compared with convolutions on images
VECTOR_CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "reinforce": ({"name": "Reinforce", "training_frequency": 16, "entropy_coef_spec": SCHEDULE}, None, CARTPOLE),
    "a2c": (
        {"name": "ActorCritic", "num_step_returns": 8, "val_loss_coef": 0.5, "normalize_v_targets": True},
        None,
        {**CARTPOLE, "net": {"shared": True, "clip_grad_val": 0.5, "optim_spec": RMSPROP}},
    ),
    "ppo": (
        {**PPO, "symlog": True, "clip_vloss": True, "entropy_coef_spec": SCHEDULE, "clip_eps_spec": CLIP},
        None,
        {
            **PENDULUM,
            "net": {"log_std_init": -0.5, **ADAM, "lr_scheduler_spec": {"name": "LinearToZero", "frame": 9000}},
        },
    ),
    # the last minibatch of an epoch is smaller: 48, 48 and 32 samples
    "ppo_sil": (
        {**PPO, "name": "PPOSIL", "minibatch_size": 48, "training_iter": 2, "sil_memory": SIL_MEMORY},
        None,
        CARTPOLE,
    ),
    "sil": (
        {"name": "SIL", "training_frequency": 24, "lam": 0.95, "sil_memory": SIL_MEMORY},
        None,
        {**CARTPOLE, "net": {"shared": True, "optim_spec": {**ADAM["optim_spec"], "name": "AdamW"}}},
    ),
    "sarsa": ({"name": "SARSA", "training_frequency": 8}, None, {**CARTPOLE, "net": {"clip_grad_val": 0.5}}),
    "vanilla_dqn": ({"name": "VanillaDQN", **START, "training_batch_iter": 2}, REPLAY, CARTPOLE),
    "dqn": ({"name": "DQN", **START}, REPLAY, {**CARTPOLE, "net": {"update_frequency": 8}}),
    "double_dqn": (
        {"name": "DoubleDQN", **START, "training_iter": 2},
        {**PRIORITIZED, "num_step_returns": 3},
        {**CARTPOLE, "net": {"type": "DuelingMLPNet", "hid_layers": [16], "polyak_coef": 0.1, "clip_grad_val": 1.0}},
    ),
    "sac": (
        {"name": "SoftActorCritic", **START, "policy_delay": 2},
        REPLAY,
        {**PENDULUM, "net": {"polyak_coef": 0.05}},
    ),
    "sac_discrete": (DISCRETE_SAC, PRIORITIZED, CARTPOLE),
    "crossq": (
        {"name": "CrossQ", **START, "training_iter": 2},
        REPLAY,
        {**PENDULUM, "net": {"critic_hid_layers": [32], "critic_batch_norm": True, **SGD}},
    ),
    "td3": ({"name": "TD3", **START}, REPLAY, {**PENDULUM, "net": {"polyak_coef": 0.05}}),
    "ddpg": (
        # without priorities: those of nearly right values are rounding errors, and so would be their weights
        {"name": "DDPG", **START, "critic": {"kind": "categorical", "num_atom": 11}},
        REPLAY,
        {**PENDULUM, "net": {"update_frequency": 8}},
    ),
    "tqc": (
        {
            "name": "SoftActorCritic",
            **START,
            "num_critic": 3,
            "q_reduction": "mean",
            "critic": {"kind": "quantile", "num_quantile": 5, "num_drop": 2},
        },
        REPLAY,
        {**PENDULUM, "net": {"type": "SimbaNet", "width": 8, "num_block": 2}},
    ),
    "qr_dqn": ({"name": "DQN", **START, "critic": {"kind": "quantile", "num_quantile": 5}}, REPLAY, CARTPOLE),
    "iqn": ({"name": "DQN", **START, "critic": {"kind": "implicit", "num_quantile": 5}}, REPLAY, CARTPOLE),
    "rainbow": (
        {"name": "DoubleDQN", **START, "critic": {"kind": "categorical", "num_atom": 11}},
        {**PRIORITIZED, "num_step_returns": 3},
        {**CARTPOLE, "net": {"type": "DuelingMLPNet", "hid_layers": [16], "noisy": True}},
    ),
    "pqn": (
        {"name": "PQN", "time_horizon": 16, "minibatch_size": 24},
        None,
        {**CARTPOLE, "net": {"layer_norm": True, "clip_grad_val": 10.0}},
    ),
}
# images for algorithms that take continuous actions alone
CONTINUOUS_IMAGE = "test/ContinuousImage-v0"


def make_continuous_image(**_: Any) -> Image:
    """The probe of images with an action that does not matter."""
    env = Image()
    env.action_space = spaces.Box(-1, 1, (1,), np.float32)
    return env


if CONTINUOUS_IMAGE not in gym.registry:
    gym.register(CONTINUOUS_IMAGE, entry_point=make_continuous_image)
CASES: dict[str, dict[str, Any]] = {}
for name, (algorithm, memory, rest) in VECTOR_CASES.items():
    both = {"algorithm": algorithm, "memory": memory or "OnPolicyBatchReplay"}
    CASES[f"{name}-mlp"] = {**both, **rest, "net": {**ADAM, **rest.get("net", {})}}
    dueling = {"type": "DuelingConvNet"} if "DuelingMLPNet" in str(rest) else {}
    norm = {"batch_norm": True, "conv_hid_layers": [[4, 3, 2], [4, 3, 1]]} if name == "crossq" else {}
    image = {"env": CONTINUOUS_IMAGE} if name in ("td3", "ddpg", "tqc") else IMAGE
    CASES[f"{name}-conv"] = {**both, **image, "net": {**CONV, **dueling, **norm}}
MASKED: dict[str, Any] = {"env": "probe/MaskedMulti-v0", "net": ADAM}
for name in ("ppo_sil", "double_dqn", "sac_discrete"):
    algorithm, memory, _ = VECTOR_CASES[name]
    CASES[f"{name}-masks-mlp"] = {"algorithm": algorithm, "memory": memory or "OnPolicyBatchReplay", **MASKED}
algorithm, _, _ = VECTOR_CASES["ppo_sil"]
CASES["ppo_sil-hybrid-mlp"] = {"algorithm": algorithm, "env": "probe/HybridAction-v0", "net": ADAM}
for name, goals in (("double_dqn", "BitFlip"), ("sac", "Reach"), ("td3", "Reach")):
    algorithm, _, _ = VECTOR_CASES[name]
    memory = {**REPLAY, "name": "HindsightReplay"}
    CASES[f"{name}-goals-mlp"] = {"algorithm": algorithm, "memory": memory, "env": f"probe/{goals}-v0", "net": ADAM}
for name in ("ppo", "sac"):
    algorithm, memory, _ = VECTOR_CASES[name]
    both = {"algorithm": {**algorithm, "sde": {}}, "memory": memory or "OnPolicyBatchReplay"}
    CASES[f"{name}-sde-mlp"] = {**both, **PENDULUM, "net": ADAM}
algorithm, memory, rest = VECTOR_CASES["crossq"]
CASES["xqc-mlp"] = {
    "algorithm": {**algorithm, "critic": {"kind": "categorical", "num_atom": 11}},
    "memory": memory,
    **rest,
    "net": {**rest["net"], "critic_weight_norm": True},
}
# the smallest graph stands for all of them; the others take a minute each where nothing is on disk yet
QUICK = ("double_dqn-mlp",)


def run_pair(lab, case: dict[str, Any], num_update: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Metrics of updates from the same steps: whatever differs is of the updates, not of other actions taken.

    On the way the actions are compared too, of both kinds.
    """
    spec = lab.spec(**case)
    (plain, env), (compiled, other) = (lab.build(spec.replace(meta={"compile": wish})) for wish in (False, True))
    other.close()
    obs, carry, frame = env.reset(), plain.init_carry(env.num_envs), 0
    rows: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    while len(rows[0]) < num_update:
        act, other_act = (agent.act(obs, carry, explore=True) for agent in (plain, compiled))
        assert_close(other_act, act, rtol=1e-4, atol=1e-4)
        step = env.step(act.action.numpy())
        frame += env.num_envs
        for agent, metrics in zip((plain, compiled), rows, strict=True):
            agent.observe(obs, act, step)
            row = agent.update(frame)
            if row is not None:
                metrics.append(row)
        obs, carry = step.obs, reset_rows(act.carry, step.done)
    env.close()
    # not plain calls in disguise
    for step in compiled.context.guard.steps:
        assert step.graph is not None
        assert step.graph.graphs
    # the nets are whole again after the compiler has put its own tensors in their place
    assert_close(compiled.act(obs, carry), plain.act(obs, carry), rtol=1e-3, atol=1e-3)
    for module in compiled.algorithm.modules.values():
        assert all(tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values())
    return rows


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_compiled_losses_equal_plain_ones(lab, name: str) -> None:
    compare(lab, name, NUM_UPDATE)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("mlp")])
def test_traced_losses_equal_plain_ones(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    compare(lab, name, NUM_TRACED)


def trace_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph as it is compiled, run without machine code."""
    compiler = importlib.import_module("slm_lab.agent.compile.graph")
    monkeypatch.setattr(compiler, "assemble", lambda graph, *_: lambda tensors: graph(*tensors))


def compare(lab, name: str, num_update: int) -> None:
    plain, compiled = run_pair(lab, CASES[name], num_update)
    assert len(plain) == len(compiled) == num_update
    losses = [key for key in plain[0] if "loss" in key]
    assert losses
    for update, (one, two) in enumerate(zip(plain, compiled, strict=True)):
        for key in losses:
            assert two[key] == pytest.approx(one[key], rel=1e-5, abs=1e-5), (update, key)
    # and they are not equal because nothing was learned
    assert plain[0]["grad_norm"] > 0
    assert plain[0] != plain[-1]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "traced"])
def test_log_std_finds_back_in_either_engine(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    net = nn.ParameterList([torch.tensor([3.0, 3.0, -6.0, -6.0, 1.0])])
    slope = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    learner = Learner(net, MLPNetSpec.model_validate({"optim_spec": {"name": "SGD"}}), torch.device("cpu"))

    def calc_loss(slope: Tensor) -> Loss:
        return Loss((slope * bound_log_std(net[0])).sum(), {})

    step = GradientStep(calc_loss, [learner], is_compiled=is_compiled)
    # 2 - 2 - 5 + 5 + 1
    assert float(step(slope)["loss"]) == 1.0
    # lr .001 against the slope, and only towards the bounds
    assert_close(net[0].detach(), torch.tensor([2.999, 3.0, -6.0, -5.999, 0.999]))


def test_every_algorithm_is_compared_with_both_kinds_of_nets() -> None:
    for kind in ("mlp", "conv"):
        compared = {case["algorithm"]["name"] for name, case in CASES.items() if name.endswith(kind)}
        # those that learn from a file are compared in test_offline.py
        assert compared == set(ALGORITHMS) - {"Random", "BC", "IQL", "TD3BC"}


def test_a_function_of_many_shapes_is_refused() -> None:
    function = CompiledFunction(lambda state, args: args[0] + 1, [])
    function.graphs = {(size,): torch.stack for size in range(MAX_GRAPHS)}
    with pytest.raises(CompileError, match="more than 8 shapes"):
        function(torch.zeros(100))


def test_a_number_that_is_no_tensor_is_refused() -> None:
    function = CompiledFunction(lambda state, args: args[0][0] * args[0][1], [])
    with pytest.raises(CompileError, match=r"2\.0 would be taken as it is now, and never again"):
        function((torch.zeros(3), 2.0))


def test_a_tensor_from_elsewhere_is_refused() -> None:
    """It would be taken as it is now, and never again."""
    elsewhere = torch.ones(3)
    function = CompiledFunction(lambda state, args: args[0] + elsewhere, [])
    with pytest.raises(CompileError, match="convert all Tensors to FakeTensors"):
        function(torch.zeros(3))


def test_state_is_written_and_arguments_keep_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)

    class Pair(NamedTuple):
        one: torch.Tensor
        two: torch.Tensor | None

    def add(state: dict[str, torch.Tensor], args: tuple[Pair, torch.Tensor]) -> dict[str, torch.Tensor]:
        pair, scale = args
        assert pair.two is None
        state["sum"].add_(pair.one * scale)
        return {"sum": state["sum"].clone(), "scaled": pair.one * scale}

    state = {"sum": torch.zeros(2)}
    function = CompiledFunction(add, state)
    for factor in (1.0, 2.0):
        out = function(Pair(torch.tensor([1.0, 2.0]), None), torch.tensor(factor))
        assert out["scaled"].tolist() == [factor, 2 * factor]
    assert out["sum"].tolist() == state["sum"].tolist() == [3.0, 6.0]
    # another shape, type or order in memory is another graph on the same state
    function(Pair(torch.tensor([1.0]), None), torch.tensor(1.0))
    assert state["sum"].tolist() == [4.0, 7.0]
    function(Pair(torch.tensor([1, 2]), None), torch.tensor(1.0))
    assert state["sum"].tolist() == [5.0, 9.0]
    function(Pair(torch.tensor([[1.0, 3.0], [2.0, 4.0]])[:, 0], None), torch.tensor(1.0))
    assert state["sum"].tolist() == [6.0, 11.0]
    assert len(function.graphs) == 4


def fail_midway(graph: Any, fakes: list[Tensor], num_state: int, *_: bool) -> Callable[[list[Tensor]], None]:
    """Machine code that writes to all its state, if to any of it, then fails."""
    writes = any(node.target is torch.ops.aten.copy_.default for node in graph.graph.nodes)

    def call(tensors: list[Tensor]) -> None:
        for tensor in tensors[:num_state] if writes else ():
            tensor.zero_()
        raise RuntimeError("PTX was compiled for another GPU\nand more")

    return call


@pytest.mark.parametrize("name", ["ppo-mlp", "sac-mlp"])
def test_what_cannot_be_compiled_runs_plain(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that fails at its first call leaves nothing behind."""
    spec = lab.spec(**CASES[name])
    plain = lab.train(spec.replace(meta={"compile": False}), num_frame=400)
    monkeypatch.setattr(importlib.import_module("slm_lab.agent.compile.graph"), "assemble", fail_midway)
    warn_once.cache_clear()
    lines: list[str] = []
    handler = logger.add(lambda line: lines.append(line.record["message"]), level="WARNING")
    broken = lab.train(spec.replace(meta={"compile": True}), num_frame=400)
    logger.remove(handler)
    assert plain.metrics
    assert broken.metrics == plain.metrics
    assert lines == [
        "Compiling failed, so plain calls are used from here on: RuntimeError: PTX was compiled for another GPU"
    ]
