"""Keys of `agent.algorithm`, one model per algorithm."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from slm_lab.spec.critic import DiscreteCritic, EnsembleCritic, ValueCritic, find_ensemble_conflicts
from slm_lab.spec.memory import PrioritizedReplaySpec, ReplaySpec
from slm_lab.spec.sde import SDESpec, StateNoise
from slm_lab.spec.types import (
    Bool,
    Float,
    Fraction,
    Model,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Schedule,
    ScheduleSpec,
    Str,
)

ActionPdtype = Literal["default", "Categorical", "MultiCategorical", "Bernoulli", "Normal", "TanhNormal"]
ActionPolicy = Literal["default", "random", "epsilon_greedy", "boltzmann"]
# What an algorithm makes of actions: any kind as it is; several choices as one joint choice, since it needs a number
# for every combination; the same, and continuous actions squashed into their bounds; continuous ones alone, squashed.
Actions = Literal["any", "joint", "squashed", "continuous"]
# what a net that values actions can explore by
ValuePolicy = Literal["epsilon_greedy", "boltzmann", "random"]


class AlgorithmSpec(Model):
    """Keys that every algorithm knows."""

    name: Str = Field(description="Name of the algorithm.")
    action_pdtype: ActionPdtype = Field(
        "default",
        description="Distribution of actions; default chooses Categorical, MultiCategorical, Bernoulli or Normal "
        "by the env's action space.",
    )
    action_policy: ActionPolicy = Field(
        "default", description="How actions are sampled while training; each env samples independently."
    )
    explore_var_spec: Schedule | None = Field(
        None, description="Epsilon of epsilon_greedy or temperature of boltzmann, over frames."
    )
    gamma: Fraction = Field(0.99, description="Discount factor.")

    # What the algorithm can do; a plugin's config says the same of its own.
    learns_from: ClassVar[Literal["rollout", "replay", "data", "nothing"]] = "nothing"
    actions: ClassVar[Actions] = "any"
    # whether a slow copy of a net gives the targets
    has_target: ClassVar[bool] = False
    # whether its losses take sequences, as nets with a hidden state need
    takes_recurrent: ClassVar[bool] = False
    # whether its nets may have layers with noise, of which it then draws
    takes_noisy: ClassVar[bool] = False
    # whether training_iter defaults to one gradient step per frame
    trains_every_frame: ClassVar[bool] = False
    # whether actions are uniformly random until `training_start_step`
    starts_random: ClassVar[bool] = False
    # whether its critics may have a net of their own, `agent.critic_net`
    takes_critic_net: ClassVar[bool] = False
    # whether it has a critic, which `critic_KEY` is for and which may share the actor's body
    has_critic: ClassVar[bool] = True
    # whether a policy for continuous actions has a std, which `log_std_init` may set
    has_std: ClassVar[bool] = True
    # memories that it learns from, where not all of its kind will do
    memories: ClassVar[tuple[str, ...]] = ()

    @property
    def state_noise(self) -> SDESpec | None:
        """Noise that depends on the state, where it has such a key and that is given."""
        return None

    def calc_utd(self, num_envs: int) -> float:
        """Gradient steps per frame, the update-to-data ratio; 0 if nothing is learned or it is unknown."""
        return 0.0

    def find_conflicts(self, memory: str) -> dict[str, str]:
        """Contradictions between keys, by key; `memory` is the name of the agent's memory."""
        return {}

    def find_remarks(self, num_envs: int) -> list[str]:
        """Notes on values that are valid but may be mistakes."""
        return []

    def sequence_keys(self, memory: str) -> tuple[str, ...]:
        """Keys that must be a multiple of a recurrent net's sequence length."""
        return ()


class RandomSpec(AlgorithmSpec):
    """Uniformly random actions; learns nothing."""

    name: Literal["Random"] = "Random"


