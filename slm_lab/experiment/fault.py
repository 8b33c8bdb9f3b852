"""Fault bundles: what a session leaves behind where a number was not finite, and doing it again from there."""

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.ppo import Minibatch
from slm_lab.agent.algorithm.sequence import Sequences
from slm_lab.agent.diagnosis import Finding, diagnose, find_bad_weight
from slm_lab.agent.learn.gradient import GradientFaultError
from slm_lab.agent.memory.batch import Batch, Rollout, SequenceBatch
from slm_lab.env.layout import ObsPart
from slm_lab.env.local import Slots
from slm_lab.env.make import EnvFacts, EnvSettings
from slm_lab.experiment.checkpoint.state import content_errors, load_state, save_state
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import CheckpointError, DivergenceError, EnvFaultError, LabError
from slm_lab.lib.secret import redact
from slm_lab.results.folder import RunFolder
from slm_lab.spec.algorithm import PPOSILSpec, SILSpec
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.net import RecurrentNetSpec
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec

FORMAT = 1
# a bundle is to be sent around
MAX_BYTES = 50_000_000
# what a file has beside its tensors
_ROOM = 1_000_000
# An agent takes at most eight times its weights while it is built, with those of its optimisers; small nets have room.
_GROWTH = 16
_AGENT_ROOM = 100_000_000
# what batches are made of, by the names they have in a file
_TUPLES: dict[str, Any] = {kind.__name__: kind for kind in (Batch, SequenceBatch, Minibatch, Sequences)}
_TUPLE, _ITEMS = "__tuple__", "__items__"
# why faults of a kind cannot be done again: they are seen when the step that made them is over
_OBSTACLES = {
    "metric": "it was seen in what the training reported, after its gradient steps were taken",
    "weight": "the step that made it was taken before anyone looked",
}
_ROLLOUT = ("obs", "action", "reward", "terminated", "truncated", "extra", "cut_index", "cut_obs", "cut_carry")


# --- writing


def report_fault(
    error: DivergenceError | EnvFaultError,
    folder: RunFolder,
    spec: Spec,
    trial: int,
    session: int,
    frame: int,
    agent: Agent,
) -> DivergenceError:
    """Write the bundle of a fault; the error that ends the session, in one line."""
    if isinstance(error, EnvFaultError):
        # the step that was not done
        frame += spec.env.num_envs
    path = folder.fault_file(trial, session, frame)
    try:
        bundle = describe_fault(error, spec, trial, session, frame, agent)
        # the run's own folder must still be there: a removed run is not made anew
        path.parent.mkdir(exist_ok=True)
        save_state(path, bundle)
    except Exception as problem:  # whatever is wrong with the bundle, the fault itself is to be told
        reason = (str(problem).splitlines() or [""])[0]
        return DivergenceError(
            f"{error} (frame {frame}; no bundle could be written: {type(problem).__name__}: {reason})"
        )
    again = f"see `{shlex.join(['slm-lab', 'replay-fault', str(path)])}`"
    return DivergenceError(f"{bundle['message']}; {again}")


def describe_fault(
    error: DivergenceError | EnvFaultError, spec: Spec, trial: int, session: int, frame: int, agent: Agent
) -> dict[str, Any]:
    """All that a fault can be looked at and done again from, as plain data."""
    bundle: dict[str, Any] = {
        "format": FORMAT,
        "spec": dump_spec(spec),
        "trial": trial,
        "session": session,
        "frame": frame,
        "opt_step": agent.algorithm.opt_step,
        "torch": str(torch.__version__),
        "device": agent.device.type,
        # what was left out to keep the file small, and why it cannot be done again, if it cannot
        "left_out": [],
        "obstacle": None,
    }
    if isinstance(error, EnvFaultError):
        return bundle | _describe_env_fault(error, frame)
    parts = _capture(agent)
    if isinstance(error, GradientFaultError):
        bundle |= _describe_gradient_fault(error, agent, parts)
    else:
        finding = find_bad_weight(agent.algorithm.modules)
        bundle["kind"] = "metric" if finding is None else "weight"
        bundle["obstacle"] = _OBSTACLES[bundle["kind"]]
        if finding is None:
            bundle["message"] = redact(str(error))
        else:
            bundle["finding"] = asdict(finding)
            bundle["message"] = f"{finding.describe()} at frame {frame}"
    bundle["facts"] = pack_facts(agent)
    _add_what_fits(bundle, parts)
    return bundle


