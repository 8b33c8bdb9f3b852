"""Keys of `agent.algorithm` of those that learn from a file instead of an env."""

from typing import ClassVar, Literal

from pydantic import Field

from slm_lab.spec.algorithm import ActionPdtype, OffPolicySpec
from slm_lab.spec.td3 import TD3Spec
from slm_lab.spec.types import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Str


class OfflineSpec(OffPolicySpec):
    """Algorithms that learn from recorded steps; a frame of the run is a training."""

    learns_from: ClassVar = "data"  # type: ignore[assignment]
    # parts of the recorded steps that it learns from
    needs: ClassVar[tuple[str, ...]] = ("obs", "action", "reward", "terminated", "next_obs")
    data: Str = Field(
        min_length=1,
        description="File of recorded steps, as `slm-lab collect` writes it, or a Minari dataset: `minari:ID` or its "
        "folder.",
    )
    action_policy: Literal["default"] = Field("default", description="Actions are sampled from the policy itself.")
    training_frequency: Literal[1] = Field(1, description="Always 1.")
    training_start_step: NonNegativeInt = Field(0, le=0, description="Always 0.")
    training_iter: PositiveInt = Field(1, description="Batches per training.")

    def calc_utd(self, num_envs: int) -> float:
        return float(self.num_grad_step)


class BCSpec(OfflineSpec):
    """Behaviour cloning: maximises the likelihood of the recorded actions."""

    name: Literal["BC"] = "BC"
    has_critic: ClassVar = False
    needs: ClassVar = ("obs", "action")
    action_pdtype: ActionPdtype = Field(
        "default", description="Distribution of actions; to start another algorithm from the weights, choose its own."
    )


class TD3BCSpec(OfflineSpec, TD3Spec):
    """TD3 on recorded steps, with a policy that stays near the recorded actions."""

    name: Literal["TD3BC"] = "TD3BC"  # type: ignore[assignment]
    starts_random: ClassVar = False
    trains_every_frame: ClassVar = False
    alpha: PositiveFloat = Field(2.5, description="Weight of the values, in units of their size; near 0 it clones.")


class IQLSpec(OfflineSpec):
    """Implicit Q-learning, for continuous actions."""

    name: Literal["IQL"] = "IQL"
    has_target: ClassVar = True
    takes_critic_net: ClassVar = True
    expectile: Fraction = Field(
        0.7, description="Which expectile of Q the value learns; 0.5 is the mean, 1 the maximum."
    )
    beta: NonNegativeFloat = Field(
        0.3,
        description="How strongly better actions are preferred; 0 clones all. 3 in the paper, with "
        "normalize_advantages: none.",
    )
    normalize_advantages: Literal["rms", "none"] = Field(
        "rms",
        description="Unit of the advantages: rms, their root mean square in the batch, so that beta means the same for "
        "rewards of any size; or none, as in the paper.",
    )
    max_weight: PositiveFloat = Field(100.0, description="Largest weight of an action.")
