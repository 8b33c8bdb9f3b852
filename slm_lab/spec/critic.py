"""Keys of `agent.algorithm.critic`: what a critic predicts of the return, one model per kind."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slm_lab.spec.types import Float, Int, Model, NonNegativeInt, PositiveInt


class ValueCritic(Model):
    """The mean of the return; `loss_spec` of the net compares it with its target."""

    kind: Literal["value"] = "value"


class QuantileCritic(Model):
    """Quantiles of the return at evenly spaced fractions, learned by quantile regression (QR-DQN)."""

    kind: Literal["quantile"] = "quantile"
    num_quantile: PositiveInt = Field(50, description="Quantiles of the return; 200 in QR-DQN, 25 in TQC.")


class EnsembleQuantileCritic(QuantileCritic):
    """Quantiles of the return at evenly spaced fractions; the largest of all critics may be dropped (TQC)."""

    num_drop: NonNegativeInt = Field(
        0,
        description="Quantiles dropped per critic, the largest of all critics' together; needs q_reduction mean. "
        "2 in TQC.",
    )

    @model_validator(mode="after")
    def _check_drop(self) -> Self:
        if self.num_drop >= self.num_quantile:
            raise ValueError(f"num_drop {self.num_drop} leaves none of num_quantile {self.num_quantile}; lower it")
        return self


class CategoricalCritic(Model):
    """Probabilities of evenly spaced returns, learned by cross-entropy (C51)."""

    kind: Literal["categorical"] = "categorical"
    num_atom: Annotated[Int, Field(ge=2)] = Field(51, description="Returns that have a probability.")
    v_min: Float = Field(-10.0, description="Smallest of them; lower targets count as this one.")
    v_max: Float = Field(10.0, description="Largest of them; higher targets count as this one.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min} is not below v_max {self.v_max}")
        return self


class ImplicitCritic(Model):
    """Quantiles of the return at any fraction, which the net is given (IQN)."""

    kind: Literal["implicit"] = "implicit"
    num_quantile: PositiveInt = Field(64, description="Fractions sampled per gradient step, for values and targets.")
    num_act_quantile: PositiveInt = Field(32, description="Evenly spaced fractions whose mean the policy acts by.")
    num_cosine: PositiveInt = Field(64, description="Cosines that encode a fraction as input of the net.")


CriticSpec = ValueCritic | QuantileCritic | CategoricalCritic | ImplicitCritic
# by key, the kinds that have it
_OWNERS: dict[str, list[str]] = {}
for _model in (ValueCritic, EnsembleQuantileCritic, CategoricalCritic, ImplicitCritic):
    for _key in _model.model_fields:
        _OWNERS.setdefault(_key, []).append(_model.model_fields["kind"].default)


def _read_kind(data: Any) -> Any:
    """A critic is plain unless it says otherwise; a key of another kind is refused by its kind."""
    if not isinstance(data, dict):
        return data
    data = {"kind": "value", **data}
    for key in data:
        kinds = _OWNERS.get(key, [])
        if kinds and data["kind"] in _OWNERS["kind"] and data["kind"] not in kinds:
            raise ValueError(f"{key} is for kind {' or '.join(kinds)}, not for {data['kind']}; remove it or set kind")
    return data


# of an algorithm that values every discrete action, and of one with an ensemble of critics of a continuous action
DiscreteCritic = Annotated[
    Annotated[ValueCritic | QuantileCritic | CategoricalCritic | ImplicitCritic, Field(discriminator="kind")],
    BeforeValidator(_read_kind),
]
EnsembleCritic = Annotated[
    Annotated[ValueCritic | EnsembleQuantileCritic | CategoricalCritic, Field(discriminator="kind")],
    BeforeValidator(_read_kind),
]


def find_ensemble_conflicts(critic: CriticSpec, q_reduction: str) -> dict[str, str]:
    """Contradictions between the critics of an ensemble and how it combines them."""
    if isinstance(critic, EnsembleQuantileCritic) and critic.num_drop and q_reduction != "mean":
        return {"critic.num_drop": "drops quantiles of all critics together; set q_reduction: mean"}
    return {}
