"""Generalised state-dependent exploration (Raffin et al. 2021): noise that is a function of what the policy sees.

A random matrix, held for some steps, turns the features of a policy into noise on its actions, so it explores by smooth
movements. Over all matrices an action is Gaussian; losses use that distribution.
"""

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily, Normal, SquashedNormal, TanhNormal
from slm_lab.lib.data import State
from slm_lab.lib.errors import SpecError

# added to the variance, as features may all be 0
TINY = 1e-6


class StateNormal(Normal):
    """Gaussians whose std depends on features; param holds means (B, A) and features times stds (B, F*A)."""

    def _split_scaled(self, param: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, A), and what each feature contributes to the noise of each action (B, F, A)."""
        (size,) = self.action_shape
        return param[..., :size], param[..., size:].unflatten(-1, (-1, size))

    def split(self, param: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std over all matrices (eq. 8)."""
        mean, scaled = self._split_scaled(param)
        return mean, 0.5 * (scaled.square().sum(-2) + TINY).log()

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """The action that a matrix (B, F, A) of standard normal numbers makes of each row (eq. 7)."""
        mean, scaled = self._split_scaled(param)
        return mean + (scaled * noise).sum(-2)


class StateTanhNormal(TanhNormal, StateNormal):
    """The same, squashed by tanh."""


class StateSquashedNormal(SquashedNormal, StateNormal):
    """The same for algorithms with action values."""


_KINDS: dict[type[ActionFamily], type[Normal]] = {
    Normal: StateNormal,
    TanhNormal: StateTanhNormal,
    SquashedNormal: StateSquashedNormal,
}


def use_state_noise(family: ActionFamily) -> ActionFamily:
    """The family whose noise depends on the state, for continuous actions."""
    kind = _KINDS.get(type(family))
    if kind is None:
        raise SpecError("agent.algorithm.sde: needs continuous actions; remove it")
    return kind(*family.action_shape)


class StateNoise:
    """A policy with a noise matrix for each env; new ones are drawn every few steps."""

    def __init__(
        self, family: ActionFamily, num_envs: int, num_feature: int, frequency: int, generator: torch.Generator
    ) -> None:
        self.family = family
        self.frequency = frequency
        self.generator = generator
        self.shape = (num_feature, *family.action_shape)
        self.num_step = 0
        self.matrix = self._draw(num_envs)

    def _draw(self, num: int) -> Tensor:
        return torch.randn((num, *self.shape), generator=self.generator, device=self.generator.device)

    def noise(self, num: int, generator: torch.Generator, frame: int) -> Tensor:
        """The matrices of all envs; draws nothing, so that a step that fails leaves nothing behind.

        A trained agent that is given another number of observations has new matrices for them.
        """
        return self.matrix if num == len(self.matrix) else self._draw(num)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """Actions of the matrices."""
        return self.family.choose(param, noise)

    def advance(self) -> None:
        """Count a step of all envs; new matrices when they are due."""
        self.num_step += 1
        if self.num_step % self.frequency == 0:
            self.matrix = self._draw(len(self.matrix))

    def state_dict(self) -> State:
        """The matrices, and how long they have been held."""
        return {"matrix": self.matrix.clone(), "num_step": self.num_step}

    def load_state_dict(self, state: State) -> None:
        """Resume with saved matrices."""
        self.matrix = state["matrix"].to(self.generator.device)
        self.num_step = int(state["num_step"])
