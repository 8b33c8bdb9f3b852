"""TD3 and DDPG: targets by hand, delays, noise, and what makes the one the other."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from slm_lab.agent.memory.batch import Batch
from test.agent.algorithm.conftest import PENDULUM, REPLAY, START

NET: dict[str, Any] = {"polyak_coef": 0.1}


def build(lab, name: str = "TD3", **keys: Any) -> tuple[Any, Any]:
    case = {**PENDULUM, "algorithm": {"name": name, **START, "training_iter": 1, **keys}, "memory": REPLAY, "net": NET}
    agent, env = lab.build(lab.spec(**case))
    return agent.algorithm, env


def make_batch(num: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, num, 3, generator=generator)
    action = torch.rand(num, 1, generator=generator) * 2 - 1
    reward, discount = torch.randn(num, generator=generator), torch.where(torch.arange(num) % 4 == 0, 0.0, 0.9)
    return Batch(obs, action, reward, next_obs, discount, torch.linspace(0.5, 2, num), torch.arange(num))


def test_the_target_is_the_smaller_value_of_a_smoothed_action(lab) -> None:
    algorithm, env = build(lab, target_noise=0.3, target_noise_clip=0.4)
    env.close()
    seen: list[Tensor] = []

    def critic(obs: Tensor, action: Tensor) -> Tensor:
        seen.append(action)
        return torch.stack([action.squeeze(-1) + 5, 2 - action.squeeze(-1)])

    policy = torch.tensor([-2.0, -0.1, 0.0, 3.0]).unsqueeze(-1)
    algorithm.critic.target_net, algorithm.actor.target_net = critic, lambda _: policy
    batch, noise = make_batch(4), torch.tensor([[-9.0], [1.0], [-1.0], [2.0]])
    _, report = algorithm.calc_critic_loss(batch, noise)
    expected = (policy.tanh() + torch.tensor([[-0.4], [0.3], [-0.3], [0.4]])).clamp(-1, 1)
    assert_close(seen[0], expected)
    assert seen[0].abs().max() == 1
    low = torch.minimum(expected + 5, 2 - expected).squeeze(-1)
    assert_close(report["target"], batch.reward + batch.discount * low)


def test_the_loss_is_the_weighted_square_of_both_critics(lab) -> None:
    algorithm, env = build(lab)
    env.close()
    batch = make_batch(8)
    loss, report = algorithm.calc_critic_loss(batch, torch.zeros(8, 1))
    q = algorithm.critic.net(batch.obs, batch.action)
    assert_close(loss, sum((batch.weight * (one - report["target"]) ** 2).mean() for one in q))
    assert_close(report["q"], q.amin(0))


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_wait(lab, delay: int) -> None:
    algorithm, env = build(lab, policy_delay=delay)
    env.close()
    changed = []
    for _ in range(7):
        before = {name: module.flat.data.clone() for name, module in parts(algorithm).items()}
        algorithm.train(make_batch(8))
        after = parts(algorithm)
        changed.append({name for name, old in before.items() if not torch.equal(old, after[name].flat.data)})
    both = {"actor", "critic", "target actor", "target critic"}
    # the very first step is one of both, so that there is something to report
    assert changed == [both if step == 1 or step % delay == 0 else {"critic"} for step in range(1, 8)]


def parts(algorithm: Any) -> dict[str, Any]:
    learners = {"actor": algorithm.actor, "critic": algorithm.critic}
    return learners | {f"target {name}": learner.target for name, learner in learners.items()}


def test_ddpg_is_td3_without_its_three_changes(lab) -> None:
    algorithms = [build(lab, "DDPG"), build(lab, "TD3", num_critic=1, target_noise=0.0, policy_delay=1)]
    for _ in range(3):
        one, two = (algorithm.train(make_batch(8))[0] for algorithm, _ in algorithms)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
    for _, env in algorithms:
        env.close()


def test_noise_follows_its_schedule_and_stays_within_bounds(lab) -> None:
    schedule = {"start_val": 5.0, "end_val": 0.0, "end_step": 1000}
    algorithm, env = build(lab, action_noise=schedule, training_start_step=0)
    env.close()
    obs = torch.randn(64, 3)
    still = algorithm.act(obs, None, explore=False).action
    wild = algorithm.act(obs, None, explore=True).action
    assert wild.abs().max() == 1
    assert (wild - still).abs().max() > 0.5
    algorithm.frame = 1000
    assert torch.equal(algorithm.act(obs, None, explore=True).action, still)


def test_critics_with_a_net_of_their_own_say_how_both_targets_follow(lab) -> None:
    critic_net = {"type": "MLPNet", "hid_layers": [8], "polyak_coef": 0.5}
    case = {**PENDULUM, "algorithm": {"name": "TD3", **START}, "memory": REPLAY, "critic_net": critic_net}
    agent, env = lab.build(lab.spec(**case))
    env.close()
    assert [target.coef for target in agent.algorithm.targets] == [0.5, 0.5]
