"""bfloat16: products are faster and rougher, everything else is as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.model import ActionValueNet, OutputNet, use_bf16
from slm_lab.env.layout import ObsPart
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import DictNetSpec
from test.agent.algorithm.conftest import CASES
from test.agent.algorithm.test_compiled import CASES as COMPILED_CASES
from test.agent.algorithm.test_compiled import compare, trace_alone

BF16 = {"precision": "bf16"}


def deepen(case: dict[str, Any]) -> dict[str, Any]:
    """The case with two hidden layers: the first reads vectors, in float32."""
    net = {**case.get("net", {}), "hid_layers": [16, 16]}
    if "critic_hid_layers" in net:
        net["critic_hid_layers"] = [32, 32]
    return {**case, "net": net}


@pytest.mark.parametrize("name", ["ppo_continuous", "double_dqn_dueling_per", "sac", "crossq"])
def test_numbers_are_near_those_of_float32_and_repeat(lab, name: str) -> None:
    spec = lab.spec(**deepen(CASES[name]))
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


def test_only_hidden_layers_are_rough(lab) -> None:
    agent, env = lab.build(lab.spec(**deepen(CASES["sac"])).replace(meta=BF16))
    seen: list[tuple[str, torch.dtype]] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, args, out: seen.append((name, out.dtype))

    for net in agent.algorithm.modules.values():
        for part in net.modules():
            if isinstance(part, (OutputNet, ActionValueNet)):
                first, second = (layer for layer in part.body.modules() if isinstance(layer, nn.Linear))
                first.register_forward_hook(note("first"))
                second.register_forward_hook(note("second"))
                part.head.register_forward_hook(note("head"))
    obs = env.reset()
    for frame in range(4, 80, 4):
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        agent.update(frame)
        obs = step.obs
    assert set(seen) == {("first", torch.float32), ("second", torch.bfloat16), ("head", torch.float32)}
    for learner in agent.algorithm.learners.values():
        tensors = (learner.flat.data, learner.flat.grad, *learner.optimizer.moments.values())
        assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("name", ["ppo-mlp", "sac-mlp"])
def test_compiled_is_as_near_as_plain(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    monkeypatch.setitem(COMPILED_CASES, name, deepen(COMPILED_CASES[name]) | {"precision": "bf16"})
    compare(lab, name, 4)


def test_recurrent_nets_are_refused(lab) -> None:
    spec = lab.spec("CartPole-v1", {"name": "PPO", "time_horizon": 32}, net={"type": "RecurrentNet"})
    with pytest.raises(SpecError, match=r"^meta\.precision: recurrent nets are computed in float32; use float32$"):
        lab.build(spec.replace(meta=BF16))


def test_images_are_rough_from_the_first_layer_vectors_beside_them_from_the_second() -> None:
    encoders = {
        "image": {"type": "ConvNet", "conv_hid_layers": [[4, 3, 2]], "fc_hid_layers": [8]},
        "speed": {"type": "MLPNet", "hid_layers": [8, 8]},
    }
    spec = DictNetSpec.model_validate({"type": "DictNet", "hid_layers": [8], "encoders": encoders})
    parts = (ObsPart("image", 0, 192, (3, 8, 8)), ObsPart("raw", 192, 194, (2,)), ObsPart("speed", 194, 198, (4,)))
    net = OutputNet(spec, (198,), 2, parts=parts)
    use_bf16(net)
    seen: dict[nn.Module, torch.dtype] = {}
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            layer.register_forward_hook(lambda layer, args, out: seen.update({layer: out.dtype}))
    net(torch.rand(5, 198))
    image, _, speed = (encoder.body for encoder in net.body.encoders)
    found = [[seen[layer] for layer in part.modules() if layer in seen] for part in (image, speed, net.body.trunk)]
    # the trunk reads the part without an encoder
    assert found == [[torch.bfloat16] * 2, [torch.float32, torch.bfloat16], [torch.float32]]
