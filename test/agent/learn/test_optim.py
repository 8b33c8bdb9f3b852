"""The flat optimisers do what torch.optim's classes do, with their schedules, and continue exactly."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.learn.optim import OTHER_OPTIMIZERS, FlatOptimizer
from slm_lab.agent.net.model import PolicyNet
from slm_lab.agent.net.noisy import NoisyLinear
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.net import MLPNetSpec
from slm_lab.spec.sde import SDESpec
from test.agent.conftest import through_file

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"name": "Adam", "lr": 0.01},
    "Adam-options": {"name": "Adam", "lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1},
    "Adam-amsgrad": {"name": "Adam", "lr": 0.01, "amsgrad": True},
    "AdamW": {"name": "AdamW", "lr": 0.01},
    "AdamW-options": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.3, "amsgrad": True, "betas": [0.5, 0.9]},
    "RMSprop": {"name": "RMSprop", "lr": 0.01},
    "RMSprop-options": {"name": "RMSprop", "lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1},
    "RMSprop-momentum": {"name": "RMSprop", "lr": 0.01, "momentum": 0.9},
    "RMSprop-centered": {"name": "RMSprop", "lr": 0.01, "centered": True},
    "RMSprop-both": {"name": "RMSprop", "lr": 0.01, "centered": True, "momentum": 0.5},
    "SGD": {"name": "SGD", "lr": 0.01},
    "SGD-decay": {"name": "SGD", "lr": 0.01, "weight_decay": 0.1},
    "SGD-momentum": {"name": "SGD", "lr": 0.01, "momentum": 0.9},
    "SGD-dampening": {"name": "SGD", "lr": 0.01, "momentum": 0.9, "dampening": 0.4},
    "SGD-nesterov": {"name": "SGD", "lr": 0.01, "momentum": 0.9, "nesterov": True},
    # Adadelta scales its steps by itself
    **{name: {"name": name, "lr": 1.0 if name == "Adadelta" else 0.01} for name in OTHER_OPTIMIZERS},
    "Adagrad-decay": {"name": "Adagrad", "lr": 0.01, "weight_decay": 0.1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "LinearToZero": {"name": "LinearToZero", "frame": 500},
    "LinearToMin": {"name": "LinearToMin", "frame": 500, "min_factor": 0.2},
    "StepLR": {"name": "StepLR", "step_size": 7, "gamma": 0.5},
    "MultiStepLR": {"name": "MultiStepLR", "milestones": [5, 12, 30], "gamma": 0.3},
    "ExponentialLR": {"name": "ExponentialLR", "gamma": 0.95},
    "LinearLR": {"name": "LinearLR", "start_factor": 0.2, "end_factor": 0.9, "total_iters": 20},
    "CosineAnnealingLR": {"name": "CosineAnnealingLR", "T_max": 30, "eta_min": 0.001},
}


def build_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))


def build(optim: dict[str, Any], **keys: Any) -> tuple[nn.Sequential, FlatOptimizer]:
    net = build_net()
    spec = MLPNetSpec.model_validate({"type": "MLPNet", "optim_spec": optim, **keys})
    return net, FlatOptimizer(FlatParams(net.parameters()), spec)


def build_peer(optim: dict[str, Any]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    net = build_net()
    options = {key: value for key, value in optim.items() if key != "name"}
    # AdamW decays by itself
    weight_decay = options.pop("weight_decay", 0.01 if optim["name"] == "AdamW" else 0.0)
    weights = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return net, getattr(torch.optim, optim["name"])(groups, **options)


def batches(num: int = 100) -> list[Tensor]:
    """Inputs of which some give gradients far above the clip."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator) * (10 if step % 7 == 0 else 1) for step in range(num)]


def calc_loss(net: nn.Module, obs: Tensor) -> Tensor:
    return (net(obs) - obs[:, :2] * 3).square().mean()


@torch.no_grad()
def step_plain(optimizer: FlatOptimizer) -> Tensor:
    norm = optimizer.clip()
    optimizer.descend()
    # the next backward must not add to this gradient
    assert not optimizer.flat.grad.any()
    return norm


def weights(net: nn.Module) -> np.ndarray[Any, Any]:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).numpy().copy()


