"""Small untrained agents of every algorithm on every kind of observation, built from spaces alone."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.agent import Agent
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.facts_document import dump_space, read_facts
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.make import EnvFacts
from slm_lab.env.mask import count_choices
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

Keys = dict[str, Any]
REPLAY: Keys = {"name": "Replay", "batch_size": 8, "max_size": 200}
ROLLOUT: Keys = {"name": "OnPolicyBatchReplay"}
SIL_MEMORY: Keys = {"sil_memory": {"name": "Replay", "batch_size": 8}}
DISCRETE = spaces.Discrete(5)
CONTINUOUS = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([2.0, 1.0, np.inf], np.float32))
# algorithm, memory, keys of the net, actions
FAMILIES: dict[str, tuple[Keys, Keys, Keys, Any]] = {
    "Reinforce": ({"name": "Reinforce"}, ROLLOUT, {}, DISCRETE),
    "A2C": ({"name": "ActorCritic"}, ROLLOUT, {"shared": True}, DISCRETE),
    "A2C continuous": ({"name": "ActorCritic", "action_pdtype": "TanhNormal"}, ROLLOUT, {}, CONTINUOUS),
    "PPO": ({"name": "PPO", "time_horizon": 8, "minibatch_size": 8}, ROLLOUT, {}, DISCRETE),
    "PPO continuous": (
        {"name": "PPO", "time_horizon": 8, "minibatch_size": 8},
        ROLLOUT,
        {"log_std_init": 0.0},
        CONTINUOUS,
    ),
    "SIL": ({"name": "SIL", **SIL_MEMORY}, ROLLOUT, {}, DISCRETE),
    "PPOSIL": ({"name": "PPOSIL", "time_horizon": 8, "minibatch_size": 8, **SIL_MEMORY}, ROLLOUT, {}, DISCRETE),
    "SARSA": ({"name": "SARSA"}, ROLLOUT, {}, DISCRETE),
    "PQN": ({"name": "PQN", "time_horizon": 8, "minibatch_size": 8}, ROLLOUT, {}, DISCRETE),
    "VanillaDQN": ({"name": "VanillaDQN"}, REPLAY, {}, DISCRETE),
    "DQN": ({"name": "DQN"}, REPLAY, {}, DISCRETE),
    "DoubleDQN": ({"name": "DoubleDQN"}, REPLAY, {}, DISCRETE),
    "QR-DQN": ({"name": "DQN", "critic": {"kind": "quantile", "num_quantile": 5}}, REPLAY, {}, DISCRETE),
    "C51": ({"name": "DQN", "critic": {"kind": "categorical", "num_atom": 7}}, REPLAY, {}, DISCRETE),
    "IQN": ({"name": "DQN", "critic": {"kind": "implicit", "num_quantile": 5}}, REPLAY, {}, DISCRETE),
    "Rainbow": (
        {"name": "DoubleDQN", "critic": {"kind": "categorical", "num_atom": 7}},
        {**REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3},
        {"noisy": True},
        DISCRETE,
    ),
    "SAC": ({"name": "SoftActorCritic"}, REPLAY, {}, CONTINUOUS),
    "SAC discrete": ({"name": "SoftActorCritic"}, REPLAY, {}, DISCRETE),
    "TQC": (
        {"name": "SoftActorCritic", "num_critic": 3, "critic": {"kind": "quantile", "num_quantile": 5}},
        REPLAY,
        {},
        CONTINUOUS,
    ),
    "CrossQ": ({"name": "CrossQ"}, REPLAY, {}, CONTINUOUS),
    "CrossQ discrete": ({"name": "CrossQ"}, REPLAY, {}, DISCRETE),
    "TD3": ({"name": "TD3"}, REPLAY, {}, CONTINUOUS),
    "DDPG": ({"name": "DDPG"}, REPLAY, {}, CONTINUOUS),
    "BC": ({"name": "BC", "data": "/somewhere/else/steps.safetensors"}, REPLAY, {}, DISCRETE),
    "IQL": ({"name": "IQL", "data": "steps.safetensors"}, REPLAY, {}, CONTINUOUS),
    "TD3BC": ({"name": "TD3BC", "data": "steps.safetensors"}, REPLAY, {}, CONTINUOUS),
}
# families that take a net with a hidden state
REMEMBERING = (
    *("Reinforce", "A2C", "A2C continuous", "PPO", "PPO continuous"),
    *("VanillaDQN", "DQN", "DoubleDQN", "QR-DQN", "C51"),
)
CONV: Keys = {"type": "ConvNet", "conv_hid_layers": [[4, 4, 2]], "fc_hid_layers": [16], "normalize": True}
MLP: Keys = {"type": "MLPNet", "hid_layers": [16, 16], "hid_layers_activation": "tanh"}
IMAGE = spaces.Box(0, 255, (4, 12, 12), np.uint8)
# observations, net, keys of the env
OBSERVATIONS: dict[str, tuple[Any, Keys, Keys]] = {
    "vector": (spaces.Box(-np.inf, np.inf, (6,), np.float32), MLP, {"normalize_obs": True}),
    "image": (IMAGE, CONV, {}),
    "Dict": (
        spaces.Dict(
            {
                "image": IMAGE,
                "arm": spaces.Tuple([spaces.Box(-1, 1, (3,), np.float32), spaces.MultiBinary(2)]),
                "mode": spaces.Discrete(3, start=2),
                "gears": spaces.MultiDiscrete([2, 3], start=[0, 1]),
            }
        ),
        {"type": "DictNet", "encoders": {"image": CONV}, "hid_layers": [16]},
        {"normalize_obs": True},
    ),
    "recurrent": (
        spaces.Box(-5, 5, (6,), np.float64),
        {"type": "RecurrentNet", "rnn_hidden_size": 12, "fc_hid_layers": [8], "seq_len": 4},
        {},
    ),
}
COMBINATIONS = [
    (family, kind) for family in FAMILIES for kind in OBSERVATIONS if kind != "recurrent" or family in REMEMBERING
]
# other actions, of an algorithm that takes them all
ACTIONS: dict[str, Any] = {
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [0, 5]])),
    "MultiBinary": spaces.MultiBinary([2, 2]),
    "whole Box": spaces.Box(np.array([0, -3]), np.array([9, 4]), dtype=np.int64),
    "float64 Box": spaces.Box(-1, 3, (2, 2), np.float64),
    "shifted Discrete": spaces.Discrete(4, start=-2),
    "hybrid": spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=1),
            "pedals": spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.MultiBinary(2)]),
        }
    ),
}


def make_facts(observation: Any, action: Any, is_masked: bool = False, frame_stack: int = 1) -> EnvFacts:
    """What an agent knows of an env with these spaces."""
    known = HybridSpace(action) if isinstance(action, (spaces.Dict, spaces.Tuple)) else action
    return read_facts(
        {
            "observation": dump_space(observation),
            "action": dump_space(action),
            "dtype": str(spaces.flatten_space(observation).dtype),
            "frame_stack": frame_stack,
            "action_mask": list(count_choices(known)) if is_masked else None,
        }
    )


def make_spec(algorithm: Keys, memory: Keys, net: Keys, env: Keys | None = None, name: str = "tiny") -> Spec:
    """A validated spec of an env that cannot be imported."""
    raw = {
        "name": name,
        "agent": {"algorithm": algorithm, "memory": memory, "net": net},
        "env": {"name": "no.such.module:Env-v0", "max_frame": 100_000, **(env or {})},
        "meta": {"device": "cpu", "compile": False},
    }
    return parse_spec(raw)[0]


def make_agent(spec: Spec, facts: EnvFacts, seed: int = 0) -> TrainedAgent:
    """An untrained agent whose weights and statistics are anything but those of the start."""
    agent = Agent(spec, facts, 1, (seed, 0), torch.device("cpu"), only_acts=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in agent.algorithm.net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.2 * torch.rand(tensor.shape, generator=generator) - 0.1)
    if (stats := agent.encode.stats) is not None:
        rng = np.random.default_rng(seed)
        for _ in range(3):
            stats.update(rng.normal(1.0, 3.0, (16, facts.obs_space.shape[0])))
    return TrainedAgent(agent, spec)


def build(family: str, kind: str, seed: int = 0) -> TrainedAgent:
    """An agent of a family on a kind of observation."""
    algorithm, memory, own, action = FAMILIES[family]
    observation, net, env = OBSERVATIONS[kind]
    facts = make_facts(observation, action, frame_stack=4 if kind == "image" else 1)
    return make_agent(make_spec(algorithm, memory, {**net, **own}, env), facts, seed)


def sample(space: Any, num: int, seed: int = 0) -> Any:
    """A batch of observations, as a gymnasium vector env has it."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, num, seed) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, num, seed) for part in space.spaces)
    space.seed(seed)
    return np.stack([space.sample() for _ in range(num)])


def take(obs: Any, index: int) -> Any:
    """One observation of a batch."""
    if isinstance(obs, dict):
        return {key: take(part, index) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(take(part, index) for part in obs)
    return obs[index]
