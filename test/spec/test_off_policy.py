"""Specs of algorithms that learn from a replay: older names, defaults, and every combination that is refused."""

import copy
from typing import Any

import pytest

from slm_lab.agent.action.schedule import calc_schedule
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec
from slm_lab.spec.types import ScheduleSpec

Changes = dict[str, Any]


def demo(algorithm: str, memory: str = "Replay", **env: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "agent": {"algorithm": {"name": algorithm}, "memory": {"name": memory}, "net": {"type": "MLPNet"}},
        "env": {"name": "CartPole-v1", "max_frame": 100_000, **env},
    }


BASES: dict[str, dict[str, Any]] = {
    **{name: demo(name) for name in ("VanillaDQN", "DQN", "DoubleDQN", "SoftActorCritic", "CrossQ")},
    **{name: demo(name, "OnPolicyBatchReplay") for name in ("SARSA", "SIL", "PPOSIL", "PPO", "ActorCritic")},
    **{name: demo(name, "OnPolicyReplay") for name in ("Reinforce", "Random")},
}


def changed(base: str, changes: Changes) -> dict[str, Any]:
    """A copy of a spec with values set by dotted path."""
    raw = copy.deepcopy(BASES[base])
    for path, value in changes.items():
        *parts, last = path.split(".")
        node = raw
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = value
    return raw


def parse(base: str, changes: Changes | None = None) -> tuple[Spec, tuple[str, ...]]:
    return parse_spec(changed(base, changes or {}))


def problems(base: str, changes: Changes) -> list[str]:
    """The lines of the error, without its first line."""
    with pytest.raises(SpecError) as caught:
        parse(base, changes)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize("base", BASES)
def test_the_specs_without_changes_are_valid(base: str) -> None:
    spec, notes = parse(base)
    assert spec.agent.algorithm.name == base
    assert notes == ()


# --- older names


@pytest.mark.parametrize(
    ("old", "new"),
    [("SAC", "SoftActorCritic"), ("DDQN", "DoubleDQN"), ("REINFORCE", "Reinforce"), ("A2C", "ActorCritic")],
)
def test_aliases_of_algorithms(old: str, new: str) -> None:
    spec, notes = parse(new, {"agent.algorithm.name": old})
    assert notes == (f"algorithm '{old}' is now '{new}'",)
    assert spec == parse(new)[0]


@pytest.mark.parametrize("name", ["SARSA", "VanillaDQN", "DQN", "DoubleDQN"])
def test_argmax_is_the_default_of_values(name: str) -> None:
    spec, notes = parse(name, {"agent.algorithm.action_pdtype": "Argmax"})
    assert notes == ("action_pdtype 'Argmax' is now 'default'",)
    assert spec == parse(name)[0]


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_normal_meant_squashed(name: str) -> None:
    spec, notes = parse(name, {"agent.algorithm.action_pdtype": "Normal"})
    assert notes == ("action_pdtype 'Normal' is now 'TanhNormal'",)
    assert spec.agent.algorithm.action_pdtype == "TanhNormal"


def test_normal_is_squashed_under_the_older_name_too() -> None:
    spec, _ = parse("SoftActorCritic", {"agent.algorithm.name": "SAC", "agent.algorithm.action_pdtype": "Normal"})
    assert spec.agent.algorithm.action_pdtype == "TanhNormal"


def test_normal_stays_normal_elsewhere() -> None:
    spec, notes = parse("PPO", {"agent.algorithm.action_pdtype": "Normal"})
    assert spec.agent.algorithm.action_pdtype == "Normal"
    assert notes == ()


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
@pytest.mark.parametrize("replay", ["Replay", "PrioritizedReplay"])
def test_the_memory_of_self_imitation_is_split_off(name: str, replay: str) -> None:
    memory = {"name": "OnPolicyBatchReplay", "sil_replay_name": replay, "batch_size": 32, "max_size": 500}
    raw = changed(name, {"agent.memory": memory})
    before = copy.deepcopy(raw)
    spec, notes = parse_spec(raw)
    assert raw == before
    assert notes == ("agent.memory.sil_replay_name and its keys are now agent.algorithm.sil_memory",)
    assert spec.agent.memory.model_dump() == {"name": "OnPolicyBatchReplay"}
    own = spec.agent.algorithm.sil_memory  # type: ignore[attr-defined]
    assert (own.name, own.batch_size, own.max_size) == (replay, 32, 500)
    assert spec == parse(name, {"agent.algorithm.sil_memory": {"name": replay, "batch_size": 32, "max_size": 500}})[0]


