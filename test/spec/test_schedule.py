"""Schedules start where they say and arrive where they say."""

from itertools import pairwise

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schedule import calc_level, calc_schedule
from slm_lab.spec.types import ScheduleSpec

SHAPES = ["linear_decay", "rate_decay", "periodic_decay"]


def schedule(name: str, start: float, end: float | None, start_step: int = 100, end_step: int = 1100) -> ScheduleSpec:
    return ScheduleSpec.model_validate(
        {"name": name, "start_val": start, "end_val": end, "start_step": start_step, "end_step": end_step}
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("start", "end"),
    [(1.0, 0.1), (1.0, 0.0), (0.1, 1.0), (0.0, 0.5), (-1.0, 0.0), (0.3, 0.3)],
    ids=["falls", "to zero", "rises", "from zero", "from below", "flat"],
)
def test_every_shape_runs_from_start_to_end(name: str, start: float, end: float) -> None:
    """Trap 2: `if not end_val` keeps start_val for ever where end_val is 0; max() makes rising ones jump."""
    spec = schedule(name, start, end)
    low, high = min(start, end), max(start, end)
    assert calc_schedule(spec, 0) == start
    assert calc_schedule(spec, 100) == start
    assert calc_schedule(spec, 101) == pytest.approx(start, abs=0.01)
    assert calc_schedule(spec, 1099) == pytest.approx(end, abs=0.01)
    assert calc_schedule(spec, 1100) == end
    assert calc_schedule(spec, 10**9) == end
    path = [calc_schedule(spec, frame) for frame in range(0, 1300, 7)]
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in path)
    if start != end:
        # it travels: not a jump at either end
        middle = [value for value in path if low + 0.01 < value < high - 0.01]
        assert len(middle) > 20


def test_linear_by_hand() -> None:
    spec = schedule("linear_decay", 1.0, 0.0)
    # a quarter, a half and three quarters of the way from 100 to 1100
    assert [calc_schedule(spec, frame) for frame in (350, 600, 850)] == pytest.approx([0.75, 0.5, 0.25])
    # the default shape
    assert calc_schedule(ScheduleSpec(start_val=0.2, end_val=1.0, end_step=10), 5) == pytest.approx(0.6)


def test_rate_decay_is_geometric() -> None:
    spec = schedule("rate_decay", 1.0, 0.0, 0, 1000)
    at = [calc_schedule(spec, frame) for frame in range(0, 1001, 50)]
    # differences shrink by the rate .9 at each of 20 decays
    steps = [before - after for before, after in pairwise(at)]
    assert [after / before for before, after in pairwise(steps)] == pytest.approx([0.9] * 19)


def test_periodic_decay_swings_under_a_falling_line() -> None:
    spec = schedule("periodic_decay", 1.0, 0.0, 0, 1000)
    # the reference multiplied the two parts and began at 0.2
    assert calc_schedule(spec, 0) == 1.0
    # ten waves: down at a half wave, at the line after a whole one
    assert calc_schedule(spec, 50) == pytest.approx(0.0, abs=1e-12)
    assert calc_schedule(spec, 100) == pytest.approx(0.9)
    assert calc_schedule(spec, 25) == pytest.approx(0.975 * 0.5)


@pytest.mark.parametrize("name", [*SHAPES, "no_decay"])
def test_what_has_no_end_stays(name: str) -> None:
    for spec in (schedule(name, 0.7, None), schedule("no_decay", 0.7, 0.1), 0.7):
        assert [calc_schedule(spec, frame) for frame in (0, 100, 500, 1100, 5000)] == pytest.approx([0.7] * 5)
    assert isinstance(calc_schedule(1, 0), float)


@pytest.mark.parametrize("name", SHAPES)
def test_start_step_equal_to_end_step_is_a_jump(name: str) -> None:
    spec = schedule(name, 1.0, 0.25, 100, 100)
    # before it start_val, from it on end_val; dividing by the empty span must not happen
    assert [calc_schedule(spec, frame) for frame in (0, 99, 100, 101)] == [1.0, 1.0, 0.25, 0.25]


def test_end_before_start_is_refused() -> None:
    """Otherwise the line is walked backwards beyond its ends, here to -0.6."""
    entropy = {"start_val": 1.0, "end_val": 0.0, "start_step": 100, "end_step": 50}
    raw = {
        "name": "test",
        "agent": {
            "algorithm": {"name": "Reinforce", "entropy_coef_spec": entropy},
            "memory": {"name": "OnPolicyReplay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
    }
    with pytest.raises(SpecError, match="end_step"):
        parse_spec(raw)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("end_step", [110, 100_100])
def test_levels_take_the_path_in_at_most_20_values(name: str, end_step: int) -> None:
    spec = schedule(name, 1.0, 0.0, end_step=end_step)
    levels = [calc_level(spec, frame) for frame in range(end_step + 100)]
    assert len(set(levels)) <= 20
    assert levels[:101] == [1.0] * 101
    assert levels[end_step - 1] != 0
    assert levels[end_step:] == [0.0] * 100
