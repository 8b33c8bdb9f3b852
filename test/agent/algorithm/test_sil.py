"""Self-imitation: returns along episodes by hand, losses that vanish where nothing was gained, and their direction."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.algorithm.actor_critic import ActorCritic
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.sil import PPOSIL, SIL, calc_sil_losses
from slm_lab.agent.memory.batch import Transition
from test.agent.conftest import build_step

STILL: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1e-12}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "SIL": {"name": "SIL", "training_frequency": 2},
    "PPOSIL": {"name": "PPOSIL", "time_horizon": 2, "minibatch_size": 4, "training_epoch": 1},
}


def build(lab, name: str = "SIL", net: dict[str, Any] | None = None, **keys: Any) -> tuple[Any, Any]:
    memory = {"name": "Replay", "batch_size": 16}
    algorithm = {**ALGORITHMS[name], "gamma": 0.5, "training_iter": 1, "sil_memory": memory, **keys}
    return lab.build(lab.spec("CartPole-v1", algorithm, net=net or STILL, num_envs=2))


# --- losses


def test_losses_by_hand() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    value = torch.tensor([1.0, 5.0], requires_grad=True)
    losses = calc_sil_losses(log_prob, value, torch.tensor([4.0, 2.0]), torch.tensor([0.5, 1.0]))
    policy_loss, val_loss, gain = losses
    # gains 3 and 0: -(.5 * -1 * 3)/2, .5 * (.5 * 9)/2
    assert policy_loss.item() == pytest.approx(0.75)
    assert val_loss.item() == pytest.approx(1.125)
    assert gain.tolist() == [3, 0]
    (policy_loss + val_loss).backward()
    assert log_prob.grad is not None
    assert value.grad is not None
    # the good action becomes likelier; the value rises, by the value loss alone: -(.5 * 3)/2, not also by log_prob
    assert log_prob.grad.tolist() == [-0.75, 0]
    assert value.grad.tolist() == [-0.75, 0]


# --- returns


def step(number: int, reward: tuple[float, float], ends: str = "..") -> Transition:
    """Observations tell step and env apart."""
    obs = torch.tensor([[number, env, 0.0, 0.0] for env in (0.0, 1.0)])
    extra = {"value": torch.zeros(2), "log_prob": torch.zeros(2)}
    action = torch.tensor([number % 2, (number + 1) % 2])
    return build_step(obs, ends, action=action, reward=reward, next_obs=obs + 100, extra=extra)


def hold_value(agent: Any, value: float) -> None:
    with torch.no_grad():
        agent.algorithm.net.critic.head.weight.zero_()
        agent.algorithm.net.critic.head.bias.fill_(value)


def kept(agent: Any) -> dict[str, list[Any]]:
    memory = agent.algorithm.auxiliary.memory
    rows = memory.rows(0, memory.head)
    return {
        "return": rows["reward"].flatten().tolist(),
        "obs": rows["obs"].view(-1, 4)[:, :2].tolist(),
        "action": rows["action"].flatten().tolist(),
    }


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
def test_returns_along_episodes_by_hand(lab, name: str) -> None:
    """Two envs, episodes that span updates (every two steps), a cut by the clock; gamma .5, V = 8."""
    agent, _ = build(lab, name)
    hold_value(agent, 8.0)
    steps = [
        step(0, (1, 1)),
        step(1, (2, 1), ".C"),
        step(2, (4, 3), "T."),
        step(3, (7, 5), ".T"),
    ]
    for index, one in enumerate(steps):
        agent.algorithm.observe(one)
        trained = agent.update(2 * index + 2)
        assert (trained is not None) == (index % 2 == 1)
    got = kept(agent)
    # env 1, steps 0 1: 1 + 2.5, 1 + .5*8; env 0, steps 0-2: 1 + 2, 2 + 2, 4; env 1, steps 2 3: 3 + 2.5, 5
    np.testing.assert_allclose(got["return"], [3.5, 5, 3, 4, 4, 5.5, 5], rtol=1e-5)
    # each beside the observation and the action it belongs to; the running episode of env 0 is not there yet
    assert got["obs"] == [[0, 1], [1, 1], [0, 0], [1, 0], [2, 0], [2, 1], [3, 1]]
    assert got["action"] == [1, 0, 0, 1, 0, 1, 0]


def test_both_flags_mean_the_task_ended(lab) -> None:
    agent, _ = build(lab)
    hold_value(agent, 8.0)
    agent.algorithm.observe(step(0, (1, 2), "BC"))
    np.testing.assert_allclose(kept(agent)["return"], [1, 2 + 4])


def test_returns_are_not_discounted_again_when_drawn(lab) -> None:
    agent, _ = build(lab)
    agent.algorithm.observe(step(0, (1, 2), "TT"))
    batch = agent.algorithm.auxiliary.memory.sample(0)
    assert set(batch.reward.tolist()) == {1, 2}
    assert not batch.discount.any()


# --- updates


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
def test_before_an_episode_has_ended_there_is_nothing_to_imitate(lab, name: str) -> None:
    agent, _ = build(lab, name)
    for number in range(2):
        agent.algorithm.observe(step(number, (1, 1)))
    metrics = agent.update(4)
    assert metrics is not None
    # not even zeros: these would enter the mean of the table's row
    assert set(metrics) == set((ActorCritic if name == "SIL" else PPO).metric_names)
    assert agent.algorithm.opt_step == 1


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
def test_number_of_gradient_steps(lab, name: str) -> None:
    agent, _ = build(lab, name, training_iter=3, training_batch_iter=2)
    for number in range(2):
        agent.algorithm.observe(step(number, (1, 1), "TT"))
    metrics = agent.update(4)
    # one on the fresh batch, then three batches twice each
    assert agent.algorithm.opt_step == 1 + 6
    assert set(metrics) == set((SIL if name == "SIL" else PPOSIL).metric_names)


def test_imitation_equals_a_plain_step(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    net = {"optim_spec": {"name": "SGD", "lr": 0.1}}
    agent, env = build(lab, net=net, sil_policy_loss_coef=0.7, sil_val_loss_coef=0.3, training_frequency=40)
    lab.collect(agent, env, 40)
    imitation = agent.algorithm.auxiliary
    batch = imitation.memory.sample(80)
    monkeypatch.setattr(imitation.memory, "sample", lambda frame: batch)
    twin = copy.deepcopy(agent.algorithm.net)
    metrics = imitation.update(80)
    param, value = twin(batch.obs)
    log_prob = torch.distributions.Categorical(logits=param).log_prob(batch.action)
    gain = torch.where(batch.reward > value, batch.reward - value, torch.zeros(16))
    assert bool((gain > 0).any())
    policy_loss, val_loss = -(log_prob * gain.detach()).mean(), (gain**2).mean() / 2
    twin.zero_grad()
    (0.7 * policy_loss + 0.3 * val_loss).backward()
    assert metrics["sil_policy_loss"] == pytest.approx(policy_loss.item(), rel=1e-4)
    assert metrics["sil_val_loss"] == pytest.approx(val_loss.item(), rel=1e-4)
    assert metrics["sil_gain"] == pytest.approx(gain.mean().item(), rel=1e-4)
    for mine, theirs in zip(agent.algorithm.net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), (theirs - 0.1 * theirs.grad).detach(), rtol=1e-4, atol=1e-6)


def test_priorities_become_the_gains(lab) -> None:
    memory = {"name": "PrioritizedReplay", "batch_size": 16, "alpha": 1.0, "epsilon": 0.01}
    agent, _ = build(lab, sil_memory=memory)
    hold_value(agent, 1.0)
    agent.algorithm.observe(step(0, (4, -4), "TT"))
    imitation = agent.algorithm.auxiliary
    imitation.update(2)
    # gain 3 of the first, none of the second; the error itself would be 5
    np.testing.assert_allclose(imitation.memory.tree.leaf(np.arange(2)), [3.01, 0.01], rtol=1e-3)


def test_normalised_observations_are_imitated_as_the_policy_saw_them(lab) -> None:
    spec = lab.spec(
        "CartPole-v1",
        {"name": "SIL", "training_frequency": 4, "sil_memory": {"name": "Replay"}},
        num_envs=2,
        normalize_obs=True,
        max_t=3,
    )
    agent, env = lab.build(spec)
    obs, seen = env.reset(), []
    for _ in range(3):
        seen.append(agent.encode(obs)[0])
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs = step.obs
    memory = agent.algorithm.auxiliary.memory
    assert memory.head == 6
    np.testing.assert_allclose(memory.rows(0, 3)["obs"].view(3, 4), torch.stack(seen), rtol=1e-5)
