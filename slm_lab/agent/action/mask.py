"""Action masks of agents: outputs of nets, limited to allowed actions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily


@dataclass(frozen=True)
class ActionMask:
    """Reads the mask at the end of observations (..., D), and limits outputs of nets by it."""

    family: ActionFamily
    # the first number of the mask
    start: int

    def __call__(self, param: Tensor, obs: Tensor) -> Tensor:
        """Parameters of a policy, or values of actions, with forbidden ones out of reach."""
        return self.family.restrict(param, obs[..., self.start :] > 0)

    def random(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Actions drawn uniformly from those allowed."""
        equal = torch.zeros(len(obs), self.family.param_size, device=obs.device)
        return self.family.choose_uniform(self(equal, obs), self.family.uniform_noise(len(obs), generator))
