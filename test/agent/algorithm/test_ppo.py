"""PPO: each part of its loss by hand, and whole updates against plain ones."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES, symlog
from slm_lab.agent.algorithm.ppo import (
    calc_clip_frac,
    calc_clipped_val_loss,
    calc_kl,
    calc_surrogate,
)
from slm_lab.agent.memory.batch import Transition
from slm_lab.lib.errors import SpecError

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14, "reward_scale": 5.0}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 0.1}}
BASE: dict[str, Any] = {"name": "PPO", "gamma": 0.9, "lam": 0.8, "time_horizon": 40, "minibatch_size": 40}


# --- surrogate


@pytest.mark.parametrize(
    ("ratio", "adv", "loss", "grad"),
    [
        # inside the clip: -r A, gradient -r A
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (0.9, -2.0, 1.8, 1.8),
        # beyond it on the right side: already moved enough that way, no gradient
        (1.5, 2.0, -2.4, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        # beyond it on the wrong side: the way back stays open; `clamp` alone would close it
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_surrogate_by_hand(ratio: float, adv: float, loss: float, grad: float) -> None:
    """r = new/old; upside down the signs of all updates flip. The loss is a mean over samples."""
    log_prob = torch.tensor([math.log(0.3 * ratio)] * 2, requires_grad=True)
    old = torch.tensor([math.log(0.3)] * 2)
    got, log_ratio = calc_surrogate(log_prob, old, torch.tensor([adv, adv]), 0.2)
    got.backward()
    assert log_ratio.tolist() == pytest.approx([math.log(ratio)] * 2, abs=1e-6)
    assert got.item() == pytest.approx(loss, rel=1e-5)
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([grad / 2] * 2, rel=1e-5, abs=1e-7)


def test_huge_ratios_stay_finite() -> None:
    log_prob = torch.tensor([500.0, -500.0], requires_grad=True)
    loss, log_ratio = calc_surrogate(log_prob, torch.zeros(2), torch.tensor([-1.0, 1.0]), 0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert log_prob.grad is not None
    assert torch.isfinite(log_prob.grad).all()
    assert torch.isfinite(calc_kl(log_ratio))


def test_kl_and_clip_frac() -> None:
    log_ratio = torch.tensor([0.0, math.log(1.1), math.log(2.0), math.log(0.5)])
    # r - 1 - log r: 0, .1 - .09531, 1 - .69315, -.5 + .69315
    assert calc_kl(log_ratio).item() == pytest.approx((0.00469 + 0.30685 + 0.19315) / 4, abs=1e-5)
    # x^2/2 for a tiny step
    assert calc_kl(torch.full((4,), 1e-4)).item() == pytest.approx(1e-8 / 2, rel=0.05)
    # beyond .2 on either side: two of four; beyond .6 only the ratio of 2
    assert calc_clip_frac(log_ratio, 0.2).item() == 0.5
    assert calc_clip_frac(log_ratio, 0.6).item() == 0.25
    # samples of the old policy give its divergence from the new one
    old = distributions.Categorical(logits=torch.tensor([0.0, 0.5, -0.5]))
    new = distributions.Categorical(logits=torch.tensor([0.4, 0.0, -0.2]))
    torch.manual_seed(0)
    action = old.sample(torch.Size([200_000]))
    estimate = calc_kl(new.log_prob(action) - old.log_prob(action)).item()
    assert estimate == pytest.approx(distributions.kl_divergence(old, new).item(), rel=0.02)


# --- value loss


@pytest.mark.parametrize(
    ("value", "old_value", "ret", "loss", "grad"),
    [
        # moved by 2 towards 5, only .5 counts: the clipped 1.5 is worse, (1.5 - 5)^2; no gradient any more
        (3.0, 1.0, 5.0, 12.25, 0.0),
        # moved by 2 away from 0: the plain one is worse, 9, and pulls back
        (3.0, 1.0, 0.0, 9.0, 6.0),
        # within the clip: the plain square
        (1.2, 1.0, 2.0, 0.64, -1.6),
        # downwards the same
        (-2.0, 0.0, -4.0, 12.25, 0.0),
    ],
)
def test_clipped_value_loss_by_hand(value: float, old_value: float, ret: float, loss: float, grad: float) -> None:
    prediction = torch.tensor([value], requires_grad=True)
    got = calc_clipped_val_loss(
        ELEMENT_LOSSES["MSELoss"], prediction, torch.tensor([old_value]), torch.tensor([ret]), 0.5
    )
    got.backward()
    assert got.item() == pytest.approx(loss, rel=1e-5)
    assert prediction.grad is not None
    assert prediction.grad.item() == pytest.approx(grad, rel=1e-5, abs=1e-7)


def test_symlog_by_hand() -> None:
    x = torch.tensor([0.0, math.e - 1, 1 - math.e, 1e6, -1e6], requires_grad=True)
    y = symlog(x)
    # sign(x) log(1 + |x|), whose slope at zero is 1
    np.testing.assert_allclose(y.detach(), [0, 1, -1, math.log(1e6 + 1), -math.log(1e6 + 1)], rtol=1e-5)
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, [1, 1 / math.e, 1 / math.e, 1e-6, 1e-6], rtol=1e-4)


# --- the first minibatch


FIRST: dict[str, Any] = {**BASE, "time_horizon": 8, "minibatch_size": 32, "training_epoch": 1}


def arc(*layers: Any) -> dict[str, Any]:
    body = [{"LazyLinear": {"out_features": 8}}, *layers]
    return {"type": "TorchArcNet", "arc": {"modules": {"body": {"Sequential": body}}}}


@pytest.mark.parametrize(
    ("env", "pdtype", "net"),
    [
        ("ObsAction", "default", {}),
        ("ObsAction", "default", {"shared": True}),
        ("MultiAction", "default", {}),
        ("BinaryAction", "default", {"shared": True}),
        ("ContinuousTarget", "Normal", {}),
        ("ContinuousTarget", "TanhNormal", {"shared": True}),
        # nets that are one in both modes
        ("ObsAction", "default", {"layer_norm": True}),
        ("ObsAction", "default", {"critic_batch_norm": True}),
        ("ObsAction", "default", arc({"LayerNorm": {"normalized_shape": 8}})),
        ("ObsAction", "default", arc({"Dropout": {"p": 0.0}})),
    ],
)
def test_ratio_is_one_at_the_first_minibatch(lab, env: str, pdtype: str, net: dict[str, Any]) -> None:
    """The stored log probabilities are those of the very policy that is trained."""
    spec = lab.spec(f"probe/{env}-v0", {**FIRST, "action_pdtype": pdtype}, net=net)
    for metrics in lab.train(spec, 96).metrics:
        assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["clip_frac"] == 0.0
        # standardised advantages at ratio 1: their mean
        assert metrics["policy_loss"] == pytest.approx(0.0, abs=1e-5)


def test_tanh_normal_keeps_what_tanh_would_lose(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """tanh of 12 is 1 in float32: what is learned from must be the 12."""
    agent, env = lab.build(lab.spec("probe/ContinuousTarget-v0", {**FIRST, "action_pdtype": "TanhNormal"}))
    with torch.no_grad():
        agent.algorithm.net.actor.head.bias.copy_(torch.tensor([12.0, -5.0]))
    kept: list[Transition] = []
    monkeypatch.setattr(agent.algorithm, "observe", kept.append)
    obs = env.reset()
    act = agent.act(obs, explore=True)
    assert act.action.tolist() == [[1.0]] * env.num_envs
    agent.observe(obs, act, env.step(act.action.numpy()))
    env.close()
    assert kept[0].action.flatten().tolist() == pytest.approx([12.0] * env.num_envs, abs=1.0)
    assert set(kept[0].extra) == {"value", "log_prob"}


@pytest.mark.parametrize("name", ["PPO", "PPOSIL"])
@pytest.mark.parametrize(
    ("net", "layer"),
    [
        ({"batch_norm": True}, "BatchNorm1d"),
        ({"actor_batch_norm": True}, "BatchNorm1d"),
        ({"shared": True, "batch_norm": True}, "BatchNorm1d"),
        (arc("LazyBatchRenorm1d"), "BatchRenorm1d"),
        (arc({"Dropout": {"p": 0.1}}), "Dropout"),
        (arc("RReLU"), "RReLU"),
    ],
)
def test_an_actor_that_differs_in_training_is_refused(lab, name: str, net: dict[str, Any], layer: str) -> None:
    """The ratio of two modes is not 1 at the first step: a third of the samples was clipped at once."""
    with pytest.raises(SpecError, match=f"agent.net: {name} compares .* the actor's {layer} differs; remove it"):
        lab.build(lab.spec("probe/ObsAction-v0", {**FIRST, "name": name}, net=net))


# --- a whole update


def plain_update(net: Any, record: Any, agent: Any, config: dict[str, Any], shared: bool) -> list[dict[str, float]]:
    """PPO written out: torch's distributions, no stored values or log probabilities, gradient descent by hand."""
    with torch.no_grad():
        param, old_value = net(record.obs.flatten(0, 1))
        action = record.action.flatten(0, 1)
        old_log_prob = distributions.Categorical(logits=param).log_prob(action)
    adv = record.gae(net.value, 0.9, 0.8).flatten()
    ret = torch.tensor(adv + old_value.numpy(), dtype=torch.float32)
    scale = 1.0
    if config.get("normalize_v_targets"):
        scale = 1 / ret.double().std(correction=0).item()
        assert scale < 0.9
    if config.get("normalize_advantages") == "percentile":
        low, high = np.percentile(adv, (5, 95))
        assert high - low > 1.1
        adv = adv / (high - low)
    adv = torch.tensor(adv, dtype=torch.float32)
    generator = torch.Generator()
    generator.set_state(agent.context.train_generator.get_state())
    groups = [list(net.parameters())] if shared else [list(net.actor.parameters()), list(net.critic.parameters())]
    clip_eps, rows = config["clip_eps_spec"], []
    for _ in range(config["training_epoch"]):
        order = torch.randperm(len(ret), generator=generator)
        for pick in order.split(config["minibatch_size"]):
            param, value = net(record.obs.flatten(0, 1)[pick])
            policy = distributions.Categorical(logits=param)
            part = adv[pick]
            if config.get("normalize_advantages", "standardize") == "standardize":
                part = (part - part.mean()) / part.std(correction=0)
            ratio = (policy.log_prob(action[pick]) - old_log_prob[pick]).exp()
            policy_loss = -torch.min(ratio * part, ratio.clamp(1 - clip_eps, 1 + clip_eps) * part).mean()
            val_loss = plain_val_loss(value * scale, old_value[pick], ret[pick] * scale, config, clip_eps)
            entropy = policy.entropy().mean()
            loss = policy_loss + config["val_loss_coef"] * val_loss - config["entropy_coef_spec"] * entropy
            net.zero_grad()
            loss.backward()
            norms = [torch.nn.utils.clip_grad_norm_(group, 0.3, foreach=False).item() for group in groups]
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
            rows.append(
                {
                    "loss": loss.item(),
                    "policy_loss": policy_loss.item(),
                    "val_loss": val_loss.item(),
                    "entropy": entropy.item(),
                    "grad_norm": norms[0],
                    "kl": (ratio - 1 - ratio.log()).mean().item(),
                    "clip_frac": ((ratio < 1 - clip_eps) | (ratio > 1 + clip_eps)).float().mean().item(),
                }
            )
    return rows


