"""Keys of `agent.memory`, one model per memory."""

from typing import Literal

from pydantic import Field

from slm_lab.spec.types import Model, Str


class MemorySpec(Model):
    """Keys that every memory knows."""

    name: Str = Field(description="Name of the memory.")


class OnPolicyReplaySpec(MemorySpec):
    """Whole episodes; training happens after `training_frequency` of them."""

    name: Literal["OnPolicyReplay"] = "OnPolicyReplay"


class OnPolicyBatchReplaySpec(MemorySpec):
    """A fixed number of vector steps; training happens after `training_frequency` (PPO: `time_horizon`) of them."""

    name: Literal["OnPolicyBatchReplay"] = "OnPolicyBatchReplay"
