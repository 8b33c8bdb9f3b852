"""Whether a run's updates are compiled: as the spec says, or where it pays."""

import os
import shutil
import sys

from torch import nn

from slm_lab.agent.agent import Agent
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.memory import OnPolicyBatchReplaySpec
from slm_lab.spec.schema import Spec

# What compiling costs the first session of a trial, and what each gradient step then takes less. Both are of a machine
# of 2026 and small nets; docs/SPEED.md has figures.
COMPILE_SECONDS = 30.0
SAVED_SECONDS = 0.0008


def resolve_compile(spec: Spec, agent: Agent) -> tuple[Spec, str]:
    """A copy that says whether updates are compiled, and why in one line."""
    wish = spec.meta.compile
    is_compiled, reason = wish is True, "as meta.compile says"
    obstacle = _find_spec_obstacle(spec, agent)
    if wish is True and obstacle is not None:
        raise SpecError(f"meta.compile: {obstacle}; use auto or false")
    if wish is not False and obstacle is None:
        obstacle = _find_machine_obstacle(agent)
    if wish is not False and obstacle is not None:
        is_compiled, reason = False, obstacle
    elif wish == "auto":
        num_step = spec.env.max_frame * spec.agent.algorithm.calc_utd(spec.env.num_envs) * spec.meta.max_session
        saved = num_step * SAVED_SECONDS
        is_compiled = saved > COMPILE_SECONDS
        reason = f"about {num_step:,.0f} gradient steps in all, "
        if is_compiled:
            reason += "which is worth the half minute it takes; later starts find it on disk"
        else:
            reason += f"compiling pays from {COMPILE_SECONDS / SAVED_SECONDS:,.0f} on"
    note = f"Updates are {'compiled' if is_compiled else 'not compiled'}: {reason}"
    return spec.replace(meta={"compile": is_compiled}), note


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
        return f"batches of {memory.name} differ in size, and every size would be compiled anew"
    return None


def _find_machine_obstacle(agent: Agent) -> str | None:
    """What on this machine is missing."""
    if agent.device.type == "cuda":
        return None
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["clang++"] if sys.platform == "darwin" else ["g++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"there is no C++ compiler ({names[0]}) on this machine"
