"""Builds the memory a spec names."""

import torch

from slm_lab.agent.memory.cross_entropy import OnPolicyCrossEntropy
from slm_lab.agent.memory.prioritized import PrioritizedReplay
from slm_lab.agent.memory.replay import Replay
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


def build_replay(
    spec: MemorySpec,
    *,
    num_envs: int,
    obs_shape: tuple[int, ...],
    obs_dtype: torch.dtype,
    action_shape: tuple[int, ...],
    action_dtype: torch.dtype,
    gamma: float,
    device: torch.device,
    generator: torch.Generator,
    frame_stack: int = 1,
    carry_size: int = 0,
) -> Replay:
    """A replay, uniform or prioritised."""
    if not isinstance(spec, ReplaySpec):
        raise SpecError(f"agent.memory.name: {spec.name} is not a replay; use Replay or PrioritizedReplay")
    shape = (num_envs, obs_shape, obs_dtype, action_shape, action_dtype, gamma, device, generator)
    if isinstance(spec, PrioritizedReplaySpec):
        return PrioritizedReplay(spec, *shape, frame_stack, carry_size)
    return Replay(spec, *shape, frame_stack, carry_size)
