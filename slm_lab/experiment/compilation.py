"""Decide whether a run's updates are compiled: as the spec says, or if it saves time."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from loguru import logger
from torch import nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.compile.engine import find_missing_part
from slm_lab.experiment.step_time import KnownTimes, time_step
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.memory import OnPolicyBatchReplaySpec
from slm_lab.spec.schema import Spec

# about how long the first compilation takes, and the smallest measured ratio of a compiled step to a plain one
COMPILE_SECONDS = 30.0
MIN_SHARE = 0.25
# with fewer gradient steps in all sessions together, compiling never saves time
MIN_STEP = 1_000
# a session takes about this long to load compiled code
LOAD_SECONDS = 5.0
# a run with at least this many seconds of gradient steps is worth half a minute of timing bf16; bf16 is worth a hint if
# it takes less than this share of the time of float32
LONG_SECONDS = 1_200.0
WORTHWHILE = 0.8
AS_ASKED = "as meta.compile says"


def resolve_compile(spec: Spec, agent: Agent) -> tuple[Spec, str]:
    """The spec with `meta.compile` decided, and the reason in one line."""
    is_compiled, reason = _decide(spec, agent)
    note = f"Updates are {'compiled' if is_compiled else 'not compiled'}: {reason}"
    return spec.replace(meta={"compile": is_compiled}), note


def _decide(spec: Spec, agent: Agent) -> tuple[bool, str]:
    wish = spec.meta.compile
    if wish is False:
        return False, AS_ASKED
    obstacle = _find_spec_obstacle(spec, agent)
    if wish is True and obstacle is not None:
        raise SpecError(f"meta.compile: {obstacle}; use auto or false")
    obstacle = obstacle or _find_machine_obstacle(agent)
    if wish == "auto":
        obstacle = obstacle or _find_foreign_code(agent)
    if obstacle is not None:
        return False, obstacle
    if wish is True:
        return True, AS_ASKED
    return _measure(spec, agent)


def _measure(spec: Spec, agent: Agent) -> tuple[bool, str]:
    """Time a few steps, plain and, if it may pay, compiled, to decide whether compiling saves time overall."""
    num_session, algorithm = spec.meta.max_session, spec.agent.algorithm
    untrained = algorithm.training_start_step if isinstance(algorithm, OffPolicySpec) else 0
    num_frame = max(0, spec.env.max_frame - untrained)
    num_step = num_frame * algorithm.calc_utd(spec.env.num_envs) * num_session
    count = f"about {num_step:,.0f} gradient steps in all"
    if num_step < MIN_STEP:
        return False, f"{count}, too few for it to pay"
    known = KnownTimes(spec, agent.facts, agent.device)
    plain = known.get("plain") or time_step(spec, agent.facts, agent.device, is_compiled=False)
    if plain is None:
        return False, f"{count}, none of which could be timed"
    known.set(plain=plain)
    if num_step * plain * (1 - MIN_SHARE) < COMPILE_SECONDS + LOAD_SECONDS * num_session:
        return False, f"{count} of {format_ms(plain)} each, compiling would take longer than it saves"
    compiled = known.get("compiled")
    if compiled is None:
        logger.info("Compiling updates to see what they gain: half a minute at first, kept on disk for later starts")
        compiled = time_step(spec, agent.facts, agent.device, is_compiled=True)
    if compiled is None:
        return False, "compiling failed"
    known.set(compiled=compiled)
    figures = f"{count} of {format_ms(compiled)} each, plain {format_ms(plain)}, measured on this machine"
    is_worth_it = num_step * (plain - compiled) > LOAD_SECONDS * num_session
    if is_worth_it and num_step * compiled > LONG_SECONDS and spec.meta.precision == "float32":
        figures += _offer_bf16(spec, agent, compiled)
    return is_worth_it, figures


def _offer_bf16(spec: Spec, agent: Agent, float32: float) -> str:
    """A hint that `meta.precision: bf16` is faster; since it changes the numbers, the user decides."""
    spec = spec.replace(meta={"precision": "bf16"})
    known = KnownTimes(spec, agent.facts, agent.device)
    seconds = known.get("compiled") or time_step(spec, agent.facts, agent.device, is_compiled=True)
    if seconds is None:
        return ""
    known.set(compiled=seconds)
    return f"; meta.precision: bf16 would take {format_ms(seconds)}" if seconds < WORTHWHILE * float32 else ""


def format_ms(seconds: float) -> str:
    """Milliseconds of a step."""
    return f"{seconds * 1e3:.3g} ms"


def _find_spec_obstacle(spec: Spec, agent: Agent) -> str | None:
    """The part of a spec that cannot be compiled."""
    algorithm = agent.algorithm
    if any(isinstance(layer, nn.RNNBase) for module in algorithm.modules.values() for layer in module.modules()):
        return "recurrent nets cannot be compiled"
    for optimizer in algorithm.optimizers.values():
        if optimizer.other is not None:
            return f"the optimiser {optimizer.spec.name} cannot be compiled"
    memory = spec.agent.memory
    if not isinstance(spec.agent.algorithm, OffPolicySpec) and not isinstance(memory, OnPolicyBatchReplaySpec):
        return f"batches of {memory.name} differ in size, and every size would be compiled again"
    return None


def _find_machine_obstacle(agent: Agent) -> str | None:
    """What compiling needs and this machine lacks."""
    if (part := find_missing_part()) is not None:
        return f"torch {torch.__version__} has no {part}, which compiling needs"
    if agent.device.type == "mps":
        return "code for GPUs of Apple cannot be compiled"
    if agent.device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton, which compiles for GPUs, is not installed"
        if torch.cuda.get_device_capability(agent.device) < (7, 0):
            return "this GPU is too old for triton"
        # triton compiles launchers of its kernels with it
        names = [name for name in (os.environ.get("CC"), "gcc", "clang", "cc") if name]
        return None if any(map(shutil.which, names)) else f"there is no C compiler ({', '.join(names)}) on this machine"
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        return f"there is no C++ compiler ({name}) on this machine"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "the headers of Python (python3-dev) are not installed"
    return None


def _find_foreign_code(agent: Agent) -> str | None:
    """Code from outside the lab: numbers that it changes in plain Python would be compiled as constants."""
    algorithm = agent.algorithm
    layers = [layer for module in algorithm.modules.values() for layer in module.modules()]
    for part in (algorithm, *layers):
        kind = type(part)
        if kind.__module__.split(".")[0] not in ("slm_lab", "torch"):
            return f"{kind.__name__} is your own code; set meta.compile: true if all that its loss reads are tensors"
    return None
