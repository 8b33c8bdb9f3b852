"""The data that algorithms and memories exchange."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Transition(NamedTuple):
    """One step of all N envs as a memory stores it; rewards are scaled for learning.

    For on-policy memories `obs` is as the policy saw it, for a replay it is raw; `next_obs`, the true successor, is
    always raw. Values of the env are on the host, those of the policy on its device. `next_carry` (N, S) is the hidden
    state of a recurrent net after this step; the one before it is `extra["carry"]`.
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
    """Steps in order, as tensors (T, N, ...); whole episodes are concatenated, with N = 1.

    `reward`, `terminated` and `truncated` are on the host, where returns are computed; the rest is on the agent's
    device.

    `cut_index` (K,) are the rows, counted as t*N+n, whose successor is not the next row: truncated episodes and the
    last row of the batch. `cut_obs` (K, ...) are their true successors, `cut_carry` (K, S) the hidden states of a
    recurrent net for them; `extra["carry"]` are the hidden states before each row. `next_action` (N, ...) is the action
    after the last row, if the memory waits for it.
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

    With n-step returns `reward` is the discounted sum of rewards, `next_obs` the observation after the last of them,
    and `discount` gamma^n, or 0 if the task ended: the target is always `reward + discount * V(next_obs)`.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    # importance weights, all 1 for a uniform replay
    weight: Tensor
    # positions in the replay, to update priorities
    slot: Tensor


class SequenceBatch(NamedTuple):
    """Sequences of L steps of one env each, tensors (L, B, ...); `obs` has one more row, the last step's successor.

    `reset` (L+1, B) marks rows at which an episode starts. `mask` (L, B) is 0 where an episode was truncated before the
    last step, so that no step learns from another episode. `carry` (B, S) is the hidden state before the first row.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    mask: Tensor
    reset: Tensor
    carry: Tensor
