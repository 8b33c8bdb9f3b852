"""Recurrent bodies and nets: one step at a time or whole sequences, the same numbers and gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.net.model import ActorCriticNet, OutputNet
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.spec.net import MLPNetSpec, RecurrentNetSpec

CELLS = ("GRU", "LSTM", "RNN")
LENGTH, BATCH = 9, 5


def assert_close(one: Any, two: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Of tensors, or of as many of them; torch.testing takes seconds to import."""
    if isinstance(one, Tensor):
        assert one.shape == two.shape
        np.testing.assert_allclose(one.detach(), two.detach(), rtol, atol)
        return
    for pair in zip(one, two, strict=True):
        assert_close(*pair, rtol, atol)


def spec(**keys: Any) -> RecurrentNetSpec:
    return RecurrentNetSpec.model_validate({"fc_hid_layers": [7], "rnn_hidden_size": 6, **keys})


def build(obs_shape: tuple[int, ...] = (3,), **keys: Any) -> RecurrentNet:
    torch.manual_seed(0)
    return RecurrentNet(spec(**keys), obs_shape)


def resets(kind: str) -> Tensor:
    """Rows that start an episode: none, all, a few, or a few that leave long segments between them."""
    reset = torch.zeros(LENGTH, BATCH, dtype=torch.bool)
    if kind == "every row":
        reset[:] = True
    elif kind == "scattered":
        reset[:] = torch.rand(LENGTH, BATCH, generator=torch.Generator().manual_seed(1)) < 0.15
    elif kind == "first and last":
        reset[0, 1] = reset[-1, 2] = True
    elif kind == "middle":
        reset[4, :2] = True
    return reset


RESETS = ("none", "every row", "scattered", "first and last", "middle")


