"""The same weights and the same batch give the same losses and gradients as Stable-Baselines3 and its contrib.

It is not among the lab's own dependencies, so these tests are skipped without it. To run them:
`uv run --group peer pytest test/peer`.
"""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.action.distribution import Normal, SquashedNormal
from slm_lab.agent.action.sde import use_state_noise
from slm_lab.agent.agent import Agent
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.model import PolicyNet
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.net import MLPNetSpec
from slm_lab.spec.sde import SDESpec

REASON = "needs the group peer: uv run --group peer pytest test/peer"
sb3 = pytest.importorskip("stable_baselines3", reason=REASON)
contrib = pytest.importorskip("sb3_contrib", reason=REASON)

GAMMA, BATCH_SIZE = 0.9, 32
NUM_QUANTILE, NUM_ACTION = 5, 2
TOLERANCE = 1e-5


def build_agent(env: str, algorithm: dict[str, Any], net: dict[str, Any]) -> Any:
    raw = {
        "name": "peer",
        "agent": {
            "algorithm": {"gamma": GAMMA, "training_start_step": 0, "training_iter": 1, **algorithm},
            "memory": {"name": "Replay", "batch_size": BATCH_SIZE},
            "net": {"type": "MLPNet", "hid_layers": [16, 16], "hid_layers_activation": "relu", **net},
        },
        "env": {"name": env, "num_envs": 1, "max_frame": 10_000},
        "meta": {"device": "cpu"},
    }
    spec = parse_spec(raw)[0]
    env_ = build_vec_env(build_settings(spec.env, (1, 0, 0)))
    agent = Agent(spec, env_.facts, 1, (0, 0), torch.device("cpu"))
    env_.close()
    return agent


def copy_linear(source: nn.Module, *targets: nn.Module) -> None:
    """Weights of all linear layers of one module into those of others, in order; widths are split where they differ."""
    given = [layer for layer in source.modules() if isinstance(layer, nn.Linear)]
    wanted = [layer for target in targets for layer in target.modules() if isinstance(layer, nn.Linear)]
    assert len(given) == len(wanted)
    with torch.no_grad():
        for one, other in zip(given, wanted, strict=True):
            assert one.weight.shape == other.weight.shape
            other.weight.copy_(one.weight)
            other.bias.copy_(one.bias)


def grads(*modules: nn.Module) -> list[Tensor]:
    """Gradients of all linear layers, in order."""
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)]
    return [parameter.grad.clone() for layer in layers for parameter in (layer.weight, layer.bias)]


def fill(model: Any, env: Any, rng: np.random.Generator) -> Any:
    """Random transitions in SB3's own buffer, some of which ended, and the batch it draws from them."""
    for _ in range(200):
        obs, next_obs = (rng.normal(size=(1, *env.observation_space.shape)).astype(np.float32) for _ in range(2))
        action = np.array([env.action_space.sample()])
        reward, done = rng.normal(size=1), rng.random(1) < 0.2
        model.replay_buffer.add(obs, next_obs, action, reward, done, [{}])
    return model.replay_buffer.sample(BATCH_SIZE)


def to_batch(data: Any) -> Batch:
    """SB3's batch as ours."""
    return Batch(
        obs=data.observations,
        action=data.actions.squeeze(-1) if data.actions.dtype == torch.int64 else data.actions,
        reward=data.rewards.squeeze(-1),
        next_obs=data.next_observations,
        discount=GAMMA * (1 - data.dones.squeeze(-1)),
        weight=torch.ones(BATCH_SIZE),
        slot=torch.arange(BATCH_SIZE),
    )


class Recorder:
    """Keeps gradients at the moment a step is taken, and takes none."""

    def __init__(self, optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch, *modules: nn.Module) -> None:
        self.grads: list[Tensor] = []
        monkeypatch.setattr(optimizer, "step", lambda *_: self.grads.extend(grads(*modules)))


def assert_same(name: str, ours: Any, theirs: Any, record: Any) -> None:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    difference = float(np.abs(ours - theirs).max())
    record(f"{name}: largest difference", difference)
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def by_quantile(rows: Tensor) -> Tensor:
    """Rows of our output layer, which has the quantiles of an action side by side, in the order of contrib's."""
    return rows.unflatten(0, (NUM_ACTION, NUM_QUANTILE)).transpose(0, 1).flatten(0, 1)


def by_action(rows: Tensor) -> Tensor:
    """The other way round."""
    return rows.unflatten(0, (NUM_QUANTILE, NUM_ACTION)).transpose(0, 1).flatten(0, 1)