def test_the_memory_of_self_imitation_is_given_once() -> None:
    changes = {"agent.memory.sil_replay_name": "Replay", "agent.algorithm.sil_memory": {"name": "Replay"}}
    message = r"agent\.memory\.sil_replay_name is also given as agent\.algorithm\.sil_memory; give only one of them$"
    with pytest.raises(SpecError, match=message):
        parse("SIL", changes)


# --- defaults


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_one_gradient_step_per_frame_by_default(name: str) -> None:
    for num_envs, given, expected in ((1, None, 1), (16, None, 16), (16, 4, 4), (16, 1, 1)):
        changes: Changes = {"env.num_envs": num_envs}
        if given is not None:
            changes["agent.algorithm.training_iter"] = given
        algorithm: Any = parse(name, changes)[0].agent.algorithm
        assert algorithm.training_iter == expected
        assert algorithm.calc_utd(num_envs) == expected / num_envs


def test_the_older_name_has_the_same_default() -> None:
    algorithm: Any = parse("SoftActorCritic", {"agent.algorithm.name": "SAC", "env.num_envs": 8})[0].agent.algorithm
    assert algorithm.training_iter == 8


@pytest.mark.parametrize("name", ["DQN", "SoftActorCritic"])
def test_the_bias_of_priorities_is_undone_at_the_end_by_default(name: str) -> None:
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


def test_one_env_by_default_means_one_step() -> None:
    assert parse("SoftActorCritic")[0].agent.algorithm.training_iter == 1  # type: ignore[attr-defined]


def test_gradient_steps_per_frame() -> None:
    """Behind each other, and at most one training per vector step."""
    keys = {"training_iter": 2, "training_batch_iter": 3, "training_frequency": 4}
    algorithm: Any = parse("DQN", {f"agent.algorithm.{key}": value for key, value in keys.items()})[0].agent.algorithm
    assert algorithm.calc_utd(1) == 6 / 4
    assert algorithm.calc_utd(16) == 6 / 16


def test_update_frequency_alone_means_whole_copies() -> None:
    assert parse("DQN")[0].agent.net.update_type == "polyak"
    assert parse("DQN", {"agent.net.update_frequency": 100})[0].agent.net.update_type == "replace"
    both = {"agent.net.update_frequency": 100, "agent.net.update_type": "polyak"}
    assert parse("DQN", both)[0].agent.net.update_type == "polyak"


# --- refusals


NO_TARGET = ["VanillaDQN", "CrossQ", "SARSA", "PPO", "ActorCritic", "SIL", "PPOSIL", "Reinforce"]
OFF_POLICY = ["VanillaDQN", "DQN", "DoubleDQN", "SoftActorCritic", "CrossQ"]
VALUING = ["VanillaDQN", "DQN", "DoubleDQN", "SARSA"]


@pytest.mark.parametrize("name", OFF_POLICY)
@pytest.mark.parametrize("memory", ["OnPolicyReplay", "OnPolicyBatchReplay"])
def test_off_policy_needs_a_replay(name: str, memory: str) -> None:
    assert problems(name, {"agent.memory": {"name": memory}}) == [
        f"agent.memory.name: {name} learns from a replay, got {memory}; use Replay or PrioritizedReplay"
    ]


