"""A saved spec loads back as the same spec, whatever is in it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slm_lab.lib.io import write_json, write_yaml
from slm_lab.spec.loading import dump_spec, load_spec, parse_spec, spec_files, spec_names
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import Spec

FILES = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# What YAML might take for something else than text.
TRICKY = ["1e6", "-1E5", "1.e3", ".5e-3", "1_0e2", "0x1f", "012", "1:30", "2020-01-31", "null", "~", "yes", "on", "No"]
TRICKY += [".inf", ".nan", "<<", "=", "- x", "a: b", "# x", "!!int 5", "&a", "*a", "", " ", "x ", "'", '"', "\t", "\n"]
TRICKY += ["1e6\n", "é", "\x85", "\u2028", "\ufeff", "\x7f", "\x1b[0m", "💡", "{", "[", "%", "@", "`", "|", ">", "---"]

# a dollar sign would be a placeholder, which a saved spec cannot hold
text = st.one_of(
    st.sampled_from(TRICKY),
    st.text(st.characters(exclude_characters="\0$", exclude_categories=["Cs"]), max_size=12),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), floats)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)


def optional(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of the keys."""
    return st.fixed_dictionaries({}, optional=keys)


counts = st.integers(1, 2**40)
shares = st.floats(0, 1)
positive = st.floats(0, 1e12, exclude_min=True)
schedules = st.one_of(
    floats,
    st.fixed_dictionaries(
        {"start_val": floats},
        optional={
            "name": st.sampled_from(["no_decay", "linear_decay", "rate_decay", "periodic_decay"]),
            "end_val": st.none() | floats,
            "start_step": st.integers(0, 2**20),
            "end_step": st.integers(2**20, 2**40),
        },
    ).map(lambda schedule: {"end_step": 2**20, **schedule} if "start_step" in schedule else schedule),
)
optimizers = st.one_of(
    st.fixed_dictionaries({"name": st.sampled_from(["Adam", "AdamW"])}, optional={"lr": positive, "eps": positive}),
    st.fixed_dictionaries({"name": st.just("RMSprop")}, optional={"alpha": shares, "centered": st.booleans()}),
    st.fixed_dictionaries({"name": st.just("RAdam")}, optional={"lr": positive}),
)
activations = st.sampled_from(["relu", "tanh", "selu"])
nets = st.one_of(
    st.builds(
        lambda *parts: {key: value for part in parts for key, value in part.items()},
        st.just({"type": "MLPNet"}),
        optional(
            hid_layers=st.lists(counts, max_size=3),
            hid_layers_activation=activations,
            out_layer_activation=st.none() | activations,
            clip_grad_val=st.none() | positive,
            optim_spec=optimizers,
            lr_scheduler_spec=st.none() | st.fixed_dictionaries({"name": st.just("LinearToZero"), "frame": counts}),
        ),
        optional(actor_init_std=positive, actor_optim_spec=optimizers, actor_hid_layers=st.lists(counts, max_size=2)),
    ),
    st.builds(lambda arc: {"type": "TorchArcNet", "arc": arc}, st.dictionaries(text, values, max_size=3)),
)
algorithms = st.one_of(
    st.builds(
        lambda keys, minibatch, number: {
            "name": "PPO",
            "minibatch_size": minibatch,
            "time_horizon": minibatch * number,
            **keys,
        },
        optional(gamma=shares, lam=shares, clip_eps_spec=schedules, entropy_coef_spec=schedules, symlog=st.booleans()),
        st.integers(1, 10**6),
        st.integers(1, 10**3),
    ),
    st.builds(
        lambda keys: {"name": "Reinforce", **keys},
        optional(gamma=shares, training_frequency=counts, center_return=st.booleans()),
    ),
    st.just({"name": "ActorCritic", "num_step_returns": 9}),
)
envs = st.builds(
    lambda keys, copies, steps, name: {"name": name, "num_envs": copies, "max_frame": copies * steps, **keys},
    optional(
        max_t=st.none() | counts,
        normalize_obs=st.booleans(),
        normalize_reward=st.booleans(),
        clip_obs=st.none() | positive,
        clip_reward=st.none() | positive | st.lists(floats, min_size=2, max_size=2, unique=True).map(sorted),
        reward_scale=floats,
        kwargs=st.dictionaries(text, values, max_size=3),
    ),
    st.integers(1, 10**4),
    st.integers(1, 10**9),
    text.filter(bool),
)
metas = optional(
    seed=st.integers(0, 2**63 - 1),
    max_session=counts,
    max_trial=st.none() | counts,
    device=st.sampled_from(["auto", "cpu", "mps", "cuda", "cuda:1"]),
    search_resources=optional(cpu=positive, gpu=shares),
    search_scheduler=st.none() | st.fixed_dictionaries({"grace_period": counts}),
)
searches = optional(
    **{"agent.algorithm.gamma__uniform": st.just([0.9, 0.99]), "agent.algorithm.gamma__choice": st.just([0.9])}
).filter(lambda search: len(search) < 2)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True) | st.sampled_from(
    ["1e6", "no", "0x1", "1.5"]
)
raws = st.builds(
    lambda name, label, algorithm, net, env, meta, search: {
        "name": name,
        "agent": {
            "name": label,
            "algorithm": algorithm,
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": net,
        },
        "env": env,
        "meta": meta,
        "search": search,
    },
    names,
    text,
    algorithms,
    nets,
    envs,
    metas,
    searches,
)


