"""Keys of PQN."""

from typing import ClassVar, Literal

from pydantic import Field

from slm_lab.spec.algorithm import OnPolicySpec, ValuePolicy, find_minibatch_remarks
from slm_lab.spec.types import Fraction, PositiveInt, Schedule, ScheduleSpec


class PQNSpec(OnPolicySpec):
    """PQN: Q-learning from parallel envs, without a replay and without a target net."""

    name: Literal["PQN"] = "PQN"
    actions: ClassVar = "joint"
    memories: ClassVar = ("OnPolicyBatchReplay",)
    action_policy: ValuePolicy = Field("epsilon_greedy", description="How actions are sampled while training.")
    explore_var_spec: Schedule | None = Field(
        ScheduleSpec(start_val=1.0, end_val=0.05, end_step=10_000),
        description="Epsilon of epsilon_greedy or temperature of boltzmann, over frames.",
    )
    lam: Fraction = Field(0.65, description="Lambda of the returns.")
    time_horizon: PositiveInt = Field(32, description="Steps of each env between trainings.")
    minibatch_size: PositiveInt = Field(
        128, description="Samples per gradient step; the last minibatch of an epoch has the rest."
    )
    training_epoch: PositiveInt = Field(2, description="Passes over each batch.")

    @property
    def batch_frequency(self) -> int:
        return self.time_horizon

    def calc_utd(self, num_envs: int) -> float:
        batch = self.time_horizon * num_envs
        return self.training_epoch * -(-batch // self.minibatch_size) / batch

    def find_remarks(self, num_envs: int) -> list[str]:
        return find_minibatch_remarks(self.time_horizon, num_envs, self.minibatch_size)