def plain_val_loss(value: Tensor, old: Tensor, ret: Tensor, config: dict[str, Any], clip_eps: float) -> Tensor:
    if config.get("symlog"):
        value, old, ret = (x.sign() * (x.abs() + 1).log() for x in (value, old, ret))
    if config.get("clip_vloss"):
        near = torch.max(torch.min(value, old + clip_eps), old - clip_eps)
        return torch.max((value - ret) ** 2, (near - ret) ** 2).mean()
    return ((value - ret) ** 2).mean()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "percentile": {"normalize_advantages": "percentile"},
    "none": {"normalize_advantages": "none"},
    "normalize_v_targets": {"normalize_v_targets": True},
    "clip_vloss": {"clip_vloss": True},
    "symlog": {"symlog": True},
    "symlog-clip_vloss": {"symlog": True, "clip_vloss": True},
    "rest": {"minibatch_size": 64},
}


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("option", OPTIONS)
def test_update_equals_a_plain_one(lab, option: str, shared: bool) -> None:
    # a clip so narrow that it bites within twelve steps
    config = {**BASE, "training_epoch": 3, "clip_eps_spec": 0.001, "val_loss_coef": 0.5, "entropy_coef_spec": 0.02}
    config |= OPTIONS[option]
    net = {**SGD, "clip_grad_val": 0.3, "shared": shared}
    agent, env = lab.build(lab.spec(**CARTPOLE, algorithm=config, net=net))
    trained = agent.algorithm.modules["net"]
    before, twin = copy.deepcopy(trained), copy.deepcopy(trained)
    record = lab.collect(agent, env, 40)
    assert record.terminated.any()
    assert (record.truncated & ~record.terminated).any()
    rows = plain_update(twin, record, agent, config, shared)
    # 160 samples in minibatches of 40, or of 64, 64 and 32, three times
    sizes = [64, 64, 32] * 3 if option == "rest" else [40] * 12
    assert len(rows) == len(sizes)
    metrics = agent.update(160)
    assert agent.algorithm.opt_step == len(sizes)
    for name in rows[0]:
        # of all minibatches of all epochs, not of the last one; of all samples where the update looks at them once
        weights = sizes if name in ("kl", "clip_frac") else None
        expected = float(np.average([row[name] for row in rows], weights=weights))
        # one sample may fall on the other side of the clip by a rounding
        assert metrics[name] == pytest.approx(expected, rel=2e-3, abs=5e-3 if name == "clip_frac" else 1e-5), name
    for parameter, other, start in zip(twin.parameters(), trained.parameters(), before.parameters(), strict=True):
        # the way gone: beside the weights a missing part of it would hardly show
        path, expected_path = (other - start).detach(), (parameter - start).detach()
        np.testing.assert_allclose(path, expected_path, rtol=5e-3, atol=5e-3 * float(expected_path.abs().max()))
    assert metrics["clip_eps"] == 0.001
    assert metrics["entropy_coef"] == 0.02
    assert metrics["clip_frac"] > 0.03


