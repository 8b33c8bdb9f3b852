"""Keys of `agent.net`, one model per net type, with its optimiser and learning-rate schedule."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from slm_lab.lib.data import Document
from slm_lab.spec.roles import ROLES, Role
from slm_lab.spec.types import (
    Bool,
    Float,
    Fraction,
    Model,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Str,
)

Activation = Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "tanh", "sigmoid", "softplus", "mish"]
InitFn = Literal[
    "orthogonal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "normal_",
    "uniform_",
    "trunc_normal_",
    "zeros_",
]

# bounds of a policy's log std
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
Beta = Annotated[Float, Field(ge=0, lt=1)]


class AdamSpec(Model):
    """Adam."""

    name: Literal["Adam"] = "Adam"
    lr: PositiveFloat = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegativeFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    amsgrad: Bool = False


class AdamWSpec(AdamSpec):
    """Adam with decoupled weight decay."""

    name: Literal["AdamW"] = "AdamW"  # type: ignore[assignment]
    weight_decay: NonNegativeFloat = 0.01


class RMSpropSpec(Model):
    """RMSprop."""

    name: Literal["RMSprop"] = "RMSprop"
    lr: PositiveFloat = 1e-2
    alpha: Fraction = 0.99
    eps: NonNegativeFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    momentum: NonNegativeFloat = 0.0
    centered: Bool = False


class SGDSpec(Model):
    """Stochastic gradient descent."""

    name: Literal["SGD"] = "SGD"
    lr: PositiveFloat = 1e-3
    momentum: NonNegativeFloat = 0.0
    dampening: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    nesterov: Bool = False

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        return self


class OtherOptimSpec(Model):
    """Element-wise optimisers of torch.optim with their default constants."""

    name: Literal["Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"]
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0


OptimSpec = Annotated[AdamSpec | AdamWSpec | RMSpropSpec | SGDSpec | OtherOptimSpec, Field(discriminator="name")]


class LinearToZeroSpec(Model):
    """Learning rate that decays linearly to zero at `frame`."""

    name: Literal["LinearToZero"] = "LinearToZero"
    frame: PositiveInt | None = Field(
        None, description="Frame at which the learning rate is zero; default env.max_frame."
    )


class LinearToMinSpec(Model):
    """Learning rate that decays linearly to `min_factor` of its start at `frame`."""

    name: Literal["LinearToMin"] = "LinearToMin"
    frame: PositiveInt | None = Field(None, description="Frame at which the floor is reached; default env.max_frame.")
    min_factor: Fraction = Field(0.0, description="Final fraction of the initial learning rate.")


class StepLRSpec(Model):
    """torch's StepLR, counted in training calls."""

    name: Literal["StepLR"] = "StepLR"
    step_size: PositiveInt
    gamma: PositiveFloat = 0.1


class MultiStepLRSpec(Model):
    """torch's MultiStepLR, counted in training calls."""

    name: Literal["MultiStepLR"] = "MultiStepLR"
    milestones: tuple[PositiveInt, ...]
    gamma: PositiveFloat = 0.1


class ExponentialLRSpec(Model):
    """torch's ExponentialLR, counted in training calls."""

    name: Literal["ExponentialLR"] = "ExponentialLR"
    gamma: PositiveFloat


class LinearLRSpec(Model):
    """torch's LinearLR, counted in training calls."""

    name: Literal["LinearLR"] = "LinearLR"
    start_factor: Annotated[Float, Field(gt=0, le=1)] = 1 / 3
    end_factor: Fraction = 1.0
    total_iters: PositiveInt = 5


class CosineAnnealingLRSpec(Model):
    """torch's CosineAnnealingLR, counted in training calls."""

    name: Literal["CosineAnnealingLR"] = "CosineAnnealingLR"
    T_max: PositiveInt
    eta_min: NonNegativeFloat = 0.0


LrSchedulerSpec = Annotated[
    LinearToZeroSpec
    | LinearToMinSpec
    | StepLRSpec
    | MultiStepLRSpec
    | ExponentialLRSpec
    | LinearLRSpec
    | CosineAnnealingLRSpec,
    Field(discriminator="name"),
]


class LossSpec(Model):
    """The loss of value predictions against their targets."""

    name: Literal["MSELoss", "SmoothL1Loss", "HuberLoss", "L1Loss"] = "MSELoss"


# Keys of target nets.
TARGET_KEYS = {"update_type", "polyak_coef", "update_frequency"}
# Keys of the pair of nets, not of one of them.
PAIR_KEYS = ("shared", "use_same_optim", *ROLES)
# With a shared body these are what may still differ between the two heads.
_HEAD_KEYS = {
    "actor": {"init_std", "log_std_init", "out_layer_activation"},
    "critic": {"init_std", "out_layer_activation"},
}


