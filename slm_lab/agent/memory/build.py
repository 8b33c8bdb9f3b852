"""Builds the memory a spec names."""

from collections.abc import Callable
from typing import Any

from slm_lab.agent.memory.cross_entropy import OnPolicyCrossEntropy
from slm_lab.agent.memory.hindsight import HindsightReplay
from slm_lab.agent.memory.prioritized import PrioritizedReplay
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.agent.memory.rollout import OnPolicyBatchReplay, OnPolicyReplay, RolloutMemory, RolloutSetting
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import HindsightReplaySpec, MemorySpec, PrioritizedReplaySpec, ReplaySpec

# each is built from its own spec
ON_POLICY: dict[str, Callable[[Any, RolloutSetting], RolloutMemory]] = {
    "OnPolicyBatchReplay": OnPolicyBatchReplay,
    "OnPolicyReplay": OnPolicyReplay,
    "OnPolicyCrossEntropy": OnPolicyCrossEntropy,
}


def build_on_policy(spec: MemorySpec, setting: RolloutSetting) -> RolloutMemory:
    """An on-policy memory."""
    if spec.name not in ON_POLICY:
        raise SpecError(f"agent.memory.name: {spec.name} is not on-policy; use one of {', '.join(ON_POLICY)}")
    return ON_POLICY[spec.name](spec, setting)


def build_replay(spec: MemorySpec, setting: Setting) -> Replay:
    """A replay: uniform, prioritised or with goals in hindsight."""
    if isinstance(spec, HindsightReplaySpec):
        return HindsightReplay(spec, setting)
    if isinstance(spec, PrioritizedReplaySpec):
        return PrioritizedReplay(spec, setting)
    if isinstance(spec, ReplaySpec):
        return Replay(spec, setting)
    raise SpecError(f"agent.memory.name: {spec.name} is not a replay; use Replay or PrioritizedReplay")
