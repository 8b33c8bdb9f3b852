"""Q-learning: the three targets by hand, the weights of a prioritised replay, and when training happens."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.memory.batch import Batch

NAMES = ["VanillaDQN", "DQN", "DoubleDQN"]
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 1000}
PER: dict[str, Any] = {**REPLAY, "name": "PrioritizedReplay"}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 0.1}}
# values are a table: the net has no hidden layer and states are unit vectors
TABLE: dict[str, Any] = {"type": "MLPNet", "hid_layers": []}


def build(lab, name: str = "DQN", env: str = "CartPole-v1", **keys: Any) -> tuple[Any, Any]:
    memory, net, env_keys = keys.pop("memory", REPLAY), keys.pop("net", {}), keys.pop("env_keys", {})
    algorithm = {"name": name, "gamma": 0.9, "training_start_step": 0, **keys}
    return lab.build(lab.spec(env, algorithm, memory=memory, net=net, **env_keys))


def fill(net: Any, table: list[list[float]]) -> None:
    """Q of state k and action a."""
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor(table).T)
        net.head.bias.zero_()


def states(*index: int) -> Tensor:
    return torch.eye(4)[list(index)]


# --- targets


def crafted(agent: Any) -> Batch:
    """Three steps from state 0 to state 1: an ordinary one, one that ended the task, one of two-step returns."""
    online = [[4.0, 7.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    target = [[0.0, 0.0], [5.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    algorithm = agent.algorithm
    fill(algorithm.modules["net"], online)
    if "target_net" in algorithm.modules:
        fill(algorithm.modules["target_net"], target)
    return Batch(
        obs=states(0, 0, 0),
        action=torch.tensor([0, 1, 1]),
        reward=torch.tensor([1.0, 2.0, 3.0]),
        next_obs=states(1, 1, 1),
        discount=torch.tensor([0.9, 0.0, 0.81]),
        weight=torch.ones(3),
        slot=torch.arange(3),
    )


# Q(1, .) is (1, 2) by the net and (5, 3) by its target
NEXT_VALUE = {"VanillaDQN": 2.0, "DQN": 5.0, "DoubleDQN": 3.0}


@pytest.mark.parametrize("name", NAMES)
def test_targets_by_hand(lab, name: str) -> None:
    """Three algorithms, three targets: the published DQN was double DQN by mistake."""
    agent, _ = build(lab, name, net=TABLE)
    assert isinstance(agent.algorithm, DQN)
    batch = crafted(agent)
    loss, report = agent.algorithm.calc_loss(batch)
    follows = NEXT_VALUE[name]
    expected = np.array([4 - (1 + 0.9 * follows), 7 - 2, 7 - (3 + 0.81 * follows)])
    np.testing.assert_allclose(report["q"].detach(), [4, 7, 7], rtol=1e-6)
    np.testing.assert_allclose(report["td_error"].detach(), np.abs(expected), rtol=1e-5)
    assert loss.item() == pytest.approx(np.mean(expected**2), rel=1e-5)
    loss.backward()
    # d/dq mean (q - ret)^2 = 2/3 (q - ret), into Q(0, 0) and Q(0, 1); nothing flows through Q(1, .)
    slope = np.zeros((2, 4))
    slope[:, 0] = 2 / 3 * expected[0], 2 / 3 * (expected[1] + expected[2])
    net: Any = agent.algorithm.net
    np.testing.assert_allclose(net.head.weight.grad, slope, rtol=1e-5)
    if "target_net" in agent.algorithm.modules:
        assert not agent.algorithm.learner.target.flat.grad.any()


@pytest.mark.parametrize(
    ("name", "expected"),
    # errors of -1.5, 5 and .05 with weights 1, .5 and .1: squares, Huber (|e| - .5 beyond 1), absolute
    [
        ("MSELoss", (2.25 + 0.5 * 25 + 0.1 * 2.5e-3) / 3),
        ("SmoothL1Loss", (1.0 + 0.5 * 4.5 + 0.1 * 1.25e-3) / 3),
        ("HuberLoss", (1.0 + 0.5 * 4.5 + 0.1 * 1.25e-3) / 3),
        ("L1Loss", (1.5 + 0.5 * 5 + 0.1 * 0.05) / 3),
    ],
)
def test_weights_scale_each_sample(lab, name: str, expected: float) -> None:
    agent, _ = build(lab, net={**TABLE, "loss_spec": {"name": name}})
    batch = crafted(agent)._replace(weight=torch.tensor([1.0, 0.5, 0.1]))
    # targets 1 + 4.5, 2, 2.9 + 4.05
    batch = batch._replace(reward=torch.tensor([1.0, 2.0, 2.9]))
    loss, report = agent.algorithm.calc_loss(batch)
    # priorities follow the errors, not the weighted errors
    np.testing.assert_allclose(report["td_error"].detach(), [1.5, 5, 0.05], rtol=1e-4, atol=1e-6)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_joint_actions_are_looked_up_by_their_combination(lab) -> None:
    agent, _ = build(lab, env="probe/MultiAction-v0", net=TABLE)
    with torch.no_grad():
        agent.algorithm.net.head.bias.copy_(torch.arange(6.0))
        agent.algorithm.net.head.weight.zero_()
    action = torch.tensor([[a, b] for a in range(2) for b in range(3)])
    zeros = torch.zeros(6, 1)
    batch = Batch(zeros, action, torch.zeros(6), zeros, torch.zeros(6), torch.ones(6), torch.arange(6))
    assert agent.algorithm.calc_loss(batch).report["q"].tolist() == [0, 1, 2, 3, 4, 5]
    assert agent.act(np.zeros((1, 1))).action.tolist() == [[1, 2]]


# --- a whole update


def spy_sample(agent: Any, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Batches as they are drawn from now on."""
    drawn: list[Batch] = []
    memory = agent.algorithm.memory
    sample = memory.sample

    def wrapped(frame: int) -> Batch:
        drawn.append(sample(frame))
        return drawn[-1]

    monkeypatch.setattr(memory, "sample", wrapped)
    return drawn


