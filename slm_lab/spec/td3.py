"""Keys of TD3 and DDPG."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from slm_lab.spec.algorithm import OffPolicySpec, QReduction
from slm_lab.spec.critic import EnsembleCritic, ValueCritic, find_ensemble_conflicts
from slm_lab.spec.types import NonNegativeFloat, PositiveFloat, PositiveInt, Schedule


class TD3Spec(OffPolicySpec):
    """TD3: a deterministic policy, twin critics, smoothed targets, and a delayed policy."""

    name: Literal["TD3"] = "TD3"
    actions: ClassVar = "continuous"
    has_std: ClassVar = False
    has_target: ClassVar = True
    starts_random: ClassVar = True
    trains_every_frame: ClassVar = True
    takes_critic_net: ClassVar = True
    action_pdtype: Literal["default"] = Field("default", description="Only default: the policy is deterministic.")
    action_policy: Literal["default"] = Field("default", description="Only default: the policy's action plus noise.")
    explore_var_spec: Schedule | None = Field(None, description="Only null: `action_noise` explores.")
    training_iter: PositiveInt = Field(1, description="Gradient steps per training; default one per frame.")
    action_noise: Schedule = Field(
        0.1, description="Std of the Gaussian noise on actions while training, in units of half the action range."
    )
    target_noise: NonNegativeFloat = Field(0.2, description="Std of the noise on the next actions of targets.")
    target_noise_clip: PositiveFloat = Field(0.5, description="Largest noise on the next actions of targets.")
    policy_delay: PositiveInt = Field(2, description="Critic steps per step of the actor and the target nets.")
    num_critic: PositiveInt = Field(2, description="Number of critics; the actor follows the first.")
    q_reduction: QReduction = Field("min", description="How targets combine the critics: the smallest, or their mean.")
    critic: EnsembleCritic = Field(
        ValueCritic(), description="What a critic predicts: the mean return, or its distribution."
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.explore_var_spec is not None:
            raise ValueError("action_noise explores; remove explore_var_spec")
        return self

    def find_conflicts(self, memory: str) -> dict[str, str]:
        return find_ensemble_conflicts(self.critic, self.q_reduction)


class DDPGSpec(TD3Spec):
    """DDPG: a deterministic policy and one critic; TD3 without its three changes."""

    name: Literal["DDPG"] = "DDPG"  # type: ignore[assignment]
    target_noise: NonNegativeFloat = Field(0.0, description="Std of the noise on the next actions of targets.")
    policy_delay: PositiveInt = Field(1, description="Critic steps per step of the actor and the target nets.")
    num_critic: PositiveInt = Field(1, description="Number of critics; the actor follows the first.")
