"""Return formulas against hand-worked numbers and brute-force oracles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.algorithm import returns

Array = np.ndarray[Any, Any]


def on_arrays(formula: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """A formula of tensors as one of arrays, which oracles are."""

    def to_tensor(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    def call(*args: Any, **options: Any) -> Array:
        tensors = {name: to_tensor(value) for name, value in options.items()}
        return np.asarray(formula(*map(to_tensor, args), **tensors))

    return call


calc_gae = on_arrays(returns.calc_gae)
calc_nstep_return = on_arrays(returns.calc_nstep_return)
calc_return = on_arrays(returns.calc_return)


def column(*values: float) -> Array:
    """One env: (T, 1)."""
    return np.array(values, np.float64)[:, None]


def flags(*values: int) -> Array:
    """One env's signals: (T, 1)."""
    return np.array(values, bool)[:, None]


# --- hand-worked numbers


def test_return_masks_at_termination_and_bootstraps_at_truncation() -> None:
    reward, next_value = column(1, 1, 1, 1), column(7, 20, 7, 40)
    terminated, truncated = flags(0, 0, 1, 0), flags(0, 1, 0, 0)
    ret = calc_return(reward, next_value, terminated, terminated | truncated, 0.5)
    # t3: 1 + .5*40 = 21 (edge); t2: 1 (terminated; 4.5 if masked by nothing);
    # t1: 1 + .5*20 = 11 (truncated; 1.5 if the recursion ran on); t0: 1 + .5*11 = 6.5
    np.testing.assert_allclose(ret, column(6.5, 11, 1, 21))


def test_nstep_return_stops_at_both_ends_of_an_episode() -> None:
    reward, next_value = column(1, 2, 3, 4, 5), column(10, 20, 30, 40, 50)
    terminated, truncated = flags(0, 1, 0, 0, 0), flags(0, 0, 0, 1, 0)
    ret = calc_nstep_return(reward, next_value, terminated, terminated | truncated, 0.5, 3)
    # t0: 1 + .5*2 = 2; t1: 2; t2: 3 + .5*4 + .25*40 = 15; t3: 4 + .5*40 = 24; t4: 5 + .5*50 = 30
    np.testing.assert_allclose(ret, column(2, 2, 15, 24, 30))


def test_gae_recursion_stops_at_a_truncation() -> None:
    """With an advantage of 1 behind the cut, a recursion cut by `terminated` alone gives [2.586, 1.855, 1, 0]."""
    value, next_value = column(0, 0, 10, 10), column(0, 0, 10, 10)
    terminated, truncated = flags(0, 0, 0, 0), flags(0, 1, 0, 0)
    adv = calc_gae(column(1, 1, 2, 1), value, next_value, terminated, terminated | truncated, 0.9, 0.95)
    np.testing.assert_allclose(adv, column(1.855, 1, 1, 0), atol=1e-12)


# --- oracles: one env at a time, in the obvious way


def episode_end(t: int, done: Array) -> int:
    """The last row that belongs to the same episode and batch as row t."""
    while t < len(done) - 1 and not done[t]:
        t += 1
    return t


def oracle_nstep(reward: Array, next_value: Array, terminated: Array, done: Array, gamma: float, n: int) -> Array:
    ret = np.zeros(len(reward))
    for t in range(len(reward)):
        last = min(t + n - 1, episode_end(t, done))
        for k in range(t, last + 1):
            ret[t] += gamma ** (k - t) * reward[k]
        if not terminated[last]:
            ret[t] += gamma ** (last - t + 1) * next_value[last]
    return ret


def oracle_gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, done: Array, gamma: float, lam: float
) -> Array:
    """The lambda-weighted mean of all n-step advantages, with the rest of the weight on the longest."""
    adv = np.zeros(len(reward))
    for t in range(len(reward)):
        longest = episode_end(t, done) - t + 1
        for n in range(1, longest + 1):
            weight = lam ** (n - 1) * ((1 - lam) if n < longest else 1)
            adv[t] += weight * (oracle_nstep(reward, next_value, terminated, done, gamma, n)[t] - value[t])
    return adv


def by_env(oracle: Callable[..., Array], batch: dict[str, Array], **options: float) -> Array:
    """An oracle's answers for each env (T, N)."""
    num_envs = batch["reward"].shape[1]
    columns = [{name: array[:, env] for name, array in batch.items()} for env in range(num_envs)]
    return np.stack([oracle(**column, **options) for column in columns], 1)


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Array]:
    """Random steps that end in all ways, also both at once and in the last row.

    The value of a successor is the next row's value within an episode, without which sums do not telescope, and any
    number where an episode ends.
    """
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.0, 0.2, 0.9]))
    terminated, truncated = rng.random(shape) < rate, rng.random(shape) < rate
    done = terminated | truncated
    reward, value, next_value = rng.normal(size=(3, *shape))
    next_value[:-1] = np.where(done[:-1], next_value[:-1], value[1:])
    return {"reward": reward, "value": value, "next_value": next_value, "terminated": terminated, "done": done}


@settings(deadline=None)
@given(rollouts(), st.sampled_from([1, 2, 5, 50]), st.sampled_from([0.0, 0.7, 1.0]))
def test_formulas_match_their_oracles(batch: dict[str, Array], num_step: int, lam: float) -> None:
    core = {name: array for name, array in batch.items() if name != "value"}
    ret = calc_return(**core, gamma=0.9)
    np.testing.assert_allclose(ret, by_env(oracle_nstep, core, gamma=0.9, n=10**6))
    nstep = calc_nstep_return(**core, gamma=0.9, num_step=num_step)
    np.testing.assert_allclose(nstep, by_env(oracle_nstep, core, gamma=0.9, n=num_step))
    adv = calc_gae(**batch, gamma=0.9, lam=lam)
    np.testing.assert_allclose(adv, by_env(oracle_gae, batch, gamma=0.9, lam=lam), atol=1e-12)


@given(rollouts())
def test_float32_in_float32_out_and_inputs_untouched(batch: dict[str, Array]) -> None:
    single = {name: array.astype(np.float32) if array.dtype != bool else array for name, array in batch.items()}
    before = {name: array.copy() for name, array in single.items()}
    core = {name: array for name, array in single.items() if name != "value"}
    adv, ret = calc_gae(**single, gamma=0.9, lam=0.95), calc_return(**core, gamma=0.9)
    nstep = calc_nstep_return(**core, gamma=0.9, num_step=3)
    # float64 would double the work of everything behind
    assert adv.dtype == ret.dtype == nstep.dtype == np.float32
    for name, array in single.items():
        # calc_nstep_return marks its last row as cut: in a copy, not in the caller's array
        np.testing.assert_array_equal(array, before[name])
