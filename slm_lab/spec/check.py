"""Combinations of valid keys that make no sense together; refused, never silently corrected."""

from collections.abc import Iterable
from math import gcd

from slm_lab.spec.algorithm import (
    ActorCriticSpec,
    AlgorithmSpec,
    OffPolicySpec,
    PPOSILSpec,
    ReinforceSpec,
    SILSpec,
)
from slm_lab.spec.memory import OnPolicyCrossEntropySpec, ReplaySpec
from slm_lab.spec.net import (
    TARGET_KEYS,
    DuelingConvNetSpec,
    DuelingMLPNetSpec,
    LossSpec,
    NetSpec,
    RecurrentNetSpec,
    TorchArcNetSpec,
)
from slm_lab.spec.roles import Role
from slm_lab.spec.schema import ALGORITHM_SPECS, Spec
from slm_lab.spec.search_space import search_problems

# what only gymnasium's single envs can do, and why others cannot
_NEED_GYMNASIUM = {"wrappers": "takes no wrappers", "info_keys": "gives no info at the end of an episode"}
# backends that step all envs by themselves
NO_WORKERS = {"ale": "with threads of its own", "array": "all envs at once", "envpool": "with threads of its own"}


def check_combination(spec: Spec) -> list[str]:
    """Every conflict in a spec with valid keys."""
    algorithm, env, memory = spec.agent.algorithm, spec.env, spec.agent.memory
    problems = []
    if algorithm.action_policy in ("epsilon_greedy", "boltzmann") and algorithm.explore_var_spec is None:
        problems.append(f"agent.algorithm.action_policy: {algorithm.action_policy} needs explore_var_spec")
    if env.max_frame < env.num_envs:
        problems.append(f"env.max_frame: {env.max_frame} is less than one step of num_envs {env.num_envs}")
    if env.num_workers is not None and env.num_workers > env.num_envs:
        problems.append(f"env.num_workers: {env.num_workers} workers for num_envs {env.num_envs}; use at most num_envs")
    if env.num_workers and env.backend in NO_WORKERS:
        problems.append(f"env.num_workers: {env.backend} steps {NO_WORKERS[env.backend]}; use null or 0")
    problems += _backend_problems(spec)
    problems += [f"agent.algorithm.{key}: {text}" for key, text in algorithm.find_conflicts(memory.name).items()]
    problems += _data_problems(spec) if algorithm.learns_from == "data" else _memory_problems(spec)
    problems += _net_problems(spec)
    problems += _part_problems(spec)
    problems += _recurrent_problems(spec)
    problems += search_problems(spec).values()
    return problems


def _backend_problems(spec: Spec) -> list[str]:
    """Keys of the env that its backend does not support."""
    env = spec.env
    is_playground = env.name.startswith("playground/")
    if not is_playground and env.backend not in NO_WORKERS:
        return []
    what = f"'{env.name}'" if is_playground else f"the {env.backend} backend"
    remedy = "leave it out" if is_playground else "use env.backend gymnasium"
    asked = env.model_dump(include=set(_NEED_GYMNASIUM))
    problems = {f"env.{key}": _NEED_GYMNASIUM[key] for key in _NEED_GYMNASIUM if asked[key]}
    problems |= {f"env.kwargs.{key}": "has no options that change over the run" for key in env.schedules}
    return [f"{key}: {what} {problem}; {remedy}" for key, problem in problems.items()]


def _recurrent_problems(spec: Spec) -> list[str]:
    algorithm, net = spec.agent.algorithm, spec.agent.net
    if not algorithm.takes_recurrent:
        given = {"net": net, "critic_net": spec.agent.critic_net}
        known = _join(name for name, kind in ALGORITHM_SPECS.items() if kind.takes_recurrent)
        return [
            f"agent.{key}.type: {algorithm.name} has no use for a hidden state; RecurrentNet works with {known}"
            for key, one in given.items()
            if isinstance(one, RecurrentNetSpec)
        ]
    if not isinstance(net, RecurrentNetSpec):
        return []
    lengths = algorithm.model_dump(include=set(algorithm.sequence_keys(spec.agent.memory.name)))
    problems = [
        f"agent.net.seq_len: {net.seq_len} does not divide {key} {length}; {gcd(net.seq_len, length)} would"
        for key, length in lengths.items()
        if length % net.seq_len
    ]
    if net.burn_in and algorithm.learns_from == "rollout":
        problems.append(
            f"agent.net.burn_in: {algorithm.name} learns from fresh steps, whose hidden state needs no warming up; "
            "remove it"
        )
    if isinstance(algorithm, OffPolicySpec) and isinstance(spec.agent.memory, ReplaySpec):
        problems += _sequence_problems(spec.agent.memory, net, spec.env.num_envs)
    return problems


