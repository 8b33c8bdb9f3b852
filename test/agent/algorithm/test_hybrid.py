"""Hybrid actions: Dict and Tuple of choices and numbers, for on-policy algorithms."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

import slm_lab
from bench.faults.specs import make_spec
from slm_lab.agent.action.build import build_family
from slm_lab.agent.action.distribution import Bernoulli, Categorical, MultiCategorical, Normal, TanhNormal
from slm_lab.agent.action.mask import ActionMask
from slm_lab.agent.action.mixed import Mixed
from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.memory.dataset import load_steps
from slm_lab.env.build import build_vec_env
from slm_lab.env.check import check_env
from slm_lab.env.facts_document import dump_facts, read_facts
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.make import EnvSettings, make_env
from slm_lab.env.mask import count_choices, sample_allowed
from slm_lab.env.probe import HybridAction
from slm_lab.env.vec_env import ActionMap
from slm_lab.experiment.collect import collect
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import EnvError, SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.algorithm import PPOSpec
from slm_lab.spec.loading import dump_spec, parse_spec
from test.agent.draw import draw
from test.tiny import make_tiny_spec

PROBE = "probe/HybridAction-v0"
SPACE = HybridSpace(
    spaces.Dict(
        {
            "a": spaces.Box(0, 10, (2,), np.float32),
            "b": spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 4])]),
            "c": spaces.MultiBinary(2),
        }
    )
)


def test_rows_of_actions() -> None:
    SPACE.seed(0)
    row = SPACE.sample()
    assert row.shape == SPACE.shape == (7,)
    assert SPACE.contains(row)
    assert not SPACE.contains(row + 100)
    mapped = ActionMap(SPACE)(np.array([[-1.0, 1.0, 2, 1, 3, 0, 1]], np.float32))
    action = SPACE.unflatten(mapped[0])
    assert action["a"].tolist() == [0.0, 10.0]
    assert action["b"][0] == 7
    assert action["b"][1].tolist() == [1, 3]
    assert action["c"].tolist() == [0, 1]
    assert SPACE.source.contains(action)
    # as a vector env takes it
    batch = SPACE.unflatten(np.repeat(mapped, 3, 0))
    assert batch["a"].shape == (3, 2)
    assert batch["b"][0].tolist() == [7, 7, 7]


def test_a_mixed_distribution_is_the_product_of_its_parts() -> None:
    family = build_family(SPACE, "default")
    assert isinstance(family, Mixed)
    parts: list[Any] = [Normal(2), Categorical(3), MultiCategorical([2, 4]), Bernoulli(2)]
    assert [type(part) for part in family.families] == [type(part) for part in parts]
    generator = torch.Generator().manual_seed(0)
    param = torch.randn(50, family.param_size, generator=generator, requires_grad=True)
    action = draw(family, param, generator)
    assert action.shape == (50, 7)
    params = param.split([4, 3, 6, 2], -1)
    actions = [action[:, :2], action[:, 2].long(), action[:, 3:5].long(), action[:, 5:].long()]
    log_prob = sum(part.log_prob(one, two) for part, one, two in zip(parts, params, actions, strict=True))
    entropy = sum(part.entropy(one) for part, one in zip(parts, params, strict=True))
    assert_close(family.log_prob_entropy(param, action), (log_prob, entropy))
    mode = family.mode(param)
    assert_close(mode[:, 2], params[1].argmax(-1).float())
    # a named distribution is that of the numbers
    tanh = build_family(SPACE, "TanhNormal")
    assert isinstance(tanh, Mixed)
    assert isinstance(tanh.families[0], TanhNormal)
    squashed = tanh.to_env(action)
    assert_close(squashed[:, :2], action[:, :2].tanh())
    assert_close(squashed[:, 2:], action[:, 2:])
    with pytest.raises(SpecError, match="action_pdtype: Bernoulli does not fit actions of Dict"):
        build_family(SPACE, "Bernoulli")


def test_masks_of_the_choices() -> None:
    family = build_family(SPACE, "default")
    assert count_choices(SPACE) == (3, 2, 4, 2, 2)
    mask = [0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1]
    generator = torch.Generator().manual_seed(0)
    obs = torch.tensor([0.5, *mask]).expand(300, -1)
    limit = ActionMask(family, 1)
    param = limit(torch.randn(300, family.param_size, generator=generator), obs)
    for action in (draw(family, param, generator), limit.random(obs, generator), family.mode(param)):
        assert (action[:, 2] == 1).all()
        assert (action[:, 3] == 0).all()
        assert set(action[:, 4].tolist()) == {1.0, 2.0}
        assert (action[:, 6] == 1).all()
    row = sample_allowed(SPACE, np.array(mask, bool))
    assert SPACE.contains(row)
    assert row[2] == 6


@pytest.mark.parametrize("pdtype", ["Normal", "TanhNormal"])
def test_numbers_beside_masked_choices_are_uniform(pdtype: str) -> None:
    family = build_family(SPACE, pdtype)
    family.is_masked = True
    generator, num = torch.Generator().manual_seed(0), 4000
    mask = torch.tensor([0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1])
    limit = ActionMask(family, 1)
    obs = torch.cat([torch.tensor([0.5]), mask]).expand(num, -1)
    # a policy that is sure of itself does not matter
    param = limit(torch.full((num, family.param_size), 2.0), obs)
    drawn = [limit.random(obs, generator)]
    for name in ("random", "epsilon_greedy"):
        config = PPOSpec.model_validate({"action_policy": name, "explore_var_spec": 1.0})
        policy = build_policy(family, config)
        drawn.append(policy.choose(param, policy.noise(num, generator, 0)))
    for action in drawn:
        number = family.to_env(action)[:, :2]
        assert float(number.abs().max()) <= 1
        # the quarters of the range
        assert_close(number.quantile(torch.tensor([0.25, 0.5, 0.75])), torch.tensor([-0.5, 0, 0.5]), rtol=0, atol=0.05)
        assert (action[:, 2] == 1).all()
        assert set(action[:, 4].tolist()) == {1.0, 2.0}


@pytest.mark.parametrize("name", ["PPO", "ActorCritic", "Reinforce", "PPOSIL"])
def test_on_policy_algorithms_solve_the_probe(lab, name: str) -> None:
    horizon = {"time_horizon": 16, "minibatch_size": 64, "training_epoch": 4, "target_kl": 0.05}
    batch = horizon if "PPO" in name else {"training_frequency": 8}
    algorithm: dict[str, Any] = {"name": name, "gamma": 0.9, "entropy_coef_spec": 0.01, **batch}
    spec = lab.spec(PROBE, algorithm, num_envs=16, net={"optim_spec": {"name": "Adam", "lr": 0.005}})
    agent = lab.train(spec, 10_000).agent
    _, env = lab.build(spec)
    obs = env.reset()
    for _ in range(50):
        obs = env.step(agent.act(obs).action.numpy()).obs
    # 1.5 at best; random play earns about -1.1
    assert np.mean(env.pop_finished()) > 1.3
    env.close()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("pdtype", ["Normal", "TanhNormal"])
def test_recorded_actions_are_those_that_were_taken(pdtype: str, tmp_path: Path) -> None:
    """Choices have no bounds to be clipped at, and a cloned policy gives recorded actions their own density."""
    options = Options(tmp_path / "data")
    spec = make_tiny_spec(env={"name": PROBE, "max_frame": 256}, action_pdtype=pdtype)
    data = tmp_path / "steps.safetensors"
    collect(str(start(spec, options).folder), data, options, 200, num_envs=4)
    action = load_steps(data)[0]["action"]
    # two switches, the number, the choice among three
    assert set(action[:, 0].tolist()) == set(action[:, 1].tolist()) == {0.0, 1.0}
    assert float(action[:, 2].abs().max()) <= 1.0
    assert set(action[:, 3].tolist()) == {0.0, 1.0, 2.0}
    raw = dump_spec(spec)["tiny"]
    raw["agent"] |= {"algorithm": {"name": "BC", "data": str(data), "action_pdtype": pdtype}}
    raw["agent"] |= {"memory": {"name": "Replay", "batch_size": 64}}
    cloned = Session(parse_spec({**raw, "name": "bc"})[0], RunFolder(tmp_path / "bc", "bc")).agent
    family = cloned.context.family
    assert isinstance(family, Mixed)
    sample = family.from_env(action)
    assert_close(family.to_env(sample), action, rtol=1e-5, atol=1e-5)
    assert cloned.update(1) is not None


@pytest.mark.parametrize("name", ["DQN", "SARSA", "SoftActorCritic", "CrossQ"])
def test_value_based_algorithms_refuse_them(lab, name: str) -> None:
    with pytest.raises(SpecError) as error:
        lab.build(make_spec(name, env={"name": PROBE}))
    assert str(error.value).startswith(
        "agent.algorithm.name: it takes no hybrid actions, and this env's are Dict('deep':"
    )
    assert str(error.value).endswith("use PPO, ActorCritic or Reinforce")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({}), "env.name: the action has no parts"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), "env.name: part '1' of the action is Text, which is not"),
    ],
)
def test_parts_that_are_refused(space: Any, message: str) -> None:
    class Odd(HybridAction):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    gym.register("test/Odd-v0", entry_point=lambda **_: Odd())
    with pytest.raises(EnvError, match=message):
        make_env(EnvSettings("test/Odd-v0", 1))
    gym.registry.pop("test/Odd-v0")


def test_random_play_and_bundles(lab) -> None:
    items = check_env(make_env(EnvSettings(PROBE, 1)), 20)
    assert not [item for item in items if item.level == "wrong"]
    env = build_vec_env(EnvSettings(PROBE, 2))
    env.try_episode()
    env.close()
    agent, env = lab.build(make_spec("PPO", env={"name": PROBE}))
    env.close()
    space = read_facts(dump_facts(agent.facts)).action_space
    assert isinstance(space, HybridSpace)
    assert space.leaves == env.action_space.leaves


@pytest.mark.usefixtures("undrawn")
def test_a_trained_agent_gives_actions_of_the_env(tmp_path: Path) -> None:
    spec = make_tiny_spec(env={"name": PROBE, "max_frame": 256, "num_workers": 0})
    agent = slm_lab.load_agent(slm_lab.run(spec, tmp_path, log_level="ERROR").folder)
    env = HybridAction()
    obs, _ = env.reset(seed=0)
    assert agent.action_space == env.action_space
    assert env.action_space.contains(agent.act(obs))
    batch = agent.act(np.tile(obs, (5, 1)), deterministic=False)
    assert batch["deep"][0].shape == (5, 2)
    assert batch["deep"][1]["pick"].shape == (5,)
