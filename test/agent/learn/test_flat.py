"""Flat parameters are the modules' own, seen as one tensor."""

import copy

import numpy as np
import torch
from torch import nn

from slm_lab.agent.learn.flat import FlatParams


def build_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.LayerNorm(2))


def test_values_and_state_dict_are_unchanged_and_can_be_loaded() -> None:
    net, other = build_net(), build_net(1)
    before = copy.deepcopy(net.state_dict())
    flat = FlatParams(net.parameters())
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    # 3*4 + 4 + 4*2 + 2 + 2
    assert flat.data.shape == flat.grad.shape == (28,)
    net.load_state_dict(other.state_dict())
    assert torch.equal(flat.data, torch.cat([parameter.detach().flatten() for parameter in other.parameters()]))


def test_parameters_are_views_of_the_flat_tensor() -> None:
    """A copy would leave the net at its first weights while the optimiser moves the flat tensor."""
    net = build_net()
    flat = FlatParams(net.parameters())
    flat.data.copy_(torch.arange(28.0))
    assert net[0].weight.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert net[0].bias.tolist() == [12, 13, 14, 15]
    assert net[2].weight.tolist() == [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert net[3].bias.tolist() == [26, 27]
    with torch.no_grad():
        net[0].bias.fill_(-1)
    assert flat.data[12:16].tolist() == [-1] * 4


def test_backward_accumulates_into_the_flat_gradient() -> None:
    net, twin = build_net(), build_net()
    flat = FlatParams(net.parameters())
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        for model in (net, twin):
            model(obs).square().sum().backward()
            model(obs).sum().backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in twin.parameters()])
        assert float(expected.norm()) > 0.1
        np.testing.assert_allclose(flat.grad, expected, rtol=1e-6)
        # the next backward fills the same tensor again, which `grad = None` would have ended
        flat.grad.zero_()
        twin.zero_grad()


def test_shared_parameter_appears_once() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    flat = FlatParams([*first.parameters(), *second.parameters()])
    # one weight, two biases; counted twice its gradient would be clipped and applied twice
    assert flat.data.shape == (4 + 2 + 2,)
    flat.data.fill_(3.0)
    assert second.weight.tolist() == first.weight.tolist() == [[3, 3], [3, 3]]
