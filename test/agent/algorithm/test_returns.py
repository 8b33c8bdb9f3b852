"""Return formulas against hand-worked numbers, brute-force oracles and properties."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
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


def test_return_discounts_to_the_end_of_the_batch() -> None:
    no = flags(0, 0, 0)
    ret = calc_return(column(1, 2, 3), column(0, 0, 10), no, no, 0.5)
    # 3 + .5*10 = 8; 2 + .5*8 = 6; 1 + .5*6 = 4. Without the bootstrap at the edge the last would be 3.
    np.testing.assert_allclose(ret, column(4, 6, 8))


def test_return_masks_at_termination_and_bootstraps_at_truncation() -> None:
    reward, next_value = column(1, 1, 1, 1), column(7, 20, 7, 40)
    terminated, truncated = flags(0, 0, 1, 0), flags(0, 1, 0, 0)
    ret = calc_return(reward, next_value, terminated, terminated | truncated, 0.5)
    # t3: 1 + .5*40 = 21 (edge); t2: 1 (terminated; 4.5 if masked by nothing);
    # t1: 1 + .5*20 = 11 (truncated; 1.5 if the recursion ran on); t0: 1 + .5*11 = 6.5
    np.testing.assert_allclose(ret, column(6.5, 11, 1, 21))


def test_nstep_return_by_hand() -> None:
    no = flags(0, 0, 0, 0)
    ret = calc_nstep_return(column(1, 2, 3, 4), column(10, 20, 30, 40), no, no, 0.5, 2)
    # 1 + .5*2 + .25*20 = 7; 2 + .5*3 + .25*30 = 11; 3 + .5*4 + .25*40 = 15; edge: 4 + .5*40 = 24
    np.testing.assert_allclose(ret, column(7, 11, 15, 24))


def test_nstep_return_stops_at_both_ends_of_an_episode() -> None:
    reward, next_value = column(1, 2, 3, 4, 5), column(10, 20, 30, 40, 50)
    terminated, truncated = flags(0, 1, 0, 0, 0), flags(0, 0, 0, 1, 0)
    ret = calc_nstep_return(reward, next_value, terminated, terminated | truncated, 0.5, 3)
    # t0: 1 + .5*2 = 2; t1: 2; t2: 3 + .5*4 + .25*40 = 15; t3: 4 + .5*40 = 24; t4: 5 + .5*50 = 30
    np.testing.assert_allclose(ret, column(2, 2, 15, 24, 30))


def test_gae_golden() -> None:
    """STYLE trap 5, with V of the true successors given; test_actor_critic has it with the memory in front."""
    value, next_value = column(0, 0, 10, 10), column(0, 0, 10, 10)
    terminated, truncated = flags(0, 0, 0, 0), flags(0, 1, 0, 0)
    adv = calc_gae(column(1, 1, 1, 1), value, next_value, terminated, terminated | truncated, 0.9, 0.95)
    # deltas: 1, 1, 1 + 9 - 10 = 0, 0; the cut keeps 1 for t1; t0: 1 + .855*1 = 1.855
    np.testing.assert_allclose(adv, column(1.855, 1, 0, 0), atol=1e-12)


def test_gae_recursion_stops_at_a_truncation() -> None:
    """With an advantage of 1 behind the cut, a recursion cut by `terminated` alone gives [2.586, 1.855, 1, 0]."""
    value, next_value = column(0, 0, 10, 10), column(0, 0, 10, 10)
    terminated, truncated = flags(0, 0, 0, 0), flags(0, 1, 0, 0)
    adv = calc_gae(column(1, 1, 2, 1), value, next_value, terminated, terminated | truncated, 0.9, 0.95)
    np.testing.assert_allclose(adv, column(1.855, 1, 1, 0), atol=1e-12)


def test_gae_golden_with_a_termination_instead() -> None:
    """Taking a termination for a truncation bootstraps from the next episode's value."""
    value, next_value = column(0, 0, 10, 10), column(0, 10, 10, 10)
    terminated = flags(0, 1, 0, 0)
    adv = calc_gae(column(1, 1, 1, 1), value, next_value, terminated, terminated, 0.9, 0.95)
    np.testing.assert_allclose(adv, column(1.855, 1, 0, 0), atol=1e-12)


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


@pytest.fixture(params=range(6))
def batch(request: pytest.FixtureRequest) -> dict[str, Array]:
    """Random steps of three envs that end in all ways, also both at once and in the last row.

    The value of a successor is the next row's value within an episode, without which sums do not telescope, and any
    number where an episode ends.
    """
    rng = np.random.default_rng(request.param)
    shape = (int(rng.integers(1, 14)), 3)
    terminated, truncated = rng.random(shape) < 0.2, rng.random(shape) < 0.2
    done = terminated | truncated
    value, next_value = rng.normal(size=shape), rng.normal(size=shape)
    next_value[:-1] = np.where(done[:-1], next_value[:-1], value[1:])
    return {
        "reward": rng.normal(size=shape),
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "done": done,
    }


def by_env(oracle: Callable[..., Array], batch: dict[str, Array], **options: float) -> Array:
    """An oracle's answers for each env (T, N)."""
    num_envs = batch["reward"].shape[1]
    columns = [{name: array[:, env] for name, array in batch.items()} for env in range(num_envs)]
    return np.stack([oracle(**column, **options) for column in columns], 1)


