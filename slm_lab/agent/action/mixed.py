"""Hybrid actions: one distribution for each part, all independent."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily


class Mixed(ActionFamily):
    """Families side by side: log probabilities and entropies are sums. A row has all actions, choices as floats."""

    name = "Mixed"

    def __init__(self, families: Sequence[ActionFamily]) -> None:
        self.families = families
        self.is_discrete = all(family.is_discrete for family in families)
        self.param_sizes = [family.param_size for family in families]
        self.action_sizes = [math.prod(family.action_shape) for family in families]
        self.noise_sizes = [family.noise(1, torch.Generator()).shape[-1] for family in families]
        self.mask_sizes = [family.mask_size for family in families]
        self.param_size, self.mask_size = sum(self.param_sizes), sum(self.mask_sizes)
        self.action_shape = (sum(self.action_sizes),)
        self.action_dtype = torch.float32

    def _parts(self, param: Tensor) -> Iterator[tuple[ActionFamily, Tensor]]:
        return zip(self.families, param.split(self.param_sizes, -1), strict=True)

    def _split(self, action: Tensor) -> list[Tensor]:
        """Rows as each family has its actions."""
        parts = zip(self.families, action.split(self.action_sizes, -1), strict=True)
        return [(part if family.action_shape else part.squeeze(-1)).to(family.action_dtype) for family, part in parts]

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.families, parts, strict=True)
        return torch.cat([(part if family.action_shape else part.unsqueeze(-1)).float() for family, part in pairs], -1)

    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return torch.cat([family.noise(num, generator) for family in self.families], -1)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        noises = noise.split(self.noise_sizes, -1)
        return self._join(
            [family.choose(part, one) for (family, part), one in zip(self._parts(param), noises, strict=True)]
        )

    def uniform_noise(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.cat([family.uniform_noise(num, generator) for family in self.families], -1)

    def choose_uniform(self, param: Tensor, noise: Tensor) -> Tensor:
        noises = noise.split(self.noise_sizes, -1)
        return self._join(
            [family.choose_uniform(part, one) for (family, part), one in zip(self._parts(param), noises, strict=True)]
        )

    def mode(self, param: Tensor) -> Tensor:
        return self._join([family.mode(part) for family, part in self._parts(param)])

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        return self._join([family.random(num, generator) for family in self.families])

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        pairs = zip(self._parts(param), self._split(action), strict=True)
        return torch.stack([family.log_prob(part, one) for (family, part), one in pairs]).sum(0)

    def entropy(self, param: Tensor) -> Tensor:
        return torch.stack([family.entropy(part) for family, part in self._parts(param)]).sum(0)

    def with_temperature(self, param: Tensor, tau: Tensor) -> Tensor:
        return torch.cat([family.with_temperature(part, tau) for family, part in self._parts(param)], -1)

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        masks = allowed.split(self.mask_sizes, -1)
        pairs = zip(self._parts(param), masks, strict=True)
        return torch.cat(
            [family.restrict(part, mask) if family.mask_size else part for (family, part), mask in pairs], -1
        )

    def to_env(self, action: Tensor) -> Tensor:
        pairs = zip(self.families, self._split(action), strict=True)
        return self._join([family.to_env(part) for family, part in pairs])

    def from_env(self, action: Tensor) -> Tensor:
        pairs = zip(self.families, self._split(action), strict=True)
        return self._join([family.from_env(part) for family, part in pairs])