@pytest.mark.parametrize("name", ["Reinforce", "ActorCritic", "SARSA", "SIL"])
@pytest.mark.parametrize("memory", ["Replay", "PrioritizedReplay"])
def test_on_policy_refuses_a_replay(name: str, memory: str) -> None:
    assert problems(name, {"agent.memory": {"name": memory}}) == [
        f"agent.memory.name: {name} learns from what it does now, got {memory}; "
        "use OnPolicyBatchReplay or OnPolicyReplay"
    ]


@pytest.mark.parametrize("name", ["PPO", "PPOSIL"])
def test_ppo_refuses_a_replay(name: str) -> None:
    found = problems(name, {"agent.memory": {"name": "Replay"}})
    assert found == [f"agent.memory.name: {name} needs OnPolicyBatchReplay, got Replay"]


@pytest.mark.parametrize("name", [*OFF_POLICY, "PPO", "SARSA", "Random"])
def test_cross_entropy_is_for_policy_gradients(name: str) -> None:
    found = problems(name, {"agent.memory": {"name": "OnPolicyCrossEntropy"}})
    assert f"agent.memory.name: OnPolicyCrossEntropy is for Reinforce and ActorCritic, not {name}" in found


@pytest.mark.parametrize("name", OFF_POLICY)
def test_training_must_start_before_the_end(name: str) -> None:
    assert problems(name, {"agent.algorithm.training_start_step": 5000, "env.max_frame": 5000}) == [
        "agent.algorithm.training_start_step: 5000 is not before env.max_frame 5000, so nothing would be learned; "
        "lower it"
    ]
    parse(name, {"agent.algorithm.training_start_step": 4999, "env.max_frame": 5000})


@pytest.mark.parametrize("memory", ["Replay", "PrioritizedReplay"])
def test_a_batch_must_fit_in_the_memory(memory: str) -> None:
    keys = {"name": memory, "batch_size": 65, "max_size": 64}
    assert problems("DQN", {"agent.memory": keys}) == [
        "agent.memory.batch_size: 65 is more than max_size 64; use at most 64"
    ]
    parse("DQN", {"agent.memory": {**keys, "batch_size": 64}})
    assert problems("SIL", {"agent.algorithm.sil_memory": keys}) == [
        "agent.algorithm.sil_memory.batch_size: 65 is more than max_size 64; use at most 64"
    ]


@pytest.mark.parametrize("name", ["SIL", "PPOSIL"])
def test_self_imitation_keeps_whole_returns(name: str) -> None:
    assert problems(name, {"agent.algorithm.sil_memory": {"name": "Replay", "num_step_returns": 2}}) == [
        "agent.algorithm.sil_memory.num_step_returns: whole returns are kept; remove it"
    ]


@pytest.mark.parametrize(("key", "value"), [("alpha", 0.6), ("epsilon", 0.1), ("beta", 0.4)])
def test_keys_of_priorities_need_priorities(key: str, value: float) -> None:
    (line,) = problems("DQN", {f"agent.memory.{key}": value})
    assert line.startswith(f"agent.memory.{key}: unknown key")
    parse("DQN", {"agent.memory": {"name": "PrioritizedReplay", key: value}})


@pytest.mark.parametrize("name", NO_TARGET)
@pytest.mark.parametrize(
    ("key", "value"), [("update_type", "replace"), ("polyak_coef", 0.1), ("update_frequency", 100)]
)
def test_keys_of_a_target_net_need_one(name: str, key: str, value: Any) -> None:
    changes = {f"agent.net.{key}": value}
    if key == "update_frequency":
        # alone it would mean whole copies, which is a second mistake
        changes["agent.net.update_type"] = "polyak"
    assert problems(name, changes) == [f"agent.net.{key}: {name} has no target net; remove it"]


def test_a_net_of_critics_has_no_target_in_crossq() -> None:
    assert problems("CrossQ", {"agent.critic_net": {"type": "MLPNet", "polyak_coef": 0.3}}) == [
        "agent.critic_net.polyak_coef: CrossQ has no target net; remove it"
    ]


