"""Soft actor-critic: soft values and alpha by hand, whole updates against plain ones, nothing leaking."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from slm_lab.agent.algorithm.sac import Alpha, calc_soft_sum, resolve_alpha
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Batch
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import SoftActorCriticSpec
from slm_lab.spec.net import MLPNetSpec

REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 1000}
PER: dict[str, Any] = {**REPLAY, "name": "PrioritizedReplay"}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 0.1}}
ENVS = {"continuous": "Pendulum-v1", "discrete": "CartPole-v1"}


def build(lab, kind: str = "continuous", **keys: Any) -> tuple[Any, Any]:
    memory, net, env_keys = keys.pop("memory", REPLAY), keys.pop("net", {}), keys.pop("env_keys", {})
    name = keys.pop("name", "SoftActorCritic")
    algorithm = {"name": name, "gamma": 0.9, "training_start_step": 0, "training_iter": 1, **keys}
    return lab.build(lab.spec(ENVS.get(kind, kind), algorithm, memory=memory, net=net, **env_keys))


def flat(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


# --- soft values


def test_soft_value_of_choices_by_hand() -> None:
    prob = torch.tensor([[0.25, 0.75]])
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    # .25 + 1.5 plus the entropy times alpha
    value = calc_soft_sum(torch.tensor([[1.0, 2.0]]), prob.log(), torch.tensor(0.5))
    np.testing.assert_allclose(value, [1.75 + 0.5 * entropy], rtol=1e-6)


# --- alpha


def alpha_of(**keys: Any) -> Alpha:
    return Alpha(SoftActorCriticSpec(**keys))


def update_alpha(alpha: Alpha, entropy: Tensor, target_entropy: float, net: MLPNetSpec | None = None) -> None:
    own = resolve_alpha(net or MLPNetSpec(**SGD), alpha.config.alpha_lr)
    learner = Learner(alpha, own, torch.device("cpu"))
    loss = alpha.calc_loss(entropy, target_entropy)
    assert isinstance(loss, Tensor)
    loss.backward()
    with torch.no_grad():
        learner.optimizer.descend()
    alpha.clamp()


@pytest.mark.parametrize("lr", [0.1, 0.5])
@pytest.mark.parametrize("entropy", [0.2, 0.8])
def test_alpha_starts_at_one_and_moves_the_right_way(entropy: float, lr: float) -> None:
    alpha = alpha_of(**({} if lr == SGD["optim_spec"]["lr"] else {"alpha_lr": lr}))
    assert alpha.value(0).item() == 1.0
    update_alpha(alpha, torch.tensor(entropy), 0.5)
    # log alpha falls by lr times (entropy - target): too little entropy raises it
    expected = -lr * (entropy - 0.5)
    assert alpha.log_alpha.item() == pytest.approx(expected, rel=1e-5)
    assert alpha.value(10**6).item() == pytest.approx(math.exp(expected), rel=1e-5)


def test_alpha_is_clamped() -> None:
    alpha = alpha_of(log_alpha_min=-0.5, log_alpha_max=0.25)
    update_alpha(alpha, torch.tensor(-100.0), 0.0)
    assert alpha.log_alpha.item() == 0.25
    for _ in range(2):
        update_alpha(alpha, torch.tensor(100.0), 0.0)
    assert alpha.log_alpha.item() == -0.5
    # and comes back
    update_alpha(alpha, torch.tensor(-1.0), 0.0)
    assert alpha.log_alpha.item() == pytest.approx(-0.4)


def test_a_learned_alpha_starts_where_it_is_told() -> None:
    assert alpha_of().value(0).item() == 1.0
    alpha = alpha_of(alpha_init=0.01)
    assert alpha.value(0).item() == pytest.approx(0.01)
    update_alpha(alpha, torch.tensor(-1.0), 0.0)
    assert alpha.value(0).item() > 0.01


def test_fixed_alpha_stays_or_falls_to_zero() -> None:
    fixed = alpha_of(fixed_alpha=0.4)
    assert not fixed.is_learned
    assert fixed.calc_loss(torch.tensor(100.0), 0.0) == 0
    assert [fixed.value(frame).item() for frame in (0, 10**9)] == pytest.approx([0.4, 0.4])
    annealed = alpha_of(fixed_alpha=0.4, alpha_anneal_frames=100)
    values = [annealed.value(frame).item() for frame in (0, 25, 50, 100, 200)]
    assert values == pytest.approx([0.4, 0.3, 0.2, 0.0, 0.0])
    assert not annealed.is_learned
    # 0 is a value like any other
    assert alpha_of(fixed_alpha=0.0).value(5).item() == 0.0


def test_weight_decay_leaves_alpha_alone() -> None:
    net = MLPNetSpec(optim_spec={"name": "AdamW", "lr": 0.01, "weight_decay": 0.1})
    alpha = alpha_of()
    with torch.no_grad():
        alpha.log_alpha.fill_(-3.0)
    for _ in range(50):
        # the entropy is where it should be
        update_alpha(alpha, torch.tensor(1.0), 1.0, net)
    assert float(alpha.log_alpha.detach()) == -3.0


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("continuous", {}, {0: -1.0}),
        ("Swimmer-v5", {}, {0: -2.0}),
        ("discrete", {}, {0: 0.6 * math.log(2)}),
        ("probe/MultiAction-v0", {}, {0: 0.6 * math.log(6)}),
        ("continuous", {"target_entropy": 0.0}, {0: 0.0}),
        ("discrete", {"target_entropy": 0.3}, {0: 0.3, 10**6: 0.3}),
        (
            "discrete",
            {"entropy_anneal": {"start_ratio": 0.8, "end_ratio": 0.2, "frames": 100}},
            {frame: ratio * math.log(2) for frame, ratio in ((0, 0.8), (50, 0.5), (100, 0.2), (900, 0.2))},
        ),
    ],
)
def test_target_entropy(lab, kind: str, keys: dict[str, Any], expected: dict[int, float]) -> None:
    agent, _ = build(lab, kind, **keys)
    for frame, value in expected.items():
        agent.algorithm.frame = frame
        assert agent.algorithm.calc_target_entropy() == pytest.approx(value)


def test_annealed_entropy_is_for_discrete_actions(lab) -> None:
    message = r"^agent\.algorithm\.entropy_anneal: for discrete actions; give target_entropy instead$"
    with pytest.raises(SpecError, match=message):
        build(lab, entropy_anneal={"end_ratio": 0.2, "frames": 100})


# --- whole updates


class Drawn:
    """Batches as they are drawn, and the training generator right after each draw."""

    def __init__(self, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self.states: list[Tensor] = []
        memory, generator = agent.algorithm.memory, agent.context.train_generator
        sample = memory.sample

        def wrapped(frame: int) -> Batch:
            self.batches.append(sample(frame))
            self.states.append(generator.get_state())
            return self.batches[-1]

        monkeypatch.setattr(memory, "sample", wrapped)

    def noise(self, index: int, *shape: int) -> Tensor:
        """The next two draws of noise (2, ...)."""
        generator = torch.Generator()
        generator.set_state(self.states[index])
        return torch.stack([torch.empty(shape).normal_(generator=generator) for _ in range(2)])


def plain_policy(param: Tensor, noise: Tensor, kind: str) -> tuple[Tensor | None, Tensor]:
    """Action and log density of a squashed Gaussian, or log probabilities, by torch's distributions."""
    if kind == "continuous":
        mean, log_std = param.chunk(2, -1)
        squashed = distributions.TransformedDistribution(
            distributions.Normal(mean, log_std.clamp(-5, 2).exp()), [distributions.TanhTransform(cache_size=1)]
        )
        action = (mean + log_std.clamp(-5, 2).exp() * noise).tanh()
        return action, squashed.log_prob(action).sum(-1)
    return None, distributions.Categorical(logits=param).logits


