"""Older spellings: brought to today's, each with its note; given beside the newer one they are refused."""

import copy
from contextlib import suppress
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.compat import ALGORITHM_ALIASES, ENV_KWARGS, META_DROPPED, OPTIM_ALIASES, PDTYPE_ALIASES
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec


def demo(algorithm: str = "PPO") -> dict[str, Any]:
    return {
        "name": "demo",
        "agent": {
            "algorithm": {"name": algorithm},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
        "meta": {},
    }


def parse(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The resolved spec as data and the notes; the raw spec must stay as it was."""
    before = copy.deepcopy(raw)
    spec, notes = parse_spec(raw)
    assert raw == before
    return spec.model_dump(serialize_as_any=True), notes


def test_a_spec_of_today_has_no_notes() -> None:
    assert parse(demo())[1] == ()


@pytest.mark.parametrize("key", ["body", "git_sha"])
def test_what_a_spec_no_longer_needs_is_dropped(key: str) -> None:
    spec, notes = parse({**demo(), key: {"product": "outer", "num": 1}})
    assert notes == (f"'{key}' is no longer used",)
    assert spec == parse(demo())[0]


def test_agent_and_env_may_be_lists_of_one() -> None:
    raw = demo()
    raw |= {"agent": [raw["agent"]], "env": [raw["env"]]}
    spec, notes = parse(raw)
    assert spec == parse(demo())[0]
    assert notes == ("'agent' is now a mapping, not a list of one", "'env' is now a mapping, not a list of one")


@pytest.mark.parametrize(("key", "count"), [("agent", 0), ("agent", 2), ("env", 3)])
def test_agent_and_env_are_one_each(key: str, count: int) -> None:
    raw = demo()
    raw[key] = [raw[key]] * count
    with pytest.raises(SpecError, match=f"^spec: {key}: one {key} per spec, got a list of {count}$"):
        parse_spec(raw)


@pytest.mark.parametrize(("old", "new"), ALGORITHM_ALIASES.items())
def test_older_names_of_algorithms(old: str, new: str) -> None:
    memory = {"name": "Replay" if old in ("SAC", "DDQN") else "OnPolicyBatchReplay"}
    before, after = demo(old), demo(new)
    before["env"]["max_frame"] = after["env"]["max_frame"] = 2000
    before["agent"]["memory"] = after["agent"]["memory"] = memory
    spec, notes = parse(before)
    assert spec == parse(after)[0]
    assert spec["agent"]["algorithm"]["name"] == new
    assert notes == (f"algorithm '{old}' is now '{new}'",)


@pytest.mark.parametrize(("old", "new"), PDTYPE_ALIASES.items())
def test_older_names_of_distributions(old: str, new: str) -> None:
    raw = demo()
    raw["agent"]["algorithm"]["action_pdtype"] = old
    spec, notes = parse(raw)
    assert spec["agent"]["algorithm"]["action_pdtype"] == new
    assert notes == (f"action_pdtype '{old}' is now '{new}'",)


@pytest.mark.parametrize(("old", "new"), OPTIM_ALIASES.items())
def test_older_names_of_optimisers_are_noted_once(old: str, new: str) -> None:
    raw = demo()
    raw["agent"]["net"] |= {"optim_spec": {"name": old}, "actor_optim_spec": {"name": old, "lr": 0.5}}
    spec, notes = parse(raw)
    assert spec["agent"]["net"]["optim_spec"]["name"] == new
    actor = spec["agent"]["net"]["actor"]["optim_spec"]
    assert (actor["name"], actor["lr"]) == (new, 0.5)
    assert notes == (f"optimiser '{old}' is now '{new}'",)


@pytest.mark.parametrize(
    ("section", "old", "new", "value"),
    [
        ("agent.algorithm", "clip_val_loss", "clip_vloss", True),
        ("env", "normalize_state", "normalize_obs", True),
        ("meta", "random_seed", "seed", 7),
    ],
)
class TestRenamedKey:
    @staticmethod
    def node(raw: dict[str, Any], section: str) -> dict[str, Any]:
        for part in section.split("."):
            raw = raw[part]
        return raw

    def test_the_older_key_is_taken_and_noted(self, section: str, old: str, new: str, value: object) -> None:
        raw = demo()
        self.node(raw, section)[old] = value
        spec, notes = parse(raw)
        assert self.node(spec, section)[new] == value
        assert notes == (f"{section}.{old} is now {section}.{new}",)

    def test_both_keys_are_a_conflict(self, section: str, old: str, new: str, value: object) -> None:
        raw = demo()
        self.node(raw, section).update({old: value, new: value})
        message = f"^spec: {section}.{old} is the older name of {section}.{new}; give only one of them$"
        with pytest.raises(SpecError, match=message):
            parse_spec(raw)


def test_an_empty_random_seed_of_a_saved_spec_is_no_conflict() -> None:
    raw = demo()
    raw["meta"] = {"random_seed": None, "seed": 4}
    spec, notes = parse(raw)
    assert spec["meta"]["seed"] == 4
    assert notes == ("meta.random_seed is now meta.seed",)


def test_no_entropy_bonus_may_be_null() -> None:
    raw = demo()
    raw["agent"]["algorithm"]["entropy_coef_spec"] = None
    spec, notes = parse(raw)
    assert spec["agent"]["algorithm"]["entropy_coef_spec"] == 0.0
    assert notes == ("entropy_coef_spec: null means 0",)


@pytest.mark.parametrize(("key", "value"), [("gpu", "auto"), ("gpu", True), ("cuda_id", 0)])
def test_devices_of_nets_gave_way_to_one_of_the_run(key: str, value: object) -> None:
    raw = demo()
    raw["agent"]["net"][key] = value
    spec, notes = parse(raw)
    assert spec == parse(demo())[0]
    assert notes == (f"agent.net.{key} is replaced by meta.device",)


@pytest.mark.parametrize("key", ["hid_layers_activation", "out_layer_activation"])
def test_activations_may_be_named_as_classes(key: str) -> None:
    raw = demo()
    raw["agent"]["net"][key] = "SELU"
    spec, notes = parse(raw)
    assert spec["agent"]["net"][key] == "selu"
    assert notes == (f"agent.net.{key} 'SELU' is now 'selu'",)


def test_activations_of_one_net_may_be_named_as_classes() -> None:
    raw = demo()
    raw["agent"]["net"]["critic_hid_layers_activation"] = "Tanh"
    spec, notes = parse(raw)
    assert spec["agent"]["net"]["critic"] == {"hid_layers_activation": "tanh"}
    assert notes == ("agent.net.critic_hid_layers_activation 'Tanh' is now 'tanh'",)


@pytest.mark.parametrize("key", ENV_KWARGS)
def test_options_of_well_known_envs_may_stand_beside_the_labs_keys(key: str) -> None:
    raw = demo()
    raw["env"] |= {key: 1, "kwargs": {"other": 2}}
    spec, notes = parse(raw)
    assert spec["env"]["kwargs"] == {"other": 2, key: 1}
    assert notes == ()  # as good a spelling as any


def test_an_env_option_given_twice_is_a_conflict() -> None:
    raw = demo()
    raw["env"] |= {"continuous": True, "kwargs": {"continuous": True}}
    with pytest.raises(SpecError, match=r"^spec: env\.continuous is also given in env\.kwargs; give only one of them$"):
        parse_spec(raw)


@pytest.mark.parametrize("key", META_DROPPED)
def test_what_the_published_lab_saved_in_meta_is_dropped(key: str) -> None:
    raw = demo()
    raw["meta"][key] = "x"
    spec, notes = parse(raw)
    assert spec == parse(demo())[0]
    # every saved spec has the commit, so it is nothing to note
    assert notes == (() if key == "git_sha" else (f"meta.{key} is no longer used",))


@pytest.mark.parametrize(("given", "episodes"), [(True, 8), (False, 0)])
def test_rigorous_eval_was_a_switch(given: bool, episodes: int) -> None:
    raw = demo()
    raw["meta"]["rigorous_eval"] = given
    spec, notes = parse(raw)
    assert spec["meta"]["rigorous_eval"] == episodes
    assert notes == (f"meta.rigorous_eval is now a number of episodes: {episodes}",)


@pytest.mark.parametrize("mode", ["shared", "synced"])
def test_workers_on_one_net_become_the_envs_of_one_learner(mode: str) -> None:
    raw = demo()
    raw["meta"] |= {"distributed": mode, "max_session": 4}
    raw["env"]["num_envs"] = 2
    spec, notes = parse(raw)
    assert (spec["env"]["num_envs"], spec["meta"]["max_session"]) == (8, 1)
    # all of them share the frames, as before
    assert spec["env"]["max_frame"] == demo()["env"]["max_frame"]
    assert notes[0].startswith(f"meta.distributed '{mode}' with 4 sessions is now one learner fed by 8 envs")


def test_an_unknown_kind_of_workers_is_refused() -> None:
    raw = demo()
    raw["meta"]["distributed"] = "hogwild"
    with pytest.raises(SpecError, match=r"^spec: meta\.distributed: false, shared or synced expected, got hogwild$"):
        parse_spec(raw)


@pytest.mark.parametrize("number", ["4", None, 0, [4]])
def test_a_wrong_number_of_workers_is_refused_as_what_it_is(number: object) -> None:
    raw = demo()
    raw["meta"] |= {"distributed": "synced", "max_session": number}
    with pytest.raises(SpecError, match=r"meta\.max_session"):
        parse_spec(raw)


def test_a_spec_in_every_older_spelling_at_once_is_valid() -> None:
    raw = {
        "name": "demo",
        "body": {"product": "outer", "num": 1},
        "git_sha": "abc",
        "agent": [
            {
                "name": "A2C",
                "algorithm": {"name": "A2C", "action_pdtype": "default", "entropy_coef_spec": None, "lam": 0.9},
                "memory": {"name": "OnPolicyBatchReplay"},
                "net": {
                    "type": "MLPNet",
                    "hid_layers_activation": "ReLU",
                    "optim_spec": {"name": "GlobalAdam", "lr": 0.01},
                    "gpu": False,
                },
            }
        ],
        "env": [{"name": "LunarLander-v3", "continuous": True, "max_t": None, "max_frame": 1e5}],
        "meta": {"distributed": False, "max_session": 2, "rigorous_eval": False, "random_seed": None, "resume": False},
    }
    spec, notes = parse_spec(raw)
    assert isinstance(spec, Spec)
    assert spec.env.kwargs == {"continuous": True}
    assert len(notes) == len(set(notes)) == 12


@pytest.mark.parametrize("value", [None, 5, "text", [], [1], {}, [[]], True])
@pytest.mark.parametrize(
    "path", ["agent", "env", "meta", "agent.algorithm", "agent.net", "agent.net.optim_spec", "env.kwargs", "body"]
)
def test_a_value_of_the_wrong_kind_is_never_a_crash(path: str, value: object) -> None:
    raw = demo()
    raw["env"]["continuous"] = True
    *parts, last = path.split(".")
    node = raw
    for part in parts:
        node = node[part]
    node[last] = value
    # some are valid: an empty mapping is one, and `body` may hold anything
    with suppress(SpecError):
        parse_spec(raw)


def test_each_net_may_have_an_arc_of_its_own() -> None:
    raw = demo()
    raw["agent"]["net"] = {"type": "TorchArcNet", "actor_arc": {"modules": {}}, "critic_arc": {"graph": {}}}
    spec, _ = parse(raw)
    assert spec["agent"]["net"]["actor"]["arc"] == {"modules": {}}


@pytest.mark.parametrize(
    ("section", "key", "off", "on"),
    [
        ("algorithm", "entropy_penalty_coef", 0.0, 0.5),
        ("algorithm", "spectral_norm", False, True),
        ("net", "spectral_norm", False, True),
    ],
)
def test_removed_keys_may_be_there_if_they_did_nothing(section: str, key: str, off: Any, on: Any) -> None:
    raw = demo("SoftActorCritic")
    raw["agent"]["memory"] = {"name": "Replay"}
    raw["env"]["max_frame"] = 10_000
    plain = parse(raw)[0]
    raw["agent"][section][key] = off
    assert parse(raw) == (plain, ())
    raw["agent"][section][key] = on
    with pytest.raises(SpecError, match=rf"agent\.{section}\.{key}: is not supported any more; remove it"):
        parse(raw)