def save_and_load(spec: Spec, folder: Path, suffix: str) -> Spec:
    path = folder / f"spec.{suffix}"
    (write_json if suffix == "json" else write_yaml)(path, dump_spec(spec))
    loaded = load_spec(path)
    assert loaded.notes == ()
    return loaded.spec


def make_plain(**env: Any) -> Spec:
    agent = {"algorithm": {"name": "Random"}, "memory": {"name": "OnPolicyReplay"}, "net": {"type": "MLPNet"}}
    return parse_spec({"name": "demo", "agent": agent, "env": {"name": "x", "max_frame": 1, **env}})[0]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@FILES
@given(raw=raws)
def test_a_saved_spec_loads_back_as_the_same_spec(tmp_path: Path, suffix: str, raw: dict[str, Any]) -> None:
    spec, _ = parse_spec(raw)
    again = save_and_load(spec, tmp_path, suffix)
    assert again == spec
    # equality takes 1 for 1.0 and True for 1; the text does not
    assert json.dumps(dump_spec(again)) == json.dumps(dump_spec(spec))


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@FILES
@given(kwargs=st.dictionaries(text, values, max_size=4))
def test_any_plain_data_survives_a_file(tmp_path: Path, suffix: str, kwargs: dict[str, Any]) -> None:
    again = save_and_load(make_plain(kwargs=kwargs), tmp_path, suffix)
    assert json.dumps(again.env.kwargs) == json.dumps(kwargs)


@pytest.mark.parametrize("tricky", TRICKY)
def test_text_that_looks_like_something_else_stays_text(tmp_path: Path, tricky: str) -> None:
    kwargs = {tricky: [tricky, {tricky: tricky}]}
    for suffix in ("yaml", "json"):
        assert save_and_load(make_plain(kwargs=kwargs), tmp_path, suffix).env.kwargs == kwargs


@pytest.mark.parametrize("value", [1e-05, 5e-324, 1e22, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 3e-4, 1e16])
def test_a_float_survives_to_the_bit(tmp_path: Path, value: float) -> None:
    for suffix in ("yaml", "json"):
        env = save_and_load(make_plain(reward_scale=value, kwargs={"x": value}), tmp_path, suffix).env
        assert env.reward_scale == env.kwargs["x"] == value
        assert math.copysign(1, env.reward_scale) == math.copysign(1, value)
        assert type(env.kwargs["x"]) is float


def test_every_shipped_spec_has_a_name_of_its_own_and_survives_a_file(tmp_path: Path) -> None:
    names: list[str] = []
    for path in spec_files():
        document = read_document(path)
        for name in spec_names(path):
            keys = {"env": "X-v1", "max_frame": 1e5, "data": "steps.safetensors"}
            filled = {key: value for key, value in keys.items() if f"${{{key}}}" in str(document[name])}
            spec = load_spec(path, name, filled, extend_name=False).spec
            assert spec.name == name
            # YAML is slow to write, and every kind of value comes in some spec
            assert save_and_load(spec, tmp_path, "json" if len(names) % 5 else "yaml") == spec
            names.append(name)
    assert len(names) == len(set(names)) > 100