# --- options over several updates


def test_percentile_range_is_a_running_mean_that_never_enlarges(lab) -> None:
    config = {**FIRST, "normalize_advantages": "percentile", "training_epoch": 1}
    agent, _ = lab.build(lab.spec("probe/ObsAction-v0", config))
    small, first, second = torch.tensor([0.1, 0.2, 0.3]), torch.linspace(-10, 10, 201), torch.linspace(-100, 100, 201)
    scale = agent.algorithm._scale_by_percentile
    # 5th and 95th percentile of the first: -9 and 9; then .99*9 + .01*90 = 9.81 on either side
    np.testing.assert_allclose(scale(first), first / 18, rtol=1e-5)
    np.testing.assert_allclose(scale(second), second / 19.62, rtol=1e-5)
    agent, _ = lab.build(lab.spec("probe/ObsAction-v0", config))
    # no centring: all three stay positive
    np.testing.assert_allclose(agent.algorithm._scale_by_percentile(small), small)


def test_target_kl_stops_the_epochs(lab) -> None:
    steps = {}
    for target in (None, 1e-9, 1e9):
        config = {**FIRST, "minibatch_size": 8, "training_epoch": 6, "target_kl": target}
        trained = lab.train(lab.spec("probe/ObsAction-v0", config), 32)
        steps[target] = trained.agent.algorithm.opt_step
    # 32 samples in fours: 4 steps per epoch; the first epoch is always finished
    assert steps == {None: 24, 1e-9: 4, 1e9: 24}


def test_clip_eps_and_lr_follow_their_schedules(lab) -> None:
    schedule = {"name": "linear_decay", "start_val": 0.4, "end_val": 0.0, "end_step": 128}
    net = {"optim_spec": {"name": "Adam", "lr": 0.01}, "lr_scheduler_spec": {"name": "LinearToZero", "frame": 128}}
    trained = lab.train(lab.spec("probe/ObsAction-v0", {**FIRST, "clip_eps_spec": schedule}, net=net), 96)
    # updates at 32, 64, 96
    assert [row["clip_eps"] for row in trained.metrics] == pytest.approx([0.3, 0.2, 0.1])
    assert trained.agent.algorithm.lr == pytest.approx(0.0025)