def _sequence_problems(memory: ReplaySpec, net: RecurrentNetSpec, num_envs: int) -> list[str]:
    """What a replay does not support when it samples sequences."""
    problems = []
    if type(memory) is not ReplaySpec:
        problems.append("agent.memory.name: sequences for a RecurrentNet are drawn uniformly; use Replay")
    if memory.num_step_returns > 1:
        problems.append(
            "agent.memory.num_step_returns: a RecurrentNet learns from single steps of a sequence; remove it"
        )
    if memory.use_cer:
        problems.append("agent.memory.use_cer: sequences for a RecurrentNet are drawn whole; remove it")
    length = net.burn_in + net.seq_len
    if length * num_envs > memory.max_size:
        problems.append(
            f"agent.memory.max_size: {memory.max_size} holds no sequence of burn_in + seq_len = {length} steps of "
            f"{num_envs} envs; use at least {length * num_envs}"
        )
    return problems


def _data_problems(spec: Spec) -> list[str]:
    """Keys that change nothing where recorded steps are learned from: they are drawn uniformly, one by one."""
    name, env, memory = spec.agent.algorithm.name, spec.env, spec.agent.memory
    if type(memory) is not ReplaySpec:
        return [f"agent.memory.name: {name} draws recorded steps uniformly, got {memory.name}; use Replay"]
    single, recorded = "learns from single recorded steps", "takes rewards as they were recorded"
    # Atari games and normalize_reward have a clip by default
    has_clip = env.clip_reward is not None and not env.normalize_reward and "ALE/" not in env.name
    unused = {
        "agent.memory.num_step_returns": (memory.num_step_returns > 1, single),
        "agent.memory.use_cer": (memory.use_cer, single),
        "env.reward_scale": (env.reward_scale != 1, recorded),
        "env.normalize_reward": (env.normalize_reward, recorded),
        "env.clip_reward": (has_clip, recorded),
    }
    return [f"{key}: {name} {reason}; remove it" for key, (is_given, reason) in unused.items() if is_given]


def _memory_problems(spec: Spec) -> list[str]:
    algorithm, memory = spec.agent.algorithm, spec.agent.memory
    problems = []
    if isinstance(algorithm, OffPolicySpec):
        if not isinstance(memory, ReplaySpec):
            problems.append(
                f"agent.memory.name: {algorithm.name} learns from a replay, got {memory.name}; "
                "use Replay or PrioritizedReplay"
            )
        if algorithm.training_start_step >= spec.env.max_frame:
            problems.append(
                f"agent.algorithm.training_start_step: {algorithm.training_start_step} is not before env.max_frame "
                f"{spec.env.max_frame}, so nothing would be learned; lower it"
            )
    elif algorithm.memories and memory.name not in algorithm.memories:
        known = " or ".join(algorithm.memories)
        problems.append(f"agent.memory.name: {algorithm.name} needs {known}, got {memory.name}")
    elif algorithm.learns_from == "rollout" and isinstance(memory, ReplaySpec):
        problems.append(
            f"agent.memory.name: {algorithm.name} learns from what it does now, got {memory.name}; "
            "use OnPolicyBatchReplay or OnPolicyReplay"
        )
    if isinstance(memory, OnPolicyCrossEntropySpec) and not isinstance(algorithm, (ReinforceSpec, ActorCriticSpec)):
        problems.append(
            f"agent.memory.name: OnPolicyCrossEntropy is for Reinforce and ActorCritic, not {algorithm.name}"
        )
    replays = {"agent.memory": memory}
    if isinstance(algorithm, (SILSpec, PPOSILSpec)):
        replays["agent.algorithm.sil_memory"] = algorithm.sil_memory
        if algorithm.sil_memory.num_step_returns > 1:
            problems.append("agent.algorithm.sil_memory.num_step_returns: whole returns are kept; remove it")
    for where, replay in replays.items():
        if isinstance(replay, ReplaySpec) and replay.batch_size > replay.max_size:
            problems.append(
                f"{where}.batch_size: {replay.batch_size} is more than max_size {replay.max_size}; "
                f"use at most {replay.max_size}"
            )
    return problems


