"""What a library that runs on torch really did: gradient steps and trained parameters, counted below it."""

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class StepCounter:
    """Counts the steps of every torch optimiser of this process."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        torch.set_num_threads(1)
        register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        key = id(optimizer)
        if key not in self.sizes:
            self.sizes[key] = sum(param.numel() for group in optimizer.param_groups for param in group["params"])
        self.steps[key] = self.steps.get(key, 0) + 1

    @property
    def opt_step(self) -> int:
        """Gradient steps so far; an algorithm with several optimisers steps each of them once."""
        return max(self.steps.values(), default=0)

    @property
    def num_param(self) -> int:
        """Numbers that are trained."""
        return sum(self.sizes.values())
