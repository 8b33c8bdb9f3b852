"""Action masks: no algorithm takes, explores, learns from or expects a forbidden action."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bench.faults.specs import ALGORITHMS, NETS, NOT_RECURRENT, make_spec
from slm_lab.agent.action.distribution import (
    FORBIDDEN,
    ActionFamily,
    Bernoulli,
    Categorical,
    JointCategorical,
    MultiCategorical,
)
from slm_lab.agent.action.mask import ActionMask
from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.agent import reset_rows
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.algorithm.sac import DiscreteSoftActorCritic
from slm_lab.agent.memory.batch import Batch, SequenceBatch
from slm_lab.agent.net.model import PolicyNet, QNet
from slm_lab.env.probe import Masked
from slm_lab.experiment.collect import collect
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.schema import Spec
from test import tic_tac_toe
from test.agent.draw import draw
from test.tiny import make_tiny_spec

DISCRETE = [name for name in ALGORITHMS if make_spec(name).agent.algorithm.actions != "continuous"]
QUANTILE = {"critic": {"kind": "quantile", "num_quantile": 8}}
# algorithm, net and keys
CASES: dict[str, tuple[str, str | dict[str, Any], dict[str, Any]]] = {
    **{name: (name, "MLP", {}) for name in DISCRETE},
    **{f"{name}, recurrent": (name, "RNN", {}) for name in DISCRETE if name not in NOT_RECURRENT},
    "DQN, boltzmann": ("DQN", "MLP", {"action_policy": "boltzmann"}),
    "DQN, random": ("DQN", "MLP", {"action_policy": "random"}),
    "DQN, quantile": ("DQN", "MLP", QUANTILE),
    "DoubleDQN, categorical": ("DoubleDQN", "MLP", {"critic": {"kind": "categorical", "v_min": -2.0, "v_max": 3.0}}),
    "DoubleDQN, implicit": ("DoubleDQN", "MLP", {"critic": {"kind": "implicit"}}),
    "DQN, quantile, recurrent": ("DQN", "RNN", QUANTILE),
    "DQN, noisy": ("DQN", {**NETS["MLP"], "noisy": True}, {}),
    "PQN": ("PQN", "MLP", {"time_horizon": 16, "minibatch_size": 64}),
    "PPO, epsilon_greedy": ("PPO", "MLP", {"action_policy": "epsilon_greedy", "explore_var_spec": 0.5}),
    "PPO, boltzmann": ("PPO", "MLP", {"action_policy": "boltzmann", "explore_var_spec": 3.0}),
}
PROBES = ("probe/Masked-v0", "probe/MaskedMulti-v0")


def build(name: str, env: str, num_envs: int = 16, **env_keys: Any) -> Spec:
    algorithm, net, keys = CASES[name]
    own = ALGORITHMS.get(algorithm, {})
    if "training_frequency" in own:
        keys = {"training_frequency": own["training_frequency"] * 4, **keys}
    if "minibatch_size" in own:
        keys = {"minibatch_size": own["minibatch_size"] * num_envs // 4, **keys}
    env_keys = {"name": env, "num_envs": num_envs, "max_frame": 10_000_000, **env_keys}
    return make_spec(algorithm, net, env_keys, keys=keys)


def count_forbidden(lab, spec: Spec, num_frame: int) -> int:
    """Forbidden actions of a training and of deterministic play after it; each ends an episode of the probe."""
    agent, env = lab.build(spec.replace(env={"info_keys": ["is_forbidden"]}))
    obs, carry, frame = env.reset(), agent.init_carry(env.num_envs), 0
    while frame < 1.1 * num_frame:
        is_training = frame < num_frame
        act = agent.act(obs, carry, explore=is_training)
        step = env.step(act.action.numpy())
        frame += env.num_envs
        if is_training:
            agent.observe(obs, act, step)
            agent.update(frame)
        obs, carry = step.obs, reset_rows(act.carry, step.done)
    episodes = env.pop_episodes()
    env.close()
    assert len(episodes) > num_frame // 3
    return sum(int(episode.info["is_forbidden"]) for episode in episodes)


@pytest.mark.parametrize("env", PROBES)
@pytest.mark.parametrize("name", CASES)
def test_no_action_is_forbidden(lab, name: str, env: str) -> None:
    # over 100,000 of all cases together
    assert count_forbidden(lab, build(name, env), 2_200) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("env", "choices"), zip(PROBES, ([4], [3, 4]), strict=True))
@pytest.mark.parametrize("name", CASES)
def test_no_action_is_forbidden_in_a_million(lab, name: str, env: str, choices: list[int]) -> None:
    agent = lab.train(build(name, env), 2_200).agent
    rng, num = np.random.default_rng(0), 4096
    for batch in range(250):
        allowed = rng.random((num, sum(choices))) < rng.uniform(0.1, 0.9)
        parts = np.split(allowed, np.cumsum(choices)[:-1], 1)
        for part in parts:
            part[np.arange(num), rng.integers(part.shape[1], size=num)] = True
        obs = np.concatenate([np.zeros((num, 1)), allowed], 1, dtype=np.float32)
        # as before the first training, as after it, and without exploring
        agent.algorithm.frame = 2_200 if batch % 3 else 0
        action = agent.act(obs, agent.init_carry(num), explore=batch % 3 != 2).action.numpy().reshape(num, -1)
        for part, choice in zip(parts, action.T, strict=True):
            assert part[np.arange(num), choice].all()


@pytest.mark.usefixtures("undrawn")
def test_a_cloned_policy_takes_no_forbidden_action(lab, tmp_path: Path) -> None:
    options = Options(tmp_path / "data")
    spec = make_tiny_spec(env={"name": "probe/Masked-v0", "max_frame": 256})
    data = tmp_path / "steps.safetensors"
    collect(str(start(spec, options).folder), data, options, 200, num_envs=4)
    raw = dump_spec(spec)["tiny"]
    raw["agent"] |= {"algorithm": {"name": "BC", "data": str(data)}, "memory": {"name": "Replay", "batch_size": 64}}
    assert count_forbidden(lab, parse_spec({**raw, "name": "bc"})[0], 3_000) == 0


def test_without_its_mask_the_probe_is_forbidding(lab) -> None:
    assert count_forbidden(lab, build("PPO", PROBES[0], action_mask="ignore", num_envs=4), 2_000) > 400


SOLVING = {
    "PPO": {"entropy_coef_spec": 0.0},
    "Reinforce": {"training_frequency": 8, "entropy_coef_spec": 0.0},
    "SARSA": {"explore_var_spec": 0.3},
    "DoubleDQN": {"explore_var_spec": 0.3, "training_frequency": 4},
    "SoftActorCritic": {"training_frequency": 4, "fixed_alpha": 0.05},
}


@pytest.mark.parametrize("name", SOLVING)
def test_only_a_masked_agent_solves_the_probe(lab, name: str) -> None:
    scores = {}
    for setting in (None, "ignore"):
        keys = {"gamma": 0.5, **SOLVING[name]}
        spec = make_spec(name, env={"name": PROBES[0], "max_frame": 100_000, "action_mask": setting}, keys=keys)
        agent = lab.train(spec, 3_000).agent
        _, env = lab.build(spec)
        obs = env.reset()
        for _ in range(100):
            obs = env.step(agent.act(obs).action.numpy()).obs
        scores[setting] = np.mean(env.pop_finished())
    assert scores[None] == 2
    assert scores["ignore"] < -4


# --- losses


class FixedMask(Masked):
    """Of four actions the last one is never allowed."""

    def draw(self) -> None:
        self.allowed = np.array([1, 1, 1, 0], np.int8)


gym.register("test/FixedMask-v0", entry_point=lambda **_: FixedMask())


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("Random", "DQN, noisy")])
def test_no_gradient_reaches_a_forbidden_output(lab, name: str) -> None:
    spec = build(name, "test/FixedMask-v0", 4)
    untrained, _ = lab.build(spec)
    trained = lab.train(spec, 600).agent
    assert trained.algorithm.opt_step > 0
    num_head = 0
    for role, module in trained.algorithm.modules.items():
        before = untrained.algorithm.modules[role].state_dict()
        for path, part in module.named_modules():
            if isinstance(part, (PolicyNet, QNet)):
                weight = f"{path}.head.weight".lstrip(".")
                old, new = (one.unflatten(0, (4, -1)) for one in (before[weight], part.linear.weight))
                assert_close(new[3], old[3], rtol=0, atol=0)
                assert not torch.equal(new[:3], old[:3]) or role.startswith("target")
                num_head += 1
    assert num_head > 0


def build_batch(size: int = 8) -> Batch:
    """Transitions whose successors forbid action 0 or allow nothing but action 2."""
    mask = torch.tensor([[0.0, 1, 1, 1], [0, 0, 1, 0]]).repeat(size // 2, 1)
    obs = torch.cat([torch.zeros(size, 1), torch.ones(size, 4)], 1)
    return Batch(
        obs=obs,
        action=torch.ones(size, dtype=torch.int64),
        reward=torch.zeros(size),
        next_obs=torch.cat([torch.zeros(size, 1), mask], 1),
        discount=torch.full((size,), 0.9),
        weight=torch.ones(size),
        slot=torch.arange(size),
    )


@pytest.mark.parametrize("name", ["VanillaDQN", "DQN", "DoubleDQN"])
def test_the_largest_value_is_ignored_where_it_is_forbidden(lab, name: str) -> None:
    agent, env = lab.build(build(name, PROBES[0], 4))
    env.close()
    algorithm = agent.algorithm
    assert isinstance(algorithm, DQN)
    for net in (algorithm.net, algorithm.target_net):
        with torch.no_grad():
            net.linear.weight.zero_()
            net.linear.bias.copy_(torch.tensor([100.0, 1.0, 2.0, 3.0]))
    report = algorithm.calc_loss(build_batch()).report
    assert_close(report["next_value"], torch.tensor([3.0, 2.0]).repeat(4))
    assert_close(report["target"], 0.9 * torch.tensor([3.0, 2.0]).repeat(4))


def test_sequences_ignore_forbidden_values_too(lab) -> None:
    spec = build("DoubleDQN, recurrent", PROBES[0], 4)
    trained = lab.train(spec, 200).agent.algorithm
    assert isinstance(trained, DQN)
    for net in (trained.net, trained.target_net):
        with torch.no_grad():
            net.linear.weight.zero_()
            net.linear.bias.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    batch = trained.sample()
    assert isinstance(batch, SequenceBatch)
    report = trained.calc_sequence_loss(batch).report
    best = torch.where(batch.obs[1:, :, 1:] > 0, torch.tensor([1.0, 2.0, 3.0, 4.0]), -1.0).amax(-1)
    assert_close(report["next_value"], best)


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_soft_values_are_sums_over_what_is_allowed(lab, name: str) -> None:
    agent, env = lab.build(build(name, PROBES[0], 4))
    env.close()
    algorithm = agent.algorithm
    assert isinstance(algorithm, DiscreteSoftActorCritic)
    for module in algorithm.modules.values():
        for part in module.modules():
            if isinstance(part, (PolicyNet, QNet)):
                with torch.no_grad():
                    part.linear.weight.zero_()
                    part.linear.bias.copy_(torch.tensor([100.0, 1.0, 2.0, 3.0]))
    alpha = torch.tensor(0.5)
    loss, report = algorithm.calc_critic_loss(build_batch(), alpha)
    log_prob = torch.tensor([1.0, 2.0, 3.0]).log_softmax(0)
    soft = float((log_prob.exp() * (torch.tensor([1.0, 2.0, 3.0]) - 0.5 * log_prob)).sum())
    assert_close(report["target"], 0.9 * torch.tensor([soft, 2.0]).repeat(4))
    assert loss.isfinite()
    # the entropy that alpha holds is a share of what is possible
    obs = build_batch().next_obs
    _, report = algorithm.calc_actor_alpha_loss(obs, alpha, algorithm.calc_target_entropy())
    assert_close(report["entropy"], -(log_prob.exp() * log_prob).sum() / 2)
    loss = algorithm.calc_actor_alpha_loss(obs, alpha, algorithm.calc_target_entropy()).value
    (grad,) = torch.autograd.grad(loss, algorithm.alpha.log_alpha)
    assert float(grad) == pytest.approx(float(report["entropy"].detach()) - 0.6 * math.log(3) / 2, abs=1e-5)


# --- families

# family, mask, and the combinations that it allows
FAMILIES: dict[str, tuple[ActionFamily, list[int], set[Any]]] = {
    "Categorical": (Categorical(4), [1, 0, 0, 1], {0, 3}),
    "JointCategorical": (JointCategorical([2, 3]), [0, 1, 1, 0, 1], {(1, 0), (1, 2)}),
    "MultiCategorical": (MultiCategorical([2, 3]), [1, 1, 1, 0, 1], {(0, 0), (0, 2), (1, 0), (1, 2)}),
    "Bernoulli": (Bernoulli(3), [1, 1, 0, 1, 1, 0], {(0, 1, 0), (1, 1, 0)}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_choose_what_is_allowed(name: str) -> None:
    family, mask, allowed = FAMILIES[name]
    num, generator = 2_000, torch.Generator().manual_seed(0)
    param = torch.randn(num, family.param_size, generator=generator, requires_grad=True)
    limited = family.restrict(param, torch.tensor(mask, dtype=torch.bool).expand(num, -1))

    def seen(action: torch.Tensor) -> set[Any]:
        return {tuple(one) if isinstance(one, list) else one for one in action.tolist()}

    sampled = draw(family, limited, generator)
    assert seen(sampled) == seen(family.mode(limited)) == allowed
    # the probabilities of what is allowed sum to 1, and the entropy is theirs
    rows = torch.tensor(sorted(allowed))
    log_prob = torch.stack([family.log_prob(limited, row.expand(num, *family.action_shape)) for row in rows])
    assert_close(log_prob.exp().sum(0), torch.ones(num))
    entropy = family.entropy(limited)
    assert_close(entropy, -(log_prob.exp() * log_prob).sum(0), rtol=1e-4, atol=1e-5)
    both = family.log_prob_entropy(limited, sampled)
    assert_close(both, (family.log_prob(limited, sampled), entropy))
    # what is forbidden has no gradient
    (grad,) = torch.autograd.grad((both[0] + both[1]).sum(), param)
    assert torch.isfinite(grad).all()
    is_still = (grad == 0).all(0)
    assert is_still.any()
    assert not is_still.all()
    assert_close(is_still, (limited.abs() == -FORBIDDEN).all(0))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("policy", ["random", "epsilon_greedy"])
def test_random_actions_are_equally_likely_among_allowed_ones(name: str, policy: str) -> None:
    family, mask, allowed = FAMILIES[name]
    family.is_masked = True
    num, generator = 4_000, torch.Generator().manual_seed(0)
    obs = torch.tensor([0.5, *mask]).expand(num, -1)
    masker = ActionMask(family, 1)
    config = AlgorithmSpec(name="X", action_policy=policy, explore_var_spec=1.0)
    sampler = build_policy(family, config)
    param = masker(torch.randn(num, family.param_size, generator=generator), obs)
    for action in (
        masker.random(obs, generator),
        sampler.choose(param, sampler.noise(num, generator, 0)),
    ):
        rows, counts = torch.unique(action, dim=0, return_counts=True)
        assert {tuple(row) if isinstance(row, list) else row for row in rows.tolist()} == allowed
        assert counts.min() > 0.8 * num / len(allowed)


# --- a game

REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 64, "max_size": 20_000}
EPSILON = {"start_val": 1.0, "end_val": 0.1, "end_step": 6_000}
GAME: dict[str, tuple[dict[str, Any], Any]] = {
    "PPO": (
        {"time_horizon": 32, "minibatch_size": 64, "training_epoch": 4, "entropy_coef_spec": 0.01},
        "OnPolicyBatchReplay",
    ),
    "DoubleDQN": ({"training_start_step": 500, "training_frequency": 8, "explore_var_spec": EPSILON}, REPLAY),
}


@pytest.mark.parametrize("in_obs", [False, True])
@pytest.mark.parametrize("name", ["PPO", "DoubleDQN"])
def test_a_masked_game_is_learned(lab, name: str, in_obs: bool) -> None:
    algorithm, memory = GAME[name]
    spec = lab.spec(
        *(tic_tac_toe.NAME, {"name": name, "gamma": 0.95, **algorithm}),
        memory=memory,
        net={"hid_layers": [64], "optim_spec": {"name": "Adam", "lr": 0.002}},
        num_envs=8,
        kwargs={"in_obs": in_obs},
    )
    agent = lab.train(spec, 12_000).agent
    _, env = lab.build(spec)
    obs = env.reset()
    for _ in range(250):
        obs = env.step(agent.act(obs).action.numpy()).obs
    # random play scores 0
    assert np.mean(env.pop_finished()) > 0.6
