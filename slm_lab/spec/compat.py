"""Translates older spellings of spec keys, each with a note for the log."""

from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError
from slm_lab.spec.published import is_published, translate
from slm_lab.spec.reader import printable
from slm_lab.spec.roles import NETS, ROLES, sections

ALGORITHM_ALIASES = {
    "REINFORCE": "Reinforce",
    "A2C": "ActorCritic",
    "SAC": "SoftActorCritic",
    "DDQN": "DoubleDQN",
}
# values of actions need no distribution: their policy says how one is picked
PDTYPE_ALIASES = {"NormalTanh": "TanhNormal", "Argmax": "default", "GumbelSoftmax": "Categorical"}
ACTIVATION_ALIASES = {"leakyrelu": "leaky_relu"}
OPTIM_ALIASES = {"GlobalAdam": "Adam", "GlobalRMSprop": "RMSprop"}
# Options of well-known envs that older specs put beside the lab's own keys.
ENV_KWARGS = (
    "continuous",
    "gravity",
    "enable_wind",
    "wind_power",
    "turbulence_power",
    "hardcore",
    "life_loss_info",
    "repeat_action_probability",
    "full_action_space",
    "frameskip",
    "obs_type",
    "mode",
    "difficulty",
)
# Written into saved specs by the published lab; a run derives them itself.
META_DROPPED = (
    "experiment",
    "trial",
    "session",
    "cuda_offset",
    "resume",
    "experiment_ts",
    "prepath",
    "predir",
    "graph_prepath",
    "info_prepath",
    "log_prepath",
    "model_prepath",
    "git_sha",
    "num_gpus",
)


# Keys that no spec used, with the value at which they did nothing; saved specs hold it.
REMOVED: Document = {"entropy_penalty_coef": 0, "spectral_norm": False}


def modernize(spec: Document) -> tuple[Document, list[str]]:
    """A copy of a raw spec in the current spelling, and the changes."""
    notes: list[str] = []
    spec = dict(spec)
    for key in ("body", "git_sha"):
        if key in spec:
            del spec[key]
            notes.append(f"'{key}' is no longer used")
    for key in ("agent", "env"):
        if isinstance(spec.get(key), list):
            if len(spec[key]) != 1:
                raise SpecError(f"{key}: one {key} per spec, got a list of {len(spec[key])}")
            spec[key] = spec[key][0]
            notes.append(f"'{key}' is now a mapping, not a list of one")
    for key, change in (("agent", _agent), ("env", _env), ("meta", _meta)):
        if isinstance(spec.get(key), dict):
            spec[key] = change(dict(spec[key]), notes)
    if is_published(spec):
        _gather_workers(spec, notes)
        translate(spec, notes)
    elif isinstance(spec.get("meta"), dict):
        spec["meta"].pop("distributed", None)
    return spec, notes


def _gather_workers(spec: Document, notes: list[str]) -> None:
    """Workers that shared a net without locks (Hogwild) become one learner with all their envs.

    Each had its own envs and an equal part of the frames, and applied its gradient to weights that others changed
    meanwhile. The average of their gradients at the same weights is that of one batch from all envs.
    """
    meta, env = spec["meta"], spec.get("env")
    mode = meta.pop("distributed")
    if mode is False or not isinstance(env, dict):
        return
    if mode not in ("shared", "synced"):
        raise SpecError(f"meta.distributed: false, shared or synced expected, got {printable(str(mode))}")
    num_worker, num_envs = meta.get("max_session", 1), env.get("num_envs", 1)
    if not all(isinstance(number, (int, float)) and number >= 1 for number in (num_worker, num_envs)):
        return  # refused as what they are
    spec["env"] = {**env, "num_envs": num_worker * num_envs}
    spec["meta"] = {**meta, "max_session": 1}
    notes.append(
        f"meta.distributed '{mode}' with {num_worker:g} sessions is now one learner fed by "
        f"{num_worker * num_envs:g} envs, which learns from all of them at once and repeats from its seed; "
        "env.num_workers sets the processes that step them"
    )


def _rename(section: Document, key: str, aliases: dict[str, str], where: str, notes: list[str]) -> None:
    value = section.get(key)
    if isinstance(value, str) and aliases.get(value, value) != value:
        section[key] = aliases[value]
        notes.append(f"{where} '{value}' is now '{aliases[value]}'")


