"""A2C: its parts by hand, and whole updates against plain ones for each kind of return, memory and net."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss, smooth_l1_loss

from slm_lab.agent.algorithm.critic import calc_next_value
from slm_lab.agent.algorithm.loss import standardize
from slm_lab.agent.algorithm.returns import calc_explained_var
from test.agent.conftest import build_step

# CartPole cut after 14 steps: some episodes fall before, some are cut; returns spread by more than 1
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14, "reward_scale": 5.0}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1.0}}
A2C: dict[str, Any] = {"name": "ActorCritic", "gamma": 0.9}
RETURNS: dict[str, dict[str, Any]] = {"gae": {"lam": 0.8}, "nstep": {"num_step_returns": 5}, "full": {}}


# --- pieces by hand


def test_standardize_by_hand() -> None:
    adv = torch.tensor([1.0, 3.0, 5.0, 7.0])
    # mean 4, population std sqrt(5), whatever the scale of rewards
    for scale, tolerance in ((1.0, 1e-6), (1e3, 1e-2), (1e-3, 1e-2), (1e-5, 1e-2)):
        np.testing.assert_allclose(standardize(adv * scale), np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=tolerance)
    assert standardize(torch.full((3,), 2.0)).tolist() == [0, 0, 0]
    # a mean of its own would leave nothing of a single one
    assert standardize(torch.tensor([5.0])).tolist() == [5]


@pytest.mark.parametrize(
    ("value", "expected"),
    # a constant offset explains all of the variance: it is not the mean squared error
    [([0, 2, 4], 1.0), ([5, 7, 9], 1.0), ([7, 7, 7], 0.0), ([0, -2, -4], -3.0)],
)
def test_explained_var_by_hand(value: list[float], expected: float) -> None:
    ret = torch.tensor([0.0, 2.0, 4.0])
    assert calc_explained_var(torch.tensor(value, dtype=torch.float32), ret) == pytest.approx(expected)
    # nothing to explain
    assert calc_explained_var(ret, torch.ones(3)) == 0.0


# --- the golden vector, from the memory to the advantages


class Table(nn.Module):
    """V of an observation is the number it shows."""

    def value(self, obs: Tensor, carry: Tensor | None) -> Tensor:
        return obs.squeeze(-1)


def test_golden_advantages(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards 1, V(obs) = [0, 0, 10, 10], truncated after the second step with V(final obs) = 0, 10 after the last.

    Taking the next row's V behind the cut gives [9.55, 10, 0, 0], taking the cut for the end of the task the right
    numbers by luck, so a second vector has V(final obs) = 5.
    """
    algorithm = {"name": "ActorCritic", "gamma": 0.9, "lam": 0.95, "training_frequency": 4}
    # t1: 1 + .9*5 = 5.5; t0: 1 + .855*5.5
    for final, expected in ((0.0, [1.855, 1, 0, 0]), (5.0, [5.7025, 5.5, 0, 0])):
        agent, _ = lab.build(lab.spec("probe/TimeLimit-v0", algorithm, num_envs=1))
        monkeypatch.setattr(agent.algorithm, "net", Table())
        rows = [(0.0, 0.0, "."), (0.0, final, "C"), (10.0, 10.0, "."), (10.0, 10.0, ".")]
        for value, successor, end in rows:
            extra = {"value": torch.tensor([value])}
            agent.algorithm.observe(build_step([[value]], end, reward=[1.0], next_obs=[[successor]], extra=extra))
        rollout = agent.algorithm.memory.sample()
        next_value = calc_next_value(rollout, agent.algorithm.net.value)
        adv, ret = agent.algorithm._calc_adv_ret(rollout, rollout.extra["value"], next_value)
        np.testing.assert_allclose(adv[:, 0], expected, atol=1e-5)
        np.testing.assert_allclose(ret[:, 0], np.add(expected, [0, 0, 10, 10]), atol=1e-5)


# --- a whole update

UPDATES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    **{f"{kind}-batch": (keys, "OnPolicyBatchReplay", {}) for kind, keys in RETURNS.items()},
    **{f"{kind}-episodes": (keys, "OnPolicyReplay", {}) for kind, keys in RETURNS.items()},
    **{f"{kind}-shared": (keys, "OnPolicyBatchReplay", {"shared": True}) for kind, keys in RETURNS.items()},
    "nstep-1": ({"num_step_returns": 1}, "OnPolicyBatchReplay", {}),
    "nstep-40": ({"num_step_returns": 40}, "OnPolicyBatchReplay", {}),
    "plain-advantages": ({"lam": 0.8, "normalize_advantages": "none"}, "OnPolicyBatchReplay", {}),
    "normalised-targets": ({"lam": 0.8, "normalize_v_targets": True}, "OnPolicyBatchReplay", {}),
    **{
        name: ({"lam": 0.8}, "OnPolicyBatchReplay", {"loss_spec": {"name": name}})
        for name in ("SmoothL1Loss", "HuberLoss", "L1Loss")
    },
}


