"""What a net sees of an observation with named parts: exact numbers, exact shapes, and nothing else."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.learn.learner import Target
from slm_lab.agent.net.build import build_body
from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.dict_net import DictNet
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.model import ActionValueNet, ActorCriticNet, OutputNet, PolicyNet, QEnsemble, QNet
from slm_lab.agent.net.parts import Select, SelectingNet, SelectingRecurrentNet, build_view
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.env.layout import calc_parts
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import ConvNetSpec, DictNetSpec, MLPNetSpec, RecurrentNetSpec, TorchArcNetSpec

IMAGE = spaces.Box(0, 255, (1, 4, 4), np.uint8)
SPACE: gym.Space[Any] = spaces.Dict(
    {"image": IMAGE, "state": spaces.Box(-1, 1, (3,)), "table": spaces.Box(-1, 1, (2, 2)), "which": spaces.Discrete(2)}
)
PARTS = calc_parts(SPACE)
# image 0-15, state 16-18, table 19-22, which 23-24
SIZE = 25
CONV: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[2, 3, 1]],
    "fc_hid_layers": [5],
    "normalize": True,
    # so narrow a relu net might let nothing through
    "hid_layers_activation": "tanh",
}
ARC: dict[str, Any] = {"modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 3}}, "Tanh"]}}}


def rows(num: int = 2) -> Tensor:
    """Rows 0, 1, 2 ... and the next ones."""
    return torch.arange(num * SIZE, dtype=torch.float32).view(num, SIZE)


def test_layout_is_what_these_tests_think() -> None:
    assert [(part.name, part.start, part.stop, part.shape) for part in PARTS] == [
        ("image", 0, 16, (1, 4, 4)),
        ("state", 16, 19, (3,)),
        ("table", 19, 23, (2, 2)),
        ("which", 23, 25, (2,)),
    ]


# --- selecting


@pytest.mark.parametrize(
    ("keys", "expected", "num_slice"),
    [
        (["state"], [16, 17, 18], 1),
        (["which", "state"], [23, 24, 16, 17, 18], 2),
        # neighbours are one slice
        (["state", "table", "which"], [16, 17, 18, 19, 20, 21, 22, 23, 24], 1),
        (["table", "state"], [19, 20, 21, 22, 16, 17, 18], 2),
    ],
)
def test_parts_are_taken_in_the_order_asked(keys: list[str], expected: list[int], num_slice: int) -> None:
    view = build_view(MLPNetSpec(obs_keys=keys), (SIZE,), PARTS)
    assert view.select is not None
    assert len(view.select.slices) == num_slice
    seen = view.select(rows())
    flat = seen.flatten(1)
    np.testing.assert_array_equal(flat[0], expected)
    np.testing.assert_array_equal(flat[1], np.array(expected) + SIZE)
    # renumbered for whatever reads the selection
    assert [part.name for part in view.parts] == keys
    for part in view.parts:
        old = next(one for one in PARTS if one.name == part.name)
        np.testing.assert_array_equal(flat[:, part.start : part.stop], rows()[:, old.start : old.stop])


@pytest.mark.parametrize("lead", [(2,), (3, 2)], ids=["rows", "sequences"])
def test_a_single_part_has_its_own_shape(lead: tuple[int, ...]) -> None:
    view = build_view(MLPNetSpec(obs_keys=["image"]), (SIZE,), PARTS)
    assert view.shape == (1, 4, 4)
    assert view.select is not None
    seen = view.select(torch.arange(SIZE).expand(*lead, SIZE))
    assert seen.shape == (*lead, 1, 4, 4)
    np.testing.assert_array_equal(seen[(0,) * len(lead)][0], np.arange(16).reshape(4, 4))


def test_a_number_is_a_vector_of_one() -> None:
    parts = calc_parts(spaces.Dict({"a": spaces.Box(-1, 1, ()), "b": spaces.Box(-1, 1, (2,))}))
    body = build_body(MLPNetSpec(obs_keys=["a"], hid_layers=[4]), (3,), parts)
    assert body(torch.zeros(5, 3)).shape == (5, 4)
    both = build_body(DictNetSpec(encoders={"a": {"type": "MLPNet", "hid_layers": [4]}}), (3,), parts)
    assert both(torch.zeros(5, 3)).shape == (5, 64)


# --- nets without names stay what they are


@pytest.mark.parametrize("keys", [None, ["obs"]])
def test_plain_observations_get_the_plain_body(keys: list[str] | None) -> None:
    for parts in ((), calc_parts(spaces.Box(-1, 1, (4,)))):
        assert type(build_body(MLPNetSpec(obs_keys=keys), (4,), parts)) is MLPNet
    for parts in ((), calc_parts(IMAGE)):
        assert type(build_body(ConvNetSpec(**{**CONV, "obs_keys": keys}), (1, 4, 4), parts)) is ConvNet


def test_all_parts_in_order_are_the_plain_body() -> None:
    assert type(build_body(MLPNetSpec(obs_keys=["image", "state", "table", "which"]), (SIZE,), PARTS)) is MLPNet
    assert type(build_body(MLPNetSpec(), (SIZE,), PARTS)) is MLPNet


def test_a_dict_without_encoders_is_a_plain_net() -> None:
    """The same numbers drawn, the same numbers out."""
    torch.manual_seed(0)
    plain = QNet(MLPNetSpec(hid_layers=[8], init_fn="orthogonal_"), (SIZE,), 3, PARTS)
    torch.manual_seed(0)
    named = QNet(DictNetSpec(hid_layers=[8], init_fn="orthogonal_"), (SIZE,), 3, PARTS)
    np.testing.assert_array_equal(plain(rows()).detach(), named(rows()).detach())


# --- encoders


def test_each_part_goes_through_its_encoder() -> None:
    spec = DictNetSpec(
        encoders={
            "table": {"type": "TorchArcNet", "arc": ARC},
            "image": CONV,
            "state": {"type": "MLPNet", "hid_layers": [4], "hid_layers_activation": "tanh", "layer_norm": True},
        },
        hid_layers=[6],
    )
    net = build_body(spec, (SIZE,), PARTS)
    assert isinstance(net, DictNet)
    image, state, table = (net.encoders[index].body for index in range(3))
    assert isinstance(image, ConvNet)
    assert isinstance(state, MLPNet)
    obs = rows()
    expected = torch.cat(
        [
            # as a plain ConvNet sees a picture of 8 bits
            image(obs[:, :16].view(2, 1, 4, 4).to(torch.uint8)),
            state(obs[:, 16:19]),
            # arcs see a part in its own shape
            table(obs[:, 19:23].view(2, 2, 2)),
            obs[:, 23:25],
        ],
        -1,
    )
    assert expected.shape == (2, 5 + 4 + 6 + 2)
    np.testing.assert_array_equal(net(obs).detach(), net.trunk(expected).detach())
    assert net.out_size == 6


def test_pictures_of_8_bits_alone_stay_8_bits() -> None:
    """A Dict of nothing but pictures is flattened to 8 bits."""
    parts = calc_parts(spaces.Dict({"a": IMAGE, "b": IMAGE}))
    net = build_body(DictNetSpec(encoders={"a": CONV}), (32,), parts)
    obs = torch.randint(256, (3, 32), dtype=torch.uint8)
    np.testing.assert_array_equal(net(obs).detach(), net(obs.float()).detach())


def test_a_plain_picture_is_the_part_obs() -> None:
    net = build_body(DictNetSpec(encoders={"obs": CONV}), (1, 4, 4), calc_parts(IMAGE))
    assert net(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)).shape == (3, 64)


@pytest.mark.parametrize("name", ["a.b", "keys", "training", "", "weights é"])
def test_parts_of_any_name(name: str) -> None:
    parts = calc_parts(spaces.Dict({name: spaces.Box(-1, 1, (2,)), "z": spaces.Box(-1, 1, (1,))}))
    key = next(part.name for part in parts if part.name != "z")
    net = build_body(DictNetSpec(encoders={key: {"type": "MLPNet", "hid_layers": [3]}}), (3,), parts)
    net.load_state_dict(net.state_dict())


def test_initial_weights_have_the_gain_of_their_own_activation() -> None:
    encoder = {"type": "MLPNet", "hid_layers": [3], "hid_layers_activation": "tanh"}
    spec = DictNetSpec(encoders={"state": encoder}, hid_layers=[4], init_fn="orthogonal_", hid_layers_activation="relu")
    net = OutputNet(spec, (SIZE,), 1, parts=PARTS)
    assert isinstance(net.body, DictNet)
    layer = net.body.encoders[1].body[0]
    weight, trunk = layer.weight.detach(), net.body.trunk[0]
    assert isinstance(trunk, nn.Linear)
    np.testing.assert_allclose(weight @ weight.T, np.eye(3) * (5 / 3) ** 2, atol=1e-5)
    np.testing.assert_allclose((trunk.weight @ trunk.weight.T).detach(), np.eye(4) * 2, atol=1e-5)


# --- heads


def test_actor_and_critic_see_different_parts() -> None:
    spec = MLPNetSpec(hid_layers=(8,), actor={"obs_keys": ["state"]}, critic={"obs_keys": ["which", "image"]})
    net = ActorCriticNet(spec, (SIZE,), 2, False, PARTS)
    obs = torch.rand(5, SIZE, requires_grad=True)
    param, value = net(obs)
    seen = [out.sum() for out in (param, value)]
    actor, critic = (torch.autograd.grad(one, obs, retain_graph=True)[0].abs().sum(0) > 0 for one in seen)
    assert actor.nonzero().flatten().tolist() == [16, 17, 18]
    assert set(critic.nonzero().flatten().tolist()) <= {*range(16), 23, 24}
    assert critic[23:].any()


def test_a_shared_body_sees_the_common_keys() -> None:
    net = ActorCriticNet(MLPNetSpec(shared=True, obs_keys=["state"]), (SIZE,), 2, False, PARTS)
    assert isinstance(net.critic.body, SelectingNet)
    assert net.critic.body is net.actor.body
    assert [one.shape for one in net(rows())] == [(2, 2), (2,)]


@pytest.mark.parametrize("keys", [["state"], ["image"], ["table", "state"]], ids=str)
def test_recurrent_nets_see_the_same_step_by_step_and_unrolled(keys: list[str]) -> None:
    spec = RecurrentNetSpec(rnn_hidden_size=4, fc_hid_layers=[3], obs_keys=keys)
    body = build_body(spec, (SIZE,), PARTS)
    assert isinstance(body, SelectingRecurrentNet)
    assert isinstance(body.body, RecurrentNet)
    assert (body.state_size, body.out_size, body.seq_len) == (4, 4, 16)
    obs, reset = torch.randn(6, 2, SIZE), torch.zeros(6, 2, dtype=torch.bool)
    reset[3, 1] = True
    features, last = body.unroll(obs, torch.zeros(2, 4), reset)
    direct, _ = body.body.unroll(body.select(obs), torch.zeros(2, 4), reset)
    np.testing.assert_array_equal(features.detach(), direct.detach())
    carry, steps = torch.zeros(2, 4), []
    for t in range(6):
        out, carry = body.step(obs[t], carry.masked_fill(reset[t].unsqueeze(-1), 0.0))
        steps.append(out)
    np.testing.assert_allclose(features.detach(), torch.stack(steps).detach(), atol=1e-6)
    np.testing.assert_allclose(last.detach(), carry.detach(), atol=1e-6)
    assert OutputNet(spec, (SIZE,), 2, parts=PARTS).step(obs[0], None)[0].shape == (2, 2)


def test_a_conv_net_reads_the_named_picture() -> None:
    net = QNet(ConvNetSpec(**CONV, obs_keys=["image"]), (SIZE,), 3, PARTS)
    assert net(rows()).shape == (2, 3)
    picture = build_body(TorchArcNetSpec(arc=ARC, obs_keys=["image"]), (SIZE,), PARTS)
    assert picture(rows()).shape == (2, 1 * 4 * 3)


def test_critics_join_the_action_with_the_features() -> None:
    """The action is one more part without an encoder, even beside a part that is called action."""
    parts = calc_parts(spaces.Dict({"action": spaces.Box(-1, 1, (2,)), "image": IMAGE}))
    spec = DictNetSpec(encoders={"image": CONV, "action": {"type": "MLPNet", "hid_layers": [3]}}, hid_layers=[7])
    net = ActionValueNet(spec, (18,), 2, parts)
    assert isinstance(net.body, DictNet)
    assert net.body.trunk[0].in_features == 3 + 5 + 2
    action = torch.rand(4, 2, requires_grad=True)
    value = net(torch.rand(4, 18), action)
    assert value.shape == (4,)
    value.sum().backward()
    assert action.grad is not None
    assert bool(action.grad.any(-1).all())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (MLPNetSpec(obs_keys=["which", "state"]), {16, 17, 18, 23, 24}),
        (ConvNetSpec(**CONV, obs_keys=["image"]), set(range(16))),
        (DictNetSpec(obs_keys=["image", "which"], encoders={"image": CONV}), {*range(16), 23, 24}),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_critics_see_their_parts_and_the_action(spec: Any, expected: set[int]) -> None:
    torch.manual_seed(0)
    net = QEnsemble(spec, (SIZE,), 2, False, PARTS)
    obs, action = torch.rand(50, SIZE, requires_grad=True), torch.rand(50, 2, requires_grad=True)
    value = net(obs, action)
    assert value.shape == (2, 50)
    value.sum().backward()
    assert obs.grad is not None
    assert action.grad is not None
    assert set(obs.grad.abs().sum(0).nonzero().flatten().tolist()) == expected
    assert bool(action.grad.any(0).all())


def test_target_nets_and_flat_parameters_hold_every_encoder() -> None:
    spec = DictNetSpec(
        encoders={"image": CONV, "state": {"type": "MLPNet"}}, polyak_coef=0.5, obs_keys=["state", "image"]
    )
    net = QNet(spec, (SIZE,), 3, PARTS)
    flat = FlatParams(net.parameters())
    assert flat.data.numel() == sum(parameter.numel() for parameter in net.parameters())
    target = Target(net, flat, spec)
    before = target.flat.data.clone()
    flat.data.add_(1.0)
    target.follow()
    np.testing.assert_allclose(target.flat.data, before + 0.5, atol=1e-6)
    target.flat.data.copy_(flat.data)
    np.testing.assert_array_equal(target.net(rows()).detach(), net(rows()).detach())


# --- errors


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (MLPNetSpec(obs_keys=["stat"]), r"obs_keys: the observation has no part 'stat'; did you mean 'state'\? \(its"),
        (MLPNetSpec(obs_keys=["zzz"]), r"\(its parts: image \(1, 4, 4\), state \(3,\), table \(2, 2\), which \(2,\)\)"),
        (ConvNetSpec(**CONV), r"ConvNet reads one image, .* name one of them in obs_keys, or use DictNet"),
        (ConvNetSpec(**CONV, obs_keys=["image", "state"]), "ConvNet reads one image"),
        (ConvNetSpec(**CONV, obs_keys=["state"]), r"agent.net.type: ConvNet needs images \(C, H, W\), .* \(3,\)"),
        (DictNetSpec(encoders={"state": CONV}), r"agent.net.encoders.state.type: ConvNet needs images .* \(3,\)"),
        (
            DictNetSpec(encoders={"image": {**CONV, "conv_hid_layers": [[2, 9]]}}),
            r"agent.net.encoders.image.conv_hid_layers: does not fit images \(1, 4, 4\)",
        ),
        (
            DictNetSpec(encoders={"state": {"type": "TorchArcNet", "arc": {"modules": {"body": "Linar"}}}}),
            "agent.net.encoders.state.arc.modules.body",
        ),
        (
            DictNetSpec(encoders={"image": CONV}, obs_keys=["state"]),
            "agent.net.encoders.image: the net does not see this part, only state; .* as actor_encoders or critic_enc",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(spec: Any, match: str) -> None:
    for build in (
        lambda: PolicyNet(spec, (SIZE,), 2, False, PARTS),
        lambda: QNet(spec, (SIZE,), 2, PARTS),
        lambda: build_body(spec, (SIZE,), PARTS),
    ):
        with pytest.raises(SpecError, match=match) as caught:
            build()
        assert "\n" not in str(caught.value)


def test_selecting_has_no_weights() -> None:
    assert not Select(PARTS[:1], (1, 4, 4)).state_dict()