@pytest.mark.parametrize("name", ["DQN", "QRDQN"])
def test_dqn(monkeypatch: pytest.MonkeyPatch, record_property: Any, name: str) -> None:
    env = gym.make("CartPole-v1")
    env.action_space.seed(0)
    is_quantile = name == "QRDQN"
    model = (contrib.QRDQN if is_quantile else sb3.DQN)(
        "MlpPolicy",
        env,
        gamma=GAMMA,
        policy_kwargs={"net_arch": [16, 16], **({"n_quantiles": NUM_QUANTILE} if is_quantile else {})},
        max_grad_norm=1e9,
        learning_starts=0,
        seed=0,
        device="cpu",
    )
    data = fill(model, env, np.random.default_rng(0))
    net, target_net = (
        (model.quantile_net, model.quantile_net_target) if is_quantile else (model.q_net, model.q_net_target)
    )
    with torch.no_grad():
        for parameter in target_net.parameters():
            parameter.mul_(1.3)
    critic = {"kind": "quantile", "num_quantile": NUM_QUANTILE} if is_quantile else {}
    loss_spec = {} if is_quantile else {"loss_spec": {"name": "SmoothL1Loss"}}
    algorithm = build_agent("CartPole-v1", {"name": "DQN", "critic": critic}, loss_spec).algorithm
    for theirs, ours in ((net, algorithm.modules["net"]), (target_net, algorithm.modules["target_net"])):
        copy_linear(theirs, ours)
        if is_quantile:
            ours.head.weight.data, ours.head.bias.data = by_action(ours.head.weight), by_action(ours.head.bias)

    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: data)
    recorder = Recorder(model.policy.optimizer, monkeypatch, net)
    model.set_logger(sb3.common.logger.configure(format_strings=[]))
    model.train(1, BATCH_SIZE)

    loss, _ = algorithm.calc_loss(to_batch(data))
    loss.backward()
    assert_same(f"{name} loss", loss.item(), model.logger.name_to_value["train/loss"], record_property)
    mine = grads(algorithm.modules["net"])
    if is_quantile:
        mine[-2:] = [by_quantile(one) for one in mine[-2:]]
    assert len(mine) == len(recorder.grads) == 6
    for ours, theirs in zip(mine, recorder.grads, strict=True):
        assert float(theirs.abs().max()) > 1e-3
        assert_same(f"{name} gradient", ours, theirs, record_property)


@pytest.mark.parametrize(("algorithm_name", "keys"), [("TD3", {}), ("DDPG", {"n_critics": 1})])
def test_td3(monkeypatch: pytest.MonkeyPatch, record_property: Any, algorithm_name: str, keys: dict[str, Any]) -> None:
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    model = sb3.TD3(
        "MlpPolicy",
        env,
        gamma=GAMMA,
        policy_kwargs={"net_arch": [16, 16], **keys},
        target_policy_noise=0.2 if algorithm_name == "TD3" else 1e-30,
        # so that some of the noise is cut
        target_noise_clip=0.25,
        learning_starts=0,
        seed=0,
        device="cpu",
    )
    data = fill(model, env, np.random.default_rng(0))
    with torch.no_grad():
        for parameter in (*model.critic_target.parameters(), *model.actor_target.parameters()):
            parameter.mul_(1.3)
    keys = {"name": algorithm_name, "target_noise_clip": 0.25}
    algorithm = build_agent("Pendulum-v1", keys, {}).algorithm
    for theirs, ours in (
        (model.actor, algorithm.net),
        (model.actor_target, algorithm.modules["target_actor"]),
        (model.critic, algorithm.critic.net),
        (model.critic_target, algorithm.modules["target_critic"]),
    ):
        copy_linear(theirs, ours)

    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: data)
    of_critic = Recorder(model.critic.optimizer, monkeypatch, model.critic)
    of_actor = Recorder(model.actor.optimizer, monkeypatch, model.actor)
    model.set_logger(sb3.common.logger.configure(format_strings=[]))
    # the second update is one of both nets
    model._n_updates = 1
    torch.manual_seed(0)
    model.train(1, BATCH_SIZE)
    logged = model.logger.name_to_value

    torch.manual_seed(0)
    batch, noise = to_batch(data), torch.empty(BATCH_SIZE, 1).normal_()
    assert algorithm_name == "DDPG" or 0.1 < float((0.2 * noise).abs().gt(0.25).float().mean()) < 0.9
    loss, _ = algorithm.calc_critic_loss(batch, noise)
    loss.backward()
    assert_same(f"{algorithm_name} critic loss", loss.item(), logged["train/critic_loss"], record_property)
    loss, _ = algorithm.calc_actor_loss(batch.obs, batch.action)
    loss.backward(inputs=[*algorithm.net.parameters()])
    assert_same(f"{algorithm_name} actor loss", loss.item(), logged["train/actor_loss"], record_property)
    pairs = [(grads(algorithm.critic.net), of_critic.grads), (grads(algorithm.net), of_actor.grads)]
    assert [len(theirs) for _, theirs in pairs] == [12 if algorithm_name == "TD3" else 6, 6]
    for mine, theirs in pairs:
        for one, other in zip(mine, theirs, strict=True):
            assert float(other.abs().max()) > 1e-4
            assert_same(f"{algorithm_name} gradient", one, other, record_property)


