"""What algorithms hand to memories, and memories to algorithms."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

Array = np.ndarray[Any, Any]


class Transition(NamedTuple):
    """One step of all N envs as a memory takes it: observations as the policy saw them, rewards for learning."""

    obs: Tensor
    action: Tensor
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Tensor
    extra: dict[str, Tensor]


@dataclass(frozen=True)
class Rollout:
    """Steps in order, as tensors (T, N, ...); whole episodes come as N = 1, one after the other.

    `cut_index` (K,) are the rows, counted as t*N+n, whose successor is not the next row: truncated episodes and the
    last row of the batch. `cut_obs` (K, ...) are their true successors.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    extra: dict[str, Tensor]
    cut_index: Tensor
    cut_obs: Tensor

    @property
    def done(self) -> Tensor:
        """Ended by the task or by the clock."""
        return self.terminated | self.truncated
