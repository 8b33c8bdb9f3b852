"""One gradient step: a loss, its gradient, clipping and the optimisers, as plain calls or as one compiled graph."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.nn.modules.dropout import _DropoutNd

from slm_lab.agent.compile.engine import CompiledFunction, CompileError, warn_once
from slm_lab.agent.learn.functional import Root
from slm_lab.agent.learn.learner import Learner, Weights
from slm_lab.agent.learn.optim import compute_once
from slm_lab.lib.data import State
from slm_lab.lib.errors import DivergenceError

ADVICE = "try a lower learning rate or agent.net.clip_grad_val"
# tensors of an optimiser that a step does not change
READ_ONLY = ("lr", "decay")
# largest number of unchecked steps on a GPU, each of which keeps its minibatch in memory
MAX_CALLS = 64


class Loss(NamedTuple):
    """A loss, and a report of other results by name: one number, or one per sample (B,)."""

    value: Tensor
    report: dict[str, Tensor]


# the loss, the report of the loss, and the norm of the gradient; a compiled step adds the means of results per sample,
# and its single numbers are floats on a CPU
Report = dict[str, Any]
MEAN = "/mean"
# the loss plus the norms of all gradients: not finite if any of them is not
TOTAL = "/total"
CalcLoss = Callable[..., Loss]


class GradientFaultError(DivergenceError):
    """A loss or a gradient is not finite. Weights, buffers and optimisers are as they were before the step."""

    def __init__(self, step: "GradientStep", args: tuple[Any, ...], loss: float, norm: float) -> None:
        super().__init__()
        self.step = step
        self.step_args = args
        self.loss = loss
        self.norm = norm
        self.frame: int | None = None
        # gradient steps that the agent had taken before this one
        self.opt_step: int | None = None

    def __str__(self) -> str:
        what = f"grad_norm became {self.norm}" if math.isfinite(self.loss) else f"loss became {self.loss}"
        where = "" if self.frame is None else f" in the training at frame {self.frame}"
        return f"{what}{where}; {ADVICE}"


class Call(NamedTuple):
    """A step whose numbers have not been checked yet."""

    step: "GradientStep"
    get_args: Callable[[], tuple[Any, ...]]
    loss: Tensor
    # the sum of the loss and all norms, which is finite only if all of them are
    total: Tensor
    opt_step: int
    random_state: list[Tensor]


class Guard:
    """Shared by the steps of an agent: after the first step that is not finite, no step changes anything.

    A compiled step cannot ask the host whether its numbers are finite before it writes. So it writes its results only
    while all numbers so far were finite, otherwise the old values. On a GPU the host checks the numbers of all steps at
    the end of a training, without waiting in between, and finds everything as it was before the first bad step.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_deferred = device.type == "cuda"
        self.is_ok = torch.ones((), dtype=torch.bool, device=device)
        self.steps: list[GradientStep] = []
        self.calls: list[Call] = []
        # called before each step, to time steps
        self.on_step: Callable[[], None] | None = None
        # gradient steps that the agent has taken
        self.count: Callable[[], int] = lambda: 0

    def make_room(self) -> None:
        """Check the steps so far if many are waiting, since they keep their minibatches in memory."""
        if len(self.calls) >= MAX_CALLS:
            self.check()

    def check(self) -> None:
        """Raise for the first step since the last check that was not finite."""
        if not self.calls:
            return
        calls, self.calls = self.calls, []
        for call, total in zip(calls, torch.stack([call.total for call in calls]).tolist(), strict=True):
            if not math.isfinite(total):
                self.is_ok.fill_(True)
                call.step.set_random_state(call.random_state)
                loss = float(call.loss)
                fault = GradientFaultError(call.step, call.get_args(), loss, total - loss)
                fault.opt_step = call.opt_step
                raise fault


