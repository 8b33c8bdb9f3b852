"""Every algorithm solves the tiny envs it can, in seconds; values arrive where theory says."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.net.noisy import find_noisy, quiet
from slm_lab.env.probe import ProbeEnv, TimeLimit, TwoStep
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
Memory = str | dict[str, Any]
Keys = dict[str, Any]
IMITATION: Keys = {"training_iter": 1, "sil_memory": {"name": "PrioritizedReplay", "batch_size": 32}}
# name -> algorithm, memory, net keys; episodes of probes are one or two steps long
CRITICS: dict[str, tuple[Keys, Memory, Keys]] = {
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
    "SIL": ({**ACTOR_CRITIC, **IMITATION, "name": "SIL", "lam": 0.95}, "OnPolicyBatchReplay", {}),
    "SIL-shared": (
        {**ACTOR_CRITIC, "name": "SIL", "training_iter": 1, "sil_memory": {"name": "Replay", "batch_size": 32}},
        "OnPolicyBatchReplay",
        {"shared": True},
    ),
    "PPOSIL": ({**PPO, **IMITATION, "name": "PPOSIL"}, "OnPolicyBatchReplay", {}),
}
REINFORCE: dict[str, Any] = {"name": "Reinforce", "gamma": GAMMA}
REPLAY: Keys = {"name": "Replay", "batch_size": 32, "max_size": 2000}
PER: Keys = {**REPLAY, "name": "PrioritizedReplay"}
Q_KEYS: Keys = {"gamma": GAMMA, "explore_var_spec": 0.3}
DQN: Keys = {**Q_KEYS, "training_start_step": 32}
FOLLOW: Keys = {"update_type": "polyak", "polyak_coef": 0.2}
# values of every action of a discrete env
VALUING: dict[str, tuple[Keys, Memory, Keys]] = {
    "SARSA": ({**Q_KEYS, "name": "SARSA", "training_frequency": 4}, "OnPolicyBatchReplay", {}),
    "SARSA-episodes": ({**Q_KEYS, "name": "SARSA", "training_frequency": 8}, "OnPolicyReplay", {}),
    "VanillaDQN": ({**DQN, "name": "VanillaDQN"}, REPLAY, {}),
    "DQN": ({**DQN, "name": "DQN"}, REPLAY, FOLLOW),
    "DoubleDQN-PER-nstep": ({**DQN, "name": "DoubleDQN"}, {**PER, "num_step_returns": 3}, FOLLOW),
    "DoubleDQN-dueling": (
        {**DQN, "name": "DoubleDQN", "action_policy": "boltzmann"},
        REPLAY,
        {"type": "DuelingMLPNet", "hid_layers": [16], "update_type": "replace", "update_frequency": 40},
    ),
    "QR-DQN": ({**DQN, "name": "DQN", "critic": {"kind": "quantile", "num_quantile": 8}}, REPLAY, FOLLOW),
    "IQN": ({**DQN, "name": "DQN", "critic": {"kind": "implicit", "num_quantile": 8}}, REPLAY, FOLLOW),
    "Rainbow": (
        {**DQN, "name": "DoubleDQN", "critic": {"kind": "categorical", "v_min": -1.0, "v_max": 14.0}},
        {**PER, "num_step_returns": 3},
        {**FOLLOW, "type": "DuelingMLPNet", "hid_layers": [16], "noisy": True},
    ),
    "PQN": (
        {**Q_KEYS, "name": "PQN", "time_horizon": 8, "minibatch_size": 32},
        "OnPolicyBatchReplay",
        {"layer_norm": True},
    ),
}
# without an entropy bonus values are plain returns
SAC: Keys = {
    "name": "SoftActorCritic",
    "gamma": GAMMA,
    "fixed_alpha": 0.0,
    "training_start_step": 64,
    "training_iter": 1,
}
# batch norm in the critics alone holds without target nets
CROSSQ: Keys = {**SAC, "name": "CrossQ", "policy_delay": 1}
TQC: Keys = {**SAC, "q_reduction": "mean", "critic": {"kind": "quantile", "num_quantile": 8, "num_drop": 1}}
TD3: Keys = {"name": "TD3", "gamma": GAMMA, "training_start_step": 64, "training_iter": 1}
# those that take continuous actions alone
CONTINUOUS_ONLY: dict[str, tuple[Keys, Memory, Keys]] = {
    "TD3": (TD3, REPLAY, FOLLOW),
    "DDPG": ({**TD3, "name": "DDPG"}, PER, FOLLOW),
    "TQC": (TQC, REPLAY, FOLLOW),
    "XQC": (
        {**CROSSQ, "critic": {"kind": "categorical", "v_min": -5.0, "v_max": 14.0}},
        REPLAY,
        {"critic_batch_norm": True, "critic_weight_norm": True},
    ),
    "SAC-sde": ({**SAC, "sde": {}}, REPLAY, FOLLOW),
}
SOFT: dict[str, tuple[Keys, Memory, Keys]] = {
    "SAC": (SAC, REPLAY, FOLLOW),
    "SAC-PER": ({**SAC, "policy_delay": 2}, PER, FOLLOW),
    "CrossQ": (CROSSQ, REPLAY, {"critic_batch_norm": True}),
}
ALL: dict[str, tuple[Keys, Memory, Keys]] = {
    **CRITICS,
    "Reinforce": ({**REINFORCE, "training_frequency": 4}, "OnPolicyBatchReplay", {}),
    "Reinforce-episodes": ({**REINFORCE, "training_frequency": 32}, "OnPolicyReplay", {}),
    **SOFT,
}
TABLE = {**ALL, **VALUING, **CONTINUOUS_ONLY, "PPO-sde": ({**PPO, "sde": {}}, "OnPolicyBatchReplay", {})}


def make_continuous(kind: type[ProbeEnv]) -> ProbeEnv:
    """The same with a continuous action that does not matter either."""
    env = kind()
    env.action_space = spaces.Box(-1, 1, (1,), np.float32)
    return env


for probe in (TwoStep, TimeLimit):
    if f"probe/Continuous{probe.__name__}-v0" not in gym.registry:
        gym.register(f"probe/Continuous{probe.__name__}-v0", entry_point=lambda kind=probe, **_: make_continuous(kind))


def build_spec(lab, which: str, env: str, **changes: Any) -> Any:
    algorithm, memory, net = TABLE[which]
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


@torch.inference_mode()
def q_values(agent: Any, obs: Any) -> Tensor:
    """Q of every action (B, A), without noise in the layers."""
    net = agent.algorithm.modules["net"]
    with quiet(find_noisy(net)):
        return net.step(torch.as_tensor(obs, dtype=torch.float32), None)[0]


def action_values(agent: Any, *obs: float) -> np.ndarray[Any, Any]:
    """Q of one-number observations and of every action, or of some continuous ones (B, K)."""
    seen, modules = torch.tensor(obs)[:, None], agent.algorithm.modules
    with torch.inference_mode():
        if "net" in modules:
            return q_values(agent, seen).numpy()
        critic, head = modules["critic"], agent.algorithm.head
        if agent.context.family.name == "Categorical":
            both = critic(seen)
        else:
            actions = (torch.full_like(seen, action) for action in (-0.5, 0.0, 0.5))
            both = torch.stack([head.value(critic(seen, action)) for action in actions], -1)
        # both critics, side by side
        return torch.cat([*both], -1).numpy()


# --- values


def check_values(
    lab, spec: Any, measure: Callable[..., np.ndarray[Any, Any]], expected: dict[float, float], tolerance: float = 0.1
) -> None:
    """The values of observations arrive, and stay."""
    # of each state, or of each state and action
    right = np.array([*expected.values()]).reshape(-1, *[1] * (measure is action_values))
    settled = Settled(lambda agent: bool(np.abs(measure(agent, *expected) - right).max() < tolerance))
    trained = lab.train(spec, 40_000, until=settled)
    assert settled.is_true, (trained.frame, measure(trained.agent, *expected))


@pytest.mark.parametrize("which", CRITICS)
def test_values_of_states(lab, which: str) -> None:
    """The reward comes with the second step, and is discounted once: gamma is .5 here."""
    check_values(lab, build_spec(lab, which, "TwoStep", algorithm={"gamma": 0.5}), values, {0.0: 0.5, 1.0: 1.0})


@pytest.mark.parametrize(
    ("which", "env"),
    [
        *((which, "TwoStep") for which in [*VALUING, *SOFT]),
        ("SAC", "ContinuousTwoStep"),
        ("CrossQ", "ContinuousTwoStep"),
    ],
)
def test_values_of_actions(lab, which: str, env: str) -> None:
    """No action matters here: all have the value of the state."""
    check_values(lab, build_spec(lab, which, env, algorithm={"gamma": 0.5}), action_values, {0.0: 0.5, 1.0: 1.0})


@pytest.mark.parametrize("which", ["SAC", "CrossQ"])
def test_values_hold_the_entropy_of_what_follows(lab, which: str) -> None:
    """No action matters, so the best soft policy is uniform: Q(0) = gamma (1 + alpha log 2), Q(1) = 1."""
    spec = build_spec(lab, which, "TwoStep", algorithm={"gamma": 0.5, "fixed_alpha": 0.8})
    check_values(lab, spec, action_values, {0.0: 0.5 * (1 + 0.8 * math.log(2)), 1.0: 1.0}, 0.07)


# --- actions


def probability(agent: Agent, obs: Any, action: Any) -> float:
    """Of taking all of these actions, the least likely of them."""
    algorithm = agent.algorithm
    actor = algorithm.modules["net"].actor if "net" in algorithm.modules else algorithm.modules["actor"]
    with torch.inference_mode():
        param = actor(agent.encode(np.asarray(obs)))
        return float(agent.context.family.log_prob(param, torch.tensor(action)).exp().min())


ACTION_PROBES: dict[str, tuple[list[Any], list[Any]]] = {
    "ObsAction": ([[-1.0], [1.0]], [0, 1]),
    "MultiAction": ([[0.0]], [[1, 2]]),
    "BinaryAction": ([[0.0]], [[1, 0, 1]]),
    # one-hot of 0, 1, 2
    "DiscreteObs": ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 0, 1]),
}
# every algorithm must tell observations apart; one of each kind is enough for the other spaces
FIRST_OF_A_KIND = ("PPO", "A2C-gae-episodes-shared", "SIL", "Reinforce", "SAC-PER", "CrossQ", "SARSA", "DQN")


def pair_probes(table: dict[str, Any]) -> list[tuple[str, str]]:
    return [(which, env) for which in table for env in ACTION_PROBES if env == "ObsAction" or which in FIRST_OF_A_KIND]


@pytest.mark.parametrize(("which", "env"), pair_probes(ALL))
def test_action_probes(lab, which: str, env: str) -> None:
    obs, expected = ACTION_PROBES[env]

    def is_solved(agent: Agent) -> bool:
        return probability(agent, obs, expected) > 0.8

    # without any entropy bonus a soft actor-critic stops trying too early
    bonus = {"fixed_alpha": 0.1} if which in SOFT else {}
    trained = lab.train(build_spec(lab, which, env, algorithm=bonus), 30_000, until=is_solved)
    assert is_solved(trained.agent), trained.frame
    assert trained.agent.act(np.array(obs)).action.tolist() == expected


@pytest.mark.parametrize(("which", "env"), pair_probes(VALUING))
def test_action_probes_of_values(lab, which: str, env: str) -> None:
    """The right action is picked, and it has the value it earns: 1 in all of them."""
    obs, expected = ACTION_PROBES[env]

    def holds(agent: Agent) -> bool:
        best = q_values(agent, obs).amax(-1)
        return agent.act(np.array(obs)).action.tolist() == expected and bool((best - 1).abs().max() < 0.15)

    settled = Settled(holds)
    trained = lab.train(build_spec(lab, which, env), 20_000, until=settled)
    assert settled.is_true, trained.frame


@pytest.mark.parametrize("which", ["PPO-shared", "A2C-gae", "SAC", "CrossQ"])
def test_image_probe(lab, which: str) -> None:
    obs = np.stack([np.zeros((1, 12, 12), np.uint8), np.full((1, 12, 12), 255, np.uint8)])

    def is_solved(agent: Agent) -> bool:
        return probability(agent, obs, [0, 1]) > 0.8

    trained = lab.train(build_spec(lab, which, "Image", net=IMAGE_NET), 30_000, until=is_solved)
    assert is_solved(trained.agent), trained.frame
    assert trained.agent.act(obs).action.tolist() == [0, 1]


@pytest.mark.parametrize("which", ["SARSA", "DQN", "DoubleDQN-dueling"])
def test_image_probe_of_values(lab, which: str) -> None:
    obs = np.stack([np.zeros((1, 12, 12), np.uint8), np.full((1, 12, 12), 255, np.uint8)])
    net = {**IMAGE_NET, "optim_spec": {"name": "Adam", "lr": 0.01}}
    algorithm, memory, keys = TABLE[which]
    if "dueling" in which:
        keys = {"type": "DuelingConvNet", "update_frequency": 40}
    spec = lab.spec("probe/Image-v0", algorithm, memory=memory, net={**net, **keys}, num_envs=8)
    settled = Settled(lambda agent: agent.act(obs).action.tolist() == [0, 1], 20)
    trained = lab.train(spec, 20_000, until=settled)
    assert settled.is_true, trained.frame


CONTINUOUS = [
    *((which, "Normal") for which in ("PPO", "A2C-full-episodes", "PPOSIL")),
    *((which, "TanhNormal") for which in ("PPO-shared", "A2C-gae", "Reinforce")),
    *((which, "default") for which in ("SAC", "CrossQ", *CONTINUOUS_ONLY, "PPO-sde")),
]


@pytest.mark.parametrize(("which", "pdtype"), CONTINUOUS)
def test_continuous_target(lab, which: str, pdtype: str) -> None:
    """The policy's [-1, 1] must land in the env's [-1, 3]: half of obs is never at the same place in both."""
    obs = np.array([[-0.8], [0.0], [0.8]])
    # the rate of the other probes is too high for a shared net with a density
    slower = {"optim_spec": {"name": "Adam", "lr": 0.01}}
    # a soft actor-critic learns its alpha here, which starts at 1 and must fall for the target to be hit
    learned = {"fixed_alpha": None} if which in (*SOFT, "TQC", "XQC", "SAC-sde") else {}
    spec = build_spec(lab, which, "ContinuousTarget", algorithm={"action_pdtype": pdtype, **learned}, net=slower)

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
TIME_LIMIT = [
    "PPO",
    "PPO-shared",
    "A2C-gae",
    "A2C-nstep-shared",
    "A2C-full",
    "A2C-gae-episodes-shared",
    "SIL",
    "PPOSIL",
]


def build_time_limit(lab, which: str) -> Any:
    frequency = {"training_frequency": 8} if "episodes" in which else {}
    return build_spec(lab, which, "TimeLimit", algorithm=frequency)


@pytest.mark.parametrize("which", TIME_LIMIT)
def test_value_under_a_time_limit(lab, which: str) -> None:
    """Reward 1 for ever: V = 1/(1-gamma) = 10, although every episode is cut after ten steps."""
    check_values(lab, build_time_limit(lab, which), values, {0.0: 10.0}, 0.3)


@pytest.mark.parametrize("which", ["PPO", "A2C-nstep-shared", "A2C-gae-episodes-shared"])
def test_value_misses_where_the_cut_is_taken_for_the_end(lab, which: str) -> None:
    """Then V is the mean of what is left until the cut: about 4.1 (Monte Carlo) to 5.3 (TD)."""
    num_frame = 2_000 if "PPO" in which else 5_000
    trained = lab.train(build_time_limit(lab, which), num_frame, change=taken_for_the_end)
    assert 3.5 < values(trained.agent, 0.0).item() < 6


# a batch of equal observations has no spread that batch norm could divide by: CrossQ needs actions that differ
OF_ACTIONS = [
    *((which, "TimeLimit") for which in (*VALUING, "SAC")),
    *((which, "ContinuousTimeLimit") for which in ("SAC", "CrossQ", *CONTINUOUS_ONLY)),
]


@pytest.mark.parametrize(("which", "env"), OF_ACTIONS)
def test_values_of_actions_under_a_time_limit(lab, which: str, env: str) -> None:
    bonus = {"fixed_alpha": 0.0} if which in SOFT else {}
    check_values(lab, build_spec(lab, which, env, algorithm=bonus), action_values, {0.0: 10.0}, 0.4)


@pytest.mark.parametrize(
    ("which", "env"), [("SARSA", "TimeLimit"), ("DoubleDQN-PER-nstep", "TimeLimit"), ("CrossQ", "ContinuousTimeLimit")]
)
def test_values_of_actions_miss_where_the_cut_is_taken_for_the_end(lab, which: str, env: str) -> None:
    """Nothing follows one step in ten: Q = 1 + .9 * .9 Q = 5.26, and 4.98 with three-step returns."""
    trained = lab.train(build_spec(lab, which, env), 2_000, change=taken_for_the_end)
    last = np.mean([row["q"] for row in trained.metrics[-20:]])
    assert 4 < last < 6.5