class NetSpec(Model):
    """Keys that every net knows; any of them may carry the prefix `actor_` or `critic_` for that net alone."""

    type: Str = Field(description="Kind of net.")
    obs_keys: tuple[Str, ...] | None = Field(
        None, description="Parts of a Dict observation that the net sees, in this order; null: all of it."
    )
    shared: Bool = Field(False, description="Actor and critic share one body and one optimiser.")
    use_same_optim: Bool = Field(False, description="Separate actor and critic use the same optim_spec.")
    out_layer_activation: Activation | None = Field(None, description="Activation after the last layer.")
    init_fn: InitFn | None = Field(
        None, description="torch.nn.init function for every weight, biases zero; null keeps torch's own init."
    )
    init_std: NonNegativeFloat | None = Field(
        None, description="Gain of an orthogonal init of the output layer only (`actor_init_std`, `critic_init_std`)."
    )
    log_std_init: Annotated[Float, Field(ge=LOG_STD_MIN, le=LOG_STD_MAX)] | None = Field(
        None, description="Start of a state-independent log std of a Normal policy; null: the net outputs it."
    )
    clip_grad_val: PositiveFloat | None = Field(None, description="Largest gradient norm; null: no clipping.")
    loss_spec: LossSpec = Field(LossSpec(), description="Value loss.")
    optim_spec: OptimSpec = Field(AdamSpec(), description="Optimiser and its options.")
    lr_scheduler_spec: LrSchedulerSpec | None = Field(None, description="Learning-rate schedule.")
    update_type: Literal["polyak", "replace"] = Field(
        "polyak", description="How the target net is updated: a little at each gradient step, or by periodic copies."
    )
    polyak_coef: Fraction = Field(0.005, description="Fraction of the net mixed into its target at each step.")
    update_frequency: PositiveInt = Field(1000, description="Frames between replacements of the target net.")
    actor: Document = Field({}, description="Keys only for the actor, collected from `actor_KEY`.")
    critic: Document = Field({}, description="Keys only for the critic, collected from `critic_KEY`.")

    @model_validator(mode="before")
    @classmethod
    def _fill_update_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and "update_frequency" in data and "update_type" not in data:
            if "polyak_coef" in data:
                raise ValueError("polyak_coef and update_frequency are both given; say which by update_type")
            data = {**data, "update_type": "replace"}
        return data

    @field_validator(*ROLES)
    @classmethod
    def _check_own_keys(cls, own: Document) -> Document:
        """The keys of one role with defaults; missing ones are among the common keys."""
        faults = [
            InitErrorDetails(type="extra_forbidden", loc=(key,), input=own[key]) for key in own if key in PAIR_KEYS
        ]
        try:
            full = cls.model_validate({key: value for key, value in own.items() if key not in PAIR_KEYS})
            own = full.model_dump(mode="json", include=set(own))
        except ValidationError as error:
            for one in error.errors(include_url=False):
                if not one["loc"] or one["loc"][0] in own:
                    fault = InitErrorDetails(type=one["type"], loc=one["loc"], input=one["input"])
                    faults.append(fault | {"ctx": one["ctx"]} if "ctx" in one else fault)
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return own

    @field_validator("obs_keys")
    @classmethod
    def _check_obs_keys(cls, keys: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if keys is None:
            return None
        if not keys:
            raise ValueError("a net that sees nothing cannot learn; name a part, or give null for all of them")
        if len(set(keys)) < len(keys):
            raise ValueError(f"{list(keys)} names a part twice")
        return keys

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        for role, override in (("actor", self.actor), ("critic", self.critic)):
            if self.shared and (extra := set(override) - _HEAD_KEYS[role]):
                raise ValueError(
                    f"with shared: true the {role} has no net of its own for '{role}_{sorted(extra)[0]}'; "
                    "set shared: false or give the key without prefix"
                )
            if role == "critic" and "log_std_init" in override:
                raise ValueError("critic_log_std_init: only an actor has a log std; remove it")
            if self.use_same_optim and "optim_spec" in override:
                raise ValueError(f"use_same_optim: true contradicts {role}_optim_spec; remove one of them")
        return self

    def for_role(self, role: Role) -> Self:
        """The net of one role: the common keys, overridden by the role's own."""
        override = self.actor if role == "actor" else self.critic
        if not override:
            return self
        common = self.model_dump(exclude={"actor", "critic"})
        if "update_frequency" in override and not override.keys() & {"update_type", "polyak_coef"}:
            common["update_type"] = "replace"
        return type(self).model_validate({**common, **override})


class MLPBodySpec(Model):
    """Fully connected layers."""

    type: Literal["MLPNet"] = "MLPNet"
    hid_layers: tuple[PositiveInt, ...] = Field((64, 64), description="Width of each hidden layer.")
    hid_layers_activation: Activation = Field("relu", description="Activation of hidden layers.")
    layer_norm: Bool = Field(False, description="LayerNorm before each hidden activation.")
    batch_norm: Bool = Field(False, description="BatchNorm before each hidden activation.")


class ConvBodySpec(Model):
    """Convolutions, then fully connected layers."""

    type: Literal["ConvNet"] = "ConvNet"
    conv_hid_layers: tuple[tuple[NonNegativeInt, ...], ...] = Field(
        ((32, 8, 4, 0, 1), (64, 4, 2, 0, 1), (64, 3, 1, 0, 1)),
        description="Per layer: channels, kernel, stride, padding, dilation (the last three may be left out).",
    )
    fc_hid_layers: tuple[PositiveInt, ...] = Field((512,), description="Width of each fully connected layer.")
    hid_layers_activation: Activation = Field("relu", description="Activation of hidden layers.")
    normalize: Bool = Field(False, description="Divide the input by 255.")
    batch_norm: Bool = Field(False, description="BatchNorm after each convolution but the first.")

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        for layer in self.conv_hid_layers:
            if not 2 <= len(layer) <= 5:
                raise ValueError(f"a conv layer is [channels, kernel, stride, padding, dilation], got {list(layer)}")
        return self


class TorchArcBodySpec(Model):
    """A body described by the TorchArc schema."""

    type: Literal["TorchArcNet"] = "TorchArcNet"
    arc: Document = Field(description="`modules` and `graph` of the body.")
    hid_layers_activation: Activation | None = Field(None, description="Activation whose gain init_fn uses.")
    normalize: Bool = Field(False, description="Divide the input by 255.")


# how one part of an observation is read
EncoderSpec = Annotated[MLPBodySpec | ConvBodySpec | TorchArcBodySpec, Field(discriminator="type")]


class MLPNetSpec(MLPBodySpec, NetSpec):
    """Fully connected layers."""

    noisy: Bool = Field(False, description="All layers have learned noise, which explores; for the DQN family.")
    weight_norm: Bool = Field(
        False, description="Hidden layers learn direction and length of weights separately; not together with noisy."
    )

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if self.noisy and self.weight_norm:
            raise ValueError("weight_norm is for layers without noise; remove it, or noisy")
        return self


class ConvNetSpec(ConvBodySpec, NetSpec):
    """Convolutions, then fully connected layers."""

    noisy: Bool = Field(False, description="Fully connected and output layers have learned noise, which explores.")


class DuelingMLPNetSpec(MLPNetSpec):
    """Fully connected layers, then a value and an advantage of each action."""

    type: Literal["DuelingMLPNet"] = "DuelingMLPNet"  # type: ignore[assignment]


class DuelingConvNetSpec(ConvNetSpec):
    """Convolutions, then a value and an advantage of each action."""

    type: Literal["DuelingConvNet"] = "DuelingConvNet"  # type: ignore[assignment]


class DictNetSpec(MLPNetSpec):
    """An encoder for each named part of the observation, then fully connected layers over all their features."""

    type: Literal["DictNet"] = "DictNet"  # type: ignore[assignment]
    encoders: dict[Str, EncoderSpec] = Field(
        {},
        description="By name of a part: `type` MLPNet, ConvNet or TorchArcNet, and the keys of its layers. A part "
        "without one is used unchanged.",
    )


class SimbaNetSpec(NetSpec):
    """Residual blocks behind layer normalisation (SimBa); images are flattened."""

    type: Literal["SimbaNet"] = "SimbaNet"
    width: PositiveInt = Field(128, description="Features between the blocks; within a block four times as many.")
    num_block: PositiveInt = Field(1, description="Residual blocks.")
    hid_layers_activation: Activation = Field("relu", description="Activation within the blocks.")


class RecurrentNetSpec(NetSpec):
    """Fully connected layers, then recurrent ones that remember within an episode; images are flattened."""

    type: Literal["RecurrentNet"] = "RecurrentNet"
    cell_type: Literal["GRU", "LSTM", "RNN"] = Field("GRU", description="Kind of recurrent cell.")
    fc_hid_layers: tuple[PositiveInt, ...] = Field(
        (), description="Width of each fully connected layer before the cell."
    )
    hid_layers_activation: Activation = Field("relu", description="Activation of the fully connected layers.")
    rnn_hidden_size: PositiveInt = Field(64, description="Width of the hidden state.")
    rnn_num_layers: PositiveInt = Field(1, description="Recurrent layers on top of each other.")
    bidirectional: Bool = Field(False, description="Kept for older specs; must be false.")
    seq_len: PositiveInt = Field(16, description="Length of the training sequences.")
    burn_in: NonNegativeInt = Field(
        0, description="First steps of a replayed sequence that only warm up the hidden state."
    )

    @model_validator(mode="after")
    def _check_recurrent(self) -> Self:
        if self.bidirectional:
            raise ValueError("bidirectional: true would read the future, which acting does not know; remove it")
        for role, override in (("actor", self.actor), ("critic", self.critic)):
            for key in ("seq_len", "burn_in"):
                if key in override:
                    raise ValueError(f"{role}_{key}: actor and critic learn from the same sequences; give {key} alone")
        return self


class TorchArcNetSpec(NetSpec):
    """A body described by the TorchArc schema; output layers are added by the lab."""

    type: Literal["TorchArcNet"] = "TorchArcNet"
    arc: Document | None = Field(
        None,
        description="`modules` and `graph` of the body (or `arc_file`: a file holding them); required, "
        "unless actor and critic each have their own.",
    )
    hid_layers_activation: Activation | None = Field(None, description="Activation whose gain init_fn uses.")
    normalize: Bool = Field(False, description="Divide the input by 255.")
