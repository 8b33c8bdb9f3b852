"""Nets that value actions: the dueling equation, and where an action joins an observation."""

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.net.model import ActionValueNet, QEnsemble, QNet
from slm_lab.spec.net import ConvNetSpec, DuelingConvNetSpec, DuelingMLPNetSpec, MLPNetSpec

CONV: dict[str, Any] = {"conv_hid_layers": [[4, 4, 4]], "fc_hid_layers": [8], "normalize": True}
IMAGE = (1, 12, 12)


def images(num: int) -> torch.Tensor:
    return torch.randint(256, (num, *IMAGE), dtype=torch.uint8)


# --- dueling


def test_dueling_by_hand() -> None:
    """Q = V + A - mean A (eq. 9); adding V to A alone, or subtracting the largest A, gives other numbers."""
    net = QNet(DuelingMLPNetSpec(hid_layers=()), (1,), 3)
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[10.0], [1.0], [2.0], [6.0]]))
        net.head.bias.zero_()
    # V 10, A (1, 2, 6) of mean 3; at -1 all signs turn
    np.testing.assert_allclose(net(torch.tensor([[1.0], [-1.0]])).detach(), [[8, 9, 13], [-8, -9, -13]], rtol=1e-6)


def test_a_shift_of_all_advantages_changes_nothing() -> None:
    net = QNet(DuelingMLPNetSpec(hid_layers=(8,)), (3,), 4)
    obs = torch.randn(5, 3)
    before = net(obs).detach()
    with torch.no_grad():
        net.head.bias[1:] += 7
    np.testing.assert_allclose(net(obs).detach(), before, atol=1e-5)
    with torch.no_grad():
        net.head.bias[:1] += 7
    np.testing.assert_allclose(net(obs).detach(), before + 7, atol=1e-5)


def test_dueling_images_and_plain_nets() -> None:
    assert QNet(DuelingConvNetSpec(**CONV), IMAGE, 3)(images(2)).shape == (2, 3)
    assert QNet(DuelingConvNetSpec(**CONV), IMAGE, 3).head.out_features == 4
    plain = QNet(MLPNetSpec(hid_layers=(8,)), (3,), 4)
    assert plain.head.out_features == 4
    obs = torch.randn(5, 3)
    np.testing.assert_allclose(plain(obs).detach(), plain.head(plain.body(obs)).detach())


# --- observation and action together


def test_vectors_join_the_action_before_the_first_layer() -> None:
    net = ActionValueNet(MLPNetSpec(hid_layers=()), (2,), 1)
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        net.head.bias.fill_(0.5)
    value = net(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.1], [0.2]]))
    # 1 + 20 + 10 + .5, 3 + 40 + 20 + .5
    np.testing.assert_allclose(value.detach(), [31.5, 63.5], rtol=1e-6)


def test_images_join_the_action_after_their_body() -> None:
    net = ActionValueNet(ConvNetSpec(**CONV), IMAGE, 2)
    obs, action = images(3), torch.rand(3, 2, requires_grad=True)
    value = net(obs, action)
    assert value.shape == (3,)
    expected = net.head(torch.cat([net.body(obs), action], -1)).squeeze(-1)
    np.testing.assert_allclose(value.detach(), expected.detach(), rtol=1e-6)
    value.sum().backward()
    # what the policy learns from
    assert action.grad is not None
    assert bool(action.grad.any(-1).all())
    assert float((net(obs, action) - net(images(3), action)).detach().abs().max()) > 0


def test_images_take_the_init_of_the_spec() -> None:
    net = ActionValueNet(ConvNetSpec(**CONV, init_fn="zeros_"), IMAGE, 2)
    assert net(images(3), torch.rand(3, 2)).tolist() == [0, 0, 0]


# --- twins


@pytest.mark.parametrize("is_discrete", [False, True], ids=["continuous", "discrete"])
def test_twins_are_two_nets(is_discrete: bool) -> None:
    twin = QEnsemble(MLPNetSpec(hid_layers=(8,)), (3,), 2, is_discrete)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    inputs = (obs,) if is_discrete else (obs, action)
    both = twin(*inputs)
    assert both.shape == ((2, 5, 2) if is_discrete else (2, 5))
    for index in (0, 1):
        np.testing.assert_allclose(both[index].detach(), twin.critics[index](*inputs).detach())
    # the same start would make the smaller of them no more careful than either
    assert float((both[0] - both[1]).detach().abs().min()) > 1e-4
    shared = {id(parameter) for parameter in twin.critics[0].parameters()}
    assert not shared & {id(parameter) for parameter in twin.critics[1].parameters()}


def test_layers_of_images_start_with_the_gain_of_their_own_activation() -> None:
    spec = ConvNetSpec(**CONV, hid_layers_activation="tanh", init_fn="orthogonal_")
    net = ActionValueNet(spec, IMAGE, 2)
    fc = next(layer for layer in net.body.modules() if isinstance(layer, torch.nn.Linear))
    gains = [float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) for layer in (fc, net.head[0])]
    # of tanh, and of the ReLU behind the layer that the action joins
    assert gains == [pytest.approx(5 / 3, rel=1e-4), pytest.approx(2**0.5, rel=1e-4)]
