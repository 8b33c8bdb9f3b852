"""Keys of `agent.algorithm.sde`."""

from typing import Annotated

from pydantic import Field

from slm_lab.spec.net import LOG_STD_MAX, LOG_STD_MIN
from slm_lab.spec.types import Float, Model, PositiveInt


class SDESpec(Model):
    """Generalised state-dependent exploration: noise that is a function of the policy's features."""

    sample_frequency: PositiveInt = Field(4, description="Vector steps between new functions of noise.")
    log_std_init: Annotated[Float, Field(ge=LOG_STD_MIN, le=LOG_STD_MAX)] = Field(
        -2.0, description="Initial log std of the weights of that function, one per feature and action."
    )


class StateNoise(Model):
    """The key of the algorithms whose policies can explore by it."""

    sde: SDESpec | None = Field(
        None,
        description="Noise that depends on the state (gSDE), for continuous actions; null: new noise every step.",
    )

    @property
    def state_noise(self) -> SDESpec | None:
        """The noise that is asked for."""
        return self.sde
