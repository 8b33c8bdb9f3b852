"""Search spaces: what a sampler draws between, what the spec gets of it, and what is refused before a search starts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_lab.lib.errors import SpecError
from slm_lab.spec.candidate import apply_values, check_search
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import SPACES, Dimension, read_dimensions


def make(search: dict[str, Any], name: str = "ppo_cartpole") -> Spec:
    return load_spec(name).spec.model_copy(update={"search": search})


def draw(space: str, *args: Any) -> list[Any]:
    """Values over the whole range of a sampler, evenly spaced on its scale."""
    dimension = Dimension("a.b", space, args)
    low, high = dimension.bounds
    if dimension.is_whole:
        return [dimension.decode(value) for value in range(int(low), int(high) + 1)]
    grid = np.geomspace(low, high, 201) if dimension.is_log else np.linspace(low, high, 201)
    return [dimension.decode(float(value)) for value in grid]


def test_uniform_reaches_both_ends() -> None:
    assert draw("uniform", 0.5, 2)[::200] == [0.5, 2.0]
    assert draw("loguniform", 1e-4, 1e-2)[::100] == pytest.approx([1e-4, 1e-3, 1e-2])


def test_whole_numbers_leave_the_upper_end_out_unless_they_have_a_step() -> None:
    assert draw("randint", 2, 6) == [2, 3, 4, 5]
    assert draw("lograndint", 1, 5) == [1, 2, 3, 4]
    assert sorted(set(draw("qrandint", 4, 32, 8))) == [8, 16, 24, 32]
    assert sorted(set(draw("qlograndint", 10, 40, 10))) == [10, 20, 30, 40]
    assert all(isinstance(value, int) for value in draw("qrandint", 4, 32, 8))


def test_steps_are_multiples_and_stay_within_the_bounds() -> None:
    assert sorted(set(draw("quniform", 0.05, 0.4, 0.1))) == [0.1, 0.2, 0.3, 0.4]
    assert sorted(set(draw("qloguniform", 0.1, 0.5, 0.1))) == [0.1, 0.2, 0.3, 0.4, 0.5]
    # 0.3 / 0.1 is less than 3, and 0.7 / 0.1 less than 7
    assert sorted(set(draw("quniform", 0, 0.3, 0.1))) == [0.0, 0.1, 0.2, 0.3]
    assert max(draw("quniform", 0, 0.7, 0.1)) == 0.7


def test_normal_draws_have_their_mean_and_spread() -> None:
    dimension = Dimension("a.b", "randn", (3.0, 2.0))
    drawn = [dimension.decode(value) for value in np.linspace(0.0005, 0.9995, 1000)]
    assert np.mean(drawn) == pytest.approx(3.0, abs=1e-6)
    assert np.std(drawn) == pytest.approx(2.0, rel=0.01)
    assert set(draw("qrandn", 0.0, 1.0, 0.5)) <= {step * 0.5 for step in range(-8, 9)}


def test_choices_may_be_anything() -> None:
    choices = ([64, 64], "relu", None, {"name": "Adam"})
    assert draw("choice", *choices) == list(choices)
    assert Dimension("a.b", "choice", choices).extremes == choices


@given(st.sampled_from([name for name in SPACES if name.startswith("q") and "randn" not in name]), st.data())
def test_a_quantised_value_is_a_multiple_within_the_bounds(space: str, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, 50))
    low = data.draw(st.integers(1, 100))
    high = low + data.draw(st.integers(step, 500))
    dimension = Dimension("a.b", space, (low, high, step))
    first, last = dimension.bounds
    number = st.integers(int(first), int(last)) if dimension.is_whole else st.floats(first, last)
    value = dimension.decode(data.draw(number))
    assert low <= value <= high
    assert value % step == 0


def test_values_land_where_they_belong() -> None:
    spec = make({"agent.algorithm.gamma__uniform": [0.9, 0.99]})
    values = {"agent.algorithm.gamma": 0.95, "env.num_envs": 8, "agent.net.actor_optim_spec.lr": 0.5}
    changed = apply_values(spec, values)
    assert changed.agent.algorithm.model_dump()["gamma"] == 0.95
    assert changed.env.num_envs == 8
    assert changed.agent.net.for_role("actor").optim_spec.lr == 0.5
    assert changed.agent.net.for_role("critic").optim_spec.lr != 0.5
    assert changed.search == {}
    # the spec itself stays as it is
    assert spec.env.num_envs == 4


def test_a_search_without_a_section_says_what_one_looks_like() -> None:
    with pytest.raises(SpecError, match=r"has no search section; add one, e.g. search:"):
        check_search(make({}))


@pytest.mark.parametrize(
    ("key", "arguments", "message"),
    [
        ("agent.algorithm.gamma__uniform", [0.9, 1.5], "1.5 is refused: agent.algorithm.gamma"),
        ("agent.algorithm.minibatch_size__choice", [128, 0], "0 is refused: agent.algorithm.minibatch_size"),
        ("agent.net.hid_layers__choice", [[64], "wide"], "wide is refused: agent.net.hid_layers"),
        ("agent.net.optim_spec.lr__loguniform", [1e-5, 1e-2], "has no effect, since actor and critic have that key"),
        ("meta.max_session__choice", [1, 2], "only keys of agent. and env. can be searched"),
        ("name__choice", ["a", "b"], "only keys of agent. and env. can be searched"),
    ],
)
def test_values_that_the_spec_would_reject_are_refused_at_once(key: str, arguments: list[Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_search(make({key: arguments}))
    assert f"search.{key}: {message}" in str(caught.value)


def test_a_key_within_another_searched_key_is_refused() -> None:
    choices = [{"name": "linear_decay", "start_val": 0.1, "end_val": 0.0, "start_step": 0, "end_step": 10}]
    search = {
        "agent.algorithm.entropy_coef_spec__choice": choices,
        "agent.algorithm.entropy_coef_spec.end_val__uniform": [0.0, 0.1],
    }
    spec = make({}).model_copy(update={"search": search})
    with pytest.raises(SpecError, match=r"end_val__uniform: lies within 'agent\.algorithm\.entropy_coef_spec'"):
        check_search(spec)


def test_a_choice_that_is_a_mapping_stays_as_it_is() -> None:
    choice = {"name": "Adam", "lr": 0.5}
    spec = apply_values(make({}), {"agent.net.actor.optim_spec": choice, "agent.net.actor.optim_spec.lr": 0.1})
    assert spec.agent.net.for_role("actor").optim_spec.lr == 0.1
    assert choice["lr"] == 0.5


def test_values_that_clash_only_with_each_other_are_not_refused() -> None:
    # 4 envs of 32 steps make no batch of 256, but either is fine by itself
    check_search(make({"agent.algorithm.time_horizon__choice": [64, 256], "env.num_envs__choice": [2, 4]}))


def test_steps_need_a_multiple_between_the_bounds() -> None:
    raw = {"agent.algorithm.gamma__quniform": [0.91, 0.94, 0.5]}
    with pytest.raises(SpecError, match=r"has no multiple of 0.5 between 0.91 and 0.94"):
        parse_spec({**make({}).model_dump(mode="json", serialize_as_any=True), "search": raw})


def test_dimensions_are_read_flat_and_nested() -> None:
    nested = {"agent": {"algorithm": {"gamma__uniform": [0.9, 0.99]}}, "env.num_envs__choice": [2, 4]}
    assert read_dimensions(make(nested)) == [
        Dimension("agent.algorithm.gamma", "uniform", (0.9, 0.99)),
        Dimension("env.num_envs", "choice", (2, 4)),
    ]
