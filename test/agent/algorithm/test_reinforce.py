"""REINFORCE: its loss by hand, and a whole update against a plain one."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from slm_lab.agent.algorithm.reinforce import Reinforce, calc_policy_loss, scale_return
from slm_lab.lib.errors import DivergenceError

# CartPole cut after 14 steps: some episodes fall before, some are cut
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1.0}}


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


def test_scale_return_by_hand() -> None:
    ret = torch.tensor([1.0, 3.0, 5.0, 7.0])
    # mean 4, population std sqrt(5); the sample std sqrt(20/3) would give -1.162
    np.testing.assert_allclose(scale_return(ret, True), np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(scale_return(ret, False), np.array([1, 3, 5, 7]) / np.sqrt(5), rtol=1e-6)


def test_equal_returns_teach_nothing_when_centred() -> None:
    assert scale_return(torch.full((4,), 2.0), True).tolist() == [0, 0, 0, 0]


def test_equal_returns_stay_of_their_size_when_not_centred() -> None:
    """One-step tasks with a constant reward: std is 0."""
    assert scale_return(torch.full((4,), 2.0), False).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("center", [True, False], ids=["centred", "plain"])
def test_a_single_return_stays_as_it_is(center: bool) -> None:
    assert scale_return(torch.tensor([2.0]), center).tolist() == [2]


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


def test_trains_only_when_due(lab) -> None:
    spec = lab.spec(**CARTPOLE, algorithm={"name": "Reinforce", "training_frequency": 10})
    agent, env = lab.build(spec)
    lab.collect(agent, env, 9)
    before = copy.deepcopy(agent.algorithm.modules["actor"].state_dict())
    assert agent.update(36) is None
    assert agent.algorithm.opt_step == 0
    after = agent.algorithm.modules["actor"].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_metric_names(lab) -> None:
    """Columns of the table are fixed before the first update: a metric more or less breaks it."""
    spec = lab.spec("probe/ActionReward-v0", {"name": "Reinforce", "training_frequency": 4})
    trained = lab.train(spec, 64)
    assert len(trained.metrics) == 4
    for metrics in trained.metrics:
        assert set(metrics) == set(Reinforce.metric_names)
        assert len(set(Reinforce.metric_names)) == len(Reinforce.metric_names)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_stops_the_run(lab, bad: float) -> None:
    spec = lab.spec("probe/ActionReward-v0", {"name": "Reinforce", "training_frequency": 4})
    message = r"became nan in the training at frame 16; try a lower learning rate"
    # numpy's own warnings come on the way
    with np.errstate(invalid="ignore"), pytest.raises(DivergenceError, match=message):
        lab.train(spec, 64, change=lambda step: step._replace(reward=np.full_like(step.reward, bad)))


def test_entropy_bonus_flattens_the_policy(lab) -> None:
    """All rewards equal: the bonus alone moves the policy, towards the uniform one; the wrong sign away from it."""
    algorithm = {"name": "Reinforce", "training_frequency": 4, "entropy_coef_spec": 1.0}
    spec = lab.spec("probe/ConstantReward-v0", algorithm, net={"optim_spec": {"name": "SGD", "lr": 0.1}})
    agent, env = lab.build(spec)
    with torch.no_grad():
        agent.algorithm.modules["actor"].head.bias.copy_(torch.tensor([2.0, -2.0]))
    entropies = []
    for _ in range(10):
        lab.collect(agent, env, 4)
        entropies.append(agent.update(16)["entropy"])
    assert entropies == sorted(entropies)
    assert entropies[-1] > 1.2 * entropies[0]


def test_good_actions_become_likelier(lab) -> None:
    spec = lab.spec("probe/ActionReward-v0", {"name": "Reinforce", "training_frequency": 16}, net=SGD)
    agent, env = lab.build(spec)

    def prob() -> float:
        return float(agent.algorithm.modules["actor"](torch.zeros(1, 1)).softmax(-1)[0, 1].detach())

    before = prob()
    lab.collect(agent, env, 16)
    agent.update(64)
    assert prob() > before


def test_deterministic_without_exploring(lab) -> None:
    agent, env = lab.build(lab.spec(**CARTPOLE, algorithm={"name": "Reinforce", "training_frequency": 4}))
    obs = env.reset()
    greedy = [agent.act(obs).action.tolist() for _ in range(5)]
    assert all(action == greedy[0] for action in greedy)
    explored = [agent.act(obs, explore=True).action.tolist() for _ in range(20)]
    assert any(action != explored[0] for action in explored)