def test_two_ways_to_follow_contradict() -> None:
    (line,) = problems("DQN", {"agent.net.polyak_coef": 0.1, "agent.net.update_frequency": 10})
    assert line.startswith("agent.net")
    assert line.endswith("polyak_coef and update_frequency are both given; say which by update_type")


@pytest.mark.parametrize("name", ["DQN", "DoubleDQN", "SoftActorCritic"])
def test_target_nets_take_their_keys(name: str) -> None:
    parse(name, {"agent.net.update_type": "replace", "agent.net.update_frequency": 10})
    parse(name, {"agent.net.polyak_coef": 0.1})


@pytest.mark.parametrize("name", ["PPO", "ActorCritic", "Reinforce", "SIL", "PPOSIL", "SoftActorCritic", "CrossQ"])
@pytest.mark.parametrize("kind", ["MLPNet", "ConvNet"])
def test_dueling_is_for_values_of_actions(name: str, kind: str) -> None:
    assert problems(name, {"agent.net.type": f"Dueling{kind}"}) == [
        f"agent.net.type: Dueling{kind} is for algorithms that value each action, not {name}; use {kind}"
    ]


def test_dueling_critics_are_refused_too() -> None:
    assert problems("SoftActorCritic", {"agent.critic_net": {"type": "DuelingMLPNet"}}) == [
        "agent.critic_net.type: DuelingMLPNet is for algorithms that value each action, not SoftActorCritic; use MLPNet"
    ]


@pytest.mark.parametrize("name", VALUING)
def test_values_of_actions_take_dueling_nets(name: str) -> None:
    for kind in ("DuelingMLPNet", "DuelingConvNet"):
        parse(name, {"agent.net.type": kind})


@pytest.mark.parametrize("name", VALUING)
@pytest.mark.parametrize("role", ["actor", "critic"])
def test_one_net_has_no_roles(name: str, role: str) -> None:
    assert problems(name, {f"agent.net.{role}_hid_layers": [8]}) == [
        f"agent.net.{role}_hid_layers: {name} has one net; give the key without prefix"
    ]


@pytest.mark.parametrize("name", VALUING)
def test_values_have_no_std(name: str) -> None:
    assert problems(name, {"agent.net.log_std_init": 0.0}) == [
        f"agent.net.log_std_init: {name} has no policy with a std; remove it"
    ]


@pytest.mark.parametrize("name", [*VALUING, "SoftActorCritic", "CrossQ"])
def test_no_net_to_share(name: str) -> None:
    assert problems(name, {"agent.net.shared": True}) == [f"agent.net.shared: {name} has no net to share; remove it"]


@pytest.mark.parametrize("name", ["PPO", "ActorCritic", "DQN", "SARSA", "Reinforce"])
def test_critic_net_is_for_soft_actor_critics(name: str) -> None:
    assert problems(name, {"agent.critic_net": {"type": "MLPNet"}}) == [
        f"agent.critic_net: for SoftActorCritic and CrossQ; {name} takes keys with the prefix critic_"
    ]


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_critic_net_and_prefixed_keys_contradict(name: str) -> None:
    parse(name, {"agent.critic_net": {"type": "MLPNet"}})
    assert problems(name, {"agent.critic_net": {"type": "MLPNet"}, "agent.net.critic_hid_layers": [8]}) == [
        "agent.net.critic_hid_layers: contradicts critic_net; remove one of them"
    ]


@pytest.mark.parametrize("name", ["SARSA", "SoftActorCritic", "CrossQ", "SIL", "PPOSIL", "Random"])
def test_no_use_for_a_hidden_state(name: str) -> None:
    assert problems(name, {"agent.net": {"type": "RecurrentNet"}}) == [
        f"agent.net.type: {name} has no use for a hidden state; RecurrentNet works with Reinforce, ActorCritic, "
        "PPO, VanillaDQN, DQN and DoubleDQN"
    ]


