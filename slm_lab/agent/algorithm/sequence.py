"""Rollouts cut into sequences of a fixed length, for recurrent nets to learn from.

| name  | shape       | meaning                                                                   |
|-------|-------------|---------------------------------------------------------------------------|
| field | (T, N, ...) | a field of a rollout                                                      |
| cut   | (L, S, ...) | the same as S = ceil(T / L) N sequences of L steps, zeros after the last  |
| carry | (S, H)      | the hidden state before the first step of each, as it was while acting    |
| reset | (L, S)      | whether another episode starts at a row                                   |
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from slm_lab.agent.memory.batch import Rollout
from slm_lab.lib.device import upload


class Sequences(NamedTuple):
    """The sequences of a rollout that a recurrent net is unrolled over."""

    obs: Tensor
    carry: Tensor
    reset: Tensor
    # of the rollout they were cut from: steps and envs
    shape: tuple[int, int]


def cut(field: Tensor, seq_len: int) -> Tensor:
    """Steps (T, N, ...) as sequences (L, S, ...), the first N of them from the first L steps."""
    rest = -len(field) % seq_len
    if rest:
        field = pad(field, (0, 0) * (field.dim() - 1) + (0, rest))
    return field.unflatten(0, (-1, seq_len)).transpose(0, 1).flatten(1, 2)


def join(cut: Tensor, num_step: int, num_envs: int) -> Tensor:
    """Outputs (L, S, ...) back in the order of the rollout, one row per step of an env (T*N, ...)."""
    by_time = cut.unflatten(1, (-1, num_envs)).transpose(0, 1).flatten(0, 1)
    return by_time[:num_step].flatten(0, 1)


def calc_reset(done: Tensor) -> Tensor:
    """Whether an episode starts at each row (T, N); not known of the first row."""
    reset = done.roll(1, 0)
    # nor needed there: the stored hidden state is that of a new episode if one starts
    reset[0] = False
    return reset


def cut_rollout(rollout: Rollout, seq_len: int) -> Sequences:
    """The sequences of a rollout; gradients stop at their first row."""
    carry = rollout.extra["carry"][::seq_len].flatten(0, 1)
    reset = upload(cut(calc_reset(rollout.done), seq_len), carry.device)
    num_step, num_envs = rollout.reward.shape
    return Sequences(cut(rollout.obs, seq_len), carry, reset, (num_step, num_envs))


def view_rollout(rollout: Rollout, seq_len: int) -> Tensor | Sequences:
    """The observations as nets take them: as rows (T*N, ...), or as sequences if a length is given."""
    return cut_rollout(rollout, seq_len) if seq_len else rollout.obs.flatten(0, 1)


def rows_of_sequences(order: Tensor, num_envs: int, seq_len: int, minibatch_size: int) -> Tensor:
    """Rows t*N+n of the sequences in an order, as minibatches one after the other, time first within each."""
    rows = cut(torch.arange(len(order) * seq_len, device=order.device).view(-1, num_envs), seq_len)
    return torch.cat([part.flatten() for part in rows[:, order].split(minibatch_size // seq_len, dim=1)])
