"""Algorithms, memories and nets by name, and the way to add one from outside the package."""

from typing import get_args

from slm_lab.agent.algorithm.actor_critic import ActorCritic
from slm_lab.agent.algorithm.base import Algorithm
from slm_lab.agent.algorithm.crossq import CrossQ
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.algorithm.iql import IQL
from slm_lab.agent.algorithm.offline import BC
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.pqn import PQN
from slm_lab.agent.algorithm.random import Random
from slm_lab.agent.algorithm.reinforce import Reinforce
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.algorithm.sarsa import SARSA
from slm_lab.agent.algorithm.sil import PPOSIL, SIL
from slm_lab.agent.algorithm.td3 import TD3, TD3BC
from slm_lab.agent.memory.build import ON_POLICY
from slm_lab.agent.memory.rollout import RolloutMemory
from slm_lab.agent.net.build import NETS, BodyBuilder
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.memory import MemorySpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS

ALGORITHMS: dict[str, type[Algorithm]] = {
    "Random": Random,
    "Reinforce": Reinforce,
    "ActorCritic": ActorCritic,
    "PPO": PPO,
    "SARSA": SARSA,
    "VanillaDQN": DQN,
    "DQN": DQN,
    "DoubleDQN": DQN,
    "SoftActorCritic": SoftActorCritic,
    "CrossQ": CrossQ,
    "PQN": PQN,
    "TD3": TD3,
    "DDPG": TD3,
    "SIL": SIL,
    "PPOSIL": PPOSIL,
    "BC": BC,
    "IQL": IQL,
    "TD3BC": TD3BC,
}


def register_algorithm(name: str, spec: type[AlgorithmSpec], algorithm: type[Algorithm]) -> None:
    """Make an algorithm and its keys known to specs."""
    _check_name(spec, "name", name)
    ALGORITHM_SPECS[name] = spec
    ALGORITHMS[name] = algorithm


def register_net(name: str, spec: type[NetSpec], builder: BodyBuilder) -> None:
    """Make a net body known to specs; its modules need `forward(obs)` and `out_size`."""
    _check_name(spec, "type", name)
    NET_SPECS[name] = spec
    NETS[name] = builder


def register_memory(name: str, spec: type[MemorySpec], memory: type[RolloutMemory]) -> None:
    """Make an on-policy memory known to specs; it is built from its spec and a `RolloutSetting`."""
    _check_name(spec, "name", name)
    MEMORY_SPECS[name] = spec
    ON_POLICY[name] = memory


def _check_name(spec: type[AlgorithmSpec | NetSpec | MemorySpec], key: str, name: str) -> None:
    """Specs are told apart by this key; without it every later spec would be refused."""
    field = spec.model_fields.get(key)
    if field is None or get_args(field.annotation) != (name,):
        raise SpecError(f'{spec.__name__}: its keys need `{key}: Literal["{name}"] = "{name}"`')
