"""Whether a run's updates are compiled: as the spec says, or where it pays."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.compile.engine import GRAPH, find_missing_part
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.memory import OnPolicyBatchReplaySpec
from slm_lab.spec.schema import Spec

# What compiling costs the first session of a trial, and what a gradient step with its share of acting then takes less;
# of PPO CartPole, whose nets are small.
COMPILE_SECONDS = 30.0
SAVED_SECONDS = 0.0015
MIN_COMPILED_STEP = COMPILE_SECONDS / SAVED_SECONDS
AS_ASKED = "as meta.compile says"


def resolve_compile(spec: Spec, agent: Agent) -> tuple[Spec, str]:
    """A copy that says whether updates are compiled, and why in one line."""
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
        obstacle = obstacle or _find_foreign_code(agent) or _find_no_gain(agent)
    if obstacle is not None:
        return False, obstacle
    if wish is True:
        return True, AS_ASKED
    num_step = spec.env.max_frame * spec.agent.algorithm.calc_utd(spec.env.num_envs) * spec.meta.max_session
    count = f"about {num_step:,.0f} gradient steps in all"
    if num_step > MIN_COMPILED_STEP:
        return True, f"{count}, which is worth the half minute it takes; later starts find it on disk"
    return False, f"{count}, compiling pays from {MIN_COMPILED_STEP:,.0f} on"


def _find_spec_obstacle(spec: Spec, agent: Agent) -> str | None:
    """What in the spec has no fixed graph."""
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
    """What on this machine is missing."""
    if (part := find_missing_part(GRAPH.read_text())) is not None:
        return f"torch {torch.__version__} has no {part}, which compiling needs"
    if agent.device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton, which compiles for GPUs, is not installed"
        if torch.cuda.get_device_capability(agent.device) < (7, 0):
            return "this GPU is too old for triton"
        # triton compiles what launches its kernels
        names = [name for name in (os.environ.get("CC"), "gcc", "clang", "cc") if name]
        return None if any(map(shutil.which, names)) else f"there is no C compiler ({', '.join(names)}) on this machine"
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        return f"there is no C++ compiler ({name}) on this machine"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "the headers of Python (python3-dev) are not installed"
    return None


def _find_no_gain(agent: Agent) -> str | None:
    """What gains nothing measurable: convolutions on a CPU.

    Compiled code calls the same ones. PPO on Pong ran at 178 frames per second plain and 161 compiled: 1.11 times as
    fast, with an interval of [0.37, 3.33] that has room for either.
    """
    modules = agent.algorithm.modules.values()
    has_conv = any(isinstance(layer, nn.modules.conv._ConvNd) for module in modules for layer in module.modules())
    return "it gains nothing measurable with convolutions on a CPU" if has_conv and agent.device.type == "cpu" else None


def _find_foreign_code(agent: Agent) -> str | None:
    """What the lab cannot vouch for: numbers that change in plain Python would be compiled as they are at first."""
    algorithm = agent.algorithm
    layers = [layer for module in algorithm.modules.values() for layer in module.modules()]
    for part in (algorithm, *layers):
        kind = type(part)
        if kind.__module__.split(".")[0] not in ("slm_lab", "torch"):
            return f"{kind.__name__} is your own code; set meta.compile: true if all that its loss reads are tensors"
    return None
