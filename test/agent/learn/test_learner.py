"""Target nets: how far behind, when they are replaced, and what follows beside the weights."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.learn.learner import Target
from slm_lab.agent.net.model import QNet
from slm_lab.spec.net import MLPNetSpec


def build(**keys) -> tuple[QNet, Target]:
    spec = MLPNetSpec(hid_layers=(4,), **keys)
    net = QNet(spec, (3,), 2)
    return net, Target(net, FlatParams(net.parameters()), spec)


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def move(net: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(by)


def test_polyak_takes_its_share_of_the_net() -> None:
    net, target = build(update_type="polyak", polyak_coef=0.25)
    start = weights(net)
    move(net, 4.0)
    assert torch.equal(weights(target.net), start)
    target.follow()
    # a quarter of the way; "share kept" instead of "share taken" would go three quarters
    np.testing.assert_allclose(weights(target.net), start + 1.0, rtol=1e-5, atol=1e-6)
    # `load_state_dict` writes into the flat tensor, so a resumed target follows too
    target.net.load_state_dict(copy.deepcopy(target.net.state_dict()))
    target.follow()
    # then a quarter of the three that are left
    np.testing.assert_allclose(weights(target.net), start + 1.75, rtol=1e-5, atol=1e-6)


def test_target_has_no_gradient_and_stays_in_evaluation_mode() -> None:
    net, target = build(batch_norm=True)
    net.train()
    assert not any(parameter.requires_grad for parameter in target.net.parameters())
    assert not any(module.training for module in target.net.modules())
    obs = torch.randn(4, 3, requires_grad=False)
    assert not target.net(obs).requires_grad


def test_replace_comes_at_multiples_of_its_frequency() -> None:
    net, target = build(update_type="replace", update_frequency=10)
    replaced = []
    for frame in range(4, 61, 4):
        move(net, 1.0)
        target.follow()
        before = weights(target.net)
        target.replace_if_due(frame)
        if not torch.equal(weights(target.net), before):
            assert torch.equal(weights(target.net), weights(net))
            replaced.append(frame)
    # the first step at or after 10, 20, 30, 40, 50, 60; a modulo would find 20, 40 and 60 alone
    assert replaced == [12, 20, 32, 40, 52, 60]


def norm_of(module: nn.Module) -> Any:
    (norm,) = (layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d))
    return norm


def test_statistics_of_norm_layers_follow() -> None:
    """Weights alone would be valued with the statistics of the first batch for ever."""
    net, target = build(batch_norm=True, update_type="polyak", polyak_coef=0.25)
    net.train()
    for _ in range(3):
        net(torch.randn(16, 3) * 5 + 2)
    source, copied = norm_of(net), norm_of(target.net)
    assert float(source.running_mean.abs().max()) > 0
    target.follow()
    np.testing.assert_allclose(copied.running_mean, 0.25 * source.running_mean, rtol=1e-5)
    np.testing.assert_allclose(copied.running_var, 0.75 + 0.25 * source.running_var, rtol=1e-5)
    # a count is whole
    assert int(copied.num_batches_tracked) == 3


def test_statistics_of_norm_layers_are_replaced() -> None:
    net, target = build(batch_norm=True, update_type="replace", update_frequency=10)
    net.train()
    net(torch.randn(16, 3) * 5 + 2)
    target.replace_if_due(10)
    for name, value in net.state_dict().items():
        assert torch.equal(value, target.net.state_dict()[name]), name