def _describe_env_fault(error: EnvFaultError, frame: int) -> dict[str, Any]:
    record = error.record
    obstacle = None
    if record is None or not record["is_exact"]:
        obstacle = "the env cannot be rebuilt from its seed and actions"
    elif record["action"].nbytes > MAX_BYTES - _ROOM:
        obstacle, record = "the actions since the env's last seed are too many", {**record, "action": None}
    # bundles are sent to others, and an env says what it likes
    text = redact(str(error))
    message = f"{error.tensor} of the env {error.problem} at frame {frame}: {text}"
    return {"kind": "env", "message": message, "error": text, "env": record, "obstacle": obstacle}


def _describe_gradient_fault(error: GradientFaultError, agent: Agent, parts: dict[str, Any]) -> dict[str, Any]:
    algorithm, context = agent.algorithm, agent.context
    own: dict[str, Any] = {
        "kind": "gradient",
        "step": context.guard.steps.index(error.step),
        "loss": error.loss,
        "norm": error.norm,
        "is_training": {role: module.training for role, module in algorithm.modules.items()},
    }
    foreign = _find_foreign(list(error.step_args))
    if foreign is None:
        parts["args"] = pack(list(error.step_args))
    else:
        own["obstacle"] = f"the loss takes a {foreign}, which is not plain data"
    if algorithm.rollout is not None:
        parts["rollout"] = {name: pack(vars(algorithm.rollout)[name]) for name in _ROLLOUT}
    if not _fits(parts, ("modules", "args", "rollout")):
        parts.pop("rollout", None)
    finding = diagnose(agent, error)
    own["finding"] = own["again"] = asdict(finding)
    if algorithm.rollout is not None and "rollout" not in parts:
        # what can be told from the batch alone
        algorithm.rollout = None
        own["again"] = asdict(diagnose(agent, error))
    own["message"] = f"{finding.describe()} in the training at frame {error.frame}, gradient step {algorithm.opt_step}"
    return own


def _find_foreign(value: Any) -> str | None:
    """The name of a type that a safe loader would not know."""
    kind = type(value)
    if isinstance(value, dict):
        return next(filter(None, map(_find_foreign, value.values())), None)
    if kind in (tuple, list) or kind in _TUPLES.values():
        return next(filter(None, map(_find_foreign, value)), None)
    return None if value is None or isinstance(value, (Tensor, np.ndarray, bool, int, float, str)) else kind.__name__


def _capture(agent: Agent) -> dict[str, Any]:
    """The state of an agent without its memory, the dearest part of it last; copies, so that one can go on looking."""
    whole = agent.state_dict()
    algorithm = whole.pop("algorithm")
    return {
        "modules": pack(algorithm["modules"]),
        "agent": pack(whole),
        "optimizers": pack(algorithm["optimizers"]),
    }


def _fits(parts: dict[str, Any], names: tuple[str, ...]) -> bool:
    return sum(count_bytes(parts[name]) for name in names if name in parts) <= MAX_BYTES - _ROOM


def _add_what_fits(bundle: dict[str, Any], parts: dict[str, Any]) -> None:
    """Put parts into a bundle, those that doing it again needs first, as long as there is room."""
    room = MAX_BYTES - _ROOM
    for name in ("modules", "args", "rollout", "agent", "optimizers"):
        if name not in parts:
            continue
        size = count_bytes(parts[name])
        if size <= room:
            bundle[name] = parts[name]
            room -= size
            continue
        bundle["left_out"].append(name)
        if name in ("modules", "args") and bundle["obstacle"] is None:
            what = "weights have" if name == "modules" else "batch has"
            bundle["obstacle"] = f"the {what} no room in a bundle of {MAX_BYTES / 1e6:.0f} MB with {size / 1e6:.0f} MB"


