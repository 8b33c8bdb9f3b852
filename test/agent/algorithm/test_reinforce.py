"""REINFORCE: its loss by hand, and a whole update against a plain one."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from slm_lab.agent.algorithm.reinforce import calc_policy_loss, scale_return

# CartPole cut after 14 steps: some episodes fall before, some are cut
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1.0}}


ROOT = 5**0.5


def zero(obs: Tensor) -> Tensor:
    """The value of a successor, of which REINFORCE knows nothing."""
    return torch.zeros(len(obs))


def test_policy_loss_by_hand() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = calc_policy_loss(log_prob, torch.tensor([3.0, -4.0]))
    # -(-3 + 8)/2 = -2.5
    assert loss.item() == pytest.approx(-2.5)
    loss.backward()
    assert log_prob.grad is not None
    # downhill the good action's log probability rises and the bad one's falls; a flipped sign does the opposite
    assert log_prob.grad.tolist() == [-1.5, 2.0]


@pytest.mark.parametrize(
    ("ret", "center", "expected"),
    [
        # mean 4, population std sqrt(5); the sample std sqrt(20/3) would give -1.162
        ([1, 3, 5, 7], True, [-3 / ROOT, -1 / ROOT, 1 / ROOT, 3 / ROOT]),
        ([1, 3, 5, 7], False, [1 / ROOT, 3 / ROOT, 5 / ROOT, 7 / ROOT]),
        # equal returns, as of one-step tasks with a constant reward, have no spread
        ([2, 2, 2], True, [0, 0, 0]),
        ([2, 2, 2], False, [2, 2, 2]),
        # a mean of its own would leave nothing of a single one
        ([2], True, [2]),
        ([2], False, [2]),
    ],
)
def test_scale_return_by_hand(ret: list[float], center: bool, expected: list[float]) -> None:
    assert scale_return(torch.tensor(ret, dtype=torch.float32), center).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("center", [True, False], ids=["centred", "plain"])
@pytest.mark.parametrize("memory", ["OnPolicyBatchReplay", "OnPolicyReplay"])
def test_update_equals_a_plain_one(lab, memory: str, center: bool) -> None:
    algorithm = {
        "name": "Reinforce",
        "gamma": 0.9,
        "training_frequency": 40 if memory == "OnPolicyBatchReplay" else 5,
        "center_return": center,
        "policy_loss_coef": 0.7,
        "entropy_coef_spec": 0.05,
    }
    spec = lab.spec(**CARTPOLE, algorithm=algorithm, memory=memory, net={**SGD, "clip_grad_val": 0.01})
    agent, env = lab.build(spec)
    net = copy.deepcopy(agent.algorithm.modules["actor"])
    net.zero_grad()
    record = lab.collect(agent, env, 40)
    assert record.terminated.any()
    assert (record.truncated & ~record.terminated).any()
    metrics = agent.update(160)

    used = np.ones_like(record.done) if memory == "OnPolicyBatchReplay" else record.is_finished()
    # nothing stands for what follows a cut, and nothing leaks in from the next episode
    ret = torch.tensor(record.nstep_return(zero, 0.9, 10**6)[used], dtype=torch.float32)
    adv = (ret - ret.mean() if center else ret) / ret.std(correction=0)
    policy = distributions.Categorical(logits=net(record.obs[used]))
    policy_loss = -(policy.log_prob(record.action[used]) * adv).mean()
    entropy = policy.entropy().mean()
    # the bonus is subtracted from what is minimised
    loss = 0.7 * policy_loss - 0.05 * entropy
    loss.backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).norm()
    assert metrics is not None
    assert metrics["policy_loss"] == pytest.approx(policy_loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert metrics["entropy_coef"] == 0.05
    assert norm.item() > 0.01
    trained = agent.algorithm.modules["actor"]
    for parameter, other in zip(net.parameters(), trained.parameters(), strict=True):
        # the step itself: beside the weights a missing part of it would hardly show
        step, expected_step = (other - parameter).detach(), -parameter.grad * 0.01 / norm
        np.testing.assert_allclose(step, expected_step, rtol=2e-3, atol=2e-3 * float(expected_step.abs().max()))
