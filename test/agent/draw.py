"""Actions of a distribution."""

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily


def draw(family: ActionFamily, param: Tensor, generator: torch.Generator) -> Tensor:
    """An action for each row of parameters."""
    return family.choose(param, family.noise(len(param), generator))