# SB3 adds 1e-6 within the logarithm of the change of volume, which shows in the last digits
@pytest.mark.parametrize(
    ("name", "target_entropy", "epsilon"),
    [("SAC", "auto", 1e-6), ("SAC", "auto", 0.0), ("SAC", -0.3, 0.0), ("TQC", "auto", 0.0)],
)
def test_sac(
    monkeypatch: pytest.MonkeyPatch, record_property: Any, name: str, target_entropy: Any, epsilon: float
) -> None:
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    is_quantile = name == "TQC"
    model = (contrib.TQC if is_quantile else sb3.SAC)(
        "MlpPolicy",
        env,
        gamma=GAMMA,
        policy_kwargs={"net_arch": [16, 16], **({"n_quantiles": NUM_QUANTILE} if is_quantile else {})},
        ent_coef="auto_0.5",
        target_entropy=target_entropy,
        learning_starts=0,
        seed=0,
        device="cpu",
    )
    model.actor.action_dist.epsilon = epsilon
    data = fill(model, env, np.random.default_rng(0))
    with torch.no_grad():
        for parameter in model.critic_target.parameters():
            parameter.mul_(1.3)
    keys: dict[str, Any] = {"name": "SoftActorCritic", "target_entropy": target_entropy}
    if is_quantile:
        # contrib drops 2 per critic by default
        keys |= {"q_reduction": "mean", "critic": {"kind": "quantile", "num_quantile": NUM_QUANTILE, "num_drop": 2}}
    algorithm = build_agent("Pendulum-v1", keys, {}).algorithm
    with torch.no_grad():
        # SB3 has a layer for means and one for log stds, ours are side by side
        mean, log_std = model.actor.mu, model.actor.log_std
        copy_linear(model.actor.latent_pi, algorithm.net.body)
        algorithm.net.head.weight.copy_(torch.cat([mean.weight, log_std.weight]))
        algorithm.net.head.bias.copy_(torch.cat([mean.bias, log_std.bias]))
        algorithm.alpha.log_alpha.copy_(model.log_ent_coef)
    copy_linear(model.critic, algorithm.critic.net)
    copy_linear(model.critic_target, algorithm.modules["target_critic"])

    # the order of SB3's draws: the policy's first, then its successor's
    generator = torch.Generator().manual_seed(0)
    noise = {use: torch.randn(BATCH_SIZE, 1, generator=generator) for use in ("policy", "next")}
    waiting = [noise["policy"], noise["next"]]

    def rsample(self: torch.distributions.Normal, *_: Any) -> Tensor:
        return self.loc + self.scale * waiting.pop(0)

    monkeypatch.setattr(torch.distributions.Normal, "rsample", rsample)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: data)
    critic, actor = model.critic, model.actor
    of_critic = Recorder(critic.optimizer, monkeypatch, critic)
    of_actor = Recorder(actor.optimizer, monkeypatch, actor.latent_pi, actor.mu, actor.log_std)
    of_alpha: list[Tensor] = []
    monkeypatch.setattr(model.ent_coef_optimizer, "step", lambda *_: of_alpha.append(model.log_ent_coef.grad.clone()))
    model.set_logger(sb3.common.logger.configure(format_strings=[]))
    model.train(1, BATCH_SIZE)
    logged = model.logger.name_to_value
    assert not waiting

    batch, alpha = to_batch(data), algorithm.alpha.value(0)
    assert_same(f"{name} alpha", alpha.item(), logged["train/ent_coef"], record_property)
    loss, _ = algorithm.calc_critic_loss(batch, alpha, noise["next"])
    loss.backward()
    assert_same(f"{name} critic loss", loss.item(), logged["train/critic_loss"], record_property)
    mine = grads(algorithm.critic.net)
    assert len(mine) == len(of_critic.grads) == 12
    for one, theirs in zip(mine, of_critic.grads, strict=True):
        assert float(theirs.abs().max()) > 1e-3
        assert_same(f"{name} critic gradient", one, theirs, record_property)

    target = algorithm.calc_target_entropy()
    loss, report = algorithm.calc_actor_alpha_loss(batch.obs, alpha, target, noise["policy"])
    loss.backward(inputs=[*algorithm.net.parameters(), algorithm.alpha.log_alpha])
    assert_same(f"{name} actor loss", report["policy_loss"].item(), logged["train/actor_loss"], record_property)
    mine = grads(algorithm.net)
    *body, mean_weight, mean_bias, std_weight, std_bias = of_actor.grads
    head = [torch.cat([mean_weight, std_weight]), torch.cat([mean_bias, std_bias])]
    for one, theirs in zip(mine, [*body, *head], strict=True):
        assert float(theirs.abs().max()) > 1e-4
        assert_same(f"{name} actor gradient", one, theirs, record_property)

    assert_same(f"{name} alpha gradient", algorithm.alpha.log_alpha.grad, of_alpha[0], record_property)