def plain_value(net: Any, obs: Tensor, policy: tuple[Tensor | None, Tensor], alpha: float, option: str) -> Tensor:
    action, log_prob = policy
    values = torch.stack([one(obs) if action is None else one(obs, action) for one in net.critics])
    value = (values.mean(0) if option == "mean" else values.amin(0)) - alpha * log_prob
    return value if action is not None else (log_prob.exp() * value).sum(-1)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "symlog": {"symlog": True},
    "fixed_alpha": {"fixed_alpha": 0.3},
    "PER": {"memory": PER},
    "mean": {"q_reduction": "mean"},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_update_equals_a_plain_one(lab, kind: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = {"optim_spec": {"name": "SGD", "lr": 0.05}, "update_type": "polyak", "polyak_coef": 0.25}
    agent, env = build(lab, kind, net=net, env_keys={"max_t": 14, "reward_scale": 0.2}, **OPTIONS[option])
    algorithm = agent.algorithm
    with torch.no_grad():
        algorithm.critic.target.flat.data.mul_(1.3)
    lab.collect(agent, env, 40)
    if option == "PER":
        algorithm.memory.sample(0)
        algorithm.memory.update_priority(torch.arange(0, 160, 3), torch.linspace(0.5, 4, 54))
    actor, critic, target = (copy.deepcopy(algorithm.modules[name]) for name in ("actor", "critic", "target_critic"))
    start = {"actor": flat(actor), "critic": flat(critic)}
    drawn = Drawn(agent, monkeypatch)
    metrics = agent.update(160)
    assert metrics is not None
    (batch,), rows = drawn.batches, torch.arange(8)
    noise = drawn.noise(0, 8, 1)
    alpha = 0.3 if option == "fixed_alpha" else 1.0

    with torch.no_grad():
        next_policy = plain_policy(actor(batch.next_obs), noise[0], kind)
        follows = plain_value(target, batch.next_obs, next_policy, alpha, option)
        ret = batch.reward + batch.discount * follows
    if kind == "continuous":
        q = [net(batch.obs, batch.action) for net in critic.critics]
    else:
        q = [net(batch.obs)[rows, batch.action] for net in critic.critics]
    error = torch.min(*q).detach() - ret

    def shape(x: Tensor) -> Tensor:
        return x.sign() * (x.abs() + 1).log() if option == "symlog" else x

    loss = sum((batch.weight * (shape(one) - shape(ret)) ** 2).mean() / 2 for one in q)
    critic.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter -= 0.05 * parameter.grad
    # the policy follows the critics as they are after their step
    policy = plain_policy(actor(batch.obs), noise[1], kind)
    policy_loss = -plain_value(critic, batch.obs, policy, alpha, option).mean()
    actor.zero_grad()
    policy_loss.backward()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter -= 0.05 * parameter.grad
    log_prob = policy[1].detach()
    entropy = -(log_prob.mean() if kind == "continuous" else (log_prob.exp() * log_prob).sum(-1).mean())

    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["policy_loss"] == pytest.approx(policy_loss.item(), rel=1e-3, abs=1e-4)
    assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-3, abs=1e-4)
    assert metrics["td_error"] == pytest.approx(error.abs().mean().item(), rel=1e-4)
    assert metrics["alpha"] == pytest.approx(alpha)
    for name, twin in (("actor", actor), ("critic", critic)):
        path, expected = flat(algorithm.modules[name]) - start[name], flat(twin) - start[name]
        assert float(expected.abs().max()) > 1e-4
        np.testing.assert_allclose(path, expected, rtol=5e-3, atol=5e-3 * float(expected.abs().max()))
    np.testing.assert_allclose(
        flat(algorithm.modules["target_critic"]), 0.75 * flat(target) + 0.25 * flat(critic), rtol=1e-4, atol=1e-5
    )
    if option == "fixed_alpha":
        assert algorithm.alpha.log_alpha.item() == 0
    else:
        wanted = -1.0 if kind == "continuous" else 0.6 * math.log(2)
        assert algorithm.alpha.log_alpha.item() == pytest.approx(-0.05 * (entropy.item() - wanted), rel=1e-3)
    if option == "PER":
        assert float(batch.weight.min()) < 0.99
        leaf = algorithm.memory.tree.leaf(batch.slot.numpy())
        np.testing.assert_allclose(leaf, (error.abs().double().numpy() + 1e-4) ** 0.6, rtol=1e-3)


