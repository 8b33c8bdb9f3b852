"""bfloat16: products are faster and rougher, everything else is as it was."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.model import ActionValueNet, OutputNet
from slm_lab.lib.errors import SpecError
from test.agent.algorithm.conftest import CASES
from test.agent.algorithm.test_compiled import CASES as COMPILED_CASES
from test.agent.algorithm.test_compiled import compare, trace_alone

BF16 = {"precision": "bf16"}


@pytest.mark.parametrize("name", ["ppo_continuous", "double_dqn_dueling_per", "sac", "crossq"])
def test_numbers_are_near_those_of_float32_and_repeat(lab, name: str) -> None:
    spec = lab.spec(**CASES[name])
    rough = spec.replace(meta=BF16)
    exact, one, two = (lab.train(each, 140).metrics for each in (spec, rough, rough))
    assert one
    assert one == two
    assert one != exact
    for key, value in exact[0].items():
        assert one[0][key] == pytest.approx(value, rel=0.1, abs=0.1), key


@pytest.mark.parametrize("norm", ["LazyBatchRenorm1d", "LazyBatchNorm1d"])
def test_batch_norms_keep_float32_statistics(lab, norm: str) -> None:
    layers = [{"LazyLinear": {"out_features": 16}}, norm, "ReLU"]
    net = {"type": "TorchArcNet", "arc": {"modules": {"body": {"Sequential": layers}}}}
    spec = lab.spec(**{**CASES["crossq"], "net": net})
    exact, rough = (lab.train(one, 140) for one in (spec, spec.replace(meta=BF16)))
    for key, value in exact.metrics[0].items():
        assert rough.metrics[0][key] == pytest.approx(value, rel=0.1, abs=0.1), key
    buffers = dict(rough.agent.algorithm.modules["critic"].named_buffers())
    assert {buffers[name].dtype for name in buffers if "running" in name} == {torch.float32}


def test_only_bodies_are_rough(lab) -> None:
    agent, env = lab.build(lab.spec(**CASES["sac"]).replace(meta=BF16))
    seen: list[tuple[str, torch.dtype]] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, args, out: seen.append((name, out.dtype))

    for net in agent.algorithm.modules.values():
        for part in net.modules():
            if isinstance(part, (OutputNet, ActionValueNet)):
                # its first layer: what the body itself gives is float32
                [*part.body.modules()][1].register_forward_hook(note("body"))
                part.head.register_forward_hook(note("head"))
    obs = env.reset()
    for frame in range(4, 80, 4):
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        agent.update(frame)
        obs = step.obs
    assert set(seen) == {("body", torch.bfloat16), ("head", torch.float32)}
    for learner in agent.algorithm.learners.values():
        tensors = (learner.flat.data, learner.flat.grad, *learner.optimizer.moments.values())
        assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("name", ["ppo-mlp", "sac-mlp"])
def test_compiled_is_as_near_as_plain(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    monkeypatch.setitem(COMPILED_CASES, name, COMPILED_CASES[name] | {"precision": "bf16"})
    compare(lab, name, 4)


def test_recurrent_nets_are_refused(lab) -> None:
    spec = lab.spec("CartPole-v1", {"name": "PPO", "time_horizon": 32}, net={"type": "RecurrentNet"})
    with pytest.raises(SpecError, match=r"^meta\.precision: recurrent nets are computed in float32; use float32$"):
        lab.build(spec.replace(meta=BF16))
