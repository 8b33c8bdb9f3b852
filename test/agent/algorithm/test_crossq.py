"""CrossQ: statistics of both halves together, no target net, critics that rest while the policy learns."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.norm import BatchRenorm1d
from slm_lab.spec.loading import parse_spec

REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 1000}
ENVS = {"continuous": "Pendulum-v1", "discrete": "CartPole-v1"}
SMALL_NET: dict[str, Any] = {"type": "MLPNet", "hid_layers": [16]}
BATCH_NORM: dict[str, Any] = {"type": "MLPNet", "hid_layers": [16], "batch_norm": True}
RENORM: dict[str, Any] = {
    "type": "TorchArcNet",
    "arc": {
        "modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 16}}, {"LazyBatchRenorm1d": {}}, "ReLU"]}}
    },
}
CRITICS = {"BatchNorm": BATCH_NORM, "BatchRenorm": RENORM}


def build(lab, kind: str = "continuous", critic_net: dict[str, Any] | None = None, **keys: Any) -> tuple[Any, Any]:
    net = {**SMALL_NET, **keys.pop("net", {})}
    algorithm = {"name": "CrossQ", "gamma": 0.9, "training_start_step": 0, "training_iter": 1, **keys}
    raw = {
        "name": "test",
        "agent": {"algorithm": algorithm, "memory": REPLAY, "net": net, "critic_net": critic_net or BATCH_NORM},
        "env": {"name": ENVS[kind], "num_envs": 4, "max_frame": 10_000},
        "meta": {"device": "cpu"},
    }
    return lab.build(parse_spec(raw)[0])


def draw(lab, agent: Any, env: Any) -> Batch:
    lab.collect(agent, env, 16)
    return agent.algorithm.sample()


def norms(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if isinstance(layer, (nn.BatchNorm1d, BatchRenorm1d))]


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_critic_loss_is_of_one_joint_pass(lab, kind: str, critic: str) -> None:
    agent, env = build(lab, kind, CRITICS[critic])
    batch = draw(lab, agent, env)
    algorithm = agent.algorithm
    twin, alpha, rows = copy.deepcopy(algorithm.critic.net), torch.tensor(0.3), torch.arange(8)
    noise = algorithm.draw_noise(8)
    loss, report = algorithm.calc_critic_loss(batch, alpha, *noise)

    if kind == "continuous":
        next_action, log_prob = algorithm.family.draw(algorithm.net(batch.next_obs), *noise)
    else:
        log_prob = algorithm.net(batch.next_obs).log_softmax(-1)
    twin.train()
    obs = torch.cat([batch.obs, batch.next_obs])
    values = []
    for net in twin.critics:
        if kind == "continuous":
            values.append(net(obs, torch.cat([batch.action, next_action]).detach()))
        else:
            values.append(net(obs))
    q, next_q = ([one[half] for one in values] for half in (slice(0, 8), slice(8, 16)))
    soft = torch.min(*next_q) - alpha * log_prob
    if kind == "discrete":
        q = [one[rows, batch.action] for one in q]
        soft = (log_prob.exp() * soft).sum(-1)
    ret = (batch.reward + batch.discount * soft).detach()
    expected = sum(((one - ret) ** 2).mean() / 2 for one in q)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(report["td_error"], (torch.min(*q) - ret).abs().detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["q"], torch.min(*q).detach(), rtol=1e-4, atol=1e-5)
    # nothing flows through the target, although both halves are of one pass
    loss.backward()
    expected.backward()
    for mine, theirs in zip(algorithm.critic.net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_values_depend_on_the_other_half(lab, kind: str, critic: str) -> None:
    """Two passes, one per half, would give the same values whatever follows."""
    agent, env = build(lab, kind, CRITICS[critic])
    batch = draw(lab, agent, env)
    start = copy.deepcopy(agent.algorithm.critic.net.state_dict())

    noise = agent.algorithm.draw_noise(8)

    def values(one: Batch) -> Tensor:
        agent.algorithm.critic.net.load_state_dict(start)
        return agent.algorithm.calc_critic_loss(one, torch.tensor(0.0), *noise).report["q"]

    first, far = values(batch), values(batch._replace(next_obs=batch.next_obs * 5 + 3))
    assert float((first - far).abs().max()) > 1e-2


@pytest.mark.parametrize("critic", CRITICS)
def test_statistics_are_of_both_halves(lab, critic: str) -> None:
    agent, env = build(lab, "discrete", CRITICS[critic])
    batch = draw(lab, agent, env)
    critics = agent.algorithm.critic.net.critics
    agent.algorithm.calc_critic_loss(batch, torch.tensor(0.3))
    for net in critics:
        linear = next(layer for layer in net.modules() if isinstance(layer, nn.Linear))
        (norm,) = norms(net)
        features = linear(torch.cat([batch.obs, batch.next_obs])).detach()
        momentum = norm.momentum
        np.testing.assert_allclose(norm.running_mean, momentum * features.mean(0), rtol=1e-3, atol=1e-5)
        assert int(norm.num_batches_tracked) == 1


def test_no_target_net(lab) -> None:
    agent, _ = build(lab)
    assert agent.algorithm.critic.target is None
    assert set(agent.algorithm.modules) == {"actor", "critic", "alpha"}


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_critics_rest_while_the_policy_learns(lab, kind: str) -> None:
    agent, env = build(lab, kind, policy_delay=1)
    lab.collect(agent, env, 16)
    critic, modes = agent.algorithm.critic.net, []
    critic.register_forward_pre_hook(lambda module, _: modes.append(all(m.training for m in module.modules())))
    agent.update(64)
    # one pass in training mode for the critics themselves, one in evaluation mode for the policy
    assert modes == [True, False]
    assert not any(module.training for module in critic.modules())
    assert {int(norm.num_batches_tracked) for norm in norms(critic)} == {1}


def test_policy_delay_is_three(lab) -> None:
    agent, _ = build(lab)
    assert agent.algorithm.config.policy_delay == 3


def test_critics_have_a_net_of_their_own(lab) -> None:
    wide = {"type": "MLPNet", "hid_layers": [64, 32], "batch_norm": True, "optim_spec": {"name": "Adam", "lr": 0.5}}
    agent, env = build(lab, critic_net=wide, net={"optim_spec": {"name": "Adam", "lr": 0.25}})
    algorithm = agent.algorithm

    def widths(module: nn.Module) -> list[int]:
        return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]

    assert widths(algorithm.critic.net) == [64, 32, 1] * 2
    assert widths(algorithm.net) == [16, 2]
    assert not norms(algorithm.net)
    # with its own optimiser; alpha goes with the actor
    assert {name: one.lr for name, one in algorithm.optimizers.items()} == {
        "actor": 0.25,
        "critic": 0.5,
        "alpha": 0.25,
    }
    lab.collect(agent, env, 8)
    assert agent.update(32) is not None


def test_critic_keys_may_carry_a_prefix_instead(lab) -> None:
    algorithm = {"name": "CrossQ", "training_start_step": 0, "training_iter": 1}
    net = {"critic_batch_norm": True, "critic_hid_layers": [32]}
    agent, _ = lab.build(lab.spec(ENVS["continuous"], algorithm, memory=REPLAY, net=net))
    assert len(norms(agent.algorithm.critic.net)) == 2
    assert not norms(agent.algorithm.net)
