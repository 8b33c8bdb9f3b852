"""Specs of the published SLM-Lab, read as that program does; one note per reason.

It ignored every key that it did not know or had no use for. This lab refuses such keys in specs of its own, since a
spec should say what it does. `meta.distributed` marks a published spec: that program does not start without it.
"""

import re
from collections.abc import Iterable
from math import gcd
from typing import Any

from slm_lab.spec.net import MLPNetSpec, NetSpec, RecurrentNetSpec
from slm_lab.spec.reader import printable
from slm_lab.spec.roles import NETS, ROLES, nested_path, written_path
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS, AgentSpec, EnvSpec, MetaSpec, Spec
from slm_lab.spec.search_space import dimensions, search_problems

PPO = ("PPO", "PPOSIL")
ACTOR_CRITIC = ("ActorCritic", "SIL")
Q_LEARNING = ("VanillaDQN", "DQN", "DoubleDQN")
SOFT = ("SoftActorCritic", "CrossQ")
HAS_TARGET = ("DQN", "DoubleDQN", "SoftActorCritic")
# one net, so it has no keys for an actor or a critic alone
ONE_NET = ("Reinforce", "SARSA", *Q_LEARNING)
# their losses take transitions without what came before them
MEMORYLESS = ("SARSA", "SIL", "PPOSIL", *SOFT)
IMAGE_NETS = ("ConvNet", "DuelingConvNet")
TARGET_KEYS = ("update_type", "update_frequency", "polyak_coef")
# what differs between two heads on one body
HEAD_KEYS = ("init_std", "log_std_init", "out_layer_activation")
# older keys of envs that no env takes
ENV_DROPPED = ("device", "frame_op", "frame_op_len", "image_downsize")
# all of these together: a spec that an earlier version of this lab saved, whose keys mean what they say
SAVED_KEYS = {"seed", "compile", "checkpoint_frequency", "video_frequency", "num_threads"}
_OLD_GAME = re.compile(r"(?!CarRacing)([A-Z][A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v[04]")

Raw = dict[str, Any]


def is_published(spec: Raw) -> bool:
    """Whether a raw spec was written for the published lab."""
    meta = spec.get("meta")
    return isinstance(meta, dict) and "distributed" in meta and not meta.keys() >= SAVED_KEYS


def translate(spec: Raw, notes: list[str]) -> None:
    """Change a raw spec in place to what it means in the published lab."""
    agent, env = spec.get("agent"), spec.get("env")
    if not isinstance(agent, dict) or not isinstance(env, dict) or not isinstance(agent.get("algorithm"), dict):
        return  # refused as what they are
    algorithm = agent["algorithm"]
    if algorithm.get("name") == "Random":
        agent |= {"memory": {"name": "OnPolicyBatchReplay"}, "net": {"type": "MLPNet"}}
        notes.append("Random has no use for agent.memory and agent.net; they are not read")
    if not isinstance(agent.get("net"), dict) or not isinstance(agent.get("memory"), dict):
        return
    agent["memory"] = dict(agent["memory"])
    _rename_game(agent["net"], env, notes)
    _fill_defaults(agent, env, notes)
    _drop_contradictions(agent, notes)
    _merge_roles(agent["net"], algorithm, spec, notes)
    _fit_recurrent(agent, notes)
    _drop_unused(spec, notes)


def _rename_game(net: Raw, env: Raw, notes: list[str]) -> None:
    """Older ids of Atari games give raw images, which no published net reads."""
    game = _OLD_GAME.fullmatch(str(env.get("name")))
    if game is not None and net.get("type") in IMAGE_NETS:
        notes.append(f"env.name '{env['name']}' is now 'ALE/{game[1]}-v5'")
        env["name"] = f"ALE/{game[1]}-v5"


def _fill_defaults(agent: Raw, env: Raw, notes: list[str]) -> None:
    """Missing keys that have another default there."""
    algorithm, memory, net = agent["algorithm"], agent["memory"], agent["net"]
    name, batch_size = algorithm.get("name"), memory.get("batch_size")
    wanted: list[tuple[str, Raw, str, Any]] = []
    if name in PPO:
        wanted.append(("agent.algorithm", algorithm, "minibatch_size", 4))
    if name in Q_LEARNING and batch_size is not None:
        wanted.append(("agent.algorithm", algorithm, "training_start_step", batch_size))
    if name in SOFT:
        wanted.append(("agent.algorithm", algorithm, "training_iter", env.get("num_envs", 1)))
        if isinstance(batch_size, (int, float)) and batch_size > 1000:
            wanted.append(("agent.algorithm", algorithm, "training_start_step", batch_size))
    if name == "CrossQ":
        wanted.append(("agent.algorithm", algorithm, "policy_delay", 1))
    if name in HAS_TARGET and ("update_frequency" not in net or "polyak_coef" in net):
        wanted.append(("agent.net", net, "update_type", "replace"))
        if net.get("update_type", "replace") == "replace":
            wanted.append(("agent.net", net, "update_frequency", 1))
    if net.get("type") in IMAGE_NETS and name not in PPO:
        wanted.append(("agent.net", net, "batch_norm", True))
    filled = []
    for where, section, key, value in wanted:
        if key not in section:
            section[key] = value
            filled.append(f"{where}.{key} {str(value).lower()}")
    if filled:
        notes.append(f"not given, so the published lab's default: {', '.join(filled)}")


