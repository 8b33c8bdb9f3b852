"""Specs of the published lab: read as that program read them, with one note per cause; others stay strict."""

import copy
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.net import AdamSpec
from slm_lab.spec.schema import Spec

Changes = dict[str, Any]
ADAM, RMSPROP = {"name": "Adam", "lr": 0.02}, {"name": "RMSprop", "lr": 0.03}
MEMORIES = {"SARSA": "OnPolicyBatchReplay", "DQN": "Replay", "SoftActorCritic": "Replay", "CrossQ": "Replay"}


def make(name: str, changes: Changes | None = None, distributed: bool = True) -> dict[str, Any]:
    """A small published spec with values at dotted paths."""
    raw: dict[str, Any] = {
        "name": "demo",
        "agent": {
            "algorithm": {"name": name},
            "memory": {"name": MEMORIES.get(name, "OnPolicyBatchReplay")},
            "net": {"type": "MLPNet", "hid_layers": [8]},
        },
        "env": {"name": "CartPole-v1", "max_frame": 10_000},
        "meta": {"distributed": False, "max_session": 1},
    }
    if name in ("PPO", "PPOSIL"):
        raw["agent"]["algorithm"]["minibatch_size"] = 64
    if MEMORIES.get(name) == "Replay":
        raw["agent"]["algorithm"] |= {"training_start_step": 10, "training_iter": 1, "policy_delay": 1}
        raw["agent"]["net"] |= {"update_type": "polyak", "polyak_coef": 0.01}
    if name == "DQN":
        del raw["agent"]["algorithm"]["policy_delay"]
    if name == "CrossQ":
        del raw["agent"]["net"]["update_type"], raw["agent"]["net"]["polyak_coef"]
    if not distributed:
        del raw["meta"]["distributed"]
    for path, value in (changes or {}).items():
        *parts, last = path.split(".")
        node = raw
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = copy.deepcopy(value)
    return raw


