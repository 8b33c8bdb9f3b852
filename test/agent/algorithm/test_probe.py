"""Every algorithm solves the tiny envs it can, in seconds; values arrive where theory says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent
from slm_lab.env.vec_env import Step

GAMMA = 0.9
IMAGE_NET: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[4, 4, 4]],
    "fc_hid_layers": [16],
    "normalize": True,
}
PPO: dict[str, Any] = {"name": "PPO", "gamma": GAMMA, "time_horizon": 8, "minibatch_size": 32, "training_epoch": 4}
ACTOR_CRITIC: dict[str, Any] = {"name": "ActorCritic", "gamma": GAMMA, "training_frequency": 4}
# name -> algorithm, memory, net keys; episodes of probes are one or two steps long
CRITICS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "PPO": (PPO, "OnPolicyBatchReplay", {}),
    "PPO-shared": (PPO, "OnPolicyBatchReplay", {"shared": True}),
    "A2C-gae": ({**ACTOR_CRITIC, "lam": 0.95}, "OnPolicyBatchReplay", {}),
    "A2C-nstep-shared": ({**ACTOR_CRITIC, "num_step_returns": 4}, "OnPolicyBatchReplay", {"shared": True}),
    "A2C-full": (ACTOR_CRITIC, "OnPolicyBatchReplay", {}),
    "A2C-gae-episodes-shared": (
        {**ACTOR_CRITIC, "lam": 0.95, "training_frequency": 32},
        "OnPolicyReplay",
        {"shared": True},
    ),
    "A2C-full-episodes": ({**ACTOR_CRITIC, "training_frequency": 32}, "OnPolicyReplay", {}),
}
REINFORCE: dict[str, Any] = {"name": "Reinforce", "gamma": GAMMA}
ALL: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    **CRITICS,
    "Reinforce": ({**REINFORCE, "training_frequency": 4}, "OnPolicyBatchReplay", {}),
    "Reinforce-episodes": ({**REINFORCE, "training_frequency": 32}, "OnPolicyReplay", {}),
}


def build_spec(lab, which: str, env: str, **changes: Any) -> Any:
    algorithm, memory, net = ALL[which]
    return lab.spec(
        f"probe/{env}-v0",
        {**algorithm, **changes.pop("algorithm", {})},
        memory=memory,
        net={"optim_spec": {"name": "Adam", "lr": 0.03}, **net, **changes.pop("net", {})},
        num_envs=8,
        **changes,
    )


class Settled:
    """Whether something held after each of the last few updates, so that passing by does not count."""

    def __init__(self, holds: Callable[[Agent], bool], num_update: int = 6) -> None:
        self.holds = holds
        self.num_update = num_update
        self.count = 0

    @property
    def is_true(self) -> bool:
        return self.count >= self.num_update

    def __call__(self, agent: Agent) -> bool:
        self.count = self.count + 1 if self.holds(agent) else 0
        return self.is_true


def values(agent: Agent, *obs: float) -> np.ndarray[Any, Any]:
    """V of one-number observations."""
    with torch.inference_mode():
        return agent.algorithm.modules["net"].value(torch.tensor(obs)[:, None]).numpy()


# --- values


@pytest.mark.parametrize("which", CRITICS)
@pytest.mark.parametrize(
    ("env", "obs", "expected"),
    [
        ("ConstantReward", (0.0,), (1.0,)),
        ("ObsReward", (-1.0, 1.0), (-1.0, 1.0)),
        # the reward of the second step, discounted once: gamma is .5 here
        ("TwoStep", (0.0, 1.0), (0.5, 1.0)),
    ],
)
def test_value_probes(lab, which: str, env: str, obs: tuple[float, ...], expected: tuple[float, ...]) -> None:
    settled = Settled(lambda agent: bool(np.abs(values(agent, *obs) - expected).max() < 0.1))
    trained = lab.train(build_spec(lab, which, env, algorithm={"gamma": 0.5}), 30_000, until=settled)
    assert settled.is_true, (trained.frame, values(trained.agent, *obs))


# --- actions


def probability(agent: Agent, obs: Any, action: Any) -> float:
    """Of taking all of these actions, the least likely of them."""
    algorithm = agent.algorithm
    actor = algorithm.modules["net"].actor if "net" in algorithm.modules else algorithm.modules["actor"]
    with torch.inference_mode():
        param = actor(agent.encode(np.asarray(obs)))
        return float(agent.context.family.log_prob(param, torch.tensor(action)).exp().min())


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize(
    ("env", "obs", "expected"),
    [
        ("ActionReward", [[0.0]], [1]),
        ("ObsAction", [[-1.0], [1.0]], [0, 1]),
        ("MultiAction", [[0.0]], [[1, 2]]),
        ("BinaryAction", [[0.0]], [[1, 0, 1]]),
        # one-hot of 0, 1, 2
        ("DiscreteObs", [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 0, 1]),
    ],
)
def test_action_probes(lab, which: str, env: str, obs: list[Any], expected: list[Any]) -> None:
    def is_solved(agent: Agent) -> bool:
        return probability(agent, obs, expected) > 0.8

    trained = lab.train(build_spec(lab, which, env), 30_000, until=is_solved)
    assert is_solved(trained.agent), trained.frame
    assert trained.agent.act(np.array(obs)).action.tolist() == expected


@pytest.mark.parametrize("which", ["PPO", "PPO-shared", "A2C-gae", "Reinforce"])
def test_image_probe(lab, which: str) -> None:
    obs = np.stack([np.zeros((1, 12, 12), np.uint8), np.full((1, 12, 12), 255, np.uint8)])

    def is_solved(agent: Agent) -> bool:
        return probability(agent, obs, [0, 1]) > 0.8

    trained = lab.train(build_spec(lab, which, "Image", net=IMAGE_NET), 30_000, until=is_solved)
    assert is_solved(trained.agent), trained.frame
    assert trained.agent.act(obs).action.tolist() == [0, 1]


@pytest.mark.parametrize("pdtype", ["Normal", "TanhNormal"])
@pytest.mark.parametrize("which", ["PPO", "PPO-shared", "A2C-gae", "A2C-full-episodes", "Reinforce"])
def test_continuous_target(lab, which: str, pdtype: str) -> None:
    """The policy's [-1, 1] must land in the env's [-1, 3]: half of obs is never at the same place in both."""
    obs = np.array([[-0.8], [0.0], [0.8]])
    # the rate of the other probes is too high for a shared net with a density
    slower = {"optim_spec": {"name": "Adam", "lr": 0.01}}
    spec = build_spec(lab, which, "ContinuousTarget", algorithm={"action_pdtype": pdtype}, net=slower)

    def error(agent: Agent) -> float:
        # [-1, 1] to [-1, 3], written out: a map of its own would agree with itself
        action = np.clip(2 * agent.act(obs).action.numpy() + 1, -1, 3)
        return float(np.abs(action - 0.5 * obs).max())

    # standing still at the best constant leaves .4
    trained = lab.train(spec, 60_000, until=lambda agent: error(agent) < 0.15)
    assert error(trained.agent) < 0.15, trained.frame


# --- the fixed point under a time limit


def taken_for_the_end(step: Step) -> Step:
    """The usual mistake: the clock is taken for the task."""
    return step._replace(terminated=step.done, truncated=np.zeros_like(step.truncated))


# a batch of at most eight steps is shorter than the ten of an episode, so both kinds of cut occur
TIME_LIMIT = ["PPO", "PPO-shared", "A2C-gae", "A2C-nstep-shared", "A2C-full", "A2C-gae-episodes-shared"]


def build_time_limit(lab, which: str) -> Any:
    frequency = {"training_frequency": 8} if "episodes" in which else {}
    return build_spec(lab, which, "TimeLimit", algorithm=frequency)


@pytest.mark.parametrize("which", TIME_LIMIT)
def test_value_under_a_time_limit(lab, which: str) -> None:
    """Reward 1 for ever: V = 1/(1-gamma) = 10, although every episode is cut after ten steps."""
    settled = Settled(lambda agent: abs(values(agent, 0.0).item() - 10) < 0.3)
    trained = lab.train(build_time_limit(lab, which), 40_000, until=settled)
    assert settled.is_true, (trained.frame, values(trained.agent, 0.0))


@pytest.mark.parametrize("which", TIME_LIMIT)
def test_value_misses_where_the_cut_is_taken_for_the_end(lab, which: str) -> None:
    """Then V is the mean of what is left until the cut: about 4.1 (Monte Carlo) to 5.3 (TD)."""
    num_frame = 2_000 if "PPO" in which else 5_000
    trained = lab.train(build_time_limit(lab, which), num_frame, change=taken_for_the_end)
    assert 3.5 < values(trained.agent, 0.0).item() < 6
