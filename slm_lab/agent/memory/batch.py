"""The data that algorithms give to memories, and memories to algorithms."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Transition(NamedTuple):
    """One step of all N envs as a memory stores it; rewards are scaled for learning.

    `obs` is as the policy saw it for on-policy memories, raw for a replay; `next_obs`, the true successor, is always
    raw. What the env gives is on the host, what the policy gives on its device. `next_carry` (N, S) is the hidden state
    of a recurrent net after this step; the one before it is `extra["carry"]`.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    extra: dict[str, Tensor]
    next_carry: Tensor | None = None


@dataclass(frozen=True)
class Rollout:
    """Steps in order, as tensors (T, N, ...); whole episodes come as N = 1, one after the other.

    What the env gave, `reward`, `terminated` and `truncated`, is on the host, where returns are computed; the rest is
    on the agent's device.

    `cut_index` (K,) are the rows, counted as t*N+n, whose successor is not the next row: truncated episodes and the
    last row of the batch. `cut_obs` (K, ...) are their true successors, `cut_carry` (K, S) the hidden states of a
    recurrent net to see them with; `extra["carry"]` are those that the rows were acted on with. `next_action` (N, ...)
    is what was done after the last row, where the memory waits for it.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    extra: dict[str, Tensor]
    cut_index: Tensor
    cut_obs: Tensor
    cut_carry: Tensor | None = None
    next_action: Tensor | None = None

    @property
    def done(self) -> Tensor:
        """Ended by the task or by a time limit."""
        return self.terminated | self.truncated


class Batch(NamedTuple):
    """Transitions sampled from a replay, tensors (B, ...).

    With n-step returns `reward` is the discounted sum of the rewards, `next_obs` what follows the last of them, and
    `discount` gamma^n, or 0 where the task ended: the target is always `reward + discount * V(next_obs)`.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    # importance weights, all 1 for a uniform replay
    weight: Tensor
    # where the transitions are kept, for the update of their priorities
    slot: Tensor


class SequenceBatch(NamedTuple):
    """Sequences of L steps of one env each, tensors (L, B, ...); `obs` has one row more, what follows the last step.

    `reset` (L+1, B) marks rows whose episode starts there; `mask` (L, B) is 0 where the successor is not the next row
    (episodes truncated on the way; the last step has its true one), so that no step learns from another episode;
    `carry` (B, S) is the hidden state that was held when the first row was acted on.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    mask: Tensor
    reset: Tensor
    carry: Tensor