def _drop_contradictions(agent: Raw, notes: list[str]) -> None:
    """Keys that another key overrides there."""
    algorithm, memory = agent["algorithm"], agent["memory"]
    name = algorithm.get("name")
    if name in PPO and "training_frequency" in algorithm:
        frequency = algorithm.pop("training_frequency")
        algorithm.setdefault("time_horizon", frequency)
        notes.append("agent.algorithm.training_frequency of PPO is its time_horizon")
    if name in PPO and agent["net"].get("batch_norm", agent["net"].get("type") in IMAGE_NETS) is True:
        agent["net"]["batch_norm"] = False
        notes.append("agent.net.batch_norm is false: with it, PPO would compare probabilities of two different nets")
    if name in PPO and algorithm.get("clip_vloss") is True and algorithm.pop("normalize_v_targets", False):
        notes.append("agent.algorithm.normalize_v_targets has no effect with clip_vloss")
    coef = algorithm.get("val_loss_coef", 1.0)
    if name in PPO and algorithm.get("clip_vloss") is True and isinstance(coef, (int, float)):
        algorithm["val_loss_coef"] = coef / 2
        notes.append("agent.algorithm.val_loss_coef is halved with clip_vloss: there the clipped loss has a factor 1/2")
    steps = algorithm.get("num_step_returns")
    if name in ACTOR_CRITIC and steps is not None and algorithm.get("lam") is not None:
        del algorithm["num_step_returns"]
        notes.append("agent.algorithm.num_step_returns has no effect with lam, which stands for GAE")
    elif name in ACTOR_CRITIC and steps is not None and algorithm.get("training_frequency", steps) != steps:
        algorithm["training_frequency"] = steps
        notes.append(f"agent.algorithm.training_frequency is num_step_returns, {steps}, with n-step returns")
    if name in SOFT:
        overruled = ["explore_var_spec"] if algorithm.get("explore_var_spec") is not None else []
        if algorithm.get("fixed_alpha") is not None:
            overruled += [key for key in ("alpha_lr", "target_entropy", "entropy_anneal") if key in algorithm]
        elif "alpha_anneal_frames" in algorithm:
            overruled.append("alpha_anneal_frames")
        for key in overruled:
            del algorithm[key]
        if overruled:
            notes.append(f"keys of agent.algorithm without effect in {name}: {', '.join(overruled)}")
    if memory.get("name") == "PrioritizedReplay" and memory.get("epsilon") == 0:
        memory["epsilon"] = 1e-8
        notes.append("agent.memory.epsilon 0 is now 1e-8, so that every transition can be sampled again")


def _merge_roles(net: Raw, algorithm: Raw, spec: Raw, notes: list[str]) -> None:
    """With `shared` or `use_same_optim` the critic has the actor's keys, and its own are not read."""
    cause = next((key for key in ("shared", "use_same_optim") if net.get(key) is True), None)
    if cause is None or algorithm.get("name") not in (*PPO, *ACTOR_CRITIC):
        return
    actor, critic = ({key: value for key, value in _own(net, role).items() if key not in HEAD_KEYS} for role in ROLES)
    if not actor and not critic:
        return
    net |= actor | {role: {key: value for key, value in _own(net, role).items() if key in HEAD_KEYS} for role in ROLES}
    news = [f"actor_{key} is now {key}" for key in actor] + [f"critic_{key} is not read" for key in critic]
    notes.append(f"agent.net.{cause}: true means the actor's keys for both nets: {', '.join(news)}")
    if isinstance(spec.get("search"), dict):
        # what is searched moves with its key
        starts = tuple(f"agent.net.actor.{key}" for key in actor)
        spec["search"] = {
            nested.replace("net.actor.", "net.", 1) if (nested := nested_path(key)).startswith(starts) else key: space
            for key, space in dimensions(spec["search"])
        }


def _own(net: Raw, role: str) -> Raw:
    """The keys of one role."""
    own = net.get(role)
    return own if isinstance(own, dict) else {}