def test_critics_have_no_hidden_state_either() -> None:
    (line,) = problems("SoftActorCritic", {"agent.critic_net": {"type": "RecurrentNet"}})
    assert line.startswith("agent.critic_net.type: SoftActorCritic has no use for a hidden state")


@pytest.mark.parametrize("name", VALUING)
def test_exploration_needs_its_schedule(name: str) -> None:
    for policy in ("epsilon_greedy", "boltzmann"):
        changes = {"agent.algorithm.action_policy": policy, "agent.algorithm.explore_var_spec": None}
        assert problems(name, changes) == [f"agent.algorithm.action_policy: {policy} needs explore_var_spec"]


@pytest.mark.parametrize("name", [*VALUING, "SoftActorCritic", "CrossQ"])
def test_how_actions_are_drawn(name: str) -> None:
    """Values have no probabilities to draw from, and a soft policy needs none beside its own."""
    wrong = "default" if name in VALUING else "epsilon_greedy"
    (line,) = problems(name, {"agent.algorithm.action_policy": wrong})
    assert line.startswith("agent.algorithm.action_policy: ")


@pytest.mark.parametrize("name", ["SoftActorCritic", "CrossQ"])
def test_a_soft_policy_explores_by_itself(name: str) -> None:
    (line,) = problems(name, {"agent.algorithm.explore_var_spec": 0.3})
    assert line == "agent.algorithm: the policy explores by its own entropy; remove explore_var_spec"


@pytest.mark.parametrize("key", ["alpha_lr", "target_entropy"])
def test_what_is_fixed_is_not_learned(key: str) -> None:
    keys = {"agent.algorithm.fixed_alpha": 0.2, f"agent.algorithm.{key}": 0.1}
    assert problems("SoftActorCritic", keys) == [f"agent.algorithm: fixed_alpha is not learned; remove {key}"]


def test_target_keys_belong_to_the_critics() -> None:
    keys = {"agent.critic_net": {"type": "MLPNet"}, "agent.net.polyak_coef": 0.1}
    assert problems("SoftActorCritic", keys) == [
        "agent.net.polyak_coef: the target follows the critics; give it in agent.critic_net"
    ]


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        ({"alpha_anneal_frames": 100}, "alpha_anneal_frames needs fixed_alpha"),
        ({"log_alpha_min": 1.0, "log_alpha_max": 0.0}, "log_alpha_min 1.0 is above log_alpha_max 0.0"),
        (
            {"target_entropy": -1.0, "entropy_anneal": {"end_ratio": 0.1, "frames": 10}},
            "entropy_anneal contradicts target_entropy; remove one of them",
        ),
        ({"target_entropy": "none"}, "target_entropy"),
        ({"fixed_alpha": -0.1}, "fixed_alpha"),
    ],
)
def test_alpha_that_contradicts_itself(keys: Changes, remedy: str) -> None:
    lines = problems("SoftActorCritic", {f"agent.algorithm.{key}": value for key, value in keys.items()})
    assert any(line.startswith("agent.algorithm") and remedy in line for line in lines), lines


def test_all_mistakes_come_at_once() -> None:
    changes = {
        "agent.memory": {"name": "OnPolicyReplay"},
        "agent.net.shared": True,
        "agent.algorithm.training_start_step": 10**6,
    }
    paths = [line.split(":")[0] for line in problems("DQN", changes)]
    assert sorted(paths) == ["agent.algorithm.training_start_step", "agent.memory.name", "agent.net.shared"]


def test_a_key_of_another_kind_is_told_where_it_belongs() -> None:
    assert problems("DQN", {"agent.memory.alpha": 0.5}) == [
        "agent.memory.alpha: unknown key; it is a key of agent.memory PrioritizedReplay"
    ]
    assert problems("DQN", {"agent.algorithm.num_step_returns": 3}) == [
        "agent.algorithm.num_step_returns: unknown key; it is a key of agent.algorithm ActorCritic, SIL and of "
        "agent.memory Replay, PrioritizedReplay"
    ]