COMPILABLE = [name for name, optim in OPTIMIZERS.items() if optim["name"] in ("Adam", "AdamW", "RMSprop", "SGD")]


@pytest.mark.parametrize("clip", [None, 0.5], ids=["free", "clipped"])
@pytest.mark.parametrize(
    ("name", "how"), [(name, "step") for name in OPTIMIZERS] + [(name, "formula") for name in COMPILABLE]
)
def test_equals_torch_over_100_steps(name: str, how: str, clip: float | None) -> None:
    """`step` is what plain updates call, the formulas of `apply` are what is compiled."""
    net, optimizer = build(OPTIMIZERS[name], clip_grad_val=clip)
    twin, peer = build_peer(OPTIMIZERS[name])
    start = weights(net)
    generator = torch.Generator().manual_seed(1)
    for step in range(100):
        # gradients vary by a factor of a hundred, so that clipping bites now and then
        scale = 10.0 if step % 7 == 0 else 0.1
        for parameter, other in zip(net.parameters(), twin.parameters(), strict=True):
            target = torch.randn(parameter.shape, generator=generator)
            parameter.grad.copy_(scale * (parameter.detach() - target))
            other.grad = scale * (other.detach() - target)
        if how == "step":
            norm = step_plain(optimizer)
        else:
            norm = optimizer.apply(optimizer.flat.grad.clone(), **optimizer.tensors())
        limit = clip if clip is not None else torch.inf
        expected_norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), limit, foreach=False)
        peer.step()
        # what is reported is the norm before clipping
        assert float(norm) == pytest.approx(float(expected_norm), rel=1e-4)
    np.testing.assert_allclose(weights(net), weights(twin), rtol=1e-4, atol=1e-5)
    assert np.abs(weights(net) - start).max() > 1e-3


@pytest.mark.parametrize(("clip", "expected"), [(1.0, [0.6, 0.0, 0.8]), (None, [3, 0, 4]), (500.0, [3, 0, 4])])
def test_clip_by_hand(clip: float | None, expected: list[float]) -> None:
    """The norm is 5 over both parameters; clipping each by itself would give [1, 0, 1]."""
    flat = FlatParams([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))])
    flat.grad.copy_(torch.tensor([3.0, 0.0, 4.0]))
    assert float(FlatOptimizer(flat, MLPNetSpec(clip_grad_val=clip)).clip()) == 5.0
    assert flat.grad.tolist() == pytest.approx(expected, rel=1e-5)


# --- learning rate


def frame_of(call: int) -> int:
    return 10 * (call + 1)


@pytest.mark.parametrize("name", ["StepLR", "MultiStepLR", "ExponentialLR", "LinearLR", "CosineAnnealingLR"])
def test_schedule_equals_torch(name: str) -> None:
    """One step of torch's scheduler per training; the first training runs at the scheduler's first value."""
    schedule = SCHEDULES[name]
    _, optimizer = build(OPTIMIZERS["SGD"], lr_scheduler_spec=schedule)
    _, peer = build_peer(OPTIMIZERS["SGD"])
    options = {key: value for key, value in schedule.items() if key != "name"}
    peer_schedule = getattr(lr_scheduler, name)(peer, **options)
    seen = []
    for call in range(40):
        optimizer.set_frame(frame_of(call))
        assert optimizer.lr == pytest.approx(peer.param_groups[0]["lr"], rel=1e-9), call
        seen.append(optimizer.lr)
        peer.step()
        peer_schedule.step()
    assert len(set(seen)) > 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # lr .01, 500 frames: at 100 a fifth is gone, at 250 half, from 500 on all of it
        ("LinearToZero", {0: 0.01, 100: 0.008, 250: 0.005, 500: 0.0, 900: 0.0}),
        # floor .2: .2 + .8*.8 = .84, .2 + .8*.5 = .6, .2
        ("LinearToMin", {0: 0.01, 100: 0.0084, 250: 0.006, 500: 0.002, 900: 0.002}),
    ],
)
def test_schedules_by_frame_by_hand(name: str, expected: dict[int, float]) -> None:
    _, optimizer = build(OPTIMIZERS["SGD"], lr_scheduler_spec=SCHEDULES[name])
    for frame, lr in expected.items():
        optimizer.set_frame(frame)
        assert optimizer.lr == pytest.approx(lr, abs=1e-12)
        # W24: how often training is called must not matter
        optimizer.set_frame(frame)
        assert optimizer.lr == pytest.approx(lr, abs=1e-12)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "SGD-momentum", "Adamax", "NAdam"])