@pytest.mark.parametrize("which", UPDATES)
def test_update_equals_a_plain_one(lab, which: str) -> None:
    """One update of the lab and one written out with torch's own parts give the same numbers and the same weights."""
    algorithm, memory, net = UPDATES[which]
    frequency = 40 if memory == "OnPolicyBatchReplay" else 5
    config = {"policy_loss_coef": 0.7, "val_loss_coef": 0.3, "entropy_coef_spec": 0.05, **A2C, **algorithm}
    keys = {**SGD, "clip_grad_val": 0.1, **net}
    spec = lab.spec(**CARTPOLE, algorithm={**config, "training_frequency": frequency}, memory=memory, net=keys)
    agent, env = lab.build(spec)
    trained = agent.algorithm.modules["net"]
    net_before = copy.deepcopy(trained)
    net_before.zero_grad()
    record = lab.collect(agent, env, 40)
    assert record.terminated.any()
    assert (record.truncated & ~record.terminated).any()
    metrics = agent.update(160)
    assert metrics is not None

    used = np.ones_like(record.done) if memory == "OnPolicyBatchReplay" else record.is_finished()
    value = net_before.value
    with torch.no_grad():
        old_value = value(record.obs.flatten(0, 1)).view(record.done.shape).numpy()
    if "lam" in algorithm:
        adv = record.gae(value, 0.9, algorithm["lam"])
        ret = adv + old_value
    else:
        ret = record.nstep_return(value, 0.9, algorithm.get("num_step_returns", 10**6))
        adv = ret - old_value
    adv_t, ret_t = (torch.tensor(array[used], dtype=torch.float32) for array in (adv, ret))
    if algorithm.get("normalize_advantages") != "none":
        adv_t = (adv_t - adv_t.mean()) / adv_t.std(correction=0)

    scale = 1 / max(float(ret_t.double().std(correction=0)), 1) if algorithm.get("normalize_v_targets") else 1.0
    loss_name = keys.get("loss_spec", {"name": "MSELoss"})["name"]
    compare = {"MSELoss": mse_loss, "SmoothL1Loss": smooth_l1_loss, "HuberLoss": huber_loss, "L1Loss": l1_loss}
    param, new_value = net_before(record.obs[used])
    policy = distributions.Categorical(logits=param)
    policy_loss = -(policy.log_prob(record.action[used]) * adv_t).mean()
    val_loss = compare[loss_name](new_value * scale, ret_t * scale)
    entropy = policy.entropy().mean()
    loss = 0.7 * policy_loss + 0.3 * val_loss - 0.05 * entropy
    loss.backward()

    expected = {"loss": loss, "policy_loss": policy_loss, "val_loss": val_loss, "entropy": entropy}
    for name, tensor in expected.items():
        assert metrics[name] == pytest.approx(tensor.item(), rel=1e-3, abs=1e-5), name
    error = (ret - old_value)[used]
    assert metrics["explained_var"] == pytest.approx(1 - error.var() / ret[used].var(), abs=1e-3)
    assert metrics["entropy_coef"] == 0.05
    assert agent.algorithm.opt_step == 1
    # each role is clipped by itself; what is shared is clipped once
    roles = [net_before] if keys.get("shared") else [net_before.actor, net_before.critic]
    norms = [float(torch.nn.utils.clip_grad_norm_(role.parameters(), 0.1, foreach=False)) for role in roles]
    assert metrics["grad_norm"] == pytest.approx(norms[0], rel=1e-2)
    assert max(norms) > 0.1
    for parameter, other in zip(net_before.parameters(), trained.parameters(), strict=True):
        # the step itself: beside the weights a missing part of it would hardly show
        step, expected_step = (other - parameter).detach(), -parameter.grad
        np.testing.assert_allclose(step, expected_step, rtol=2e-3, atol=2e-3 * float(expected_step.abs().max()))


def test_normalised_targets_use_running_statistics(lab) -> None:
    """Rewards of 100: targets spread over hundreds, the scaled loss is about that of a unit spread."""
    losses = {}
    for normalize in (False, True):
        algorithm = {**A2C, "lam": 0.9, "training_frequency": 16, "normalize_v_targets": normalize}
        trained = lab.train(lab.spec(**{**CARTPOLE, "reward_scale": 100.0}, algorithm=algorithm), 640)
        losses[normalize] = trained.metrics[-1]["val_loss"]
        stats = trained.agent.algorithm.target_scale.stats
        # ten updates of 64 samples, or none
        assert stats.count == (640 if normalize else 0)
    assert losses[True] < 10 < 1000 < losses[False]
