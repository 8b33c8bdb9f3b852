"""Bodies with heads: shapes, sharing, and what flows where."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.model import ActorCriticNet, OutputNet, PolicyNet
from slm_lab.spec.net import ConvNetSpec, MLPNetSpec


def mlp(**keys: Any) -> MLPNetSpec:
    return MLPNetSpec.model_validate({"type": "MLPNet", "hid_layers": [8, 6], **keys})


def build(spec: MLPNetSpec | ConvNetSpec, obs_shape: tuple[int, ...] = (4,), param_size: int = 3) -> ActorCriticNet:
    torch.manual_seed(0)
    return ActorCriticNet(spec, obs_shape, param_size, is_gaussian=False)


def test_mlp_by_hand() -> None:
    net = MLPNet(mlp(hid_layers=[2], hid_layers_activation="relu"), (2,))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 0.0]]))
        net[0].bias.copy_(torch.tensor([0.5, 0.0]))
    # relu(1*3 + 2*4 + .5) = 11.5, relu(-3) = 0
    assert net(torch.tensor([[3.0, 4.0]])).tolist() == [[11.5, 0.0]]
    assert net.out_size == 2


def test_mlp_layers_in_order() -> None:
    net = MLPNet(mlp(hid_layers=[8, 6], hid_layers_activation="tanh", batch_norm=True, layer_norm=True), (4,))
    kinds = [nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.Tanh]
    # norms before the activation, and no activation lost after the last hidden layer
    assert [type(layer) for layer in net] == kinds * 2
    assert net.out_size == 6


def test_mlp_without_hidden_layers_is_linear() -> None:
    net = MLPNet(mlp(hid_layers=[]), (4,))
    obs = torch.randn(3, 4)
    assert net.out_size == 4
    assert torch.equal(net(obs), obs)


def test_mlp_flattens() -> None:
    net = MLPNet(mlp(), (2, 3))
    assert net(torch.zeros(5, 2, 3)).shape == (5, 6)


def test_mlp_reads_uint8() -> None:
    """The agent stores images as uint8."""
    net = MLPNet(mlp(), (2, 2))
    obs = torch.tensor([[[0, 1], [2, 255]]], dtype=torch.uint8)
    np.testing.assert_allclose(net(obs).detach(), net(obs.float()).detach())


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_shapes(shared: bool) -> None:
    net = build(mlp(shared=shared))
    obs = torch.randn(5, 4)
    param, value = net(obs)
    assert param.shape == (5, 3)
    # (B, 1) would broadcast against returns (B,) to (B, B)
    assert value.shape == (5,)
    assert net.value(obs).shape == (5,)
    np.testing.assert_allclose(value.detach(), net.value(obs).detach(), rtol=1e-6)
    np.testing.assert_allclose(param.detach(), net.actor(obs).detach(), rtol=1e-6)


def test_separate_nets_share_nothing() -> None:
    net = build(mlp())
    own = {id(parameter) for parameter in net.actor.parameters()}
    assert not own & {id(parameter) for parameter in net.critic.parameters()}
    net(torch.randn(5, 4))[1].sum().backward()
    assert all(parameter.grad is None for parameter in net.actor.parameters())


def test_shared_body_is_one_and_gets_both_gradients() -> None:
    net = build(mlp(shared=True))
    assert net.actor.body is net.critic.body
    # counted once: (4*8 + 8) + (8*6 + 6) + (6*3 + 3) + (6*1 + 1)
    assert sum(parameter.numel() for parameter in net.parameters()) == 40 + 54 + 21 + 7
    obs = torch.randn(5, 4)
    grads = []
    for which in (0, 1):
        net.zero_grad()
        net(obs)[which].sum().backward()
        grads.append(net.actor.body[0].weight.grad.clone())
    assert all(float(grad.norm()) > 0 for grad in grads)
    net.zero_grad()
    param, value = net(obs)
    (param.sum() + value.sum()).backward()
    np.testing.assert_allclose(net.actor.body[0].weight.grad, grads[0] + grads[1], rtol=1e-4, atol=1e-6)


def test_roles_have_their_own_keys() -> None:
    net = build(mlp(actor={"hid_layers": [5]}, critic={"hid_layers": [7, 9], "hid_layers_activation": "tanh"}))
    assert [layer.out_features for layer in net.actor.body.children() if isinstance(layer, nn.Linear)] == [5]
    assert [layer.out_features for layer in net.critic.body.children() if isinstance(layer, nn.Linear)] == [7, 9]
    assert any(isinstance(layer, nn.Tanh) for layer in net.critic.modules())
    assert not any(isinstance(layer, nn.Tanh) for layer in net.actor.modules())


def test_out_layer_activation() -> None:
    net = build(mlp(critic={"out_layer_activation": "softplus"}, shared=True))
    obs = torch.randn(200, 4) * 10
    param, value = net(obs)
    assert (value > 0).all()
    assert (param < 0).any()
    torch.manual_seed(0)
    plain = OutputNet(mlp(), (4,), 2)
    torch.manual_seed(0)
    squashed = OutputNet(mlp(out_layer_activation="tanh"), (4,), 2)
    np.testing.assert_allclose(squashed(obs).detach(), plain(obs).tanh().detach(), rtol=1e-5)


def test_out_layer_activation_is_for_the_mean_alone_beside_a_log_std() -> None:
    torch.manual_seed(0)
    net = PolicyNet(mlp(out_layer_activation="tanh", log_std_init=-3.0), (4,), 4, is_gaussian=True)
    out = net(torch.randn(50, 4) * 10).detach()
    assert float(out[:, :2].abs().max()) <= 1
    # tanh(-3) would be -.995
    assert (out[:, 2:] == -3.0).all()