class RNDSpec(Model):
    """Random network distillation: a bonus for observations unlike those seen before."""

    coef: PositiveFloat = Field(0.5, description="Weight of the bonus, which is in units of its running return.")
    gamma: Fraction = Field(0.99, description="Discount of the sum of errors whose std scales the bonus.")
    feature_size: PositiveInt = Field(64, description="Outputs of the random net that are predicted.")
    batch_size: PositiveInt = Field(256, description="Observations per gradient step of the prediction.")


class OnPolicySpec(AlgorithmSpec):
    """Algorithms that learn from data of the current policy."""

    learns_from: ClassVar = "rollout"
    rnd: RNDSpec | None = Field(None, description="Bonus for new observations (RND); null: none.")

    @property
    def batch_frequency(self) -> int:
        """Episodes or vector steps of a batch."""
        raise NotImplementedError


class EveryBatchSpec(OnPolicySpec):
    """Keys of algorithms that train once on each batch."""

    training_frequency: PositiveInt = Field(
        32, description="Episodes (OnPolicyReplay) or vector steps (OnPolicyBatchReplay) between updates."
    )

    @property
    def batch_frequency(self) -> int:
        return self.training_frequency

    def calc_utd(self, num_envs: int) -> float:
        return 1 / (num_envs * self.training_frequency)


class ReinforceSpec(EveryBatchSpec):
    """REINFORCE, the Monte-Carlo policy gradient."""

    name: Literal["Reinforce"] = "Reinforce"
    takes_recurrent: ClassVar = True
    has_critic: ClassVar = False
    training_frequency: PositiveInt = Field(
        1, description="Episodes (OnPolicyReplay) or vector steps (OnPolicyBatchReplay) between updates."
    )
    center_return: Bool = Field(True, description="Subtract the batch mean from the returns.")
    policy_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the policy loss.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")


