"""Actions of the policy become actions of the env."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env.vec_env import ActionMap
from slm_lab.lib.errors import EnvError

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def test_box_is_scaled_to_its_bounds() -> None:
    action = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], np.float32)
    # [-2, 2] is 2a; [0, 10] is 5a + 5
    assert ActionMap(BOX)(action).tolist() == [[-2, 0], [0, 5], [2, 10], [1, 2.5]]


def test_box_is_clipped_at_its_bounds() -> None:
    """The reference rescaled without clipping: a Gaussian sample of 3 left the space."""
    mapped = ActionMap(BOX)(np.array([[-3.0, 40.0]], np.float32))
    assert mapped.tolist() == [[-2, 10]]
    assert BOX.contains(mapped[0])


@pytest.mark.parametrize(
    ("low", "high", "action", "expected"),
    [
        # no bounds: the policy's own scale
        (-np.inf, np.inf, 3.0, 3.0),
        # one bound: -1 or 1 of the policy is the bound, and its own scale goes on from there
        (0.0, np.inf, -3.0, 0.0),
        (0.0, np.inf, 3.0, 4.0),
        (-np.inf, 0.5, 3.0, 0.5),
        (-np.inf, 0.5, -1.0, -1.5),
        # around 0 every action would be the bound
        (5.0, np.inf, 0.25, 6.25),
        (-np.inf, -5.0, 0.25, -5.75),
        (-3.4e38, -5.0, 0.25, -5.75),
    ],
)
def test_unbounded_sides(low: float, high: float, action: float, expected: float) -> None:
    space = spaces.Box(low, high, (1,), np.float32)
    assert ActionMap(space)(np.array([[action]], np.float32)).tolist() == [[expected]]


@pytest.mark.parametrize(
    ("low", "high", "limited"),
    [
        (-2.0, 2.0, [-1.0, 0.5, 1.0]),
        (-np.inf, np.inf, [-3.0, 0.5, 3.0]),
        (0.0, np.inf, [-1.0, 0.5, 3.0]),
        (-np.inf, 0.5, [-3.0, 0.5, 1.0]),
    ],
)
def test_actions_are_limited_where_the_env_limits_them(low: float, high: float, limited: list[float]) -> None:
    """What is recorded of an action is what the env took, no more and no less."""
    mapping = ActionMap(spaces.Box(low, high, (1, 1), np.float32))
    action = np.array([[-3.0], [0.5], [3.0]], np.float32)
    taken = mapping.limit(action)
    assert taken.dtype == np.float32
    assert taken.tolist() == [[one] for one in limited]
    # the env does the same with both, and the way back leads to it
    assert mapping(taken).tolist() == mapping(action).tolist()
    np.testing.assert_allclose(mapping.undo(mapping(action)), taken)


def test_choices_are_not_limited() -> None:
    action = np.array([0, 3, 2])
    assert ActionMap(spaces.Discrete(4)).limit(action).tolist() == [0, 3, 2]


def test_whole_numbers_without_bounds() -> None:
    """The largest whole numbers are no bounds: scaled to them, an action would overflow."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.int64)
    assert ActionMap(space)(np.array([[-3.2], [0.0], [1.0]], np.float32)).tolist() == [[-3], [0], [1]]


def test_bounds_are_taken_one_by_one() -> None:
    space = spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    # first: 3a + 1; second: as it is
    assert ActionMap(space)(np.array([[1.0, 7.0], [-1.0, -7.0]], np.float32)).tolist() == [[4, 7], [-2, -7]]


def test_box_shape_and_dtype() -> None:
    space = spaces.Box(-1, 1, (2, 3), np.float64)
    mapped = ActionMap(space)(np.zeros((5, 6), np.float32))
    assert mapped.shape == (5, 2, 3)
    assert mapped.dtype == np.float64
    assert ActionMap(space).shape == (2, 3)
    # row by row: number 1 of the policy is (0, 1) of the env
    action = np.zeros((1, 6), np.float32)
    action[0, 1] = 1
    assert ActionMap(space)(action)[0, 0, 1] == 1


def test_the_policys_array_is_left_alone() -> None:
    action = np.array([[5.0, 5.0]], np.float32)
    ActionMap(BOX)(action)
    assert action.tolist() == [[5.0, 5.0]]


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Discrete(3), [0, 2], [0, 2]),
        # the policy counts from 0
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([2, 3]), [[1, 2], [0, 0]], [[1, 2], [0, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), [[1, 2], [0, 0]], [[2, 1], [1, -1]]),
        (spaces.MultiBinary(3), [[1, 0, 1]], [[1, 0, 1]]),
    ],
    ids=str,
)
def test_discrete_actions(space: gym.Space[Any], action: list[Any], expected: list[Any]) -> None:
    mapped = ActionMap(space)(np.array(action))
    assert mapped.tolist() == expected
    assert all(space.contains(one) for one in mapped)
    assert (len(action), *ActionMap(space).shape) == mapped.shape


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        spaces.MultiDiscrete(np.array([[2], [4]]), start=np.array([[1], [2]])),
        spaces.MultiBinary((2, 3)),
    ],
    ids=str,
)
def test_discrete_actions_of_any_shape(space: gym.Space[Any]) -> None:
    """The policy's side is always flat (N, A)."""
    size = int(np.prod(space.shape or ()))
    mapped = ActionMap(space)(np.ones((4, size), np.int64))
    assert mapped.shape == (4, *(space.shape or ()))
    assert all(space.contains(one) for one in mapped)


def test_integer_box_reaches_both_ends() -> None:
    space = spaces.Box(0, 5, (1,), np.int64)
    mapped = ActionMap(space)(np.array([[-1.0], [1.0]], np.float32))
    assert mapped.tolist() == [[0], [5]]
    assert mapped.dtype == np.int64


def test_box_with_the_largest_bounds_stays_finite() -> None:
    """Bounds of finfo.max are how some envs say `unbounded`; the policy's action must not become an extreme."""
    limit = np.finfo(np.float32).max
    space = spaces.Box(-limit, limit, (1,), np.float32)
    with np.errstate(over="raise"):
        ActionMap(space)(np.array([[0.5]], np.float32))


def test_unknown_space_is_refused() -> None:
    with pytest.raises(EnvError, match="actions of Text are not supported"):
        ActionMap(spaces.Text(3))