def count_bytes(value: Any) -> int:
    """Bytes of the tensors in a value."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(count_bytes(item) for item in value.values())
    return sum(count_bytes(item) for item in value) if isinstance(value, list) else 0


def pack(value: Any) -> Any:
    """A copy made of plain data and tensors that hold no more than themselves."""
    if isinstance(value, Tensor):
        # a view would bring along all that it is a part of
        return value.detach().clone().cpu()
    if isinstance(value, dict):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, tuple):
        name = type(value).__name__ if type(value) in _TUPLES.values() else ""
        return {_TUPLE: name, _ITEMS: [pack(item) for item in value]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def unpack(value: Any, device: torch.device) -> Any:
    """What `pack` was given."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        if set(value) != {_TUPLE, _ITEMS}:
            return {key: unpack(item, device) for key, item in value.items()}
        items = [unpack(item, device) for item in value[_ITEMS]]
        return _TUPLES[value[_TUPLE]](*items) if value[_TUPLE] else tuple(items)
    return [unpack(item, device) for item in value] if isinstance(value, list) else value


def pack_facts(agent: Agent) -> dict[str, Any]:
    """What the agent knows of its env, so that it can be built without one."""
    facts = agent.facts
    action: Any = facts.action_space
    own: dict[str, Any]
    if isinstance(action, spaces.Box):
        own = {"low": action.low, "high": action.high}
    elif isinstance(action, spaces.Discrete):
        own = {"n": int(action.n), "start": int(action.start)}
    elif isinstance(action, spaces.MultiDiscrete):
        own = {"nvec": action.nvec, "start": action.start}
    else:
        own = {"n": np.array(action.n)}
    return {
        "num_envs": agent.context.num_envs,
        "obs": {"low": facts.obs_space.low, "high": facts.obs_space.high},
        "action": {"kind": type(action).__name__, **own},
        "frame_stack": facts.frame_stack,
        "parts": [[part.name, part.start, part.stop, list(part.shape)] for part in facts.parts],
    }


def _box(state: dict[str, Any]) -> spaces.Box:
    low = state["low"]
    return spaces.Box(low, state["high"], dtype=low.dtype.type)


_SPACES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Box": _box,
    "Discrete": lambda state: spaces.Discrete(int(state["n"]), start=int(state["start"])),
    "MultiDiscrete": lambda state: spaces.MultiDiscrete(state["nvec"], start=state["start"]),
    "MultiBinary": lambda state: spaces.MultiBinary(state["n"].tolist()),
}


def unpack_facts(state: dict[str, Any]) -> EnvFacts:
    """What `pack_facts` was given."""
    action = state["action"]
    parts = tuple(ObsPart(str(name), int(a), int(b), tuple(shape)) for name, a, b, shape in state["parts"])
    return EnvFacts(_box(state["obs"]), _SPACES[action["kind"]](action), int(state["frame_stack"]), parts)


# --- reading, and doing it again


@dataclass(frozen=True)
class Row:
    """One tensor of a bundle in numbers."""

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    mean: float
    num_nan: int
    num_inf: int


@dataclass(frozen=True)
class Replayed:
    """What came of doing it again."""

    is_reproduced: bool
    # what was seen this time
    message: str
    notes: tuple[str, ...] = ()


@contextmanager
def bundle_errors(path: Path) -> Iterator[None]:
    """Turn what the contents of a bundle make fail into one line, as it may reach a terminal."""
    try:
        with content_errors(path):
            yield
    except (MemoryError, torch.OutOfMemoryError):
        raise CheckpointError(f"{path}: asks for more memory than there is") from None
    except LabError as error:
        # it may quote the bundle
        raise LabError("\n".join(map(show, str(error).splitlines()))) from None


def show(text: str) -> str:
    """Text of a bundle as it may reach a terminal: one line, without codes that do something to it."""
    return printable(text, limit=1000)


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle as it was written; anything else is refused in one line."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if size > MAX_BYTES:
        raise CheckpointError(f"{path}: {size / 1e6:.0f} MB are more than a fault bundle has")
    state = load_state(path)
    types = {"format": int, "kind": str, "session": int, "frame": int, "message": str}
    is_known = "spec" in state and all(type(state.get(name)) is kind for name, kind in types.items())
    if not is_known or state["kind"] not in ("gradient", "weight", "metric", "env"):
        raise CheckpointError(f"{path}: is not a fault bundle; they are in the folder fault/ of a run")
    if state["format"] != FORMAT:
        raise CheckpointError(f"{path}: was written by another version of the lab; replay it with that one")
    return state


