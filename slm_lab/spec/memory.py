"""Keys of `agent.memory`, one model per memory."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slm_lab.spec.types import Bool, Float, Fraction, Model, NonNegativeInt, PositiveFloat, PositiveInt, Schedule, Str


class MemorySpec(Model):
    """Keys that every memory knows."""

    name: Str = Field(description="Name of the memory.")


class OnPolicyReplaySpec(MemorySpec):
    """Whole episodes; training happens after `training_frequency` of them."""

    name: Literal["OnPolicyReplay"] = "OnPolicyReplay"


class OnPolicyBatchReplaySpec(MemorySpec):
    """A fixed number of vector steps; training happens after `training_frequency` (PPO: `time_horizon`) of them."""

    name: Literal["OnPolicyBatchReplay"] = "OnPolicyBatchReplay"


class OnPolicyCrossEntropySpec(MemorySpec):
    """Whole episodes; trains only on those with the best returns."""

    name: Literal["OnPolicyCrossEntropy"] = "OnPolicyCrossEntropy"
    cross_entropy: Annotated[Float, Field(ge=0, le=100)] = Field(
        1.0, description="Episodes whose return is below this percentile of the batch are dropped."
    )


class ReplaySpec(MemorySpec):
    """The last `max_size` transitions, sampled uniformly."""

    name: Literal["Replay"] = "Replay"
    batch_size: PositiveInt = Field(64, description="Transitions per batch; sequences for a recurrent net.")
    max_size: PositiveInt = Field(100_000, description="Transitions kept, over all envs; older ones are overwritten.")
    use_cer: Bool = Field(
        False, description="Combined experience replay: each batch includes the transitions since the previous one."
    )
    num_step_returns: PositiveInt = Field(
        1,
        description="Rewards summed before the bootstrap value. With SoftActorCritic and CrossQ the entropy of the "
        "steps in between is left out.",
    )


class HindsightReplaySpec(ReplaySpec):
    """A replay for goal envs: most transitions get a goal that their episode reached later (HER)."""

    name: Literal["HindsightReplay"] = "HindsightReplay"  # type: ignore[assignment]
    num_goal: NonNegativeInt = Field(
        4, description="Transitions with another goal for each one with its own goal: 4 makes them 80 % of a batch."
    )
    strategy: Literal["future", "final"] = Field(
        "future", description="The other goal: one that a later step of the same episode reached, or its last step."
    )

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if self.num_step_returns > 1:
            raise ValueError("num_step_returns sums rewards of one goal; set it to 1, or use Replay")
        return self


class PrioritizedReplaySpec(ReplaySpec):
    """A replay that samples transitions in proportion to (|TD error| + epsilon)^alpha."""

    name: Literal["PrioritizedReplay"] = "PrioritizedReplay"  # type: ignore[assignment]
    alpha: Fraction = Field(0.6, description="How much priority matters; 0 is uniform.")
    epsilon: PositiveFloat = Field(
        1e-4, description="Added to each error, so that every transition can be sampled again."
    )
    beta: Schedule = Field(
        0.4,
        description="How far importance weights correct the bias of prioritised sampling; 1: fully. In "
        "agent.memory it rises from 0.4 to 1 at env.max_frame by default.",
    )