class GradientStep:
    """Updates the weights of nets once: `step(*args)` gives the report of `calc_loss(*args)`, `loss` and `grad_norm`.

    To be compiled, `calc_loss` must be closed: every tensor it reads is an argument or belongs to one of the nets (the
    frozen ones are used, but not updated), random numbers are arguments, no number is read on the host, and shapes do
    not change. Numbers among the arguments become tensors for a compiled loss, so that a schedule does not compile it
    again.

    A loss or a gradient that is not finite changes nothing and raises GradientFaultError.
    """

    def __init__(
        self,
        calc_loss: CalcLoss,
        learners: Sequence[Learner],
        frozen: Sequence[Weights] = (),
        is_compiled: bool = False,
        guard: Guard | None = None,
        samples: Sequence[str] | None = None,
    ) -> None:
        self.calc_loss = calc_loss
        # results per sample that a graph returns as such; of all others it returns only the mean (None: all of them)
        self.samples = samples
        self.optimizers = [learner.optimizer for learner in learners]
        self.parameters = [parameter for optimizer in self.optimizers for parameter in optimizer.flat.parameters]
        self.device = self.parameters[0].device
        self.guard = guard or Guard(self.device)
        self.guard.steps.append(self)
        nets = nn.ModuleList([weights.net for weights in (*learners, *frozen)])
        # a pass in training mode also changes buffers (statistics of norm layers) and, with dropout, torch's generator
        self._buffers = _by_dtype(buffer.view(-1) for buffer in nets.buffers())
        self._kept = [torch.cat(group) for group in self._buffers]
        self.has_dropout = any(isinstance(layer, _DropoutNd) for layer in nets.modules())
        self.graph: CompiledFunction | None = None
        # names of the single numbers that the graph returns, in order; known once it is traced
        self._names: tuple[str, ...] = ()
        if is_compiled:
            self._root = Root(calc_loss, list(nets))
            self._frozen = [weights.flat for weights in frozen]
            state = {
                "optimizers": [optimizer.tensors() for optimizer in self.optimizers],
                "frozen": [flat.data for flat in self._frozen],
                "buffers": self._root.own_buffers(),
                "is_ok": self.guard.is_ok,
            }
            self.graph = CompiledFunction(self.compute, state)

    def __call__(self, *args: Any) -> Report:
        if self.guard.on_step is not None:
            self.guard.on_step()
        if self.graph is not None:
            try:
                return self._call_graph(self.graph, args)
            except CompileError as error:
                warn_once(str(error))
                self.graph = None
        random_state = self.random_state() if self.has_dropout else []
        for group, kept in zip(self._buffers, self._kept, strict=True):
            # one operation for all of them
            torch.cat(group, out=kept)
        loss, report = self.calc_loss(*args)
        # only for these parameters: the loss may use other nets too
        loss.backward(inputs=self.parameters)
        with torch.no_grad():
            norms = [optimizer.clip() for optimizer in self.optimizers]
            # a single wait for the device
            number, *lengths = torch.stack([loss, *norms]).tolist()
            if not all(map(math.isfinite, (number, *lengths))):
                self._undo()
                self.set_random_state(random_state)
                bad = [length for length in lengths if not math.isfinite(length)]
                raise GradientFaultError(self, args, number, bad[0] if bad else lengths[0])
            for optimizer in self.optimizers:
                optimizer.descend()
        return {"loss": loss.detach(), **{name: part.detach() for name, part in report.items()}, "grad_norm": norms[0]}

    def _call_graph(self, graph: CompiledFunction, args: tuple[Any, ...]) -> Report:
        self.guard.make_room()
        random_state = self.random_state() if self.has_dropout else []
        # the graph computes its gradient itself, so autograd need not record anything
        with torch.no_grad():
            samples, row = graph(*numbers_to_tensors(args, self.device))
        return self.read(samples, row, lambda: args, random_state)

    def read(
        self,
        samples: dict[str, Tensor],
        row: Tensor,
        get_args: Callable[[], tuple[Any, ...]],
        random_state: list[Tensor],
    ) -> Report:
        """The report of a compiled step from its results, which are checked now or, on a GPU, later."""
        guard = self.guard
        numbers: Iterable[Any] = row.unbind() if guard.is_deferred else row.tolist()
        report: Report = {**samples, **dict(zip(self._names, numbers, strict=True))}
        loss, total = report["loss"], report.pop(TOTAL)
        if guard.is_deferred:
            guard.calls.append(Call(self, get_args, loss, total, guard.count(), random_state))
        elif not math.isfinite(total):
            guard.is_ok.fill_(True)
            self.set_random_state(random_state)
            raise GradientFaultError(self, get_args(), loss, total - loss)
        return report

    def random_state(self) -> list[Tensor]:
        """The states of torch's generators, host first, which dropout uses."""
        is_cuda = self.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if is_cuda else [])]

    def set_random_state(self, state: list[Tensor]) -> None:
        """Restore the states of torch's generators."""
        for index, part in enumerate(state):
            torch.cuda.set_rng_state(part, self.device) if index else torch.set_rng_state(part)

    def _undo(self) -> None:
        """Undo a plain pass, which has not changed the weights yet."""
        for optimizer in self.optimizers:
            optimizer.flat.grad.zero_()
        for group, kept in zip(self._buffers, self._kept, strict=True):
            for buffer, old in zip(group, kept.split([buffer.numel() for buffer in group]), strict=True):
                buffer.copy_(old)

    def compute(self, state: State, args: Any) -> tuple[Report, Tensor]:
        """The step as a function of everything it reads; returns results per sample, and all single numbers."""

        def calc(data: list[Tensor], buffers: dict[str, Tensor], args: Any) -> Loss:
            flats = [optimizer.flat for optimizer in self.optimizers] + self._frozen
            views: dict[nn.Parameter, Tensor] = {}
            for flat, tensor in zip(flats, [*data, *state["frozen"]], strict=True):
                views.update(zip(flat.parameters, flat.unflatten(tensor), strict=True))
            names = self._root.own_parameters().items()
            # parameters of no optimiser, such as a fixed alpha, are left out
            own = {name: views[parameter] for name, parameter in names if parameter in views}
            return self._root.call_with({**own, **buffers}, args)

        data = [tensors["data"] for tensors in state["optimizers"]]
        changed = list(state["buffers"].values())
        changed += [tensor for part in state["optimizers"] for name, tensor in part.items() if name not in READ_ONLY]
        before = [tensor.clone() for tensor in changed]
        grads, (loss, report) = grad_and_value(calc, has_aux=True)(data, state["buffers"], args)
        total = loss + sum(grad.norm() for grad in grads)
        is_ok = state["is_ok"].logical_and_(compute_once(total).isfinite())
        pairs = zip(self.optimizers, grads, state["optimizers"], strict=True)
        norms = [optimizer.apply(grad, **tensors) for optimizer, grad, tensors in pairs]
        for tensor, old in zip(changed, before, strict=True):
            # Triton 3.7 cannot compile a choice between integers, such as the counters of norm layers
            kept = torch.where(is_ok, tensor, old) if tensor.is_floating_point() else old + (tensor - old) * is_ok
            tensor.copy_(kept)
        # means are free in a graph; in a plain call each would cost as much as a small layer
        samples, numbers = {}, {"loss": loss}
        for name, part in report.items():
            is_kept = part.dim() > 0 and (self.samples is None or name in self.samples)
            if is_kept:
                samples[name] = part
            numbers[name + MEAN if is_kept else name] = part.float().mean()
        numbers |= {"grad_norm": norms[0], TOTAL: total}
        self._names = tuple(numbers)
        # as one tensor, because each result of a CUDA graph is copied
        return samples, torch.stack(list(numbers.values()))


def move_report(report: Report, device: torch.device) -> Report:
    """A saved report on a device."""
    return {name: part if isinstance(part, float) else part.to(device) for name, part in report.items()}


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def numbers_to_tensors(args: tuple[Any, ...], device: torch.device) -> list[Any]:
    """Numbers among arguments as tensors; anything else as it is."""
    return [_number(arg, device) if isinstance(arg, float) else arg for arg in args]


@lru_cache(maxsize=64)
def _number(value: float, device: torch.device) -> Tensor:
    # filled on the device, without a copy from the host
    return torch.full((), value, device=device)
