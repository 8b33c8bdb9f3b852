"""Norm layers against hand-worked values."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.net.arc import build_arc
from slm_lab.agent.net.init import KAIMING, PLAIN, WITH_GAIN, init_weights
from slm_lab.agent.net.model import OutputNet
from slm_lab.agent.net.norm import (
    BatchRenorm1d,
    LazyBatchRenorm1d,
    LazyWeightNormLinear,
    WeightNormLinear,
)
from slm_lab.spec.net import MLPNetSpec


def assert_close(one: Tensor | None, two: Tensor | None, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Of gradients; torch.testing takes seconds to import."""
    assert one is not None
    assert two is not None
    np.testing.assert_allclose(one.detach(), two.detach(), rtol, atol)


# --- batch renormalisation


def renorm(steps: int = 0, **keys: Any) -> BatchRenorm1d:
    """A layer of one feature with next to no eps, after so many training forwards, with running mean 1 and std 2."""
    layer = BatchRenorm1d(1, **{"eps": 1e-9, "momentum": 0.1, "warmup_steps": 10, **keys})
    layer.num_batches_tracked.fill_(steps)
    layer.running_mean.fill_(1.0)
    layer.running_var.fill_(4.0)
    return layer


# mean 6, variance 9: std 3
X = torch.tensor([[3.0], [9.0]])


@pytest.mark.parametrize(
    ("steps", "r", "d"),
    [
        (0, 1.0, 0.0),  # plain batch norm
        # limits 1 + .1 * 2 = 1.2 and .1 * 5 = .5, below r = 3/2 and d = (6 - 1)/2
        (1, 1.2, 0.5),
        (4, 1.5, 2.0),  # r is within its limit 1.8, d is not
        (5, 1.5, 2.5),  # both as they are
        (10, 1.5, 2.5),
        (1000, 1.5, 2.5),
    ],
)
def test_renorm_by_hand(steps: int, r: float, d: float) -> None:
    layer = renorm(steps)
    # batch norm gives -1 and 1
    np.testing.assert_allclose(layer(X).detach().flatten(), [-r + d, r + d], rtol=1e-6)
    # running statistics: a tenth of the way from 1 to 6, from 4 to 9
    assert layer.running_mean.item() == pytest.approx(1.5)
    assert layer.running_var.item() == pytest.approx(4.5)
    assert int(layer.num_batches_tracked) == steps + 1


def test_renorm_limits_both_ways() -> None:
    layer = renorm(10, r_max=2.0, d_max=1.0)
    layer.running_var.fill_(900.0)  # std 30: r = 3/30, at least 1/2
    layer.running_mean.fill_(96.0)  # d = -90/30, at least -1
    np.testing.assert_allclose(layer(X).detach().flatten(), [-0.5 - 1, 0.5 - 1], rtol=1e-6)


def test_renorm_without_warm_up_is_open_at_once() -> None:
    np.testing.assert_allclose(renorm(0, warmup_steps=0)(X).detach().flatten(), [1.0, 4.0], rtol=1e-6)


def test_renorm_in_its_limits_trains_as_it_evaluates() -> None:
    layer = renorm(10)
    twin = renorm(10).eval()
    np.testing.assert_allclose(layer(X).detach(), twin(X).detach(), rtol=1e-6)
    # and evaluation learns nothing: (3 - 1)/2 and (9 - 1)/2
    np.testing.assert_allclose(twin(X).detach().flatten(), [1.0, 4.0], rtol=1e-6)
    assert twin.running_mean.item() == 1.0
    assert int(twin.num_batches_tracked) == 10


def test_renorm_gradient_takes_r_and_d_for_constants() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, dtype=torch.double, requires_grad=True)
    layer = BatchRenorm1d(3, warmup_steps=1).double()
    layer.num_batches_tracked.fill_(1)
    layer.running_mean.fill_(0.3)
    weight = torch.randn(8, 3, dtype=torch.double)
    twin_x = x.detach().clone().requires_grad_()
    (layer(x) * weight).sum().backward()
    mean, std = twin_x.mean(0), (twin_x.var(0, correction=0) + 1e-5).sqrt()
    r = (std / (1 + 1e-5) ** 0.5).detach().clamp(1 / 3, 3)
    d = ((mean - 0.3) / (1 + 1e-5) ** 0.5).detach().clamp(-5, 5)
    (((twin_x - mean) / std * r + d) * weight).sum().backward()
    assert_close(x.grad, twin_x.grad, rtol=1e-6)
    assert_close(layer.bias.grad, weight.sum(0))