def without_value(batch: dict[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in batch.items() if name != "value"}


def test_return_matches_oracle(batch: dict[str, Array]) -> None:
    core = without_value(batch)
    np.testing.assert_allclose(calc_return(**core, gamma=0.9), by_env(oracle_nstep, core, gamma=0.9, n=10**6))


@pytest.mark.parametrize("num_step", [1, 2, 5, 50])
def test_nstep_return_matches_oracle(batch: dict[str, Array], num_step: int) -> None:
    core = without_value(batch)
    ret = calc_nstep_return(**core, gamma=0.9, num_step=num_step)
    np.testing.assert_allclose(ret, by_env(oracle_nstep, core, gamma=0.9, n=num_step))


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_matches_oracle(batch: dict[str, Array], lam: float) -> None:
    adv = calc_gae(**batch, gamma=0.9, lam=lam)
    np.testing.assert_allclose(adv, by_env(oracle_gae, batch, gamma=0.9, lam=lam))


def test_gae_with_lam_0_is_the_td_error(batch: dict[str, Array]) -> None:
    adv = calc_gae(**batch, gamma=0.9, lam=0.0)
    expected = batch["reward"] + 0.9 * np.where(batch["terminated"], 0, batch["next_value"]) - batch["value"]
    np.testing.assert_allclose(adv, expected)


def test_gae_with_lam_1_is_the_return_minus_value(batch: dict[str, Array]) -> None:
    adv = calc_gae(**batch, gamma=0.9, lam=1.0)
    core = without_value(batch)
    np.testing.assert_allclose(adv, calc_return(**core, gamma=0.9) - batch["value"])


def test_float32_in_float32_out_and_inputs_untouched(batch: dict[str, Array]) -> None:
    single = {name: array.astype(np.float32) if array.dtype != bool else array for name, array in batch.items()}
    before = {name: array.copy() for name, array in single.items()}
    adv = calc_gae(**single, gamma=0.9, lam=0.95)
    core = without_value(single)
    ret = calc_return(**core, gamma=0.9)
    nstep = calc_nstep_return(**core, gamma=0.9, num_step=3)
    # float64 would double the work of everything behind
    assert adv.dtype == ret.dtype == nstep.dtype == np.float32
    for name, array in single.items():
        # calc_nstep_return marks its last row as cut: in a copy, not in the caller's array
        np.testing.assert_array_equal(array, before[name])


# --- properties


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Array]:
    num_step, num_envs = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.0, 0.3, 0.9]))
    shape = (num_step, num_envs)
    terminated, truncated = rng.random(shape) < rate, rng.random(shape) < rate
    numbers = {name: rng.normal(size=shape) for name in ("reward", "value", "next_value")}
    return {**numbers, "terminated": terminated, "done": terminated | truncated}


def all_formulas(batch: dict[str, Array], gamma: float = 0.9) -> list[Array]:
    core = without_value(batch)
    return [
        calc_return(**core, gamma=gamma),
        calc_nstep_return(**core, gamma=gamma, num_step=3),
        calc_gae(**batch, gamma=gamma, lam=0.7),
    ]


@given(rollouts(), st.floats(-3, 3), st.integers(0, 2**32 - 1))
def test_linear_in_reward(batch: dict[str, Array], factor: float, seed: int) -> None:
    other: Array = np.asarray(np.random.default_rng(seed).normal(size=batch["reward"].shape))
    zero = all_formulas(batch | {"reward": other * 0})
    one = all_formulas(batch | {"reward": other})
    base = all_formulas(batch)
    both = all_formulas({**batch, "reward": batch["reward"] + factor * other})
    for total, start, step, nothing in zip(both, base, one, zero, strict=True):
        np.testing.assert_allclose(total, start + factor * (step - nothing), atol=1e-9)


@given(rollouts(), st.integers(0, 2**32 - 1))
def test_discounting_stops_at_done(batch: dict[str, Array], seed: int) -> None:
    """Whatever happens after an episode's end leaves the rows before it alone."""
    changed = {name: array.copy() for name, array in batch.items()}
    rng = np.random.default_rng(seed)
    ended = np.logical_or.accumulate(batch["done"], 0)
    after = np.zeros_like(ended)
    after[1:] = ended[:-1]
    for name in ("reward", "value", "next_value"):
        changed[name][after] += rng.normal(size=int(after.sum())) + 5
    for before, now in zip(all_formulas(batch), all_formulas(changed), strict=True):
        np.testing.assert_allclose(now[~after & ended.any(0)], before[~after & ended.any(0)])


@given(rollouts(), st.floats(-100, 100))
def test_terminated_masks_the_bootstrap(batch: dict[str, Array], value: float) -> None:
    changed = {**batch, "next_value": np.where(batch["terminated"], value, batch["next_value"])}
    for before, now in zip(all_formulas(batch), all_formulas(changed), strict=True):
        np.testing.assert_allclose(now, before)


@given(rollouts())
def test_truncated_does_not_mask_the_bootstrap(batch: dict[str, Array]) -> None:
    cut = batch["done"] & ~batch["terminated"]
    changed = {**batch, "next_value": batch["next_value"] + cut}
    for before, now in zip(all_formulas(batch), all_formulas(changed), strict=True):
        # one more of value after the cut is gamma more of return in its row
        np.testing.assert_allclose(now[cut] - before[cut], 0.9)
