"""Fault bundles: written when a number is not finite or an env fails, for `slm-lab replay-fault`."""

import shlex
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.diagnosis import diagnose, find_bad_weight
from slm_lab.agent.learn.gradient import GradientFaultError
from slm_lab.env.facts_document import dump_facts
from slm_lab.experiment.checkpoint.state import save_state
from slm_lab.lib.data import State
from slm_lab.lib.errors import DivergenceError, EnvFaultError
from slm_lab.lib.secret import redact
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec

FORMAT = 3
# small enough to send
MAX_BYTES = 50_000_000
# for everything but tensors
_ROOM = 1_000_000
# keys of a packed tuple: the name of its type, empty for a plain tuple, and its items
TUPLE, ITEMS = "__tuple__", "__items__"
# why these kinds of faults cannot be replayed: they are noticed after the step that caused them
OBSTACLES = {
    "metric": "it was seen in what the training reported, after its gradient steps were taken",
    "weight": "the step that made it was taken before anyone looked",
}


def report_fault(
    error: DivergenceError | EnvFaultError,
    folder: RunFolder,
    spec: Spec,
    trial: int,
    session: int,
    frame: int,
    agent: Agent,
) -> DivergenceError:
    """Write the bundle of a fault; returns the error that ends the session, in one line."""
    if isinstance(error, EnvFaultError):
        # the step that failed
        frame += error.num_frame
    path = folder.fault_file(trial, session, frame)
    try:
        bundle = describe_fault(error, spec, trial, session, frame, agent)
        # not `parents=True`, which would recreate a run that was removed
        path.parent.mkdir(exist_ok=True)
        save_state(path, bundle)
    except Exception as problem:  # whatever is wrong with the bundle, the fault itself must be reported
        reason = (str(problem).splitlines() or [""])[0]
        return DivergenceError(
            f"{error} (frame {frame}; no bundle could be written: {type(problem).__name__}: {reason})"
        )
    again = f"see `{shlex.join(['slm-lab', 'replay-fault', str(path)])}`"
    return DivergenceError(f"{bundle['message']}; {again}")


def describe_fault(
    error: DivergenceError | EnvFaultError, spec: Spec, trial: int, session: int, frame: int, agent: Agent
) -> State:
    """Everything that is needed to examine and replay a fault, as plain data."""
    bundle: State = {
        "format": FORMAT,
        "spec": dump_spec(spec),
        "trial": trial,
        "session": session,
        "frame": frame,
        "opt_step": agent.algorithm.opt_step,
        "torch": str(torch.__version__),
        "device": agent.device.type,
        # parts that were left out to keep the file small, and why the fault cannot be replayed, if so
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
        bundle["obstacle"] = OBSTACLES[bundle["kind"]]
        if finding is None:
            bundle["message"] = redact(str(error))
        else:
            bundle["finding"] = asdict(finding)
            bundle["message"] = f"{finding.describe()} at frame {frame}"
    bundle["facts"] = {"num_envs": agent.context.num_envs, **dump_facts(agent.facts)}
    _add_what_fits(bundle, parts)
    return bundle


def _describe_env_fault(error: EnvFaultError, frame: int) -> State:
    record = error.record
    obstacle = None
    if record is None or not record["is_exact"]:
        obstacle = "the env cannot be rebuilt from its seed and actions"
    elif record["action"].nbytes > MAX_BYTES - _ROOM:
        obstacle, record = "the actions since the env's last seed are too many", {**record, "action": None}
    # bundles are sent to others, and the message of an env may contain secrets
    text = redact(str(error))
    message = f"{error.tensor} of the env {error.problem} at frame {frame}: {text}"
    return {"kind": "env", "message": message, "error": text, "env": record, "obstacle": obstacle}


def _describe_gradient_fault(error: GradientFaultError, agent: Agent, parts: State) -> State:
    algorithm, context = agent.algorithm, agent.context
    own: State = {
        "kind": "gradient",
        "step": context.guard.steps.index(error.step),
        "loss": error.loss,
        "norm": error.norm,
        "is_training": {role: module.training for role, module in algorithm.modules.items()},
    }
    try:
        parts["args"] = pack(list(error.step_args))
    except TypeError as foreign:
        own["obstacle"] = f"the loss takes {foreign}, which is not plain data"
    if algorithm.rollout is not None:
        parts["rollout"] = pack(vars(algorithm.rollout))
    if not _fits(parts, ("modules", "args", "rollout")):
        parts.pop("rollout", None)
    finding = diagnose(agent, error)
    own["finding"] = own["again"] = asdict(finding)
    if algorithm.rollout is not None and "rollout" not in parts:
        # what a replay will find, which has only the batch
        algorithm.rollout = None
        own["again"] = asdict(diagnose(agent, error))
    own["message"] = f"{finding.describe()} in the training at frame {error.frame}, gradient step {algorithm.opt_step}"
    return own


def _capture(agent: Agent) -> State:
    """Copies of the state of an agent without its memory: the diagnosis that follows changes the agent."""
    whole = agent.state_dict()
    algorithm = whole.pop("algorithm")
    return {
        "modules": pack(algorithm["modules"]),
        "agent": pack(whole),
        "optimizers": pack(algorithm["optimizers"]),
    }


def _fits(parts: State, names: tuple[str, ...]) -> bool:
    return sum(count_bytes(parts[name]) for name in names if name in parts) <= MAX_BYTES - _ROOM


def _add_what_fits(bundle: State, parts: State) -> None:
    """Add parts to a bundle while there is room, those that a replay needs first."""
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


def count_bytes(value: object) -> int:
    """Bytes of the tensors in a value."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(count_bytes(item) for item in value.values())
    return sum(count_bytes(item) for item in value) if isinstance(value, list) else 0


def pack(value: object) -> Any:
    """A copy made of plain data and tensors, independent of later changes to the value."""
    if isinstance(value, Tensor):
        return value.detach().clone().cpu()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        # batches are named tuples
        return {TUPLE: name_tuple(type(value)), ITEMS: [pack(item) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    raise TypeError(f"a {type(value).__name__}")


def name_tuple(kind: type[tuple[Any, ...]]) -> str:
    """The name of a tuple type in a bundle; empty for a plain tuple."""
    return "" if kind is tuple else f"{kind.__module__}.{kind.__qualname__}"