def test_renorm_starts_as_batch_norm() -> None:
    torch.manual_seed(0)
    for shape in ((6, 3), (6, 3, 4)):
        x = torch.randn(*shape)
        np.testing.assert_allclose(BatchRenorm1d(3)(x).detach(), nn.BatchNorm1d(3)(x).detach(), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 3), (3,), (2, 3, 4, 5)])
def test_renorm_refuses_what_has_no_batch(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="got"):
        BatchRenorm1d(3)(torch.zeros(shape))


# --- weight norm


def test_weight_norm_by_hand() -> None:
    layer = WeightNormLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
        layer.gain.fill_(10.0)
        layer.bias.fill_(0.5)
    # v / ||v|| = (.6, .8)
    assert layer(torch.tensor([[1.0, 1.0]])).item() == pytest.approx(14.5)
    # the length of v has no effect
    with torch.no_grad():
        layer.weight *= 7
    assert layer(torch.tensor([[1.0, 1.0]])).item() == pytest.approx(14.5)


def test_weight_norm_starts_as_the_linear_layer() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    torch.manual_seed(0)
    layer = WeightNormLinear(4, 3)
    x = torch.randn(5, 4)
    np.testing.assert_allclose(layer(x).detach(), plain(x).detach(), rtol=1e-5, atol=1e-6)
    assert set(dict(layer.named_parameters())) == {"weight", "bias", "gain"}


@pytest.mark.parametrize("init_fn", [*PLAIN, *WITH_GAIN, *KAIMING])
def test_init_functions_reach_the_function(init_fn: str) -> None:
    plain, layer = nn.Linear(4, 3), WeightNormLinear(4, 3)
    for module in (plain, layer):
        torch.manual_seed(0)
        init_weights(module, init_fn, "relu")
    x = torch.randn(5, 4)
    np.testing.assert_allclose(layer.eval()(x).detach(), plain(x).detach(), rtol=1e-2, atol=1e-3)


# --- all of them


def test_lazy_layers_become_plain_ones() -> None:
    seq = [{"LazyWeightNormLinear": {"out_features": 3}}, {"LazyBatchRenorm1d": {"momentum": 0.2}}]
    net = build_arc({"modules": {"body": {"Sequential": seq}}})
    body = net.body
    assert [type(layer) for layer in body] == [LazyWeightNormLinear, LazyBatchRenorm1d]
    net.materialize(torch.zeros(1, 4))
    assert [type(layer) for layer in body] == [WeightNormLinear, BatchRenorm1d]
    assert body[0].in_features == 4
    np.testing.assert_allclose(body[0].gain.detach(), body[0].weight.norm(dim=1).detach())
    assert body[1].num_features == 3
    # the example is no training
    assert int(body[1].num_batches_tracked) == 0
    assert body[1].running_var.tolist() == [1.0] * 3


def test_flat_parameters_and_saved_states() -> None:
    torch.manual_seed(0)

    def build() -> nn.Sequential:
        return nn.Sequential(WeightNormLinear(4, 4), BatchRenorm1d(4, warmup_steps=5), nn.Linear(4, 2))

    plain, flat = build(), build()
    flat.load_state_dict(plain.state_dict())
    params = FlatParams(flat.parameters())
    for _ in range(3):
        x = torch.randn(6, 4)
        for net in (plain, flat):
            net(x).square().sum().backward()
        grads = [parameter.grad for parameter in plain.parameters() if parameter.grad is not None]
        assert_close(params.grad, torch.cat([grad.flatten() for grad in grads]))
        with torch.no_grad():
            for parameter, grad in zip(plain.parameters(), grads, strict=True):
                parameter.sub_(grad, alpha=0.01)
            params.data -= 0.01 * params.grad
        params.grad.zero_()
        plain.zero_grad()
    # the state is all there is: a copy goes on to the bit
    copy = build()
    copy.load_state_dict(flat.state_dict())
    for _ in range(2):
        x = torch.randn(6, 4)
        assert torch.equal(copy(x), flat(x))
    assert all(torch.equal(one, two) for one, two in zip(copy.buffers(), flat.buffers(), strict=True))


def test_an_mlp_with_weight_norm_begins_as_the_plain_one() -> None:
    plain, normed = MLPNetSpec(hid_layers=(8, 8)), MLPNetSpec(hid_layers=(8, 8), weight_norm=True)
    outs = []
    for spec in (plain, normed):
        torch.manual_seed(0)
        outs.append(OutputNet(spec, (3,), 2)(torch.ones(4, 3)))
    assert_close(*outs)
    layers = [type(layer) for layer in OutputNet(normed, (3,), 2).modules() if isinstance(layer, nn.Linear)]
    assert layers == [WeightNormLinear, WeightNormLinear, nn.Linear]
    with pytest.raises(ValueError, match="weight_norm is for layers without noise"):
        MLPNetSpec(noisy=True, weight_norm=True)
