"""Keys of `agent.algorithm` of those that learn from a file instead of an env."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from slm_lab.spec.algorithm import ActionPdtype, OffPolicySpec
from slm_lab.spec.td3 import TD3Spec
from slm_lab.spec.types import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Str


class OfflineSpec(OffPolicySpec):
    """Algorithms that learn from recorded steps; a frame of the run is a training."""

    learns_from: ClassVar = "data"  # type: ignore[assignment]
    data: Str = Field(
        min_length=1,
        description="File of recorded steps, as `slm-lab collect` writes it, or a dataset of Minari: `minari:ID` or "
        "its folder.",
    )
    action_policy: Literal["default"] = Field("default", description="Actions are sampled from the policy itself.")
    training_frequency: Literal[1] = Field(1, description="Always 1.")
    training_start_step: NonNegativeInt = Field(0, le=0, description="Always 0.")
    training_iter: PositiveInt = Field(1, description="Batches per training.")

    def calc_utd(self, num_envs: int) -> float:
        return float(self.num_grad_step)


class BCSpec(OfflineSpec):
    """Behaviour cloning: the likelihood of the recorded actions."""

    name: Literal["BC"] = "BC"
    has_critic: ClassVar = False
    action_pdtype: ActionPdtype = Field(
        "default", description="Distribution of actions; that of the algorithm that starts from the weights, if any."
    )


class TD3BCSpec(OfflineSpec, TD3Spec):
    """TD3 on recorded steps, near the recorded actions."""

    name: Literal["TD3BC"] = "TD3BC"  # type: ignore[assignment]
    starts_random: ClassVar = False
    trains_every_frame: ClassVar = False
    alpha: PositiveFloat = Field(2.5, description="Weight of the values, in units of their size; 0 would clone.")


class IQLSpec(OfflineSpec):
    """Implicit Q-learning, for continuous actions."""

    name: Literal["IQL"] = "IQL"
    has_target: ClassVar = True
    takes_critic_net: ClassVar = True
    expectile: Fraction = Field(0.7, description="Expectile of Q that the value is; 0.5 is the mean, 1 the maximum.")
    beta: NonNegativeFloat = Field(
        0.3, description="How much better actions weigh more; 0 clones all of them. 3 in the paper, without a unit."
    )
    normalize_advantages: Literal["rms", "none"] = Field(
        "rms",
        description="Unit of the advantages that beta weighs: rms, their root mean square in the batch, so that beta "
        "means the same for rewards of any size; none, that of the rewards, as in the paper.",
    )
    max_weight: PositiveFloat = Field(100.0, description="Largest weight of an action.")

    def find_conflicts(self, memory: str) -> dict[str, str]:
        conflicts: dict[str, Any] = {}
        if memory != "Replay":
            conflicts["data"] = "recorded steps are drawn uniformly; use the memory Replay"
        return conflicts
