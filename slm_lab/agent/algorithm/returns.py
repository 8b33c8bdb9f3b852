"""Returns and advantages as pure functions of arrays (T, N).

Two signals, never one: `terminated` masks the bootstrap, `done` (terminated or truncated) cuts the recursion.

| name       | shape  | meaning                                                        |
|------------|--------|----------------------------------------------------------------|
| reward     | (T, N) | reward of each step                                            |
| value      | (T, N) | V(obs)                                                         |
| next_value | (T, N) | V of the true successor, also where an episode was cut         |
| terminated | (T, N) | the task ended here: nothing follows                           |
| done       | (T, N) | the episode ended here: the next row belongs to another one    |
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def calc_return(reward: Array, next_value: Array, terminated: Array, done: Array, gamma: float) -> Array:
    """Discounted returns to the end of the episode, or of the batch, where V of the successor stands for the rest."""
    rest = next_value * ~terminated
    ret = np.empty_like(reward)
    future = rest[-1]
    for t in range(len(reward) - 1, -1, -1):
        future = reward[t] + gamma * np.where(done[t], rest[t], future)
        ret[t] = future
    return ret


def calc_nstep_return(
    reward: Array, next_value: Array, terminated: Array, done: Array, gamma: float, num_step: int
) -> Array:
    """Returns over at most `num_step` steps, then V; shorter where the episode or the batch ends."""
    rest = next_value * ~terminated
    ret = reward + gamma * rest
    cut = done.copy()
    cut[-1] = True
    for _ in range(num_step - 1):
        # one step longer: this reward, then the shorter return of the next row
        longer = np.roll(ret, -1, axis=0)
        ret = reward + gamma * np.where(cut, rest, longer)
    return ret


def calc_gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, done: Array, gamma: float, lam: float
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16)."""
    delta = reward + gamma * next_value * ~terminated - value
    decay = gamma * lam * ~done
    adv = np.empty_like(delta)
    future = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        future = delta[t] + decay[t] * future
        adv[t] = future
    return adv