def by_steps(net: Any, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The obvious way: one step after the other, clearing by hand."""
    features = []
    for t in range(len(obs)):
        carry = torch.where(reset[t][:, None], torch.zeros_like(carry), carry)
        out, carry = net.step(obs[t], carry)
        features.append(out)
    return torch.stack(features), carry


@pytest.mark.parametrize("kind", RESETS)
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_unroll_is_repeated_steps(cell: str, num_layers: int, kind: str) -> None:
    net = build(cell_type=cell, rnn_num_layers=num_layers)
    assert net.state_size == 6 * num_layers * (2 if cell == "LSTM" else 1)
    assert net.out_size == 6
    obs, start = torch.randn(LENGTH, BATCH, 3), torch.randn(BATCH, net.state_size)
    weight = torch.randn(LENGTH, BATCH, 6)
    grads, outputs = [], []
    for run in (net.unroll, lambda *args: by_steps(net, *args)):
        net.zero_grad()
        carry = start.clone().requires_grad_()
        features, last = run(obs, carry, resets(kind))
        ((features * weight).sum() + (last**2).sum()).backward()
        outputs.append((features.detach(), last.detach()))
        given = (carry, *net.parameters())
        grads.append([tensor.grad.clone() for tensor in given if tensor.grad is not None])
        assert len(grads[-1]) == len(given)
    assert outputs[0][0].shape == (LENGTH, BATCH, 6)
    assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_step_is_the_module_of_torch(cell: str) -> None:
    net = build(cell_type=cell, fc_hid_layers=[], rnn_num_layers=2)
    obs, carry = torch.randn(4, BATCH, 3), torch.zeros(BATCH, net.state_size)
    features, last = by_steps(net, obs, carry, torch.zeros(4, BATCH, dtype=torch.bool))
    out, state = net.rnn(obs)
    assert_close(features, out)
    # h of each layer, then c of each
    parts = torch.cat(state) if cell == "LSTM" else state
    assert_close(last, torch.cat(list(parts), -1))


def test_rows_do_not_mix() -> None:
    net = build(cell_type="LSTM", rnn_num_layers=2)
    obs, carry = torch.randn(LENGTH, BATCH, 3), torch.randn(BATCH, net.state_size)
    reset = resets("scattered")
    whole, _ = net.unroll(obs, carry, reset)
    for row in range(BATCH):
        alone, _ = net.unroll(obs[:, [row]], carry[[row]], reset[:, [row]])
        assert_close(alone[:, 0], whole[:, row])


def test_a_reset_forgets_and_nothing_else_does() -> None:
    net = build()
    obs = torch.randn(LENGTH, 1, 3)
    reset = torch.zeros(LENGTH, 1, dtype=torch.bool)
    reset[4] = True
    one, _ = net.unroll(obs, torch.zeros(1, 6), reset)
    two, _ = net.unroll(obs, torch.ones(1, 6), reset)
    assert not torch.isclose(one[:4], two[:4]).all(-1).any()
    assert torch.equal(one[4:], two[4:])


def test_no_gradient_passes_a_reset() -> None:
    net = build(fc_hid_layers=[])
    obs = torch.randn(LENGTH, BATCH, 3, requires_grad=True)
    features, _ = net.unroll(obs, torch.zeros(BATCH, 6), resets("middle"))
    features[-1].sum().backward()
    assert obs.grad is not None
    assert not obs.grad[:4, :2].any()
    assert obs.grad[:4, 2:].abs().sum(-1).all()


def test_images_are_flattened_and_uint8_is_read() -> None:
    image, flat = build((1, 2, 3)), build((6,))
    obs = torch.randint(0, 255, (4, BATCH, 1, 2, 3), dtype=torch.uint8)
    carry, reset = torch.zeros(BATCH, 6), torch.zeros(4, BATCH, dtype=torch.bool)
    features, _ = image.unroll(obs, carry, reset)
    assert_close(features, flat.unroll(obs.float().flatten(2), carry, reset)[0])
    assert_close(features, by_steps(image, obs, carry, reset)[0])


def test_flat_parameters_hold_the_cell_too() -> None:
    net = build(cell_type="LSTM")
    obs, carry = torch.randn(LENGTH, BATCH, 3), torch.zeros(BATCH, 12)
    before = net.unroll(obs, carry, resets("none"))[0].detach()
    flat = FlatParams(net.parameters())
    assert torch.equal(net.unroll(obs, carry, resets("none"))[0], before)
    net.unroll(obs, carry, resets("none"))[0].sum().backward()
    assert flat.grad.abs().sum() > 0
    # what the optimiser writes is what both ways of running see
    flat.data.mul_(0.5)
    out = net.unroll(obs, carry, resets("none"))[0]
    assert not torch.isclose(out, before).all()
    assert_close(out, by_steps(net, obs, carry, resets("none"))[0])


# --- nets with heads


def build_net(**keys: Any) -> ActorCriticNet:
    torch.manual_seed(0)
    return ActorCriticNet(spec(**keys), (3,), 4, is_gaussian=False)


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("kind", RESETS)
def test_actor_critic_unroll_is_repeated_steps(shared: bool, kind: str) -> None:
    own = {"rnn_hidden_size": 5, "fc_hid_layers": []}
    keys = {} if shared else {"critic": own, "actor": {"rnn_num_layers": 2}}
    net = build_net(shared=shared, **keys)
    assert net.state_size == (6 if shared else 2 * 6 + 5)
    obs, start = torch.randn(LENGTH, BATCH, 3), torch.randn(BATCH, net.state_size)
    reset = resets(kind)
    param, value = net.unroll(obs, start, reset)
    carry: Tensor | None = start
    assert param.shape == (LENGTH, BATCH, 4)
    assert value.shape == (LENGTH, BATCH)
    for t in range(LENGTH):
        assert carry is not None
        carry = carry.masked_fill(reset[t][:, None], 0.0)
        alone, actor_carry = net.step(obs[t], carry)
        assert_close(net.value(obs[t], carry), value[t])
        step_param, step_value, carry = net.step_both(obs[t], carry)
        assert_close((step_param, step_value), (param[t], value[t]))
        assert_close(alone, step_param)
        # the actor goes on by itself
        size = net.actor.state_size
        assert actor_carry is not None
        assert carry is not None
        assert_close(actor_carry[:, :size], carry[:, :size])


def test_separate_nets_see_their_own_part_alone() -> None:
    net = build_net()
    obs, carry = torch.randn(BATCH, 3), torch.randn(BATCH, 12)
    other = torch.cat([carry[:, :6], torch.randn(BATCH, 6)], -1)
    assert torch.equal(net.step_both(obs, carry)[0], net.step_both(obs, other)[0])
    assert not torch.isclose(net.value(obs, carry), net.value(obs, other)).any()


def test_no_carry_is_the_start_of_episodes() -> None:
    net = build_net()
    obs = torch.randn(BATCH, 3)
    start = net.init_carry(BATCH)
    assert start is not None
    assert start.shape == (BATCH, 12)
    assert not start.any()
    assert_close(net.step(obs, None), net.step(obs, start))
    assert_close(net.value(obs), net.value(obs, start))


def test_nets_without_a_hidden_state_hand_the_carry_through() -> None:
    net = ActorCriticNet(MLPNetSpec(), (3,), 4, is_gaussian=False)
    obs = torch.randn(BATCH, 3)
    assert (net.state_size, net.seq_len, net.init_carry(3)) == (0, 0, None)
    param, value, carry = net.step_both(obs, None)
    assert carry is None
    assert torch.equal(param, net(obs)[0])
    assert torch.equal(value, net(obs)[1])
    out = OutputNet(MLPNetSpec(), (3,), 2)
    assert out.init_carry(3) is None
    assert torch.equal(out.step(obs, None)[0], out(obs))


def test_one_copy_of_each_weight_is_saved() -> None:
    keys = set(build_net(shared=True).state_dict())
    assert {key.split(".")[0] for key in keys} == {"actor", "critic"}
    # a shared body is named by both, as with every other body
    assert sum("weight_hh" in key for key in build_net().state_dict()) == 2


# --- initial weights


def test_init_fn_reaches_every_gate() -> None:
    net = build_net(init_fn="orthogonal_", cell_type="LSTM", rnn_num_layers=2)
    rnns = [module for module in net.modules() if isinstance(module, nn.RNNBase)]
    assert len(rnns) == 2
    for rnn in rnns:
        for name, parameter in rnn.named_parameters():
            if name.startswith("bias"):
                assert not parameter.any()
                continue
            gates = parameter.split(6)
            assert len(gates) == 4
            for gate in gates:
                # gain 1: the gates are no relu
                assert_close(torch.linalg.svdvals(gate), torch.ones(6), rtol=1e-4, atol=1e-4)


# --- keys


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bidirectional": True}, "bidirectional: true would read the future"),
        ({"actor": {"seq_len": 4}}, "actor_seq_len: actor and critic learn from the same sequences"),
        ({"critic_burn_in": 4}, "critic_burn_in"),
        ({"cell_type": "gru"}, "cell_type"),
        ({"seq_len": 0}, "seq_len"),
        ({"rnn_num_layers": 0}, "rnn_num_layers"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**keys)