def read_spec(bundle: dict[str, Any], where: Path) -> Spec:
    """The spec of a bundle, checked as that of any file is."""
    document = bundle["spec"]
    if not isinstance(document, dict) or len(document) != 1:
        raise CheckpointError(f"{where}: does not hold one spec")
    ((name, raw),) = document.items()
    if not isinstance(raw, dict):
        raise CheckpointError(f"{where}: does not hold a spec")
    return parse_spec({"name": name, **raw}, str(where))[0]


def replay_fault(bundle: dict[str, Any], path: Path, is_trusted: bool = False, is_plain: bool = False) -> Replayed:
    """Do again what failed, of a bundle and where it was read from; code of others is imported only if asked for."""
    with bundle_errors(path):
        spec = read_spec(bundle, path)
        obstacle = bundle.get("obstacle") or _OBSTACLES.get(bundle["kind"])
        if obstacle:
            return Replayed(False, f"cannot be done again: {obstacle}")
        return _replay_env(bundle, is_trusted) if bundle["kind"] == "env" else _replay_agent(bundle, spec, is_plain)


def _replay_env(bundle: dict[str, Any], is_trusted: bool) -> Replayed:
    record = bundle["env"]
    name = str(record["name"])
    if ":" in name and not is_trusted:
        raise LabError(
            f"env.name: '{name}' imports a module of that name from your Python path or working folder; "
            "add --trust if it is the one that you mean"
        )
    key = tuple(int(part) for part in record["seed_key"])
    settings = EnvSettings(name, 1, record["max_t"], dict(record["kwargs"]), key, "gymnasium")
    slots = Slots(settings, [int(record["index"])])
    action, episode = record["action"], int(record["episode"])
    try:
        if len(action):
            slots.replay(0, int(record["origin"]), action[:-1])
            slots.step(action[-1:], np.array([episode]), np.array([bool(record["is_seed_due"])]))
        else:
            slots.reset(0, episode)
    except EnvFaultError as error:
        text = redact(str(error))
        notes = () if text == bundle["error"] else (f"it was: {bundle['error']}",)
        return Replayed(not notes, text, notes)
    finally:
        slots.close()
    return Replayed(False, f"the env gave a good observation and a finite reward, {slots.reward[0]}, this time")


def _replay_agent(bundle: dict[str, Any], spec: Spec, is_plain: bool) -> Replayed:
    agent, notes = build_agent(bundle, spec, is_plain)
    step = agent.context.guard.steps[int(bundle["step"])]
    agent.context.guard.is_deferred = False
    args = unpack(bundle["args"], agent.device)
    try:
        with np.errstate(all="ignore"):
            report = step(*args)
    except GradientFaultError as fault:
        fault.frame = int(bundle["frame"])
        found = diagnose(agent, fault)
        is_same = _same(found, bundle["again"])
        if not is_same:
            notes = (*notes, f"it was: {bundle['message']}")
        return Replayed(is_same, found.describe(), notes)
    loss, norm = report["loss"].item(), report["grad_norm"].item()
    return Replayed(False, f"the loss is {loss} and the norm of the gradient {norm} this time", notes)


def _same(found: Finding, saved: dict[str, Any]) -> bool:
    now = asdict(found)
    return all(now[name] == saved[name] for name in ("tensor", "module", "value", "count"))


def build_agent(bundle: dict[str, Any], spec: Spec, is_plain: bool = True) -> tuple[Agent, tuple[str, ...]]:
    """The agent as it was before the step that failed, without an env and without its memory; notes on the way."""
    device = pick_device("auto" if bundle["device"] == "cuda" else "cpu", 0)
    facts, num_envs = unpack_facts(bundle["facts"]), int(bundle["facts"]["num_envs"])
    key = (spec.meta.seed, int(bundle["session"]))
    spec = _shrink_replays(spec, facts.frame_stack, num_envs)
    plain = spec.replace(meta={"compile": False})
    # a few numbers of a bundle say how large its nets are to be
    with _Allowance(_GROWTH * min(MAX_BYTES, count_bytes(bundle["modules"])) + _AGENT_ROOM):
        agent = Agent(plain, facts, num_envs, key, device)
    notes: tuple[str, ...] = ()
    if spec.meta.compile is True and not is_plain:
        resolved, note = resolve_compile(spec, agent)
        if resolved.meta.compile is True:
            agent = Agent(resolved, facts, num_envs, key, device)
        else:
            notes = (note,)
    algorithm = agent.algorithm
    algorithm.load_weights(bundle["modules"])
    algorithm.opt_step, algorithm.frame = int(bundle["opt_step"]), int(bundle["frame"])
    for role, is_training in bundle.get("is_training", {}).items():
        algorithm.modules[role].train(bool(is_training))
    if "rollout" in bundle:
        fields = unpack(bundle["rollout"], device)
        algorithm.rollout = Rollout(**{name: fields[name] for name in _ROLLOUT})
    if "agent" in bundle:
        torch.set_rng_state(bundle["agent"]["torch_generator"])
    return agent, notes


