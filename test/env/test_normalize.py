"""Running normalisers against numpy over everything they saw."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slm_lab.env.normalize import ObsEncoder, RewardScaler, RunningStats
from slm_lab.lib.errors import CheckpointError
from test.gpu.pretend import CUDA, pretend_gpu

Array = np.ndarray[Any, Any]
NO = np.zeros(2, bool)


def build_encoder(size: int, batch: Array, clip: float | None = None) -> ObsEncoder:
    """Normalises by the statistics of a batch."""
    encode = ObsEncoder((size,), True, clip)
    assert encode.stats is not None
    encode.stats.update(batch)
    return encode


# --- tensors, which stay on their device


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_tensors_are_normalised_to_the_same_bits_as_arrays(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    encode = build_encoder(3, rng.normal(5, 3, (50, 3)), clip=2.0)
    obs = (rng.normal(5, 9, (200, 3)) % 256).astype(dtype)
    of_array, of_tensor = encode(obs), encode(torch.from_numpy(obs))
    assert of_tensor.dtype == torch.float32
    assert torch.equal(of_array, of_tensor)
    assert (of_array.abs() == 2).any()
    assert (of_array.abs() < 2).any()


def test_statistics_of_tensors_are_those_of_arrays_and_saved_as_such() -> None:
    rng = np.random.default_rng(0)
    arrays, tensors = ObsEncoder((4,), True, None), ObsEncoder((4,), True, None)
    assert arrays.stats is not None
    assert tensors.stats is not None
    for index in range(5):
        batch = rng.normal(3 * index, 1 + index, (7, 4))
        arrays.stats.update(batch)
        # arrays that come among them are merged too
        tensors.stats.update(batch if index == 3 else torch.from_numpy(batch))
        assert tensors.measure_shift() == pytest.approx(arrays.measure_shift(), rel=1e-12, nan_ok=True)
        state, expected = tensors.stats.state_dict(), arrays.stats.state_dict()
        assert isinstance(state["mean"], np.ndarray)
        for name, value in expected.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-12)
        if index == 1:
            tensors.stats.load_state_dict(state)


def test_batches_on_a_gpu_follow_statistics_that_are_loaded() -> None:
    """Also those of another run that has seen as much."""
    rng = np.random.default_rng(0)
    with pretend_gpu():
        encode = ObsEncoder((3,), True, None, device=CUDA)
        assert encode.stats is not None
        obs = torch.from_numpy(rng.normal(5, 9, (20, 3))).to(CUDA)
        for mean in (5.0, -5.0):
            stats = RunningStats((3,))
            stats.update(rng.normal(mean, 3, (50, 3)))
            encode.stats.load_state_dict(stats.state_dict())
            assert torch.equal(encode(obs).cpu(), encode(obs.cpu().numpy()).cpu())


# --- statistics


@given(
    st.lists(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 2), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e4]),
)
def test_stats_equal_numpy_on_the_concatenation(batches: list[list[tuple[float, float]]], offset: float) -> None:
    stats = RunningStats((2,))
    for batch in batches:
        stats.update(np.array(batch) + offset)
    everything = np.concatenate(batches) + offset
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-6, atol=1e-5)
    assert stats.count == len(everything)


def test_stats_do_not_hold_the_callers_array() -> None:
    stats = RunningStats((2,))
    batch = np.array([[1.0, 2.0]])
    stats.update(batch)
    batch[:] = 99
    assert stats.mean.tolist() == [1, 2]


def test_stats_round_trip_goes_on_identically() -> None:
    rng = np.random.default_rng(0)
    one = RunningStats((3,))
    one.update(rng.normal(size=(5, 3)))
    state = one.state_dict()
    two = RunningStats((3,))
    two.load_state_dict(state)
    batch = rng.normal(size=(4, 3))
    one.update(batch)
    # the saved state is a copy
    assert state["count"] == 5
    two.update(batch)
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.var, two.var)
    assert one.count == two.count == 9


# --- observations


def test_statistics_of_single_numbers_are_saved_alike_before_and_after_updates() -> None:
    stats, continued = RunningStats(()), RunningStats(())
    stats.update(np.array([1.0, 4.0]))
    stats.update(np.array([2.0, 9.0]))
    continued.load_state_dict(stats.state_dict())
    for state in (stats.state_dict(), continued.state_dict()):
        assert [type(state[name]) for name in ("mean", "var")] == [np.ndarray, np.ndarray]
        assert (float(state["mean"]), state["var"].shape) == (4.0, ())


def test_normalised_observations_have_mean_0_and_std_1() -> None:
    obs = np.random.default_rng(0).normal((5, -300), (0.1, 40), (1000, 2)).astype(np.float32)
    normal = build_encoder(2, obs)(obs)
    assert normal.dtype == torch.float32
    np.testing.assert_allclose(normal.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(normal.std(0), 1, rtol=1e-3)


def test_observations_are_clipped_after_scaling() -> None:
    encode = build_encoder(1, np.array([[0.0], [20.0]]), clip=2.0)
    before = encode.state_dict()
    # mean 10, std 10: 25 -> 1.5, 100 -> 9 -> 2, -100 -> -11 -> -2; clipping first would give (2 - 10)/10
    for _ in range(3):
        np.testing.assert_allclose(encode(np.array([[25.0], [100.0], [-100.0]])), [[1.5], [2.0], [-2.0]], rtol=1e-6)
    # encoding alone does not move the statistics
    assert encode.state_dict() == before
    assert ObsEncoder((1,), False, 2.0)(np.array([[25.0], [1.0]])).tolist() == [[2.0], [1.0]]


def test_observations_that_never_vary_stay_finite() -> None:
    encode = build_encoder(1, np.full((4, 1), 7.0))
    assert encode(np.full((1, 1), 7.0)).tolist() == [[0.0]]
    assert encode(np.full((1, 1), 7.1)).isfinite().all()


def test_observations_that_are_not_normalised_keep_their_type() -> None:
    encode = ObsEncoder((1,), False, None, torch.uint8)
    assert encode(np.array([[200]], np.uint8)).dtype == torch.uint8
    assert encode.state_dict() is None
    assert np.isnan(encode.measure_shift())
    with pytest.raises(ValueError, match="in one of the two alone"):
        encode.load_state_dict(ObsEncoder((1,), True, None).state_dict())


# --- rewards


def scaler(**keys: Any) -> RewardScaler:
    options: dict[str, Any] = {"num_envs": 2, "gamma": 0.5, "scale": 1.0, "normalize": False, "clip": None, **keys}
    return RewardScaler(**options)


def test_reward_passes_untouched_by_default() -> None:
    reward = np.array([1e6, -3.0])
    assert scaler()(reward, NO) is reward


def test_reward_scale() -> None:
    reward = np.array([2.0, -3.0])
    assert scaler(scale=0.1)(reward, NO).tolist() == pytest.approx([0.2, -0.3])
    # the caller's array, from which scores are counted, stays raw
    assert reward.tolist() == [2.0, -3.0]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [(1.0, [1.0, -1.0]), (2, [2.0, -2.0]), ((-0.5, 4.0), [4.0, -0.5]), ((0.0, 1.0), [1.0, 0.0])],
)
def test_clip_forms(clip: Any, expected: list[float]) -> None:
    assert scaler(clip=clip)(np.array([5.0, -5.0]), NO).tolist() == expected


def test_clip_comes_after_scale() -> None:
    # .1*5 = .5 is within 1; clipping first would give .1
    assert scaler(scale=0.1, clip=1.0)(np.array([5.0, -50.0]), NO).tolist() == [0.5, -1.0]


def test_reward_is_divided_by_the_std_of_the_discounted_return() -> None:
    one = scaler(normalize=True)
    # returns 1 and 3, and the imagined 0: mean 4/3, var (1 + 9 + 0)/3 - 16/9 = 14/9
    np.testing.assert_allclose(one(np.array([1.0, 3.0]), NO), np.array([1.0, 3.0]) / np.sqrt(14 / 9), rtol=1e-6)
    # returns .5*1 + 2 = 2.5 and .5*3 + 2 = 3.5; all seen: 1, 3, 2.5, 3.5 and 0, mean 2, var 28.5/5 - 4 = 1.7
    np.testing.assert_allclose(one(np.array([2.0, 2.0]), NO), 2 / np.sqrt(1.7), rtol=1e-6)
    # the mean is not subtracted: a reward keeps its sign


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e6])
def test_rewards_of_any_size_are_scaled_alike_from_the_first_on(size: float) -> None:
    """One return has no spread: divided by it, -1 would become -10,000, and a replay would keep it. A prior of a given
    size would scale small rewards by that size for ever.
    """
    rng = np.random.default_rng(0)
    one, other = (RewardScaler(1, 0.9, 1.0, True, None) for _ in range(2))
    first = one(np.array([-size]), np.array([False]))
    # returns -size and 0: std size/2
    assert first.tolist() == pytest.approx([-2.0])
    other(np.array([-1.0]), np.array([False]))
    for reward in rng.normal(size=50):
        small = one(np.array([size * reward]), np.array([False]))
        assert small == pytest.approx(other(np.array([reward]), np.array([False])), rel=1e-9)
    # the imagined return is one of 52
    assert one.std == pytest.approx(float(np.sqrt(one.stats.var)), rel=0.02)


def test_rewards_of_nothing_stay_nothing() -> None:
    one = scaler(normalize=True)
    for _ in range(3):
        assert one(np.zeros(2), NO).tolist() == [0, 0]
    assert one.std == 1


def test_reward_return_starts_anew_after_done() -> None:
    """A return that runs on across episodes grows with their number and shrinks the rewards."""
    one = scaler(normalize=True)
    one(np.array([4.0, 8.0]), np.array([True, False]))
    # env 0 begins again: 0*.5 + 1; env 1 goes on: 8*.5 + 1
    one(np.array([1.0, 1.0]), NO)
    assert one.ret.tolist() == [1.0, 5.0]
    # the step that ended the episode still counted with its own return
    assert one.stats.count == 4
    np.testing.assert_allclose(one.stats.mean, np.mean([4, 8, 1, 5]))


def test_reward_normaliser_against_numpy() -> None:
    rng = np.random.default_rng(0)
    one = scaler(normalize=True, scale=2.0, clip=1.5)
    running, seen = np.zeros(2), []
    for _ in range(50):
        reward, done = rng.normal(1, 3, 2), rng.random(2) < 0.2
        out = one(reward, done)
        running = running * 0.5 + 2 * reward
        seen += running.tolist()
        expected = np.clip(2 * reward / np.std([0, *seen]), -1.5, 1.5)
        np.testing.assert_allclose(out, expected, rtol=1e-6)
        running = np.where(done, 0, running)


def test_a_replay_keeps_rewards_that_are_normalised_when_they_are_sampled() -> None:
    """Else a first reward, divided by the small std of that time, would outweigh all later ones."""
    rewards = np.random.default_rng(0).normal(0, [[1.0], [1000.0]], (2, 2))
    late, early = (scaler(normalize=True, scale=2.0, clip=3.0, at_sampling=is_late) for is_late in (True, False))
    kept = np.array([late(reward, NO) for reward in rewards])
    for reward in rewards:
        early(reward, NO)
    np.testing.assert_array_equal(kept, 2 * rewards)
    # the statistics are the same
    assert late.std == early.std
    sampled = late.finish(torch.from_numpy(kept))
    np.testing.assert_allclose(sampled.numpy(), np.clip(kept / late.std, -3, 3))
    # an algorithm without a replay gets them as they are
    assert early.finish(sampled) is sampled


def test_a_replay_of_normalised_rewards_is_not_resumed() -> None:
    state = scaler(normalize=True).state_dict()
    state.pop("at_sampling")
    with pytest.raises(CheckpointError, match="filled its replay with normalised rewards"):
        scaler(normalize=True, at_sampling=True).load_state_dict(state)
    # without a replay, or without normalising, nothing has changed
    scaler(normalize=True).load_state_dict(state)
    scaler(normalize=False, at_sampling=True).load_state_dict(state)


def test_reward_scaler_round_trip() -> None:
    rng = np.random.default_rng(0)
    one = scaler(normalize=True)
    one(rng.normal(size=2), NO)
    state = one.state_dict()
    two = scaler(normalize=True)
    two.load_state_dict(state)
    for _ in range(3):
        reward, done = rng.normal(size=2), rng.random(2) < 0.5
        np.testing.assert_array_equal(one(reward, done), two(reward, done))
    # the saved state did not move
    assert state["stats"]["count"] == 2


# --- how far statistics move


def test_the_shift_is_the_change_of_mean_and_log_std() -> None:
    assert np.isnan(ObsEncoder((2,), True, None).measure_shift())
    encode = build_encoder(2, np.array([[-1.0, -3.0], [1.0, 3.0]]))
    # there is nothing to compare the first statistics with
    assert np.isnan(encode.measure_shift())
    assert encode.measure_shift() == 0
    # the first number stays where it is; the second has the mean 2 and the variance 10.5 now
    assert encode.stats is not None
    encode.stats.update(np.array([[-1.0, 2.0], [1.0, 6.0]]))
    square = (2**2 / 10.5 + (0.5 * np.log(10.5 / 9)) ** 2) / 2
    assert encode.measure_shift() == pytest.approx(np.sqrt(square), rel=1e-6)
    assert encode.measure_shift() == 0


def test_the_shift_does_not_depend_on_the_units() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 1, (20, 3)), rng.normal(1, 2, (20, 3))
    shifts = []
    for scale, offset in ((1.0, 0.0), (1000.0, -5e4)):
        encode = build_encoder(3, scale * first + offset)
        encode.measure_shift()
        assert encode.stats is not None
        encode.stats.update(scale * second + offset)
        shifts.append(encode.measure_shift())
    assert shifts[0] > 0.1
    assert shifts[0] == pytest.approx(shifts[1], rel=1e-6)


def test_the_shift_is_measured_from_where_a_saved_state_stood() -> None:
    batches = np.random.default_rng(0).normal(size=(3, 5, 2))
    whole, resumed = build_encoder(2, batches[0]), ObsEncoder((2,), True, None)
    assert whole.stats is not None
    assert resumed.stats is not None
    whole.measure_shift()
    whole.stats.update(batches[1])
    resumed.load_state_dict(whole.state_dict())
    for stats in (whole.stats, resumed.stats):
        stats.update(batches[2])
    assert resumed.measure_shift() == whole.measure_shift() > 0
    # a state of before shifts were measured: the first one is not known
    state = whole.state_dict()
    assert state is not None
    del state["mark"]
    resumed.load_state_dict(state)
    assert np.isnan(resumed.measure_shift())