def test_the_same_weights_are_needed() -> None:
    """A comparison that any two nets would pass would show nothing."""
    env = gym.make("CartPole-v1")
    model = sb3.DQN("MlpPolicy", env, gamma=GAMMA, policy_kwargs={"net_arch": [16, 16]}, seed=0, device="cpu")
    data = fill(model, env, np.random.default_rng(0))
    agent = build_agent("CartPole-v1", {"name": "DQN"}, {"loss_spec": {"name": "SmoothL1Loss"}})
    copy_linear(model.q_net, agent.algorithm.modules["net"])
    copy_linear(model.q_net_target, agent.algorithm.modules["target_net"])
    with torch.no_grad():
        agent.algorithm.modules["target_net"].head.bias += 0.01
    twin = copy.deepcopy(agent.algorithm.modules["net"])
    loss, _ = agent.algorithm.calc_loss(to_batch(data))
    q = twin(data.observations).gather(1, data.actions).squeeze(-1)
    ret = data.rewards.squeeze(-1) + GAMMA * (1 - data.dones.squeeze(-1)) * model.q_net_target(
        data.next_observations
    ).amax(-1)
    theirs = torch.nn.functional.smooth_l1_loss(q, ret)
    assert abs(loss.item() - theirs.item()) > TOLERANCE


@pytest.mark.parametrize("is_squashed", [False, True], ids=["plain", "squashed"])
def test_sde(record_property: Any, is_squashed: bool) -> None:
    """Actions, log probabilities, entropies and gradients of a policy with noise that depends on the state."""
    num, num_feature, size = 64, 16, 3
    family: Any = use_state_noise((SquashedNormal if is_squashed else Normal)(size))
    generator = torch.Generator().manual_seed(0)
    net_spec = MLPNetSpec(hid_layers=[num_feature], hid_layers_activation="tanh")
    net = PolicyNet(net_spec, (4,), 2 * size, is_gaussian=True, sde=SDESpec(log_std_init=-1.0))
    assert net.feature_log_std is not None
    with torch.no_grad():
        net.feature_log_std.add_(0.3 * torch.randn(num_feature, size, generator=generator))
    matrices = torch.randn(num, num_feature, size, generator=generator)
    obs = torch.randn(num, 4, generator=generator)

    theirs = sb3.common.distributions.StateDependentNoiseDistribution(size, squash_output=is_squashed)
    theirs.latent_sde_dim = num_feature
    if is_squashed:
        # see above
        theirs.bijector.epsilon = 0.0
    features = net.body(obs)
    theirs.proba_distribution(net.head(features), net.feature_log_std, features)
    theirs.sample_weights(net.feature_log_std, num)
    theirs.exploration_matrices = net.feature_log_std.exp() * matrices
    wanted = theirs.sample()

    param = net(obs)
    action = family.to_env(family.choose(param, matrices)).detach()
    what = "squashed" if is_squashed else "plain"
    assert_same(f"gSDE {what} action", action, wanted.detach(), record_property)
    log_prob = theirs.log_prob(action)
    log_prob.sum().backward()
    grads_ = [parameter.grad.clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = None
    mine = family.log_prob(param, action)
    mine.sum().backward()
    assert_same(f"gSDE {what} log probability", mine.detach(), log_prob.detach(), record_property)
    for parameter, other in zip(net.parameters(), grads_, strict=True):
        assert parameter.grad is not None
        assert float(other.abs().max()) > 1e-3
        assert_same(f"gSDE {what} gradient", parameter.grad / num, other / num, record_property)
    if not is_squashed:
        assert_same("gSDE entropy", family.entropy(param).detach(), theirs.entropy().detach(), record_property)
