"""Specs of algorithms that learn from a replay: older names and defaults."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import Spec
from slm_lab.spec.types import ScheduleSpec

Changes = dict[str, Any]
Make = Callable[..., dict[str, Any]]
Parse = Callable[..., tuple[Spec, tuple[str, ...]]]


@pytest.fixture
def parse(make: Make) -> Parse:
    return lambda base, changes=None: parse_spec(make(base, changes))


# --- older names


@pytest.mark.parametrize("name", ["SARSA", "VanillaDQN", "DQN", "DoubleDQN"])
def test_argmax_is_the_default_of_values(parse: Parse, name: str) -> None:
    spec, notes = parse(name, {"agent.algorithm.action_pdtype": "Argmax"})
    assert notes == ("action_pdtype 'Argmax' is now 'default'",)
    assert spec == parse(name)[0]


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_normal_meant_squashed(parse: Parse, name: str) -> None:
    spec, notes = parse(name, {"agent.algorithm.action_pdtype": "Normal"})
    assert notes == ("action_pdtype 'Normal' is now 'TanhNormal'",)
    assert spec.agent.algorithm.action_pdtype == "TanhNormal"


def test_normal_is_squashed_under_the_older_name_too(parse: Parse) -> None:
    spec, _ = parse("SoftActorCritic", {"agent.algorithm.name": "SAC", "agent.algorithm.action_pdtype": "Normal"})
    assert spec.agent.algorithm.action_pdtype == "TanhNormal"


def test_normal_stays_normal_elsewhere(parse: Parse) -> None:
    spec, notes = parse("PPO", {"agent.algorithm.action_pdtype": "Normal"})
    assert spec.agent.algorithm.action_pdtype == "Normal"
    assert notes == ()


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
@pytest.mark.parametrize("replay", ["Replay", "PrioritizedReplay"])
def test_the_memory_of_self_imitation_is_split_off(make: Make, parse: Parse, name: str, replay: str) -> None:
    memory = {"name": "OnPolicyBatchReplay", "sil_replay_name": replay, "batch_size": 32, "max_size": 500}
    raw = make(name, {"agent.memory": memory})
    before = copy.deepcopy(raw)
    spec, notes = parse_spec(raw)
    assert raw == before
    assert notes == ("agent.memory.sil_replay_name and its keys are now agent.algorithm.sil_memory",)
    assert spec.agent.memory.model_dump() == {"name": "OnPolicyBatchReplay"}
    own = spec.agent.algorithm.sil_memory  # type: ignore[attr-defined]
    assert (own.name, own.batch_size, own.max_size) == (replay, 32, 500)
    assert spec == parse(name, {"agent.algorithm.sil_memory": {"name": replay, "batch_size": 32, "max_size": 500}})[0]


def test_the_memory_of_self_imitation_is_given_once(parse: Parse) -> None:
    changes = {"agent.memory.sil_replay_name": "Replay", "agent.algorithm.sil_memory": {"name": "Replay"}}
    message = r"agent\.memory\.sil_replay_name is also given as agent\.algorithm\.sil_memory; give only one of them$"
    with pytest.raises(SpecError, match=message):
        parse("SIL", changes)


# --- defaults


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_one_gradient_step_per_frame_by_default(parse: Parse, name: str) -> None:
    for num_envs, given, expected in ((1, None, 1), (16, None, 16), (16, 4, 4), (16, 1, 1)):
        changes: Changes = {"env.num_envs": num_envs}
        if given is not None:
            changes["agent.algorithm.training_iter"] = given
        algorithm: Any = parse(name, changes)[0].agent.algorithm
        assert algorithm.training_iter == expected
        assert algorithm.calc_utd(num_envs) == expected / num_envs


def test_the_older_name_has_the_same_default(parse: Parse) -> None:
    algorithm: Any = parse("SoftActorCritic", {"agent.algorithm.name": "SAC", "env.num_envs": 8})[0].agent.algorithm
    assert algorithm.training_iter == 8


@pytest.mark.parametrize("name", ["DQN", "SoftActorCritic"])
def test_the_bias_of_priorities_is_undone_at_the_end_by_default(parse: Parse, name: str) -> None:
    changes: Changes = {"agent.memory": {"name": "PrioritizedReplay"}, "env.max_frame": 5e4}
    spec = parse(name, changes)[0]
    memory: Any = spec.agent.memory
    assert [calc_schedule(memory.beta, frame) for frame in (0, 25_000, 50_000)] == pytest.approx([0.4, 0.7, 1.0])
    # a saved spec has it, so that a run keeps its own
    assert parse_spec(spec.model_dump(mode="json"))[0] == spec
    for given in (0.4, {"start_val": 0.1, "end_val": 0.2, "end_step": 9}):
        memory = parse(name, {**changes, "agent.memory.beta": given})[0].agent.memory
        assert memory.beta == (given if isinstance(given, float) else ScheduleSpec.model_validate(given))
    # self-imitation wants the bias towards what went well
    sil: Any = parse("SIL")[0].agent.algorithm
    assert sil.sil_memory.beta == 0.4


def test_gradient_steps_per_frame(parse: Parse) -> None:
    """Behind each other, and at most one training per vector step."""
    keys = {"training_iter": 2, "training_batch_iter": 3, "training_frequency": 4}
    algorithm: Any = parse("DQN", {f"agent.algorithm.{key}": value for key, value in keys.items()})[0].agent.algorithm
    assert algorithm.calc_utd(1) == 6 / 4
    assert algorithm.calc_utd(16) == 6 / 16


def test_update_frequency_alone_means_whole_copies(parse: Parse) -> None:
    assert parse("DQN")[0].agent.net.update_type == "polyak"
    assert parse("DQN", {"agent.net.update_frequency": 100})[0].agent.net.update_type == "replace"
    both = {"agent.net.update_frequency": 100, "agent.net.update_type": "polyak"}
    assert parse("DQN", both)[0].agent.net.update_type == "polyak"


# --- recorded steps


@pytest.mark.parametrize("name", ["BC", "IQL", "TD3BC"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"agent.memory.name": "PrioritizedReplay"},
            "agent.memory.name: {} draws recorded steps uniformly, got PrioritizedReplay; use Replay",
        ),
        (
            {"agent.memory.num_step_returns": 3},
            "agent.memory.num_step_returns: {} learns from single recorded steps; remove it",
        ),
        ({"env.reward_scale": 0.1}, "env.reward_scale: {} takes rewards as they were recorded; remove it"),
        ({"env.normalize_reward": True}, "env.normalize_reward: {} takes rewards as they were recorded; remove it"),
        ({"env.clip_reward": 1.0}, "env.clip_reward: {} takes rewards as they were recorded; remove it"),
    ],
)
def test_keys_that_recorded_steps_do_not_use(
    problems: Callable[..., list[str]], name: str, changes: Changes, expected: str
) -> None:
    assert problems(name, changes) == [expected.format(name)]


def test_the_default_clip_of_atari_games_is_no_mistake(parse: Parse) -> None:
    assert parse("BC", {"env.name": "ALE/Pong-v5"})[0].env.clip_reward == 1.0