@pytest.mark.parametrize("memory", [REPLAY, PER, {**PER, "num_step_returns": 3}], ids=["uniform", "PER", "PER-3"])
@pytest.mark.parametrize("name", NAMES)
def test_update_equals_a_plain_one(lab, name: str, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    net_keys = {**SGD, "clip_grad_val": 0.5}
    if name != "VanillaDQN":
        net_keys |= {"update_type": "replace", "update_frequency": 10**6}
    agent, env = build(lab, name, memory=memory, net=net_keys, training_iter=2, env_keys={"max_t": 14})
    algorithm = agent.algorithm
    if name != "VanillaDQN":
        with torch.no_grad():
            # another net, so that the two prefer different actions
            data = algorithm.learner.target.flat.data
            data += 0.5 * torch.randn(data.shape, generator=torch.Generator().manual_seed(0))
    lab.collect(agent, env, 40)
    if memory["name"] == "PrioritizedReplay":
        # unequal priorities, so that weights are unequal too
        algorithm.memory.sample(0)
        algorithm.memory.update_priority(torch.arange(0, 160, 3), torch.linspace(0.5, 4, 54))
    net, target = copy.deepcopy(algorithm.net), copy.deepcopy(algorithm.modules.get("target_net"))
    drawn = spy_sample(agent, monkeypatch)
    start = copy.deepcopy(net)
    metrics = agent.update(160)

    losses, norms, errors = [], [], []
    assert len(drawn) == 2
    for batch in drawn:
        with torch.no_grad():
            online = net(batch.next_obs)
            next_q = online if target is None else target(batch.next_obs)
            pick = online if name == "DoubleDQN" else next_q
            if target is not None:
                assert bool((online.argmax(-1) != next_q.argmax(-1)).any())
            ret = batch.reward + batch.discount * next_q[torch.arange(8), pick.argmax(-1)]
        q = net(batch.obs)[torch.arange(8), batch.action]
        errors.append((q - ret).detach())
        loss = (batch.weight * (q - ret) ** 2).sum() / 8
        net.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=False).item())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(loss.item())
    if memory["name"] == "PrioritizedReplay":
        assert float(drawn[0].weight.min()) < 0.9
        # priorities are the errors, of those that were drawn twice the later ones
        leaf = algorithm.memory.tree.leaf(drawn[1].slot.numpy())
        np.testing.assert_allclose(leaf, (errors[1].abs().double().numpy() + 1e-4) ** 0.6, rtol=1e-3)
    assert metrics is not None
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-3)
    assert metrics["td_error"] == pytest.approx(float(torch.cat(errors).abs().mean()), rel=1e-4)
    for parameter, other, first in zip(net.parameters(), algorithm.net.parameters(), start.parameters(), strict=True):
        path, expected = (other - first).detach(), (parameter - first).detach()
        np.testing.assert_allclose(path, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


# --- the target net over time


def flat(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def test_replace_in_training(lab) -> None:
    agent, env = build(lab, net={"update_type": "replace", "update_frequency": 20})
    modules, replaced = agent.algorithm.modules, []
    for frame in range(4, 101, 4):
        lab.collect(agent, env, 1)
        net, target = flat(modules["net"]), flat(modules["target_net"])
        agent.update(frame)
        assert not torch.equal(flat(modules["net"]), net)
        if not torch.equal(flat(modules["target_net"]), target):
            # the net as it was when the frame came, before it was trained on
            assert torch.equal(flat(modules["target_net"]), net)
            replaced.append(frame)
    assert replaced == [20, 40, 60, 80, 100]


def test_polyak_follows_every_gradient_step(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    net = {"update_type": "polyak", "polyak_coef": 0.3}
    agent, env = build(lab, net=net, training_iter=2, training_batch_iter=3)
    lab.collect(agent, env, 8)
    algorithm = agent.algorithm
    expected, step = flat(algorithm.modules["target_net"]), algorithm.learner.optimizer.descend

    def wrapped() -> None:
        nonlocal expected
        step()
        expected = 0.7 * expected + 0.3 * flat(algorithm.net)

    monkeypatch.setattr(algorithm.learner.optimizer, "descend", wrapped)
    # a frame at which whole copies would be due
    agent.update(2000)
    assert algorithm.opt_step == 6
    np.testing.assert_allclose(flat(algorithm.modules["target_net"]), expected, rtol=1e-4, atol=1e-6)


def test_norm_layers_learn_from_what_is_trained_on_alone(lab) -> None:
    """One pass in training mode per gradient step: neither acting nor targets move the statistics."""
    net = {"type": "MLPNet", "hid_layers": [8], "batch_norm": True}
    agent, env = build(lab, net=net, training_iter=3)
    record = lab.collect(agent, env, 8)
    agent.act(record.obs[0].numpy())
    agent.update(32)
    norm = agent.algorithm.net.body[1]
    assert int(norm.num_batches_tracked) == 3
    assert not agent.algorithm.net.training
    followed = agent.algorithm.modules["target_net"].body[1]
    assert int(followed.num_batches_tracked) == 3


# --- when training happens


@pytest.mark.parametrize(
    ("num_envs", "keys", "frames"),
    [
        # one env: every training_frequency frames once training_start_step is passed
        (1, {"training_frequency": 1, "training_start_step": 5}, [6, 7, 8, 9, 10, 11, 12]),
        (1, {"training_frequency": 4, "training_start_step": 0}, [4, 8, 12]),
        (1, {"training_frequency": 4, "training_start_step": 4}, [8, 12]),
        # four envs: at most one training per step
        (4, {"training_frequency": 1, "training_start_step": 0}, [4, 8, 12, 16, 20, 24]),
        (4, {"training_frequency": 1, "training_start_step": 8}, [12, 16, 20, 24]),
        (4, {"training_frequency": 4, "training_start_step": 9}, [12, 16, 20, 24]),
        # 6, 12, 18 and 24 are passed at these; a modulo would find 12 and 24 alone
        (4, {"training_frequency": 6, "training_start_step": 0}, [8, 12, 20, 24]),
        (4, {"training_frequency": 8, "training_start_step": 0}, [8, 16, 24]),
    ],
)
def test_training_frames(lab, num_envs: int, keys: dict[str, Any], frames: list[int]) -> None:
    agent, env = build(lab, env_keys={"num_envs": num_envs}, training_iter=2, training_batch_iter=3, **keys)
    trained = []
    for frame in range(num_envs, 13 if num_envs == 1 else 25, num_envs):
        lab.collect(agent, env, 1)
        metrics = agent.update(frame)
        if metrics is not None:
            trained.append(frame)
    assert trained == frames
    # training_iter batches, training_batch_iter steps on each
    assert agent.algorithm.opt_step == 6 * len(frames)


# --- acting


@pytest.mark.parametrize("policy", ["epsilon_greedy", "boltzmann", "random"])
def test_without_exploring_the_best_action_is_taken(lab, policy: str) -> None:
    agent, _ = build(lab, net=TABLE, action_policy=policy, explore_var_spec=1.0, training_start_step=100)
    fill(agent.algorithm.modules["net"], [[0.1, 0.0], [0.0, 0.1], [0.2, 0.3], [5.0, -5.0]])
    assert agent.act(torch.eye(4).numpy()).action.tolist() == [0, 1, 1, 0]
    tried = torch.stack([agent.act(torch.eye(4).numpy(), explore=True).action for _ in range(40)])
    assert {0, 1} == set(tried[:, 0].tolist())


def test_epsilon_follows_the_frame(lab) -> None:
    schedule = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 40}
    agent, env = build(lab, explore_var_spec=schedule)
    seen = []
    for frame in range(4, 49, 4):
        lab.collect(agent, env, 1)
        seen.append(agent.update(frame)["explore_var"])
    np.testing.assert_allclose(seen, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0, 0], atol=1e-9)
    obs = env.reset()
    # no exploration is left, at zero rather than at the start value
    assert all(torch.equal(agent.act(obs, explore=True).action, agent.act(obs).action) for _ in range(30))
