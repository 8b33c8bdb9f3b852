"""Returns and advantages as pure functions of tensors (T, N) on the host.

GAE and lambda returns run in numpy, where their small steps cost a fraction of what tensors, on a CPU or a GPU, would.

Two signals, never one: `terminated` masks the bootstrap, `done` (terminated or truncated) cuts the recursion.

| name       | shape  | meaning                                                        |
|------------|--------|----------------------------------------------------------------|
| reward     | (T, N) | reward of each step                                            |
| value      | (T, N) | V(obs)                                                         |
| next_value | (T, N) | V of the true successor, also where an episode was cut         |
| terminated | (T, N) | the task ended here: nothing follows                           |
| done       | (T, N) | the episode ended here: the next row belongs to another one    |
"""

import numpy as np
import torch
from torch import Tensor

from slm_lab.lib.array import Array


def _to_arrays(*tensors: Tensor) -> list[Array]:
    return [tensor.numpy() for tensor in tensors]


def calc_return(reward: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float) -> Tensor:
    """Discounted returns to the end of the episode or of the batch; V of the successor replaces what is cut off."""
    rewards, values, ends, cuts = _to_arrays(reward, next_value, terminated, done)
    rest = values * ~ends
    ret = np.empty_like(rewards)
    future = rest[-1]
    for t in range(len(rewards) - 1, -1, -1):
        future = rewards[t] + gamma * np.where(cuts[t], rest[t], future)
        ret[t] = future
    return torch.from_numpy(ret)


def calc_nstep_return(
    reward: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, num_step: int
) -> Tensor:
    """Returns over at most `num_step` steps, then V; shorter where the episode or the batch ends."""
    rest = next_value * ~terminated
    ret = reward + gamma * rest
    cut = done.clone()
    cut[-1] = True
    for _ in range(num_step - 1):
        # one step longer: this reward, then the shorter return of the next row
        ret = reward + gamma * torch.where(cut, rest, ret.roll(-1, 0))
    return ret


def calc_gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16)."""
    error, cuts = _to_arrays(reward + gamma * next_value * ~terminated - value, done)
    decay = gamma * lam * ~cuts
    adv = np.empty_like(error)
    future = np.zeros_like(error[0])
    for t in range(len(error) - 1, -1, -1):
        future = error[t] + decay[t] * future
        adv[t] = future
    return torch.from_numpy(adv)


def calc_explained_var(value: Tensor, ret: Tensor) -> float:
    """Share of the variance of the returns that the values predict: 1 is perfect, 0 is no better than their mean."""
    predicted, target = _to_arrays(value, ret)
    var = target.var()
    return float(1 - (target - predicted).var() / var) if var > 0 else 0.0