def parse(name: str, changes: Changes | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The resolved spec as data, and the notes."""
    spec, notes = parse_spec(make(name, changes))
    return spec.model_dump(mode="json", serialize_as_any=True), notes


@pytest.mark.parametrize("name", ["PPO", "ActorCritic", "Reinforce", "SARSA", "DQN", "SoftActorCritic", "CrossQ"])
def test_a_published_spec_with_nothing_to_translate_has_no_notes(name: str) -> None:
    spec, notes = parse_spec(make(name))
    assert notes == ()
    assert spec == parse_spec(make(name, distributed=False))[0]


CASES: list[tuple[str, Changes, str]] = [
    # keys without effect
    ("PPO", {"agent.net.normalize": True}, "not read by the published lab, so dropped: agent.net.normalize"),
    ("PPO", {"agent.net.actor_normalize": 1}, "not read by the published lab, so dropped: agent.net.actor_normalize"),
    ("DQN", {"agent.net.shared": True}, "not read by the published lab, so dropped: agent.net.shared"),
    (
        "DQN",
        {"agent.net.actor_optim_spec": ADAM},
        "not read by the published lab, so dropped: agent.net.actor_optim_spec",
    ),
    (
        "Reinforce",
        {"agent.net.critic_init_std": 1},
        "not read by the published lab, so dropped: agent.net.critic_init_std",
    ),
    ("SoftActorCritic", {"agent.net.shared": True}, "not read by the published lab, so dropped: agent.net.shared"),
    (
        "PPO",
        {"agent.net.update_type": "replace", "agent.net.update_frequency": 5},
        "not read by the published lab, so dropped: agent.net.update_type, agent.net.update_frequency",
    ),
    (
        "ActorCritic",
        {"agent.memory.batch_size": 4, "meta.param_spec": 1, "notes": "x", "agent.extra": 1, "env.frame_op": "concat"},
        "not read by the published lab, so dropped: notes, agent.extra, agent.memory.batch_size, env.frame_op, "
        "meta.param_spec",
    ),
    ("PPO", {"agent.critic_net": {"type": "MLPNet"}}, "not read by the published lab, so dropped: agent.critic_net"),
    (
        "CrossQ",
        {"agent.critic_net": {"type": "MLPNet", "shared": True}},
        "not read by the published lab, so dropped: agent.critic_net.shared",
    ),
    # search
    (
        "PPO",
        {"search": {"agent.net.lr_decay_step__choice": [1], "agent.algorithm.gamma": [0.9], "a__b__c": [1]}},
        "search keys that set nothing, so dropped: agent.net.lr_decay_step__choice, agent.algorithm.gamma, a__b__c",
    ),
    # one net for both, or one optimiser
    (
        "PPO",
        {"agent.net.shared": True, "agent.net.actor_optim_spec": ADAM, "agent.net.critic_optim_spec": RMSPROP},
        "agent.net.shared: true means the actor's keys for both nets: actor_optim_spec is now optim_spec, "
        "critic_optim_spec is not read",
    ),
    (
        "ActorCritic",
        {"agent.net.use_same_optim": True, "agent.net.actor_optim_spec": ADAM, "agent.net.critic_hid_layers": [4]},
        "agent.net.use_same_optim: true means the actor's keys for both nets: actor_optim_spec is now optim_spec, "
        "critic_hid_layers is not read",
    ),
    # contradictions
    (
        "PPO",
        {"agent.algorithm.clip_vloss": True, "agent.algorithm.normalize_v_targets": True},
        "agent.algorithm.normalize_v_targets has no effect with clip_vloss\n"
        "agent.algorithm.val_loss_coef is halved with clip_vloss: there the clipped loss has a factor 1/2",
    ),
    (
        "ActorCritic",
        {"agent.algorithm.lam": 0.9, "agent.algorithm.num_step_returns": 5},
        "agent.algorithm.num_step_returns has no effect with lam, which stands for GAE",
    ),
    (
        "ActorCritic",
        {"agent.algorithm.training_frequency": 4, "agent.algorithm.num_step_returns": 5},
        "agent.algorithm.training_frequency is num_step_returns, 5, with n-step returns",
    ),
    (
        "PPO",
        {"agent.algorithm.training_frequency": 64},
        "agent.algorithm.training_frequency of PPO is its time_horizon",
    ),
    (
        "SoftActorCritic",
        {"agent.algorithm.fixed_alpha": 0.1, "agent.algorithm.alpha_lr": 1e-3, "agent.algorithm.explore_var_spec": 1},
        "keys of agent.algorithm without effect in SoftActorCritic: explore_var_spec, alpha_lr",
    ),
    (
        "DQN",
        {"agent.memory": {"name": "PrioritizedReplay", "epsilon": 0.0}},
        "agent.memory.epsilon 0 is now 1e-8, so that every transition can be sampled again",
    ),
    # recurrent nets
    (
        "SIL",
        {"agent.net": {"type": "RecurrentNet", "fc_hid_layers": [16], "rnn_hidden_size": 8, "seq_len": 4}},
        "agent.net.type: a RecurrentNet kept no state between steps in the published lab, and SIL has no use for one; "
        "it is now an MLPNet with hid_layers [16, 8]",
    ),
    (
        "PPO",
        {"agent.net": {"type": "RecurrentNet", "seq_len": 12}},
        "agent.net.seq_len 12 is now 4, which divides the steps of each training",
    ),
    (
        "DQN",
        {"agent.net": {"type": "RecurrentNet", "update_frequency": 9}, "agent.memory.use_cer": True},
        "agent.memory: a RecurrentNet learns from whole sequences, sampled uniformly, without use_cer",
    ),
    # envs
    (
        "PPO",
        {"env.sutton_barto_reward": True},
        "keys of env that go to the env itself are now in env.kwargs: sutton_barto_reward",
    ),
    (
        "PPO",
        {"env.name": "PongNoFrameskip-v4", "agent.net": {"type": "ConvNet", "batch_norm": False}},
        "env.name 'PongNoFrameskip-v4' is now 'ALE/Pong-v5'",
    ),
    # defaults
    (
        "PPO",
        {"agent.algorithm": {"name": "PPO"}},
        "not given, so the published lab's default: agent.algorithm.minibatch_size 4",
    ),
    (
        "ActorCritic",
        {"agent.net": {"type": "ConvNet"}},
        "not given, so the published lab's default: agent.net.batch_norm true",
    ),
    (
        "PPO",
        {"agent.net": {"type": "ConvNet"}},
        "agent.net.batch_norm is false: with it, PPO would compare probabilities of two different nets",
    ),
    (
        "DQN",
        {"agent.algorithm": {"name": "DQN"}, "agent.net": {"type": "MLPNet"}, "agent.memory.batch_size": 32},
        "not given, so the published lab's default: agent.algorithm.training_start_step 32, "
        "agent.net.update_type replace, agent.net.update_frequency 1",
    ),
    (
        "CrossQ",
        {"agent.algorithm": {"name": "CrossQ"}, "env.num_envs": 2},
        "not given, so the published lab's default: agent.algorithm.training_iter 2, agent.algorithm.policy_delay 1",
    ),
]


@pytest.mark.parametrize(("name", "changes", "note"), CASES)
def test_each_cause_has_its_note(name: str, changes: Changes, note: str) -> None:
    raw = make(name, changes)
    before = copy.deepcopy(raw)
    spec, notes = parse_spec(raw)
    assert raw == before
    assert "\n".join(notes) == note
    # what is saved loads as it is
    saved = dump_spec(spec)["demo"]
    assert parse_spec({**saved, "name": "demo"}) == (spec, ())
    # and counts for what it says where this lab's own keys are all there
    assert parse_spec({**saved, "name": "demo", "meta": {**saved["meta"], "distributed": False}}) == (spec, ())


# defaults differ, and which envs exist is not known here; the rest may not stand in a spec of one's own
STRICT = [case for case in CASES if not case[2].startswith(("not given", "env.name", "agent.net.batch_norm"))]


@pytest.mark.parametrize(("name", "changes"), [(name, changes) for name, changes, _ in STRICT])
def test_a_spec_of_this_lab_stays_strict(name: str, changes: Changes) -> None:
    with pytest.raises(SpecError):
        parse_spec(make(name, changes, distributed=False))


def test_the_actors_optimiser_wins_in_a_shared_net() -> None:
    net = {"agent.net.shared": True, "agent.net.actor_optim_spec": ADAM, "agent.net.critic_optim_spec": RMSPROP}
    search = {"agent": {"net": {f"{role}_optim_spec": {"lr__uniform": [0.1, 0.2]} for role in ("actor", "critic")}}}
    spec, notes = parse_spec(make("PPO", {**net, "search": search}))
    assert spec.agent.net.optim_spec == AdamSpec(lr=0.02)
    assert (spec.agent.net.actor, spec.agent.net.critic) == ({}, {})
    assert spec.search == {"agent.net.optim_spec.lr__uniform": [0.1, 0.2]}
    assert notes[1] == "search keys that set nothing, so dropped: agent.net.critic_optim_spec.lr__uniform"


def test_heads_of_a_shared_net_keep_their_own_keys() -> None:
    spec, notes = parse("PPO", {"agent.net.shared": True, "agent.net.actor_init_std": 0.01})
    assert (spec["agent"]["net"]["actor"], notes) == ({"init_std": 0.01}, ())


@pytest.mark.parametrize("net", [{}, {"shared": True}, {"type": "HydraMLPNet"}])
def test_random_needs_no_net(net: dict[str, Any]) -> None:
    raw = make("Random", {"agent.algorithm.training_frequency": 4})
    raw["agent"] |= {"net": net, "memory": {"name": "PrioritizedReplay", "epsilon": 0.0}}
    spec, notes = parse_spec(raw)
    assert isinstance(spec, Spec)
    assert notes == (
        "Random has no use for agent.memory and agent.net; they are not read",
        "not read by the published lab, so dropped: agent.algorithm.training_frequency",
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"agent.algorithm.name": "HydraDQN"}, r"agent\.algorithm\.name: unknown 'HydraDQN'"),
        ({"agent.net.type": "HydraMLPNet"}, r"agent\.net\.type: unknown 'HydraMLPNet'"),
        ({"agent.algorithm.action_pdtype": "Gumbel"}, r"agent\.algorithm\.action_pdtype: .* got \"Gumbel\""),
        ({"agent.algorithm.gamma": 2}, r"agent\.algorithm\.gamma: less than or equal to 1 expected, got 2"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(changes: Changes, line: str) -> None:
    with pytest.raises(SpecError, match=rf"has 1 error:\n  {line}"):
        parse_spec(make("PPO", changes))


@pytest.mark.parametrize("value", [None, 5, "text", [], [1], {}, True])
@pytest.mark.parametrize(
    "path", ["agent", "env", "agent.algorithm", "agent.memory", "agent.net", "agent.net.fc_hid_layers", "search"]
)
def test_a_value_of_the_wrong_kind_is_never_a_crash(path: str, value: object) -> None:
    for name in ("PPO", "SIL", "DQN"):
        raw = make(name, {"agent.net.type": "RecurrentNet", path: value})
        try:
            parse_spec(raw)
        except SpecError:
            continue
