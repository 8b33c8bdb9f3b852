"""Keys of `agent.algorithm`, one model per algorithm."""

from typing import Any, Literal

from pydantic import Field, model_validator

from slm_lab.spec.types import Bool, Float, Fraction, Model, NonNegativeFloat, PositiveInt, Schedule, Str

ActionPdtype = Literal["default", "Categorical", "MultiCategorical", "Bernoulli", "Normal", "TanhNormal"]
ActionPolicy = Literal["default", "random", "epsilon_greedy", "boltzmann"]


class AlgorithmSpec(Model):
    """Keys that every algorithm knows."""

    name: Str = Field(description="Name of the algorithm.")
    action_pdtype: ActionPdtype = Field(
        "default",
        description="Distribution of actions; default picks Categorical, MultiCategorical, Bernoulli or Normal "
        "by the env's action space.",
    )
    action_policy: ActionPolicy = Field(
        "default", description="How actions are drawn while training; each env draws for itself."
    )
    explore_var_spec: Schedule | None = Field(
        None, description="Epsilon of epsilon_greedy or temperature of boltzmann, over frames."
    )
    gamma: Fraction = Field(0.99, description="Discount factor.")


class RandomSpec(AlgorithmSpec):
    """Uniformly random actions; learns nothing."""

    name: Literal["Random"] = "Random"


class ReinforceSpec(AlgorithmSpec):
    """REINFORCE, the Monte-Carlo policy gradient."""

    name: Literal["Reinforce"] = "Reinforce"
    training_frequency: PositiveInt = Field(
        1, description="Train every so many episodes (OnPolicyReplay) or vector steps (OnPolicyBatchReplay)."
    )
    center_return: Bool = Field(True, description="Subtract the batch mean from the returns.")
    policy_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the policy loss.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")


class ActorCriticSpec(AlgorithmSpec):
    """Advantage actor-critic (A2C) with GAE, n-step or full returns."""

    name: Literal["ActorCritic"] = "ActorCritic"
    training_frequency: PositiveInt = Field(
        32,
        description="Train every so many episodes (OnPolicyReplay) or vector steps (OnPolicyBatchReplay); "
        "default num_step_returns where that is given.",
    )
    lam: Fraction | None = Field(None, description="Lambda of GAE; null means n-step or full returns.")
    num_step_returns: PositiveInt | None = Field(
        None, description="Steps of n-step returns; with lam null too, full returns are used."
    )
    policy_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the policy loss.")
    val_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the value loss.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")
    normalize_v_targets: Bool = Field(
        False, description="Divide value predictions and targets by the running std of the targets in the loss."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_frequency(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("training_frequency") is None and data.get("num_step_returns"):
            data = {**data, "training_frequency": data["num_step_returns"]}
        return data


class PPOSpec(AlgorithmSpec):
    """Proximal policy optimisation with a clipped surrogate objective."""

    name: Literal["PPO"] = "PPO"
    lam: Fraction = Field(0.95, description="Lambda of GAE.")
    clip_eps_spec: Schedule = Field(0.2, description="Clip range of the probability ratio.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")
    val_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the value loss.")
    time_horizon: PositiveInt = Field(128, description="Steps of each env between trainings.")
    minibatch_size: PositiveInt = Field(64, description="Samples per gradient step; must divide time_horizon*num_envs.")
    training_epoch: PositiveInt = Field(10, description="Passes over each batch.")
    normalize_advantages: Literal["standardize", "percentile"] = Field(
        "standardize",
        description="standardize each minibatch, or divide by the running 5-95 percentile range (at least 1).",
    )
    normalize_v_targets: Bool = Field(
        False, description="Divide value predictions and targets by the running std of the targets in the loss."
    )
    clip_vloss: Bool = Field(False, description="Clip the value change by clip_eps, as in PPO2.")
    symlog: Bool = Field(False, description="Compare symlog of values and targets in the value loss.")
    target_kl: Float | None = Field(None, gt=0, description="Stop the epochs of a batch above this KL; null: never.")