# --- nothing leaks


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_each_loss_reaches_its_own_net_alone(lab, kind: str, name: str) -> None:
    agent, env = build(lab, kind, name=name)
    lab.collect(agent, env, 8)
    algorithm = agent.algorithm
    batch, alpha = algorithm.sample(), torch.tensor(1.0)
    net, critic_net = algorithm.actor.net, algorithm.critic.net
    actor, critic = flat(net), flat(critic_net)
    algorithm.critic_step(batch, alpha, *algorithm.draw_noise(8))
    assert torch.equal(flat(net), actor)
    assert not algorithm.actor.flat.grad.any()
    assert not torch.equal(flat(critic_net), critic)
    critic = flat(critic_net)
    algorithm.actor_step(batch.obs, alpha, algorithm.calc_target_entropy(), *algorithm.draw_noise(8))
    assert torch.equal(flat(critic_net), critic)
    # what the policy loss left here would be part of the next critic step
    assert not algorithm.critic.flat.grad.any()
    assert not torch.equal(flat(net), actor)
    for modules in (net, critic_net):
        assert not any(module.training for module in modules.modules())


# --- when and how


@pytest.mark.parametrize(("delay", "moves"), [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 2, 4, 6]), (3, [1, 3, 6])])
def test_policy_delay(lab, delay: int, moves: list[int]) -> None:
    """The first step always has one, so that the table has numbers; then every `delay`-th."""
    agent, env = build(lab, policy_delay=delay)
    lab.collect(agent, env, 8)
    algorithm, moved = agent.algorithm, []
    for step in range(1, 7):
        before = {name: flat(algorithm.modules[name]) for name in ("actor", "critic", "target_critic", "alpha")}
        lab.collect(agent, env, 1)
        agent.update(32 + 4 * step)
        change = {name: not torch.equal(flat(algorithm.modules[name]), old) for name, old in before.items()}
        assert change["critic"]
        assert change["actor"] == change["alpha"] == change["target_critic"]
        if change["actor"]:
            moved.append(step)
    assert moved == moves


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_random_until_training_starts_but_never_without_exploring(lab, kind: str) -> None:
    agent, env = build(lab, kind, training_start_step=40, env_keys={"num_envs": 64})
    obs = env.reset()
    with torch.no_grad():
        agent.algorithm.net.head.weight.zero_()
        # all but certain: action 1, or a mean of 1 with the smallest std
        agent.algorithm.net.head.bias.copy_(torch.tensor([1.0, -5.0] if kind == "continuous" else [-30.0, 30.0]))
    mode = math.tanh(1.0) if kind == "continuous" else 1
    for frame, is_random in ((0, True), (39, True), (40, False), (100, False)):
        agent.algorithm.frame = frame
        action = agent.act(obs, explore=True).action.double()
        spread = action.std().item()
        # uniform: std of [-1, 1] is .58, of {0, 1} is .5
        assert (spread > 0.3) == is_random, (frame, spread)
        np.testing.assert_allclose(agent.act(obs).action.flatten(), mode, rtol=1e-4)
