"""Initial weights reach every layer, and the keys for heads really change the heads."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.head import ImplicitHead
from slm_lab.agent.net.init import KAIMING, PLAIN, WITH_GAIN, init_head, init_weights
from slm_lab.agent.net.model import ActionValueNet, ActorCriticNet, ImplicitQNet, OutputNet, PolicyNet
from slm_lab.lib.errors import SpecError
from slm_lab.spec.critic import ImplicitCritic
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.net import ConvNetSpec, MLPNetSpec, NetSpec

CONV: dict[str, Any] = {"type": "ConvNet", "conv_hid_layers": [[4, 3, 1], [6, 3, 2]], "fc_hid_layers": [8]}


def mlp(**keys: Any) -> MLPNetSpec:
    return MLPNetSpec.model_validate({"type": "MLPNet", "hid_layers": [8, 8], **keys})


def build(spec: NetSpec, obs_shape: tuple[int, ...] = (4,), is_gaussian: bool = False) -> ActorCriticNet:
    torch.manual_seed(0)
    return ActorCriticNet(spec, obs_shape, 4, is_gaussian)


def gains(weight: Tensor) -> np.ndarray[Any, Any]:
    """Singular values: all equal to the gain where the weight is orthogonal."""
    return torch.linalg.svdvals(weight.detach().flatten(1)).numpy()


def layers_of(net: nn.Module) -> list[Any]:
    return [layer for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize(
    ("activation", "gain"), [("relu", math.sqrt(2)), ("tanh", 5 / 3), ("gelu", 1.0)], ids=["relu", "tanh", "gelu"]
)
def test_init_fn_reaches_every_layer(shared: bool, activation: str, gain: float) -> None:
    net = build(mlp(init_fn="orthogonal_", hid_layers_activation=activation, shared=shared))
    layers = layers_of(net)
    # two hidden layers and a head each, or one body under two heads
    assert len(layers) == (4 if shared else 6)
    for layer in layers:
        np.testing.assert_allclose(gains(layer.weight), gain, rtol=1e-4)
        assert not layer.bias.any()


def test_init_fn_reaches_convolutions() -> None:
    spec = ConvNetSpec.model_validate({**CONV, "init_fn": "orthogonal_"})
    layers = layers_of(build(spec, (1, 8, 8)))
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 4
    assert len(layers) == 8
    for layer in layers:
        np.testing.assert_allclose(gains(layer.weight), math.sqrt(2), rtol=1e-4)
        assert not layer.bias.any()


def test_init_fn_reaches_the_embedding_of_fractions() -> None:
    head = ImplicitHead(ImplicitCritic(num_cosine=8), is_summed=True)
    net = ImplicitQNet(mlp(init_fn="orthogonal_"), (4,), 3, (), head)
    np.testing.assert_allclose(gains(net.embedding.weight), math.sqrt(2), rtol=1e-5)
    assert not net.embedding.bias.any()


def test_keys_of_the_output_layer_reach_critics_of_images() -> None:
    spec = ConvNetSpec.model_validate({**CONV, "init_std": 0.5, "out_layer_activation": "tanh"})
    net = ActionValueNet(spec, (2, 8, 8), 2)
    last = layers_of(net)[-1]
    np.testing.assert_allclose(gains(last.weight), 0.5, rtol=1e-5)
    with torch.no_grad():
        last.bias.fill_(100.0)
    assert net(torch.zeros(3, 2, 8, 8), torch.zeros(3, 2)).tolist() == [1.0] * 3


def test_init_fn_leaves_norm_layers_alone() -> None:
    net = build(mlp(init_fn="zeros_", layer_norm=True))
    norms = [layer for layer in net.modules() if isinstance(layer, nn.LayerNorm)]
    assert norms
    # a norm layer of zeros would never let anything through
    assert all((layer.weight == 1).all() for layer in norms)


@pytest.mark.parametrize("init_fn", [*PLAIN, *WITH_GAIN, *KAIMING])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "silu", "selu", "sigmoid"])
def test_every_init_fn_works_with_every_activation(init_fn: str, activation: str) -> None:
    layer = nn.Linear(200, 100)
    before = layer.weight.detach().clone()
    torch.manual_seed(0)
    init_weights(layer, init_fn, activation)
    assert not torch.equal(layer.weight, before)
    assert not layer.bias.any()
    assert torch.isfinite(layer.weight).all()


@pytest.mark.parametrize(
    ("init_fn", "std"),
    [
        # standard deviations for a (100, 200) weight under relu
        ("xavier_normal_", math.sqrt(2) * math.sqrt(2 / 300)),
        ("xavier_uniform_", math.sqrt(2) * math.sqrt(2 / 300)),
        ("kaiming_normal_", math.sqrt(2 / 200)),
        ("kaiming_uniform_", math.sqrt(2 / 200)),
        ("normal_", 1.0),
        ("uniform_", math.sqrt(1 / 12)),
        ("zeros_", 0.0),
    ],
)
def test_spread_of_init_functions(init_fn: str, std: float) -> None:
    layer = nn.Linear(200, 100)
    torch.manual_seed(0)
    init_weights(layer, init_fn, "relu")
    assert layer.weight.std().item() == pytest.approx(std, rel=0.03)


def test_null_init_fn_keeps_torch_own() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    init_weights(layer, None, "relu")
    assert torch.equal(layer.weight, before[0])
    assert torch.equal(layer.bias, before[1])
    assert before[1].any()


# --- heads


@pytest.mark.parametrize("init_fn", [None, "orthogonal_", "kaiming_uniform_"])
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_head_gains_are_applied(shared: bool, init_fn: str | None) -> None:
    """W13: the reference stripped the prefix and then never found the key."""
    net = build(mlp(shared=shared, init_fn=init_fn, actor={"init_std": 0.01}, critic={"init_std": 2.0}))
    np.testing.assert_allclose(gains(net.actor.linear.weight), 0.01, rtol=1e-4)
    np.testing.assert_allclose(gains(net.critic.linear.weight), 2.0, rtol=1e-4)
    assert not net.actor.linear.bias.any()
    assert not net.critic.linear.bias.any()


def test_head_gain_for_both_without_prefix() -> None:
    net = build(mlp(init_std=0.3))
    np.testing.assert_allclose(gains(net.actor.linear.weight), 0.3, rtol=1e-4)
    np.testing.assert_allclose(gains(net.critic.linear.weight), 0.3, rtol=1e-4)


def test_head_gain_leaves_the_body_alone() -> None:
    spec: dict[str, Any] = {"shared": True, "init_fn": "orthogonal_", "hid_layers_activation": "tanh"}
    net = build(mlp(**spec, actor={"init_std": 9.0}, critic={"init_std": 9.0}))
    for layer in layers_of(net.actor.body):
        # the critic's spec must not initialise the shared body a second time, nor with its gain
        np.testing.assert_allclose(gains(layer.weight), 5 / 3, rtol=1e-4)
    plain = build(mlp(**spec))
    for layer, other in zip(layers_of(net.actor.body), layers_of(plain.actor.body), strict=True):
        assert torch.equal(layer.weight, other.weight)


def test_small_actor_gain_makes_a_near_uniform_policy() -> None:
    net = build(mlp(init_fn="orthogonal_", actor={"init_std": 0.01}))
    prob = net(torch.randn(64, 4))[0].softmax(-1)
    assert (prob - 0.25).abs().max().item() < 0.02


def test_init_head_none_changes_nothing() -> None:
    torch.manual_seed(0)
    head = nn.Linear(3, 2)
    before = head.weight.detach().clone()
    init_head(head, None)
    assert torch.equal(head.weight, before)
    init_head(head, 0.0)
    # 0 is a value like any other
    assert not head.weight.any()


# --- log std


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_log_std_does_not_depend_on_the_observation(shared: bool) -> None:
    net = build(mlp(shared=shared, log_std_init=-0.5), is_gaussian=True)
    # 4 parameters: two means from the net, two log stds of their own
    assert net.actor.head.out_features == 2
    out = net(torch.randn(6, 4))[0]
    assert out.shape == (6, 4)
    assert (out[:, 2:] == -0.5).all()
    assert out[:, :2].std().item() > 0
    out.sum().backward()
    # learnt, by every row
    assert net.actor.log_std.grad.tolist() == [6.0, 6.0]


def test_without_log_std_init_the_net_outputs_it() -> None:
    net = build(mlp(), is_gaussian=True)
    assert net.actor.log_std is None
    assert net.actor.head.out_features == 4
    assert net(torch.randn(6, 4))[0][:, 2:].std().item() > 0


def test_log_std_needs_a_gaussian_policy() -> None:
    with pytest.raises(SpecError, match="log_std_init: only a Normal or TanhNormal policy has a log std"):
        build(mlp(log_std_init=0.0), is_gaussian=False)
    with pytest.raises(SpecError, match="log_std_init"):
        PolicyNet(mlp(log_std_init=0.0), (4,), 4, is_gaussian=False)


def test_log_std_is_no_business_of_a_critic() -> None:
    critic = OutputNet(mlp(log_std_init=0.0), (4,), 1)
    assert critic(torch.zeros(2, 4)).shape == (2, 1)
    assert "log_std" not in critic.state_dict()


# --- keys out of place


def parse(net: dict[str, Any], algorithm: str = "ActorCritic") -> None:
    parse_spec(
        {
            "name": "test",
            "agent": {
                "algorithm": {"name": algorithm},
                "memory": {"name": "OnPolicyBatchReplay"},
                "net": {"type": "MLPNet", **net},
            },
            "env": {"name": "CartPole-v1", "max_frame": 1000},
        }
    )


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ({"actor_init_st": 0.01}, "actor_init_st"),
        ({"init_stdd": 0.01}, "init_stdd"),
        ({"shared": True, "critic_hid_layers": [8]}, "critic_hid_layers"),
        ({"shared": True, "critic_init_fn": "zeros_"}, "critic_init_fn"),
        ({"shared": True, "actor_optim_spec": {"name": "Adam"}}, "actor_optim_spec"),
        ({"use_same_optim": True, "critic_optim_spec": {"name": "Adam"}}, "critic_optim_spec"),
        ({"init_std": -1.0}, "init_std"),
        ({"init_fn": "orthogonal"}, "init_fn"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_out_of_place_keys_raise(net: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(net)


@pytest.mark.parametrize(
    ("net", "algorithm"),
    [
        ({"critic_log_std_init": 0.0}, "ActorCritic"),
        ({"shared": True, "critic_log_std_init": 0.0}, "ActorCritic"),
        ({"critic_init_std": 1.0}, "Reinforce"),
        ({"shared": True}, "Reinforce"),
    ],
    ids=["critic log std", "shared critic log std", "Reinforce critic", "Reinforce shared"],
)
def test_keys_without_effect_raise(net: dict[str, Any], algorithm: str) -> None:
    with pytest.raises(SpecError, match=next(iter(net))):
        parse(net, algorithm)