def test_schedule_reaches_the_step(name: str) -> None:
    """A learning rate that is shown but not used would move the weights away from torch's, and at lr 0."""
    optim = {**OPTIMIZERS[name], "weight_decay": 0.0}
    net, optimizer = build(optim, lr_scheduler_spec={"name": "LinearToZero", "frame": 100})
    twin, peer = build_peer(optim)
    for call, obs in enumerate(batches(12)):
        optimizer.set_frame(frame_of(call))
        for group in peer.param_groups:
            group["lr"] = max(0.0, 1 - frame_of(call) / 100) * optim["lr"]
        before = weights(net)
        calc_loss(net, obs).backward()
        step_plain(optimizer)
        peer.zero_grad()
        calc_loss(twin, obs).backward()
        peer.step()
        assert (np.abs(weights(net) - before).max() > 0) == (call < 9)
    np.testing.assert_allclose(weights(net), weights(twin), rtol=1e-3, atol=1e-5)


# --- resuming


@pytest.mark.parametrize(
    ("optim", "schedule"),
    [*((optim, None) for optim in OPTIMIZERS), *zip(["Adam", "SGD-momentum", "RAdam"] * 3, SCHEDULES, strict=False)],
)
def test_resumes_exactly_(optim: str, schedule: str | None) -> None:
    """Bit for bit: saved after 13 steps of 26, and resumed by a fresh net and optimiser."""
    keys: dict[str, Any] = {"clip_grad_val": 0.5} if schedule is None else {"lr_scheduler_spec": SCHEDULES[schedule]}
    both = [build(OPTIMIZERS[optim], **keys)]
    for step, obs in enumerate(batches(26)):
        if step == 13:
            [(net, optimizer)] = both
            both.append(build(OPTIMIZERS[optim], **keys))
            both[1][0].load_state_dict(copy.deepcopy(net.state_dict()))
            both[1][1].load_state_dict(through_file(optimizer.state_dict()))
        for net, optimizer in both:
            optimizer.set_frame(frame_of(step))
            calc_loss(net, obs).backward()
            step_plain(optimizer)
        assert both[-1][1].lr == both[0][1].lr, step
        np.testing.assert_array_equal(weights(both[-1][0]), weights(both[0][0]))


# --- options that contradict themselves


@pytest.mark.parametrize(
    "optim",
    [
        {"name": "SGD", "nesterov": True},
        {"name": "SGD", "nesterov": True, "momentum": 0.9, "dampening": 0.1},
        {"name": "Adam", "betas": [0.9, 1.0]},
    ],
    ids=["nesterov without momentum", "nesterov with dampening", "beta of one"],
)
def test_what_torch_refuses_is_refused(optim: dict[str, Any]) -> None:
    raw = {
        "name": "test",
        "agent": {
            "algorithm": {"name": "Reinforce"},
            "memory": {"name": "OnPolicyReplay"},
            "net": {"type": "MLPNet", "optim_spec": optim},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
    }
    with pytest.raises(ValueError, match=r"[Nn]esterov|beta"):
        build_peer({"lr": 0.1, **optim})
    with pytest.raises(SpecError, match=r"optim_spec"):
        parse_spec(raw)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_stds_of_noise_do_not_decay(name: str) -> None:
    """Decay would draw them to 0, where a log std is a large one."""
    noisy = NoisyLinear(3, 2)
    policy = PolicyNet(MLPNetSpec(hid_layers=(4,)), (3,), 4, is_gaussian=True, sde=SDESpec())
    spec = MLPNetSpec.model_validate({"optim_spec": {"name": name, "lr": 0.1, "weight_decay": 0.5}})
    for net in (noisy, policy):
        before = {key: value.clone() for key, value in net.state_dict().items()}
        optimizer = FlatOptimizer(FlatParams(net.parameters()), spec)
        optimizer.descend()
        changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
        assert changed == {key for key in before if key.endswith("weight")}
