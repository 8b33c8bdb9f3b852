"""What holds for every algorithm: resuming, metrics, acting, and numbers that are not finite."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent
from slm_lab.env.vec_env import Step
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.schema import Spec
from test.agent.algorithm.conftest import CARTPOLE, CASES, REPLAY

# trainings and copies of the target net fall on different steps
RARE: dict[str, Any] = {
    **CARTPOLE,
    "algorithm": {"name": "DQN", "training_start_step": 0, "training_frequency": 8},
    "memory": REPLAY,
    "net": {"update_frequency": 10},
}


def restore(lab, spec: Spec, agent: Agent) -> Agent:
    """Another agent with all that is saved of this one."""
    other, env = lab.build(spec.replace(meta={"seed": 1}))
    env.close()
    for name, replay in agent.algorithm.replays.items():
        other.algorithm.replays[name].load_rows(replay.held_first, replay.rows(replay.held_first, replay.head))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    return other


@pytest.mark.parametrize("case", [*CASES.values(), RARE], ids=[*CASES, "rare"])
def test_a_resumed_agent_gives_the_same_bits(lab, case: dict[str, Any]) -> None:
    """Saved now and then: inside a rollout, between trainings, before a target net is due, with a step that waits."""
    spec = lab.spec(**case)
    agent, env = lab.build(spec)
    agents, obs, num_update = [agent], env.reset(), 0
    for num_step in range(1, 75):
        if num_step % 7 == 4:
            agents = [agent, restore(lab, spec, agent)]
        acts = [one.act(obs, explore=True) for one in agents]
        step = env.step(acts[0].action.numpy())
        for one, act in zip(agents, acts, strict=True):
            assert torch.equal(act.action, acts[0].action), num_step
            one.observe(obs, act, step)
        metrics = [one.update(num_step * env.num_envs) for one in agents]
        assert metrics[-1] == metrics[0], num_step
        num_update += metrics[0] is not None
        obs = step.obs
    env.close()
    assert num_update >= 2
    for one, two in zip(*(one.algorithm.modules.values() for one in agents), strict=True):
        assert all(torch.equal(*pair) for pair in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_those_that_are_named(lab, name: str) -> None:
    """Columns of the table are fixed before the first update: a metric more or less breaks it."""
    trained = lab.train(lab.spec(**CASES[name]), 400)
    names = trained.agent.algorithm.metric_names
    assert len(set(names)) == len(names)
    # nothing is imitated before an episode has ended
    assert all({key for key in names if "sil" not in key} <= set(row) <= set(names) for row in trained.metrics)
    assert set(trained.metrics[-1]) == set(names)
    # a batch norm left in training mode would let acting change its statistics
    assert not any(module.training for net in trained.agent.algorithm.modules.values() for module in net.modules())


def test_metrics_are_means_over_samples_and_gradient_steps(lab) -> None:
    algorithm = lab.build(lab.spec(**CASES["sarsa"]))[0].algorithm
    algorithm.frame = 7
    reports = [
        {"loss": torch.tensor(1.0), "q": torch.tensor([1.0, 3.0]), "no_column": torch.tensor(np.nan)},
        {"loss": torch.tensor(3.0), "q": torch.tensor([6.0])},
    ]
    # a reshape the wrong way round gives 1.5 and 4.5
    assert algorithm.gather(reports) == {"loss": 2.0, "q": 4.0}
    reports[1]["q"] = torch.tensor([torch.inf])
    with pytest.raises(DivergenceError, match="q became inf in the training at frame 7"):
        algorithm.gather(reports)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", CASES)
def test_a_reward_that_is_not_finite_stops_the_run(lab, name: str, bad: float) -> None:
    def spoil(step: Step) -> Step:
        reward = step.reward.copy()
        # one of four envs is enough
        reward[2] = bad
        return step._replace(reward=reward)

    with np.errstate(invalid="ignore"), pytest.raises(DivergenceError, match=r"at frame \d+; try a lower learning"):
        lab.train(lab.spec(**CASES[name]), 1000, change=spoil)


@pytest.mark.parametrize("name", CASES)
def test_only_exploring_is_random(lab, name: str) -> None:
    """From the start, when epsilon is 1 and training has not begun."""
    agent, env = lab.build(lab.spec(**CASES[name]))
    obs, generator = env.reset(), agent.context.act_generator
    env.close()
    state = generator.get_state()
    greedy = [agent.act(obs).action for _ in range(5)]
    assert all(torch.equal(action, greedy[0]) for action in greedy)
    assert torch.equal(generator.get_state(), state)
    explored = []
    for _ in range(20):
        explored.append(agent.act(obs, explore=True).action)
        if agent.algorithm.sde is not None:
            # its noise is held while an env is not stepped
            agent.algorithm.sde.advance()
    assert any(not torch.equal(action, explored[0]) for action in explored)


# --- policies that are trained by their gradient

POLICIES: dict[str, dict[str, Any]] = {
    "Reinforce": {"training_frequency": 4},
    "ActorCritic": {"training_frequency": 4, "lam": 0.9},
    "PPO": {"time_horizon": 4, "minibatch_size": 16, "training_epoch": 1},
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_of_one_sample_trains_the_actor(lab, name: str) -> None:
    one = {key: 1 for key in POLICIES[name] if key != "lam"}
    spec = lab.spec("probe/ObsAction-v0", {"name": name, "gamma": 0.9, **one}, num_envs=1)
    fresh, env = lab.build(spec)
    env.close()
    flats = [agent.algorithm.optimizers["actor"].flat.data for agent in (lab.train(spec, 40).agent, fresh)]
    assert float((flats[0] - flats[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", POLICIES)
def test_entropy_bonus_flattens_the_policy(lab, name: str) -> None:
    """All rewards are equal and the critic rests: the bonus alone moves the policy, towards the uniform one."""
    schedule = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "start_step": 0, "end_step": 320}
    algorithm = {"name": name, **POLICIES[name], "entropy_coef_spec": schedule}
    net = {"optim_spec": {"name": "SGD", "lr": 0.1}}
    agent, env = lab.build(lab.spec("probe/ConstantReward-v0", algorithm, net=net))
    net = agent.algorithm.modules.get("actor") or agent.algorithm.modules["net"].actor
    with torch.no_grad():
        net.head.bias.copy_(torch.tensor([2.0, -2.0]))
    rows = []
    for frame in range(16, 161, 16):
        lab.collect(agent, env, 4)
        rows.append(agent.update(frame))
    entropies = [row["entropy"] for row in rows]
    assert entropies == sorted(entropies)
    assert entropies[-1] > 1.2 * entropies[0]
    assert [row["entropy_coef"] for row in rows] == pytest.approx([1 - frame / 320 for frame in range(16, 161, 16)])
