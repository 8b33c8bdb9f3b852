"""Older spellings: brought to today's, each with its note; given beside the newer one they are refused."""

import copy
from contextlib import suppress
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.compat import ALGORITHM_ALIASES, ENV_KWARGS, META_DROPPED, OPTIM_ALIASES, PDTYPE_ALIASES
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec
from test.spec.conftest import Make

NET, ALGORITHM = "agent.net", "agent.algorithm"
RENAMED = [
    (ALGORITHM, "clip_val_loss", "clip_vloss", True),
    ("env", "normalize_state", "normalize_obs", True),
    ("meta", "random_seed", "seed", 7),
]


def parse(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The resolved spec as data and the notes; the raw spec must stay as it was."""
    before = copy.deepcopy(raw)
    spec, notes = parse_spec(raw)
    assert raw == before
    return spec.model_dump(serialize_as_any=True), notes


def look(spec: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        spec = spec[part]
    return spec


@pytest.mark.parametrize(
    ("given", "today", "note"),
    [
        ({}, {}, None),
        *(({key: {"num": 1}}, {}, f"'{key}' is no longer used") for key in ("body", "git_sha")),
        # every saved spec has the commit, so it is nothing to note
        *((({f"meta.{key}": "x"}, {}, f"meta.{key} is no longer used")) for key in META_DROPPED if key != "git_sha"),
        ({"meta.git_sha": "x"}, {}, None),
        *(
            ({f"{NET}.{key}": value}, {}, f"agent.net.{key} is replaced by meta.device")
            for key, value in (("gpu", "auto"), ("gpu", True), ("cuda_id", 0))
        ),
        *(
            (
                {f"{ALGORITHM}.action_pdtype": old},
                {f"{ALGORITHM}.action_pdtype": new},
                f"action_pdtype '{old}' is now '{new}'",
            )
            for old, new in PDTYPE_ALIASES.items()
        ),
        *(
            ({f"{section}.{old}": value}, {f"{section}.{new}": value}, f"{section}.{old} is now {section}.{new}")
            for section, old, new, value in RENAMED
        ),
        # of a saved spec
        ({"meta.random_seed": None, "meta.seed": 4}, {"meta.seed": 4}, "meta.random_seed is now meta.seed"),
        (
            {f"{ALGORITHM}.entropy_coef_spec": None},
            {f"{ALGORITHM}.entropy_coef_spec": 0.0},
            "entropy_coef_spec: null means 0",
        ),
        *(
            ({f"{NET}.{key}": "SELU"}, {f"{NET}.{key}": "selu"}, f"agent.net.{key} 'SELU' is now 'selu'")
            for key in ("hid_layers_activation", "out_layer_activation", "critic_hid_layers_activation")
        ),
        # as good a spelling as any
        *(
            ({f"env.{key}": 1, "env.kwargs": {"other": 2}}, {"env.kwargs": {"other": 2, key: 1}}, None)
            for key in ENV_KWARGS
        ),
        *(
            (
                {"meta.rigorous_eval": given},
                {"meta.rigorous_eval": episodes},
                f"meta.rigorous_eval is now a number of episodes: {episodes}",
            )
            for given, episodes in ((True, 8), (False, 0))
        ),
    ],
)
def test_an_older_spelling_means_what_it_is_called_today(
    make: Make, given: dict[str, Any], today: dict[str, Any], note: str | None
) -> None:
    spec, notes = parse(make("PPO", given))
    assert spec == parse(make("PPO", today))[0]
    assert notes == (() if note is None else (note,))


def test_agent_and_env_may_be_lists_of_one(make: Make) -> None:
    raw = make()
    raw |= {"agent": [raw["agent"]], "env": [raw["env"]]}
    spec, notes = parse(raw)
    assert spec == parse(make())[0]
    assert notes == ("'agent' is now a mapping, not a list of one", "'env' is now a mapping, not a list of one")


@pytest.mark.parametrize(("old", "new"), ALGORITHM_ALIASES.items())
def test_older_names_of_algorithms(make: Make, old: str, new: str) -> None:
    spec, notes = parse(make(new, {f"{ALGORITHM}.name": old}))
    assert spec == parse(make(new))[0]
    assert notes == (f"algorithm '{old}' is now '{new}'",)


@pytest.mark.parametrize(("old", "new"), OPTIM_ALIASES.items())
def test_older_names_of_optimisers_are_noted_once(make: Make, old: str, new: str) -> None:
    spec, notes = parse(
        make("PPO", {f"{NET}.optim_spec": {"name": old}, f"{NET}.actor_optim_spec": {"name": old, "lr": 0.5}})
    )
    assert look(spec, f"{NET}.optim_spec.name") == new
    actor = look(spec, f"{NET}.actor.optim_spec")
    assert (actor["name"], actor["lr"]) == (new, 0.5)
    assert notes == (f"optimiser '{old}' is now '{new}'",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({key: [{}] * count}, f"{key}: one {key} per spec, got a list of {count}")
            for key in ("agent", "env")
            for count in (0, 2)
        ),
        *(
            (
                {f"{section}.{old}": value, f"{section}.{new}": value},
                f"{section}.{old} is the older name of {section}.{new}; give only one of them",
            )
            for section, old, new, value in RENAMED
        ),
        (
            {"env.continuous": True, "env.kwargs": {"continuous": True}},
            "env.continuous is also given in env.kwargs; give only one of them",
        ),
        ({"meta.distributed": "hogwild"}, "meta.distributed: false, shared or synced expected, got hogwild"),
    ],
)
def test_what_is_given_twice_or_wrong_is_refused(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(make("PPO", changes))
    assert str(caught.value) == f"spec: {message}"


@pytest.mark.parametrize("mode", ["shared", "synced"])
def test_workers_on_one_net_become_the_envs_of_one_learner(make: Make, mode: str) -> None:
    spec, notes = parse(make("PPO", {"meta.distributed": mode, "meta.max_session": 4, "env.num_envs": 2}))
    assert (spec["env"]["num_envs"], spec["meta"]["max_session"]) == (8, 1)
    # all of them share the frames, as before
    assert spec["env"]["max_frame"] == make()["env"]["max_frame"]
    assert notes[0].startswith(f"meta.distributed '{mode}' with 4 sessions is now one learner fed by 8 envs")


@pytest.mark.parametrize("number", ["4", None, 0, [4]])
def test_a_wrong_number_of_workers_is_refused_as_what_it_is(make: Make, number: object) -> None:
    with pytest.raises(SpecError, match=r"meta\.max_session"):
        parse_spec(make("PPO", {"meta.distributed": "synced", "meta.max_session": number}))


def test_a_spec_in_every_older_spelling_at_once_is_valid() -> None:
    net = {"type": "MLPNet", "hid_layers_activation": "ReLU", "optim_spec": {"name": "GlobalAdam"}, "gpu": False}
    algorithm = {"name": "A2C", "action_pdtype": "default", "entropy_coef_spec": None, "lam": 0.9}
    raw = {
        "name": "demo",
        "body": {"product": "outer", "num": 1},
        "git_sha": "abc",
        "agent": [{"name": "A2C", "algorithm": algorithm, "memory": {"name": "OnPolicyBatchReplay"}, "net": net}],
        "env": [{"name": "LunarLander-v3", "continuous": True, "max_t": None, "max_frame": 1e5}],
        "meta": {"distributed": False, "max_session": 2, "rigorous_eval": False, "random_seed": None, "resume": False},
    }
    spec, notes = parse_spec(raw)
    assert isinstance(spec, Spec)
    assert spec.env.kwargs == {"continuous": True}
    assert len(notes) == len(set(notes)) == 12


@pytest.mark.parametrize("value", [None, 5, "text", [], [1], {}, [[]], True])
def test_a_value_of_the_wrong_kind_is_never_a_crash(make: Make, value: object) -> None:
    for path in ("agent", "env", "meta", ALGORITHM, NET, f"{NET}.optim_spec", "env.kwargs", "body"):
        # some are valid: an empty mapping is one, and `body` may hold anything
        with suppress(SpecError):
            parse_spec(make("PPO", {"env.continuous": True, path: value}))


def test_each_net_may_have_an_arc_of_its_own(make: Make) -> None:
    net = {"type": "TorchArcNet", "actor_arc": {"modules": {}}, "critic_arc": {"graph": {}}}
    assert look(parse(make("PPO", {NET: net}))[0], f"{NET}.actor.arc") == {"modules": {}}


@pytest.mark.parametrize(
    ("path", "off", "on"),
    [
        (f"{ALGORITHM}.entropy_penalty_coef", 0.0, 0.5),
        (f"{ALGORITHM}.spectral_norm", False, True),
        (f"{NET}.spectral_norm", False, True),
    ],
)
def test_removed_keys_may_be_there_if_they_did_nothing(make: Make, path: str, off: Any, on: Any) -> None:
    assert parse(make("SoftActorCritic", {path: off})) == (parse(make("SoftActorCritic"))[0], ())
    with pytest.raises(SpecError, match=rf"{path}: is not supported any more; remove it"):
        parse_spec(make("SoftActorCritic", {path: on}))
