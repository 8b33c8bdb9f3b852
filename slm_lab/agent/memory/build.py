"""Builds the memory a spec names."""

import torch

from slm_lab.agent.memory.cross_entropy import OnPolicyCrossEntropy
from slm_lab.agent.memory.prioritized import PrioritizedReplay
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.agent.memory.rollout import OnPolicyBatchReplay, OnPolicyMemory, OnPolicyReplay
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import MemorySpec, OnPolicyCrossEntropySpec, PrioritizedReplaySpec, ReplaySpec

ON_POLICY: dict[str, type[OnPolicyBatchReplay] | type[OnPolicyReplay]] = {
    "OnPolicyBatchReplay": OnPolicyBatchReplay,
    "OnPolicyReplay": OnPolicyReplay,
}


def build_on_policy(spec: MemorySpec, num_envs: int, device: torch.device, frequency: int) -> OnPolicyMemory:
    """An on-policy memory that is ready after `frequency` steps or episodes."""
    if isinstance(spec, OnPolicyCrossEntropySpec):
        return OnPolicyCrossEntropy(num_envs, device, frequency, spec.cross_entropy)
    if spec.name not in ON_POLICY:
        raise SpecError(f"agent.memory.name: {spec.name} is not on-policy; use one of {', '.join(ON_POLICY)}")
    return ON_POLICY[spec.name](num_envs, device, frequency)


def build_replay(spec: MemorySpec, setting: Setting) -> Replay:
    """A replay, uniform or prioritised."""
    if isinstance(spec, PrioritizedReplaySpec):
        return PrioritizedReplay(spec, setting)
    if isinstance(spec, ReplaySpec):
        return Replay(spec, setting)
    raise SpecError(f"agent.memory.name: {spec.name} is not a replay; use Replay or PrioritizedReplay")