def _move(section: Document, old: str, new: str, where: str, notes: list[str]) -> None:
    if old in section:
        if new in section:
            raise SpecError(f"{where}.{old} is the older name of {where}.{new}; give only one of them")
        section[new] = section.pop(old)
        notes.append(f"{where}.{old} is now {where}.{new}")


def _agent(agent: Document, notes: list[str]) -> Document:
    if isinstance(agent.get("algorithm"), dict):
        algorithm = agent["algorithm"] = dict(agent["algorithm"])
        _rename(algorithm, "name", ALGORITHM_ALIASES, "algorithm", notes)
        _rename(algorithm, "action_pdtype", PDTYPE_ALIASES, "action_pdtype", notes)
        if algorithm.get("name") in ("SoftActorCritic", "CrossQ"):
            # the published lab squashed what it called Normal
            _rename(algorithm, "action_pdtype", {"Normal": "TanhNormal"}, "action_pdtype", notes)
        _drop_removed(algorithm, "agent.algorithm")
        _move(algorithm, "clip_val_loss", "clip_vloss", "agent.algorithm", notes)
        if algorithm.get("entropy_coef_spec", 0) is None:
            del algorithm["entropy_coef_spec"]
            notes.append("entropy_coef_spec: null means 0")
        if isinstance(agent.get("memory"), dict) and "sil_replay_name" in agent["memory"]:
            agent["memory"] = _split_sil_memory(dict(agent["memory"]), algorithm, notes)
    for key in NETS:
        if isinstance(agent.get(key), dict):
            agent[key] = _net(dict(agent[key]), notes)
    return agent


def _drop_removed(section: Document, where: str) -> None:
    for key, off in REMOVED.items():
        if section.pop(key, off) != off:
            raise SpecError(f"{where}.{key}: is not supported any more; remove it")


def _split_sil_memory(memory: Document, algorithm: Document, notes: list[str]) -> Document:
    """Self-imitation has its own memory beside the on-policy batch."""
    if "sil_memory" in algorithm:
        raise SpecError(
            "agent.memory.sil_replay_name is also given as agent.algorithm.sil_memory; give only one of them"
        )
    name = memory.pop("name", None)
    own = {"name": memory.pop("sil_replay_name"), **memory}
    algorithm["sil_memory"] = own
    notes.append("agent.memory.sil_replay_name and its keys are now agent.algorithm.sil_memory")
    return {} if name is None else {"name": name}


def _net(net: Document, notes: list[str]) -> Document:
    _drop_removed(net, "agent.net")
    for key in ("gpu", "cuda_id"):
        if key in net:
            del net[key]
            notes.append(f"agent.net.{key} is replaced by meta.device")
    net |= {role: dict(net[role]) for role in ROLES if isinstance(net.get(role), dict)}
    for prefix, keys in sections(net):
        if isinstance(keys.get("optim_spec"), dict):
            keys["optim_spec"] = dict(keys["optim_spec"])
            _rename(keys["optim_spec"], "name", OPTIM_ALIASES, "optimiser", notes)
        for key in ("hid_layers_activation", "out_layer_activation"):
            if isinstance(value := keys.get(key), str):
                lower = value.lower()
                _rename(keys, key, {value: ACTIVATION_ALIASES.get(lower, lower)}, f"agent.net.{prefix}{key}", notes)
    return net


def _env(env: Document, notes: list[str]) -> Document:
    _move(env, "normalize_state", "normalize_obs", "env", notes)
    kwargs = env.get("kwargs") or {}
    moved = {key: env.pop(key) for key in ENV_KWARGS if key in env}
    if moved and isinstance(kwargs, dict):  # anything else is refused as what it is
        for key in moved:
            if key in kwargs:
                raise SpecError(f"env.{key} is also given in env.kwargs; give only one of them")
        env["kwargs"] = {**kwargs, **moved}
    return env


def _meta(meta: Document, notes: list[str]) -> Document:
    for key in META_DROPPED:
        if key in meta:
            del meta[key]
            # saved specs of this lab have it too
            if key != "git_sha":
                notes.append(f"meta.{key} is no longer used")
    if "random_seed" in meta and meta["random_seed"] is None:
        del meta["random_seed"]
        notes.append("meta.random_seed is now meta.seed")
    _move(meta, "random_seed", "seed", "meta", notes)
    if isinstance(meta.get("rigorous_eval"), bool):
        meta["rigorous_eval"] = 8 if meta["rigorous_eval"] else 0
        notes.append(f"meta.rigorous_eval is now a number of episodes: {meta['rigorous_eval']}")
    return meta