def _fit_recurrent(agent: Raw, notes: list[str]) -> None:
    """A RecurrentNet saw one observation `seq_len` times there; here it has memory."""
    algorithm, memory, net = agent["algorithm"], agent["memory"], agent["net"]
    name = algorithm.get("name")
    if net.get("type") != "RecurrentNet":
        return
    if name in MEMORYLESS:
        layers, width = net.get("fc_hid_layers") or [], net.get("rnn_hidden_size", 64)
        if not isinstance(layers, list):
            return  # refused as what it is
        for key in RecurrentNetSpec.model_fields.keys() - MLPNetSpec.model_fields.keys():
            net.pop(key, None)
        net |= {"type": "MLPNet", "hid_layers": [*layers, width]}
        notes.append(
            f"agent.net.type: a RecurrentNet kept no state between steps in the published lab, and {name} has no use "
            f"for one; it is now an MLPNet with hid_layers {net['hid_layers']}"
        )
        return
    if net.pop("bidirectional", False) is True:
        notes.append("agent.net.bidirectional: true would read the future; it is now false")
    unfit = [key for key in ("use_cer",) if name in Q_LEARNING and memory.pop(key, False) is True]
    if name in Q_LEARNING and memory.get("name") == "PrioritizedReplay":
        memory["name"] = "Replay"
        unfit.append("PrioritizedReplay")
    if unfit:
        notes.append(f"agent.memory: a RecurrentNet learns from whole sequences, sampled uniformly, without {unfit[0]}")
    lengths = []
    if name in PPO:
        lengths = [algorithm.get("time_horizon", 128), algorithm["minibatch_size"]]
    elif name in ACTOR_CRITIC and memory.get("name") == "OnPolicyBatchReplay":
        lengths = [algorithm.get("training_frequency", algorithm.get("num_step_returns") or 32)]
    given = net.get("seq_len", 16)
    if all(isinstance(length, (int, float)) and length == int(length) for length in (given, *lengths)):
        fitting = gcd(*(int(length) for length in (given, *lengths)))
        if fitting != given:
            net["seq_len"] = fitting
            notes.append(f"agent.net.seq_len {given} is now {fitting}, which divides the steps of each training")


def _drop_unused(spec: Raw, notes: list[str]) -> None:
    """Keys that the published lab did not read in this place."""
    agent, env, meta = spec["agent"], spec["env"], spec["meta"]
    name = agent["algorithm"].get("name")
    dropped: list[str] = []

    def drop(where: str, section: Raw, keys: Iterable[str]) -> None:
        for key in [key for key in keys if key in section]:
            del section[key]
            dropped.append(written_path(f"{where}.{key}").removeprefix("."))

    def drop_unknown(where: str, section: Raw, known: Iterable[str]) -> None:
        drop(where, section, [key for key in section if key not in known])

    drop_unknown("", spec, Spec.model_fields)
    drop_unknown("agent", agent, AgentSpec.model_fields)
    if name != "CrossQ":
        drop("agent", agent, ["critic_net"])
    for where in NETS:
        net = agent.get(where)
        if not isinstance(net, dict) or (kind := NET_SPECS.get(str(net.get("type")))) is None:
            continue
        has_roles = name not in ONE_NET and where == "net"
        unused = [] if name in HAS_TARGET else [*TARGET_KEYS]
        unused += [] if has_roles and name not in SOFT else ["shared"]
        unused += [] if has_roles else ["use_same_optim"]
        if name in (*Q_LEARNING, "SARSA") or where == "critic_net":
            unused.append("log_std_init")
        for key in [key for key in unused if _is_default(net, key)]:
            net.pop(key, None)
        drop(f"agent.{where}", net, unused)
        for role in ROLES:
            known = kind.model_fields.keys() - (TARGET_KEYS if role == "actor" else ()) if has_roles else ()
            drop_unknown(f"agent.{where}.{role}", _own(net, role), known)
        drop_unknown(f"agent.{where}", net, kind.model_fields)
    if (algorithm := ALGORITHM_SPECS.get(str(name))) is not None:
        drop_unknown("agent.algorithm", agent["algorithm"], algorithm.model_fields)
    if (memory := MEMORY_SPECS.get(str(agent["memory"].get("name")))) is not None:
        drop_unknown("agent.memory", agent["memory"], memory.model_fields)
    drop("env", env, ENV_DROPPED)
    drop_unknown("meta", meta, MetaSpec.model_fields)
    if dropped:
        notes.append(f"not read by the published lab, so dropped: {', '.join(dropped)}")
    others = {key: env.pop(key) for key in list(env) if key not in EnvSpec.model_fields}
    if others:
        env["kwargs"] = {**(env.get("kwargs") or {}), **others}
        notes.append(f"keys of env that go to the env itself are now in env.kwargs: {', '.join(others)}")


def _is_default(net: Raw, key: str) -> bool:
    """Whether a key has the default value, so that dropping it needs no note."""
    field = NetSpec.model_fields.get(key)
    return field is not None and net.get(key, field.default) == field.default


def drop_dead_search(spec: Spec, notes: list[str]) -> Spec:
    """The spec without search keys that change nothing in it."""
    dead = search_problems(spec)
    if not dead:
        return spec
    notes.append(f"search keys that set nothing, so dropped: {', '.join(printable(key, limit=160) for key in dead)}")
    living = {key: space for key, space in dimensions(spec.search) if key not in dead}
    return spec.model_copy(update={"search": living})