def _net_problems(spec: Spec) -> list[str]:
    algorithm, net, critic_net = spec.agent.algorithm, spec.agent.net, spec.agent.critic_net
    nets = {"net": net} if critic_net is None else {"net": net, "critic_net": critic_net}
    problems = [*_target_problems(algorithm, nets), *_critic_net_problems(spec)]
    if any(isinstance(one, TorchArcNetSpec) and one.arc is None for one in (spec.agent.actor, spec.agent.critic)):
        problems.append("agent.net: needs the key arc, or actor_arc and critic_arc")
    # one net, which values every action
    is_valuing = algorithm.actions == "joint"
    if is_valuing:
        problems += [
            f"agent.net.{role}_{key}: {algorithm.name} has one net; give the key without prefix"
            for role, key in _role_keys(net)
        ]
    else:
        problems += [
            f"agent.{where}.type: {one.type} is for algorithms that value each action, not {algorithm.name}; "
            f"use {one.type.removeprefix('Dueling')}"
            for where, one in nets.items()
            if isinstance(one, (DuelingMLPNetSpec, DuelingConvNetSpec))
        ]
    if (is_valuing or not algorithm.has_std) and spec.agent.actor.log_std_init is not None:
        problems.append(
            f"{_where(spec, 'log_std_init', 'actor')}: {algorithm.name} has no policy with a std; remove it"
        )
    if not algorithm.takes_noisy:
        problems += [
            f"agent.{where}.noisy: {algorithm.name} draws no noise for its layers; remove it"
            for where, one in nets.items()
            if any(role.model_dump().get("noisy") for role in (one.for_role("actor"), one.for_role("critic")))
        ]
    if not algorithm.has_critic:
        problems += [f"agent.net.critic_{key}: {algorithm.name} has no critic; remove it" for key in net.critic]
    if net.shared and (is_valuing or algorithm.takes_critic_net or not algorithm.has_critic):
        problems.append(f"agent.net.shared: {algorithm.name} has no net to share; remove it")
    return problems


def _part_problems(spec: Spec) -> list[str]:
    """Nets and policies that a kind of critic, gSDE or RND does not go with."""
    algorithm, agent = spec.agent.algorithm, spec.agent
    is_recurrent = isinstance(agent.net, RecurrentNetSpec)
    problems = []
    kind = getattr(getattr(algorithm, "critic", None), "kind", "value")
    if kind != "value" and agent.critic.loss_spec != LossSpec():
        where = _where(spec, "loss_spec", "critic")
        problems.append(f"{where}: a critic of kind {kind} has a loss of its own; remove it")
    if kind == "implicit" and is_recurrent:
        problems.append("agent.algorithm.critic.kind: implicit takes no RecurrentNet; use quantile")
    if algorithm.state_noise is not None:
        if agent.actor.log_std_init is not None:
            where = _where(spec, "log_std_init", "actor")
            problems.append(f"{where}: the stds of sde begin at its own log_std_init; remove it")
        if algorithm.action_policy != "default":
            problems.append("agent.algorithm.action_policy: sde is a policy itself; use default, or remove sde")
    if getattr(algorithm, "rnd", None) is not None and is_recurrent:
        problems.append("agent.algorithm.rnd: its nets see one observation at a time; use a net that is not recurrent")
    return problems


def _where(spec: Spec, key: str, role: Role) -> str:
    """The place of a key of the actor's or the critic's net."""
    if role == "critic" and spec.agent.critic_net is not None:
        return f"agent.critic_net.{key}"
    own = spec.agent.net.actor if role == "actor" else spec.agent.net.critic
    return f"agent.net.{role}_{key}" if key in own else f"agent.net.{key}"


def _join(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}"


def _role_keys(net: NetSpec) -> list[tuple[str, str]]:
    return [(role, key) for role, keys in (("actor", net.actor), ("critic", net.critic)) for key in keys]


def _target_problems(algorithm: AlgorithmSpec, nets: dict[str, NetSpec]) -> list[str]:
    """Keys of a target net without a target net."""
    has_target = algorithm.has_target
    problems = [
        f"agent.net.{role}_{key}: {'an actor' if role == 'actor' else algorithm.name} has no target net; remove it"
        for role, key in _role_keys(nets["net"])
        if key in TARGET_KEYS and (role == "actor" or not has_target)
    ]
    for where, net in nets.items():
        if has_target and (where == "critic_net" or len(nets) == 1):
            continue  # the net whose copy the target is
        remedy = (
            "the target follows the critics; give it in agent.critic_net"
            if has_target
            else f"{algorithm.name} has no target net; remove it"
        )
        # a saved spec holds every default, so only what differs from it was asked for
        problems += [
            f"agent.{where}.{key}: {remedy}"
            for key, value in net.model_dump(include=TARGET_KEYS).items()
            if value != NetSpec.model_fields[key].default
        ]
    return problems


def _critic_net_problems(spec: Spec) -> list[str]:
    algorithm, net, critic_net = spec.agent.algorithm, spec.agent.net, spec.agent.critic_net
    if critic_net is None:
        return []
    problems = [
        f"agent.critic_net.{role}_{key}: it is the critics' net already; give the key without prefix"
        for role, key in _role_keys(critic_net)
    ]
    if critic_net.shared or critic_net.log_std_init is not None:
        key = "shared" if critic_net.shared else "log_std_init"
        problems.append(f"agent.critic_net.{key}: critics have no use for it; remove it")
    if not algorithm.takes_critic_net:
        known = _join(name for name, kind in ALGORITHM_SPECS.items() if kind.takes_critic_net)
        problems.append(f"agent.critic_net: for {known}; {algorithm.name} takes keys with the prefix critic_")
    elif net.critic:
        problems.append(f"agent.net.critic_{next(iter(net.critic))}: contradicts critic_net; remove one of them")
    return problems
