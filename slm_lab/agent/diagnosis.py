"""Where a number first stopped being finite: looked for after a fault, never while training goes well."""

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.base import OnPolicy
from slm_lab.agent.learn.gradient import GradientFaultError
from slm_lab.agent.memory.batch import Batch, Rollout

# fields of batches as people call them
NAMES = {
    "obs": "observation",
    "next_obs": "next observation",
    "cut_obs": "next observation",
    "ret": "target",
    "adv": "advantage",
    "old_log_prob": "log_prob",
    "old_value": "value",
}


@dataclass(frozen=True)
class Finding:
    """The first tensor that is not finite, as far as one can tell."""

    # what it is, e.g. reward, log_prob, gradient
    tensor: str
    # its first bad number, as text: nan, inf or -inf
    value: str
    count: int
    total: int
    # the net and layer, or the parameter
    module: str | None = None
    # place of the first bad number
    index: tuple[int, ...] = ()
    env: int | None = None
    # when the number was made, where that was before the update
    frame: int | None = None
    # of a loss: what it is made of that is largest
    cause: str | None = None

    def describe(self) -> str:
        """One line about it."""
        of = "" if self.module is None else f" of {self.module}"
        at = f", first at {list(self.index)}" if self.index else ""
        env = "" if self.env is None else f", env {self.env}"
        frame = "" if self.frame is None else f", of frame {self.frame}"
        cause = "" if self.cause is None else f"; the largest number before it is {self.cause}"
        return f"{self.tensor}{of} is {self.value} ({self.count} of {self.total} numbers{at}{env}{frame}){cause}"


def find_bad(name: str, tensor: Tensor, module: str | None = None) -> Finding | None:
    """What is wrong with a tensor; None if all of it is finite."""
    if not tensor.is_floating_point():
        return None
    tensor = tensor.detach()
    bad = ~tensor.isfinite()
    count = int(bad.sum())
    if not count:
        return None
    index = tuple(int(part) for part in bad.nonzero()[0].tolist())
    value = str(float(tensor[index] if index else tensor))
    return Finding(name, value, count, tensor.numel(), module, index)


def diagnose(agent: Agent, fault: GradientFaultError) -> Finding:
    """What was not finite first: the weights, what came in, what the loss computes on the way, the gradient.

    A step that is not finite changes no weight. So a bad one was there before, and all else may have come of it.
    """
    finding = find_bad_weight(agent.algorithm.modules) or _find_in_inputs(agent, fault)
    if finding is None:
        finding = _find_on_the_way(agent, fault)
    if finding is None:
        # each number is finite, the sum of their squares is not; or plain calls round otherwise than the graph
        name, number = ("gradient norm", fault.norm) if math.isfinite(fault.loss) else ("loss", fault.loss)
        finding = Finding(name, str(number), 1, 1)
    return finding


def find_bad_weight(modules: dict[str, nn.Module]) -> Finding | None:
    """The first weight or buffer that is not finite."""
    for role, module in modules.items():
        for name, tensor in module.state_dict().items():
            finding = find_bad("weight", tensor, f"{role}.{name}")
            if finding is not None:
                return finding
    return None


def _find_in_inputs(agent: Agent, fault: GradientFaultError) -> Finding | None:
    num_envs, rollout = agent.context.num_envs, agent.algorithm.rollout
    if rollout is not None:
        for name, tensor in _rollout_tensors(rollout):
            finding = find_bad(NAMES.get(name, name), tensor)
            if finding is not None:
                return _place_in_rollout(finding, name, rollout, agent, fault.frame)
    for name, value in named_tensors(fault.step, fault.step_args):
        finding = find_bad(NAMES.get(name.rpartition(".")[2], name.rpartition(".")[2]), value)
        if finding is not None:
            batch = fault.step_args[0]
            if isinstance(batch, Batch) and "memory" in agent.algorithm.replays and finding.index:
                return replace(finding, env=int(batch.slot[finding.index[0]]) % num_envs)
            return finding
    return None


def _rollout_tensors(rollout: Rollout) -> Iterator[tuple[str, Tensor]]:
    yield from (("obs", rollout.obs), ("reward", rollout.reward), ("action", rollout.action))
    yield from rollout.extra.items()
    yield "cut_obs", rollout.cut_obs


def _place_in_rollout(finding: Finding, name: str, rollout: Rollout, agent: Agent, frame: int | None) -> Finding:
    num_step, width = rollout.reward.shape
    algorithm = agent.algorithm
    if name == "cut_obs" or width != agent.context.num_envs or frame is None or not isinstance(algorithm, OnPolicy):
        return finding
    row, env = finding.index[:2]
    # episodes of several envs come as one column, where the env is not known any more; rows still held are newer
    made = frame - (num_step - 1 - row + len(algorithm.memory.rows)) * width
    return replace(finding, env=env, frame=made) if made > 0 else finding


def named_tensors(step: Any, args: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    """Tensors among the arguments of a step, by the names that the loss and the batch have for them."""
    names = list(inspect.signature(step.calc_loss).parameters)
    for index, value in enumerate(args):
        yield from _tensors(names[index] if index < len(names) else str(index), value)


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, float):
        yield name, torch.tensor(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}", item)
    elif isinstance(value, tuple):
        keys: Iterable[Any] = value._fields if hasattr(value, "_fields") else range(len(value))
        for key, item in zip(keys, value, strict=True):
            yield from _tensors(f"{name}.{key}", item)


def _find_on_the_way(agent: Agent, fault: GradientFaultError) -> Finding | None:
    """Do the step again in plain calls, looking at each layer's output and at what the loss reports."""
    step = fault.step
    seen: list[tuple[str, Tensor]] = []
    layers: dict[int, str] = {}
    handles = []
    for role, module in agent.algorithm.modules.items():
        for path, layer in module.named_modules():
            name = f"{role}.{path}" if path else role

            def keep(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
                for tensor in dict(_tensors(name, output)).values():
                    layers[len(seen)] = name
                    seen.append(("output", tensor.detach()))

            handles.append(layer.register_forward_hook(keep))
    try:
        with torch.enable_grad():
            loss, report = step.calc_loss(*fault.step_args)
            loss.backward(inputs=step.parameters)
    finally:
        for handle in handles:
            handle.remove()
    # its own parts are sums, whose cause is among the samples
    seen += [(name, part.detach()) for name, part in report.items() if part.dim()]
    for index, (name, tensor) in enumerate(seen):
        finding = find_bad(name, tensor, layers.get(index))
        if finding is not None:
            return finding
    finding = find_bad("loss", loss)
    if finding is not None:
        known = [*named_tensors(step, fault.step_args), *(pair for pair in seen if pair[0] != "output")]
        return replace(finding, cause=_find_largest(known))
    names = {
        parameter: f"{role}.{name}"
        for role, module in agent.algorithm.modules.items()
        for name, parameter in module.named_parameters()
    }
    # a gradient comes from the end of a net, so the last one that is bad was first
    bad = None
    for parameter in step.parameters:
        if parameter.grad is not None:
            bad = find_bad("gradient", parameter.grad, names.get(parameter)) or bad
    for optimizer in step.optimizers:
        optimizer.flat.grad.zero_()
    return bad


def _find_largest(known: list[tuple[str, Tensor]]) -> str | None:
    sizes = [
        (float(tensor.abs().max()), name.rpartition(".")[2])
        for name, tensor in known
        if tensor.is_floating_point() and tensor.numel()
    ]
    if not sizes:
        return None
    size, name = max(sizes)
    return f"{size:.4g}, of {NAMES.get(name, name)}"
