"""Builds the memory a spec names."""

import torch

from slm_lab.agent.memory.rollout import OnPolicyBatchReplay, OnPolicyMemory, OnPolicyReplay
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import MemorySpec

ON_POLICY: dict[str, type[OnPolicyBatchReplay] | type[OnPolicyReplay]] = {
    "OnPolicyBatchReplay": OnPolicyBatchReplay,
    "OnPolicyReplay": OnPolicyReplay,
}


def build_on_policy(spec: MemorySpec, num_envs: int, device: torch.device, frequency: int) -> OnPolicyMemory:
    """An on-policy memory that is ready after `frequency` steps or episodes."""
    if spec.name not in ON_POLICY:
        raise SpecError(f"agent.memory.name: {spec.name} is not on-policy; use one of {', '.join(ON_POLICY)}")
    return ON_POLICY[spec.name](num_envs, device, frequency)
