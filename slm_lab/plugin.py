"""What plugins are made of: `from slm_lab.plugin import ...`. docs/EXTENDING.md shows how."""

from pydantic import Field

from slm_lab.agent.action.distribution import ActionFamily, Categorical, Normal, SquashedNormal, TanhNormal
from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.agent import reset_rows
from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics, OffPolicy, OnPolicy
from slm_lab.agent.algorithm.dqn import require_choices
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Batch, Rollout, SequenceBatch, Transition
from slm_lab.agent.memory.rollout import OnPolicyBatchReplay, OnPolicyReplay, RolloutMemory, RolloutSetting
from slm_lab.agent.net.model import ActorCriticNet, OutputNet, PolicyNet, QEnsemble, QNet
from slm_lab.agent.registry import register_algorithm, register_memory, register_net
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import AlgorithmSpec, EveryBatchSpec, OffPolicySpec, OnPolicySpec, QLearningSpec
from slm_lab.spec.memory import MemorySpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec
from slm_lab.spec.types import Bool, Float, Fraction, PositiveFloat, PositiveInt, Schedule, Str

# the name it had while it held two critics only
TwinQNet = QEnsemble

__all__ = [
    "Act",
    "ActionFamily",
    "ActorCriticNet",
    "AgentSpec",
    "Algorithm",
    "AlgorithmSpec",
    "Batch",
    "Bool",
    "Carry",
    "Categorical",
    "Context",
    "EveryBatchSpec",
    "Field",
    "Float",
    "Fraction",
    "Learner",
    "Loss",
    "MemorySpec",
    "Metrics",
    "NetSpec",
    "Normal",
    "OffPolicy",
    "OffPolicySpec",
    "OnPolicy",
    "OnPolicyBatchReplay",
    "OnPolicyReplay",
    "OnPolicySpec",
    "OutputNet",
    "PolicyNet",
    "PositiveFloat",
    "PositiveInt",
    "QEnsemble",
    "QLearningSpec",
    "QNet",
    "Report",
    "Rollout",
    "RolloutMemory",
    "RolloutSetting",
    "Schedule",
    "SequenceBatch",
    "SpecError",
    "SquashedNormal",
    "Str",
    "TanhNormal",
    "Transition",
    "TwinQNet",
    "build_policy",
    "calc_schedule",
    "register_algorithm",
    "register_memory",
    "register_net",
    "require_choices",
    "reset_rows",
]
