"""Reads fault bundles: their numbers, advice, and a replay of the failed step."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.diagnosis import Finding, diagnose
from slm_lab.agent.learn.gradient import GradientFaultError
from slm_lab.agent.memory.batch import Rollout
from slm_lab.env.facts_document import read_facts
from slm_lab.env.local import Slots
from slm_lab.env.make import EnvSettings
from slm_lab.experiment.checkpoint.state import content_errors, load_state
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.experiment.fault import FORMAT, ITEMS, MAX_BYTES, OBSTACLES, TUPLE, name_tuple
from slm_lab.lib.data import State
from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import CheckpointError, EnvFaultError, LabError
from slm_lab.lib.secret import redact
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec, WrapperSpec

KINDS = ("gradient", "weight", "metric", "env")


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
    """The result of a replay."""

    is_reproduced: bool
    # what was seen this time
    message: str
    notes: tuple[str, ...] = ()


@contextmanager
def bundle_errors(path: Path) -> Iterator[None]:
    """Turn errors from the contents of a bundle into one printable line."""
    try:
        with content_errors(path):
            yield
    except LabError as error:
        # it may quote the bundle
        raise LabError("\n".join(map(show, str(error).splitlines()))) from None


def show(text: str) -> str:
    """Text of a bundle on one line, without terminal codes."""
    return printable(text, limit=1000)


# --- reading


def read_bundle(path: Path, is_trusted: bool = False) -> State:
    """A bundle of a local run; one from elsewhere only with `trust`, since replaying builds what it names."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if size > MAX_BYTES:
        raise CheckpointError(f"{path}: {size / 1e6:.0f} MB is more than a fault bundle can have")
    bundle = load_state(path)
    types = {"format": int, "kind": str, "trial": int, "session": int, "frame": int, "message": str, "spec": dict}
    is_known = all(type(bundle.get(name)) is kind for name, kind in types.items())
    if not is_known or bundle["kind"] not in KINDS or len(bundle["spec"]) != 1:
        raise CheckpointError(f"{path}: is not a fault bundle; they are in the folder fault/ of a run")
    if bundle["format"] != FORMAT:
        raise CheckpointError(f"{path}: was written by another version of the lab; replay it with that one")
    if not is_trusted and not _is_own(bundle, path.absolute()):
        raise LabError(
            f"{path}: is not where a run here would have put it, so it may be anyone's. Replaying builds the nets that "
            "it names and imports the module of its env; add --trust if you know where it comes from"
        )
    return bundle


def _is_own(bundle: State, path: Path) -> bool:
    """Whether a bundle is in the run that it names; `slm-lab pull` never downloads bundles."""
    (name,) = bundle["spec"]
    folder = RunFolder(path.parent.parent, str(name))
    trial = bundle["trial"]
    is_placed = path == folder.fault_file(trial, bundle["session"], bundle["frame"])
    return is_placed and folder.trial_spec_file(trial).exists()