class ActorCriticSpec(StateNoise, EveryBatchSpec):
    """Advantage actor-critic (A2C) with GAE, n-step or full returns."""

    name: Literal["ActorCritic"] = "ActorCritic"
    takes_recurrent: ClassVar = True
    training_frequency: PositiveInt = Field(
        32,
        description="Episodes (OnPolicyReplay) or vector steps (OnPolicyBatchReplay) between updates; "
        "default num_step_returns if that is given.",
    )
    lam: Fraction | None = Field(None, description="Lambda of GAE; null means n-step or full returns.")
    num_step_returns: PositiveInt | None = Field(
        None, description="Steps of n-step returns; with lam also null, full returns."
    )
    policy_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the policy loss.")
    val_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the value loss.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")
    normalize_advantages: Literal["standardize", "none"] = Field(
        "standardize", description="standardize each batch, or none."
    )
    normalize_v_targets: Bool = Field(
        False, description="Divide value predictions and targets by the running std of the targets in the loss."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_frequency(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("training_frequency") is None and data.get("num_step_returns"):
            data = {**data, "training_frequency": data["num_step_returns"]}
        return data

    def find_conflicts(self, memory: str) -> dict[str, str]:
        steps = self.num_step_returns
        if self.lam is not None and steps is not None:
            return {"lam": "contradicts num_step_returns; set one of them to null"}
        if memory == "OnPolicyBatchReplay" and steps is not None and steps > self.training_frequency:
            return {"num_step_returns": f"{steps} steps do not fit in training_frequency {self.training_frequency}"}
        return {}

    def sequence_keys(self, memory: str) -> tuple[str, ...]:
        return ("training_frequency",) if memory == "OnPolicyBatchReplay" else ()


class PPOSpec(StateNoise, OnPolicySpec):
    """Proximal policy optimisation with a clipped surrogate objective."""

    name: Literal["PPO"] = "PPO"
    takes_recurrent: ClassVar = True
    memories: ClassVar = ("OnPolicyBatchReplay",)
    lam: Fraction = Field(0.95, description="Lambda of GAE.")
    clip_eps_spec: Schedule = Field(0.2, description="Clip range of the probability ratio.")
    entropy_coef_spec: Schedule = Field(0.0, description="Weight of the entropy bonus.")
    val_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the value loss.")
    time_horizon: PositiveInt = Field(128, description="Steps of each env between trainings.")
    minibatch_size: PositiveInt = Field(
        64, description="Samples per gradient step; the last minibatch of an epoch has the rest."
    )
    training_epoch: PositiveInt = Field(10, description="Passes over each batch.")
    normalize_advantages: Literal["standardize", "percentile", "none"] = Field(
        "standardize",
        description="standardize each minibatch, divide by the running 5-95 percentile range (at least 1), or none.",
    )
    normalize_v_targets: Bool = Field(
        False, description="Divide value predictions and targets by the running std of the targets in the loss."
    )
    clip_vloss: Bool = Field(False, description="Clip the value change by clip_eps, as in PPO2.")
    symlog: Bool = Field(False, description="Compare symlog of values and targets in the value loss.")
    target_kl: Float | None = Field(None, gt=0, description="Stop the epochs of a batch above this KL; null: never.")

    @property
    def batch_frequency(self) -> int:
        return self.time_horizon

    def calc_utd(self, num_envs: int) -> float:
        batch = self.time_horizon * num_envs
        return self.training_epoch * -(-batch // self.minibatch_size) / batch

    def find_conflicts(self, memory: str) -> dict[str, str]:
        if self.clip_vloss and self.normalize_v_targets:
            return {"clip_vloss": "contradicts normalize_v_targets; set one of them to false"}
        return {}

    def find_remarks(self, num_envs: int) -> list[str]:
        return find_minibatch_remarks(self.time_horizon, num_envs, self.minibatch_size)

    def sequence_keys(self, memory: str) -> tuple[str, ...]:
        return ("time_horizon", "minibatch_size")


def find_minibatch_remarks(time_horizon: int, num_envs: int, minibatch_size: int) -> list[str]:
    """A note on minibatches that do not divide their batch, with the next smaller size that does."""
    batch = time_horizon * num_envs
    rest = batch % minibatch_size
    if not rest:
        return []
    top = min(batch, minibatch_size)
    # a bounded look: a hostile number must not turn the hint into hours
    near = next((size for size in range(top, max(0, top - 10_000), -1) if batch % size == 0), 1)
    return [
        f"agent.algorithm.minibatch_size {minibatch_size} does not divide time_horizon*num_envs = "
        f"{time_horizon}*{num_envs} = {batch}: the last minibatch of each epoch has {rest} samples; {near} "
        "would divide it"
    ]


class SarsaSpec(EveryBatchSpec):
    """SARSA: on-policy values, with the action actually taken next."""

    name: Literal["SARSA"] = "SARSA"
    actions: ClassVar = "joint"
    action_policy: ValuePolicy = Field("epsilon_greedy", description="How actions are sampled while training.")
    explore_var_spec: Schedule | None = Field(
        ScheduleSpec(start_val=1.0, end_val=0.05, end_step=10_000),
        description="Epsilon of epsilon_greedy or temperature of boltzmann, over frames.",
    )


class OffPolicySpec(AlgorithmSpec):
    """Keys of algorithms that learn from a replay."""

    learns_from: ClassVar = "replay"
    training_frequency: PositiveInt = Field(
        1, description="Frames between trainings; at most one training per vector step, which is num_envs frames."
    )
    training_iter: PositiveInt = Field(1, description="Batches sampled per training.")
    training_start_step: NonNegativeInt = Field(1000, description="Frames before the first training.")

    @property
    def num_grad_step(self) -> int:
        """Gradient steps per training."""
        return self.training_iter

    def calc_utd(self, num_envs: int) -> float:
        return self.num_grad_step / max(num_envs, self.training_frequency)


class QLearningSpec(OffPolicySpec):
    """Keys of algorithms that learn Q of every action from a replay."""

    actions: ClassVar = "joint"
    takes_recurrent: ClassVar = True
    takes_noisy: ClassVar = True
    is_double: ClassVar[bool] = False
    action_policy: ValuePolicy = Field("epsilon_greedy", description="How actions are sampled while training.")
    explore_var_spec: Schedule | None = Field(
        ScheduleSpec(start_val=1.0, end_val=0.05, end_step=10_000),
        description="Epsilon of epsilon_greedy or temperature of boltzmann, over frames.",
    )
    training_batch_iter: PositiveInt = Field(1, description="Gradient steps on each batch.")
    critic: DiscreteCritic = Field(
        ValueCritic(), description="What the net predicts for each action: the mean return, or more."
    )

    @property
    def num_grad_step(self) -> int:
        return self.training_iter * self.training_batch_iter


class VanillaDQNSpec(QLearningSpec):
    """Q-learning with a net and a replay, without a target net."""

    name: Literal["VanillaDQN"] = "VanillaDQN"


class DQNSpec(QLearningSpec):
    """Deep Q-network: a target net picks and values the next action."""

    name: Literal["DQN"] = "DQN"
    has_target: ClassVar = True


class DoubleDQNSpec(QLearningSpec):
    """Double DQN: the online net picks the next action, the target net values it."""

    name: Literal["DoubleDQN"] = "DoubleDQN"
    has_target: ClassVar = True
    is_double: ClassVar = True


QReduction = Literal["min", "mean"]


class EntropyAnneal(Model):
    """Target entropy of a discrete policy as a fraction of the maximum, decaying over frames."""

    start_ratio: Fraction = Field(0.6, description="Fraction at the first frame.")
    end_ratio: Fraction = Field(description="Fraction from `frames` on.")
    frames: PositiveInt = Field(description="Frame at which end_ratio is reached.")


class SoftActorCriticSpec(StateNoise, OffPolicySpec):
    """Soft actor-critic, for continuous and for discrete actions."""

    name: Literal["SoftActorCritic"] = "SoftActorCritic"
    actions: ClassVar[Actions] = "squashed"
    has_target: ClassVar = True
    starts_random: ClassVar = True
    trains_every_frame: ClassVar = True
    takes_critic_net: ClassVar = True
    action_pdtype: Literal["default", "Categorical", "TanhNormal"] = Field(
        "default", description="Distribution of actions; default chooses TanhNormal or Categorical by the env."
    )
    action_policy: Literal["default"] = Field("default", description="Actions are sampled from the policy itself.")
    explore_var_spec: Schedule | None = Field(None, description="Only null: the policy explores by its own entropy.")
    training_iter: PositiveInt = Field(1, description="Gradient steps per training; default one per frame.")
    policy_delay: PositiveInt = Field(1, description="Critic steps per step of actor, alpha and target.")
    target_entropy: Literal["auto"] | Float = Field(
        "auto", description="Target entropy; auto is minus the action dimensions, or 0.6 of the maximum if discrete."
    )
    entropy_anneal: EntropyAnneal | None = Field(None, description="Target entropy that changes, for discrete actions.")
    fixed_alpha: NonNegativeFloat | None = Field(None, description="Entropy coefficient; null: learned.")
    alpha_anneal_frames: NonNegativeInt = Field(0, description="Frames over which fixed_alpha decays to 0; 0: never.")
    alpha_init: PositiveFloat = Field(1.0, description="First value of a learned alpha.")
    alpha_lr: PositiveFloat | None = Field(None, description="Learning rate of alpha; null: the actor's.")
    log_alpha_min: Float = Field(-5.0, description="Lower bound of log alpha.")
    log_alpha_max: Float = Field(2.0, description="Upper bound of log alpha.")
    num_critic: PositiveInt = Field(2, description="Number of critics.")
    q_reduction: QReduction = Field(
        "min", description="How to combine the critics: the smallest value, or their mean, which explores more."
    )
    critic: EnsembleCritic = Field(
        ValueCritic(), description="What a critic predicts: the mean return, or its distribution."
    )
    symlog: Bool = Field(False, description="Compare symlog of values and targets in the critic loss.")

    @model_validator(mode="after")
    def _check_alpha(self) -> Self:
        if self.alpha_anneal_frames and self.fixed_alpha is None:
            raise ValueError("alpha_anneal_frames needs fixed_alpha")
        if self.explore_var_spec is not None:
            raise ValueError("the policy explores by its own entropy; remove explore_var_spec")
        if self.fixed_alpha is not None:
            for key in ("alpha_init", "alpha_lr", "target_entropy", "entropy_anneal"):
                if key in self.model_fields_set and self.model_dump()[key] != type(self).model_fields[key].default:
                    raise ValueError(f"fixed_alpha is not learned; remove {key}")
        if self.log_alpha_min > self.log_alpha_max:
            raise ValueError(f"log_alpha_min {self.log_alpha_min} is above log_alpha_max {self.log_alpha_max}")
        # bounds around another value than 1 have always been allowed: the first update moves alpha there
        if self.alpha_init != 1 and not self.log_alpha_min <= math.log(self.alpha_init) <= self.log_alpha_max:
            low, high = math.exp(self.log_alpha_min), math.exp(self.log_alpha_max)
            raise ValueError(
                f"alpha_init {self.alpha_init:g} is not between exp(log_alpha_min) {low:.2g} and exp(log_alpha_max) "
                f"{high:.2g}"
            )
        if self.entropy_anneal is not None and self.target_entropy != "auto":
            raise ValueError("entropy_anneal contradicts target_entropy; remove one of them")
        return self

    def find_conflicts(self, memory: str) -> dict[str, str]:
        if self.symlog and self.critic.kind != "value":
            return {"symlog": f"is for critics of kind value, not {self.critic.kind}; remove it"}
        return find_ensemble_conflicts(self.critic, self.q_reduction)


class CrossQSpec(SoftActorCriticSpec):
    """CrossQ: soft actor-critic without target nets, with joint batch statistics in the critics."""

    name: Literal["CrossQ"] = "CrossQ"  # type: ignore[assignment]
    has_target: ClassVar = False
    policy_delay: PositiveInt = Field(3, description="Critic steps per step of actor and alpha.")


SilMemory = Annotated[ReplaySpec | PrioritizedReplaySpec, Field(discriminator="name")]


class SelfImitationSpec(Model):
    """Keys of self-imitation, which SIL and PPOSIL share."""

    sil_policy_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the imitation of good actions.")
    sil_val_loss_coef: NonNegativeFloat = Field(0.01, description="Weight of the value loss of good returns.")
    training_iter: PositiveInt = Field(4, description="Batches of past steps imitated per training.")
    training_batch_iter: PositiveInt = Field(1, description="Gradient steps on each of these batches.")
    sil_memory: SilMemory = Field(
        PrioritizedReplaySpec(batch_size=512), description="Memory of past steps and their returns."
    )

    @property
    def num_imitation(self) -> int:
        """Gradient steps of imitation per training."""
        return self.training_iter * self.training_batch_iter


class SILSpec(SelfImitationSpec, ActorCriticSpec):
    """Actor-critic with self-imitation of its own good steps."""

    name: Literal["SIL"] = "SIL"  # type: ignore[assignment]
    takes_recurrent: ClassVar = False

    def calc_utd(self, num_envs: int) -> float:
        return ActorCriticSpec.calc_utd(self, num_envs) * (1 + self.num_imitation)


class PPOSILSpec(SelfImitationSpec, PPOSpec):
    """PPO with self-imitation of its own good steps."""

    name: Literal["PPOSIL"] = "PPOSIL"  # type: ignore[assignment]
    takes_recurrent: ClassVar = False

    def calc_utd(self, num_envs: int) -> float:
        return PPOSpec.calc_utd(self, num_envs) + self.num_imitation / (num_envs * self.time_horizon)
