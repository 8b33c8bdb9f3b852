"""Field types shared by the schema: strict numbers, schedules, and the frozen base model."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    model_validator,
)
from pydantic.types import Strict


class Model(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _whole(value: object) -> Any:
    """Accept `1e6` as an integer; fractions, text and true/false are still refused."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number of at most 63 bits expected")
    return value


Int = Annotated[int, BeforeValidator(_whole), Strict()]
Float = Annotated[float, Strict()]
Bool = StrictBool
Str = StrictStr
PositiveInt = Annotated[Int, Field(gt=0)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]


Shape = Literal["no_decay", "linear_decay", "rate_decay", "periodic_decay"]
_SHAPES = get_args(Shape)


class ScheduleSpec(Model):
    """A value that changes with the frame."""

    name: Shape = Field("linear_decay", description="Shape of the path from start_val to end_val.")
    start_val: Float = Field(description="Value up to start_step.")
    end_val: Float | None = Field(None, description="Value from end_step on; null means start_val.")
    start_step: NonNegativeInt = Field(0, description="Frame at which the change begins.")
    end_step: NonNegativeInt = Field(0, description="Frame at which end_val is reached.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.end_step < self.start_step:
            raise ValueError(f"end_step {self.end_step} comes before start_step {self.start_step}")
        return self


def _number_or_schedule(value: object) -> str:
    return "schedule" if isinstance(value, (dict, ScheduleSpec)) else "number"


def _any_or_schedule(value: object) -> str:
    """Tell a schedule from an env's own mapping by a key, or a misspelled one by its name."""
    is_schedule = isinstance(value, ScheduleSpec) or (
        isinstance(value, dict) and ("start_val" in value or value.get("name") in _SHAPES)
    )
    return "schedule" if is_schedule else "any"


Schedule = Annotated[
    Annotated[Float, Tag("number")] | Annotated[ScheduleSpec, Tag("schedule")],
    Discriminator(_number_or_schedule),
]
# an option of an env, which may be of any type
OptionOrSchedule = Annotated[
    Annotated[Any, Tag("any")] | Annotated[ScheduleSpec, Tag("schedule")],
    Discriminator(_any_or_schedule),
]