class _Allowance(TorchDispatchMode):
    """Refuses to make tensors of more bytes than allowed, all together, before the one that is too many is made."""

    def __init__(self, num_byte: int) -> None:
        super().__init__()
        self.num_byte = num_byte

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        if arguments and arguments[0].name == "size":
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self._check(math.prod(args[0]) * dtype.itemsize)
        out = func(*args, **kwargs)
        for value, returned in zip(tree_leaves(out), func._schema.returns, strict=False):
            # what is written in place or seen in another shape is there already
            if isinstance(value, Tensor) and returned.alias_info is None:
                self._check(value.nbytes)
                self.num_byte -= value.nbytes
        return out

    def _check(self, num_byte: int) -> None:
        if num_byte > self.num_byte:
            raise CheckpointError(
                "the nets of the bundle's spec would take far more memory than the weights that it holds"
            )


def _shrink_replays(spec: Spec, frame_stack: int, num_envs: int) -> Spec:
    """A copy whose agent has next to no room for its past: a bundle holds none, and it may not fit this machine."""
    agent, net, algorithm = spec.agent, spec.agent.net, spec.agent.algorithm
    # a stack of frames and a stretch for a recurrent net must find room
    num_row = 64 + frame_stack + (net.burn_in + net.seq_len if isinstance(net, RecurrentNetSpec) else 0)

    def shrink(replay: ReplaySpec) -> ReplaySpec:
        return replay.model_copy(update={"max_size": min(replay.max_size, num_row * num_envs)})

    changes: dict[str, Any] = {}
    if isinstance(agent.memory, ReplaySpec):
        changes["memory"] = shrink(agent.memory)
    if isinstance(algorithm, (SILSpec, PPOSILSpec)):
        changes["algorithm"] = algorithm.model_copy(update={"sil_memory": shrink(algorithm.sil_memory)})
    return spec.replace(agent=changes)


# --- looking


def tabulate(bundle: dict[str, Any]) -> tuple[list[Row], list[Row]]:
    """The tensors of the batch and those of the nets, in numbers."""
    batch = [_measure(name, tensor) for name, tensor in _walk(bundle.get("args", []), "batch")]
    weights = [_measure(name, tensor) for name, tensor in _walk(bundle.get("modules", {}), "")]
    return batch, weights


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, dict) and set(value) == {_TUPLE, _ITEMS}:
        kind = _TUPLES.get(value[_TUPLE])
        items = value[_ITEMS]
        names = kind._fields if kind is not None else [f"{name}.{index}" for index in range(len(items))]
        for key, item in zip(names, items, strict=False):
            yield from _walk(item, str(key))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{name}.{index}")


def _measure(name: str, tensor: Tensor) -> Row:
    good = tensor[tensor.isfinite()].double()
    low, high, mean = (float(good.min()), float(good.max()), float(good.mean())) if len(good) else (math.nan,) * 3
    return Row(show(name), tuple(tensor.shape), low, high, mean, int(tensor.isnan().sum()), int(tensor.isinf().sum()))


def advise(bundle: dict[str, Any]) -> str:
    """What to try, by what was not finite first."""
    finding = bundle.get("finding")
    tensor = str(finding["tensor"]) if isinstance(finding, dict) else ""
    if bundle["kind"] == "env":
        return "`slm-lab env check` looks at the env itself; end an episode before its numbers run away"
    if tensor in ("reward", "target", "advantage", "next_value"):
        return "env.reward_scale or env.clip_reward for large rewards, agent.algorithm.gamma below 1, a lower lr"
    if "observation" in tensor:
        return "env.normalize_obs or env.clip_obs"
    return "a lower agent.net.optim_spec.lr, agent.net.clip_grad_val 0.5, env.normalize_obs for large observations"
