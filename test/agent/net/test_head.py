"""What critics predict of returns: values by hand, and distributions whose truth is known."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.net.head import CategoricalHead, Head, ImplicitHead, QuantileHead, build_head
from slm_lab.agent.net.model import DuelingHead, build_q_net
from slm_lab.agent.net.noisy import NoisyLinear, find_noisy, quiet, resample
from slm_lab.agent.net.simba import SimbaNet
from slm_lab.spec.critic import CategoricalCritic, ImplicitCritic, QuantileCritic, ValueCritic
from slm_lab.spec.net import DuelingMLPNetSpec, MLPNetSpec, SimbaNetSpec

MSE = ELEMENT_LOSSES["MSELoss"]
FIVE = CategoricalHead(CategoricalCritic(num_atom=5, v_min=-2.0, v_max=2.0))


def learn(head: Head, out: Tensor, draw: Any, lr: float) -> Tensor:
    """What a critic without inputs predicts once it has seen many sampled returns."""
    out = out.clone().requires_grad_()
    optimizer = torch.optim.Adam([out], lr=lr)
    for _ in range(1500):
        optimizer.zero_grad()
        head.loss(out, draw()).mean().backward()
        optimizer.step()
    return out.detach()


def test_quantiles_of_a_known_distribution_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    # wide, so that the Huber loss is nearly the absolute one
    out = learn(QuantileHead(5), torch.zeros(5), lambda: 100 * torch.rand(64, 1, generator=generator), 0.2)
    assert_close(out, torch.tensor([10.0, 30.0, 50.0, 70.0, 90.0]), rtol=0, atol=3.0)


def test_probabilities_of_a_known_distribution_are_found() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        # returns of -1 and 1.5, one in four of the first
        reward = torch.where(torch.rand(256, generator=generator) < 0.25, -1.0, 1.5)
        return FIVE.backup(reward, torch.zeros(256), torch.zeros(256, 5))

    out = learn(FIVE, torch.zeros(5), draw, 0.02)
    # 1.5 is shared by 1 and 2
    assert_close(out.softmax(-1), torch.tensor([0.0, 0.25, 0.0, 0.375, 0.375]), rtol=0, atol=0.03)
    assert FIVE.value(out).item() == pytest.approx(0.875, abs=0.05)


def test_a_histogram_moves_as_its_returns_do() -> None:
    out = torch.tensor([[0.0, 0.0, math.log(3), 0.0, 0.0]])
    reward, discount, cost = torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor([1.0])
    # -2, -1, 0, 1, 2 become -1, -.5, 0, .5, 1; the odd ones are shared by two neighbours
    moved = torch.tensor([[0.0, 1 + 0.5, 0.5 + 3 + 0.5, 0.5 + 1, 0.0]]) / 7
    assert_close(FIVE.backup(reward, discount, out, cost), moved)
    # beyond the bounds everything is at the bound, and the task that ended has nothing to follow
    assert_close(FIVE.backup(torch.tensor([9.0]), discount, out), torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]]))
    assert_close(FIVE.backup(torch.tensor([1.0]), 0 * discount, out), torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]))


def test_the_quantile_loss_by_hand() -> None:
    out, target = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.5]])
    # errors 1.5 and -.5 at the fractions .25 and .75: Huber 1 and .125, weights .25 and |.75 - 1|
    assert_close(QuantileHead(2).loss(out, target), torch.tensor([(0.25 * 1 + 0.25 * 0.125) / 2]))
    assert_close(QuantileHead(2, is_summed=True).loss(out, target), torch.tensor([0.25 * 1 + 0.25 * 0.125]))
    # at fractions of its own
    fraction = torch.tensor([[0.1, 0.2]])
    assert_close(QuantileHead(2).loss(out, target, fraction), torch.tensor([(0.1 * 1 + 0.8 * 0.125) / 2]))


def test_an_ensemble_as_one_critic() -> None:
    # two critics of one return, in no order
    out = torch.tensor([[[5.0, 1.0, 3.0]], [[2.0, 9.0, 4.0]]])
    assert QuantileHead(3).reduce(out, "min").tolist() == [[5.0, 1.0, 3.0]]
    assert QuantileHead(3).reduce(out, "mean").sort().values.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]]
    # one per critic, wherever they come from
    assert QuantileHead(3, num_drop=1).reduce(out, "mean").tolist() == [[1.0, 2.0, 3.0, 4.0]]
    out = torch.tensor([[[math.log(3), 0.0]], [[0.0, 0.0]]])
    head = CategoricalHead(CategoricalCritic(num_atom=2, v_min=0.0, v_max=1.0))
    assert_close(head.reduce(out, "mean").softmax(-1), torch.tensor([[(0.75 + 0.5) / 2, (0.25 + 0.5) / 2]]))
    assert head.reduce(out, "min").tolist() == out[0].tolist()


@pytest.mark.parametrize("critic", [ValueCritic(), QuantileCritic(num_quantile=3), CategoricalCritic(num_atom=3)])
def test_dueling_numbers_are_centred_over_the_actions(critic: Any) -> None:
    net = build_q_net(build_head(critic, MSE), DuelingMLPNetSpec(hid_layers=(8,)), (4,), 5)
    assert isinstance(net.linear, DuelingHead)
    obs = torch.randn(6, 4)
    raw = torch.nn.functional.linear(net.body(obs), net.linear.weight, net.linear.bias).view(6, 6, -1)
    expected = raw[:, :1] + raw[:, 1:] - raw[:, 1:].mean(1, keepdim=True)
    assert_close(net(obs).view(6, 5, -1), expected)
    # it acts by values
    assert net.step(obs, None)[0].shape == (6, 5)


def test_an_implicit_net_is_given_its_fractions() -> None:
    torch.manual_seed(0)
    head = build_head(ImplicitCritic(num_quantile=7, num_act_quantile=4), MSE)
    assert isinstance(head, ImplicitHead)
    net = build_q_net(head, MLPNetSpec(hid_layers=(8,)), (4,), 3)
    obs, (fraction, other) = torch.randn(6, 4), head.draw(6, torch.Generator().manual_seed(0))
    assert fraction.shape == (6, 7)
    assert not torch.equal(fraction, other)
    out = net(obs, fraction)
    assert out.shape == (6, 3, 7)
    # each quantile depends on its own fraction alone
    moved = fraction.clone()
    moved[:, 0] += 0.1
    changed = (net(obs, moved) - out).abs().amax((0, 1))
    assert changed[0] > 1e-4
    assert_close(changed[1:], torch.zeros(6))
    assert_close(net.step(obs, None)[0], net(obs, torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(6, 4)).mean(-1))


def test_noise_is_sampled_and_can_be_silenced() -> None:
    torch.manual_seed(0)
    net = build_q_net(build_head(ValueCritic(), MSE), MLPNetSpec(hid_layers=(8,), noisy=True), (4,), 2)
    layers = find_noisy(net)
    assert len(layers) == 2
    obs, generator = torch.randn(3, 4), torch.Generator().manual_seed(0)
    resample(layers, generator)
    noisy = net(obs)
    assert torch.equal(net(obs), noisy)
    with quiet(layers):
        plain = net(obs)
        resample(layers, generator)
        assert torch.equal(net(obs), plain)
    assert not torch.equal(net(obs), noisy)
    assert not torch.equal(plain, noisy)


def test_the_noise_of_a_layer_by_hand() -> None:
    layer = NoisyLinear(4, 2)
    resample([layer], torch.Generator().manual_seed(0))
    raw = torch.Generator().manual_seed(0)
    first, second = torch.randn(4, generator=raw), torch.randn(2, generator=raw)
    inner, outer = (x.sign() * x.abs().sqrt() for x in (first, second))
    # the std starts at .5 / sqrt(4)
    weight = layer.weight + 0.25 * outer[:, None] * inner[None, :]
    obs = torch.randn(5, 4)
    assert_close(layer(obs), obs @ weight.T + layer.bias + 0.25 * outer)


def test_simba_adds_what_its_blocks_make_of_normalised_features() -> None:
    torch.manual_seed(0)
    net: Any = SimbaNet(SimbaNetSpec(width=8, num_block=1), (3,))
    first, block, last = net
    norm, up, _, down = block
    x = first(torch.randn(5, 3))
    assert_close(last(block(x)), last(x + down(up(norm(x)).relu())))
    assert up.out_features == 32
    assert net.out_size == 8
