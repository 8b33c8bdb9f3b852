"""Noise that depends on the state: the distribution of actions, how long noise is held, exact resume, and refusals."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from slm_lab.agent.action.distribution import Categorical, Normal, SquashedNormal
from slm_lab.agent.action.sde import StateNoise, use_state_noise
from slm_lab.agent.agent import Agent
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

NUM_FEATURE, SIZE = 5, 2
PPO = {"name": "PPO", "time_horizon": 16, "minibatch_size": 32, "training_epoch": 1}


def make_param(num: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means, and features times stds, as a net gives them."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(num, SIZE, generator=generator)
    scaled = 0.5 * torch.randn(num, NUM_FEATURE, SIZE, generator=generator)
    return torch.cat([mean, scaled.flatten(1)], -1), mean, scaled


def test_actions_have_the_distribution_that_is_learned_from() -> None:
    family: Any = use_state_noise(Normal(SIZE))
    param, mean, scaled = make_param(1)
    matrices = torch.randn(200_000, NUM_FEATURE, SIZE, generator=torch.Generator().manual_seed(1))
    action = family.choose(param.expand(len(matrices), -1), matrices)
    std = scaled.square().sum(1).sqrt()
    assert_close(action.mean(0), mean[0], rtol=0, atol=0.01)
    assert_close(action.std(0), std[0], rtol=0.01, atol=0)
    assert_close(action.T.corrcoef()[0, 1], torch.tensor(0.0), rtol=0, atol=0.01)
    plain = torch.cat([mean, std.log()], -1)
    for kind in (Normal, SquashedNormal):
        given: Any = use_state_noise(kind(SIZE))
        some = given.to_env(given.choose(param, matrices[:1]))
        assert_close(given.log_prob(param, some), kind(SIZE).log_prob(plain, some), rtol=1e-4, atol=1e-4)
        assert_close(given.entropy(param), kind(SIZE).entropy(plain), rtol=1e-4, atol=1e-4)
        assert_close(given.mode(param), kind(SIZE).mode(plain))


def test_noise_is_held_and_drawn_again() -> None:
    family, generator = use_state_noise(Normal(SIZE)), torch.Generator().manual_seed(0)
    policy = StateNoise(family, 3, NUM_FEATURE, 4, generator)
    seen = []
    for step in range(9):
        seen.append(policy.noise(3, generator, step))
        policy.advance()
    assert seen[0].shape == (3, NUM_FEATURE, SIZE)
    assert [torch.equal(*pair) for pair in pairwise(seen)] == [*(True, True, True, False) * 2]
    # each env has its own
    assert not torch.equal(seen[0][0], seen[0][1])
    saved = policy.state_dict()
    other = StateNoise(family, 3, NUM_FEATURE, 4, torch.Generator().manual_seed(5))
    other.load_state_dict(saved)
    assert torch.equal(other.noise(3, generator, 9), policy.noise(3, generator, 9))
    assert other.num_step == 9


def make_spec(algorithm: dict[str, Any], memory: str, env: str = "Pendulum-v1", **net: Any) -> Spec:
    raw = {
        "name": "tiny",
        "agent": {
            "algorithm": {"sde": {}, **algorithm},
            "memory": {"name": memory, **({"batch_size": 16, "max_size": 200} if memory == "Replay" else {})},
            "net": {"type": "MLPNet", "hid_layers": [16], **net},
        },
        "env": {"name": env, "num_envs": 2, "max_frame": 200},
        "meta": {"log_frequency": 50, "rigorous_eval": 0, "final_eval": 0, "compile": False},
    }
    return parse_spec(raw)[0]


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        (PPO, "OnPolicyBatchReplay"),
        ({"name": "ActorCritic", "num_step_returns": 8, "action_pdtype": "TanhNormal"}, "OnPolicyBatchReplay"),
        ({"name": "SoftActorCritic", "training_start_step": 20}, "Replay"),
    ],
    ids=["ppo", "a2c", "sac"],
)
def test_a_stopped_run_ends_like_a_whole_one(algorithm: dict[str, Any], memory: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, memory)
    whole, stopped = (RunFolder(tmp_path / place, "tiny") for place in ("whole", "stopped"))
    session = Session(spec, whole)
    before = session.agent.algorithm.net.state_dict()
    names = [name for name in before if "feature_log_std" in name]
    before = {name: before[name].clone() for name in names}
    session.run()
    # the stds are learned
    assert names
    assert not torch.equal(session.agent.algorithm.net.state_dict()[names[0]], before[names[0]])
    for frame in (2, 54, 130, 200):
        session = Session(spec, stopped)
        session.should_stop = lambda session=session, frame=frame: session.frame >= frame  # type: ignore[misc]
        session.run()
    assert find_difference(whole.path, stopped.path, "tiny") is None


def test_held_noise_makes_smooth_actions(lab: Any) -> None:
    """Between two draws an action is a function of the observation."""
    net = {"hid_layers": [16], "type": "MLPNet"}
    spec = lab.spec("Pendulum-v1", {**PPO, "sde": {"sample_frequency": 1000, "log_std_init": 0.0}}, net=net)
    agent, env = lab.build(spec)
    obs = env.reset()
    first, again = (agent.act(obs, explore=True).action for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, agent.act(obs).action)
    assert not torch.equal(first, agent.act(obs + np.float32(0.1), explore=True).action)
    # a trained agent may be asked for another number of actions
    assert len(agent.act(np.repeat(obs, 3, 0), explore=True).action) == 3 * len(obs)
    env.close()


@pytest.mark.parametrize("name", ["PPO", "SoftActorCritic"])
def test_an_agent_that_only_acts_draws_again_too(name: str, lab: Any) -> None:
    """It observes nothing, so it must count its own steps: one matrix for ever would be no exploring."""
    algorithm, memory = PPO, "OnPolicyBatchReplay"
    if name != "PPO":
        algorithm, memory = {"name": name, "training_start_step": 20}, "Replay"
    spec = make_spec({**algorithm, "sde": {"sample_frequency": 3, "log_std_init": 0.0}}, memory)
    _, env = lab.build(spec)
    agent = Agent(spec, env.facts, 2, (0, 0), torch.device("cpu"), only_acts=True)
    agent.algorithm.frame = spec.env.max_frame
    obs = env.reset()
    actions = [agent.act(obs, explore=True).action for _ in range(7)]
    assert [torch.equal(*pair) for pair in pairwise(actions)] == [True, True, False] * 2
    # the deterministic policy has no noise to count
    before = agent.algorithm.sde.num_step
    agent.act(obs)
    assert agent.algorithm.sde.num_step == before
    env.close()


def test_what_does_not_fit_is_refused(lab: Any) -> None:
    with pytest.raises(SpecError, match=r"agent\.algorithm\.sde: needs continuous actions"):
        lab.build(make_spec(PPO, "OnPolicyBatchReplay", "CartPole-v1"))
    with pytest.raises(SpecError, match="needs continuous actions"):
        use_state_noise(Categorical(2))