def unpack(value: Any, device: torch.device) -> Any:
    """The inverse of `pack`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [unpack(item, device) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {TUPLE, ITEMS}:
        return {key: unpack(item, device) for key, item in value.items()}
    items = [unpack(item, device) for item in value[ITEMS]]
    if not value[TUPLE]:
        return tuple(items)
    # every class of named tuples that is loaded here: none is looked up or imported by a name in a file
    kinds = {name_tuple(kind): kind for kind in tuple.__subclasses__() if "_fields" in vars(kind)}
    if value[TUPLE] not in kinds:
        raise LabError(f"its batch is a {value[TUPLE]}, which is not loaded; name the module of it with --import")
    return kinds[value[TUPLE]](*items)


# --- doing it again


def replay_fault(bundle: State, path: Path, is_plain: bool = False) -> Replayed:
    """Repeat the failed step of a bundle."""
    with bundle_errors(path):
        ((name, raw),) = bundle["spec"].items()
        spec = parse_spec({**raw, "name": name}, str(path))[0]
        obstacle = bundle.get("obstacle") or OBSTACLES.get(bundle["kind"])
        if obstacle:
            return Replayed(False, f"cannot be done again: {obstacle}")
        return _replay_env(bundle) if bundle["kind"] == "env" else _replay_agent(bundle, spec, is_plain)


def _replay_env(bundle: State) -> Replayed:
    record = bundle["env"]
    key = tuple(int(part) for part in record["seed_key"])
    settings = EnvSettings(
        *(str(record["name"]), 1, record["max_t"], dict(record["kwargs"]), key, "gymnasium"),
        wrappers=tuple(WrapperSpec.model_validate(wrapper) for wrapper in record.get("wrappers", ())),
        is_masked=bool(record.get("is_masked", True)),
    )
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


def _replay_agent(bundle: State, spec: Spec, is_plain: bool) -> Replayed:
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
        is_same = _is_same(found, bundle["again"])
        if not is_same:
            notes = (*notes, f"it was: {bundle['message']}")
        return Replayed(is_same, found.describe(), notes)
    loss, norm = report["loss"].item(), report["grad_norm"].item()
    return Replayed(False, f"the loss is {loss} and the norm of the gradient {norm} this time", notes)


def _is_same(found: Finding, saved: State) -> bool:
    now = asdict(found)
    return all(now[name] == saved[name] for name in ("tensor", "module", "value", "count"))


def build_agent(bundle: State, spec: Spec, is_plain: bool = True) -> tuple[Agent, tuple[str, ...]]:
    """The agent before the failed step, without env and memory, and notes."""
    device = pick_device("auto" if bundle["device"] == "cuda" else "cpu", 0)
    facts, num_envs = read_facts(bundle["facts"]), int(bundle["facts"]["num_envs"])
    key = (spec.meta.seed, bundle["session"])
    agent = Agent(spec.replace(meta={"compile": False}), facts, num_envs, key, device)
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
        algorithm.rollout = Rollout(**unpack(bundle["rollout"], device))
    if "agent" in bundle:
        torch.set_rng_state(bundle["agent"]["torch_generator"])
    return agent, notes


# --- looking


def tabulate(bundle: State) -> tuple[list[Row], list[Row]]:
    """The tensors of the batch and those of the nets, in numbers."""
    batch = unpack(bundle.get("args", []), torch.device("cpu"))
    parts = _walk(batch, "batch"), _walk(bundle.get("modules", {}), "")
    found = [[_measure(name, tensor) for name, tensor in part] for part in parts]
    return found[0], found[1]


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        # named tuples have names for their items
        names = vars(type(value)).get("_fields") or [f"{name}.{index}" for index in range(len(value))]
        for key, item in zip(names, value, strict=True):
            yield from _walk(item, key)


def _measure(name: str, tensor: Tensor) -> Row:
    good = tensor[tensor.isfinite()].double()
    low, high, mean = (float(good.min()), float(good.max()), float(good.mean())) if len(good) else (math.nan,) * 3
    return Row(show(name), tuple(tensor.shape), low, high, mean, int(tensor.isnan().sum()), int(tensor.isinf().sum()))


def advise(bundle: State) -> str:
    """What to try, by the first tensor that is not finite."""
    finding = bundle.get("finding")
    tensor = str(finding["tensor"]) if isinstance(finding, dict) else ""
    if bundle["kind"] == "env":
        return "`slm-lab env check` looks at the env itself; end an episode before its numbers run away"
    if tensor in ("reward", "target", "advantage", "next_value"):
        return "env.reward_scale or env.clip_reward for large rewards, agent.algorithm.gamma below 1, a lower lr"
    if "observation" in tensor:
        return "env.normalize_obs or env.clip_obs"
    return "a lower agent.net.optim_spec.lr, agent.net.clip_grad_val 0.5, env.normalize_obs for large observations"
