"""One gradient step: a loss, its gradient, clipping and the optimisers, as plain calls or as one compiled graph."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.nn.modules.dropout import _DropoutNd

from slm_lab.agent.compile.engine import CompiledFunction
from slm_lab.agent.learn.functional import Root
from slm_lab.agent.learn.learner import Learner, Weights
from slm_lab.lib.data import State
from slm_lab.lib.errors import DivergenceError

ADVICE = "try a lower learning rate or agent.net.clip_grad_val"
# of an optimiser's tensors, those that a step does not change
READ_ONLY = ("lr", "decay")


class Loss(NamedTuple):
    """A loss, and what was computed on the way by name: one number, or one per sample (B,)."""

    value: Tensor
    report: dict[str, Tensor]


# the loss, the report, and the gradient's norm
Report = dict[str, Tensor]
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

    def __str__(self) -> str:
        what = f"grad_norm became {self.norm}" if math.isfinite(self.loss) else f"loss became {self.loss}"
        where = "" if self.frame is None else f" in the training at frame {self.frame}"
        return f"{what}{where}; {ADVICE}"


class Call(NamedTuple):
    """A step whose numbers have not been looked at yet."""

    step: "GradientStep"
    args: tuple[Any, ...]
    loss: Tensor
    # the sum of the loss and of all norms: one number tells whether all are finite
    total: Tensor


class Guard:
    """What the steps of an agent share: they are refused from the first one on that is not finite.

    A graph cannot ask the host before it writes. So it writes what it has computed or, once a number was not finite,
    what was there before; on a GPU the host reads the numbers of all steps of a training at its end, without waiting
    in between, and finds everything as it was before the first bad one.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_deferred = device.type == "cuda"
        self.is_ok = torch.ones((), dtype=torch.bool, device=device)
        self.steps: list[GradientStep] = []
        self.calls: list[Call] = []

    def check(self) -> None:
        """Raise for the first step since the last check that was not finite."""
        if not self.calls:
            return
        calls, self.calls = self.calls, []
        for call, is_finite in zip(calls, torch.stack([call.total for call in calls]).isfinite().tolist(), strict=True):
            if not is_finite:
                self.is_ok.fill_(True)
                raise GradientFaultError(call.step, call.args, float(call.loss), float(call.total - call.loss))


class GradientStep:
    """Updates the weights of nets once: `step(*args)` gives the report of `calc_loss(*args)`, `loss` and `grad_norm`.

    To be compiled, `calc_loss` must be closed: every tensor it reads is an argument or belongs to one of the nets, the
    frozen ones of which it uses without updating them; random numbers come in as arguments; no number leaves the device
    within it, and shapes do not change. Numbers among the arguments reach a compiled loss as tensors, so a schedule
    does not compile it again.

    A loss or a gradient that is not finite changes nothing and raises GradientFaultError.
    """

    def __init__(
        self,
        calc_loss: CalcLoss,
        learners: Sequence[Learner],
        frozen: Sequence[Weights] = (),
        is_compiled: bool = False,
        guard: Guard | None = None,
    ) -> None:
        self.calc_loss = calc_loss
        self.optimizers = [learner.optimizer for learner in learners]
        self.parameters = [parameter for optimizer in self.optimizers for parameter in optimizer.flat.parameters]
        self._device = self.parameters[0].device
        self.guard = guard or Guard(self._device)
        self.guard.steps.append(self)
        nets = nn.ModuleList([weights.net for weights in (*learners, *frozen)])
        # what a pass in training mode changes beside the weights: statistics of norm layers, and torch's generator
        self._buffers = _by_dtype(buffer.view(-1) for buffer in nets.buffers())
        self._kept = [torch.cat(group) for group in self._buffers]
        self._has_dropout = any(isinstance(layer, _DropoutNd) for layer in nets.modules())
        self._graph: CompiledFunction | None = None
        if is_compiled:
            self._root = Root(calc_loss, list(nets))
            self._frozen = [weights.flat for weights in frozen]
            state = {
                "optimizers": [optimizer.tensors() for optimizer in self.optimizers],
                "frozen": [flat.data for flat in self._frozen],
                "buffers": self._root.own_buffers(),
                "is_ok": self.guard.is_ok,
            }
            self._graph = CompiledFunction(self._step, state)

    def __call__(self, *args: Any) -> Report:
        random_state = torch.get_rng_state() if self._has_dropout else None
        if self._graph is not None:
            # the graph takes its gradient within; autograd need not follow what goes in and out
            with torch.no_grad():
                report, total = self._graph(*numbers_to_tensors(args, self._device))
            loss = report["loss"]
            if self.guard.is_deferred:
                self.guard.calls.append(Call(self, args, loss, total))
            elif not math.isfinite(number := float(total)):
                self.guard.is_ok.fill_(True)
                raise self._fault(args, float(loss), number - float(loss), random_state)
            return report
        for group, kept in zip(self._buffers, self._kept, strict=True):
            # one operation for all of them
            torch.cat(group, out=kept)
        loss, report = self.calc_loss(*args)
        # nets that the loss passes through on the way have no gradient of their own
        loss.backward(inputs=self.parameters)
        with torch.no_grad():
            norms = [optimizer.clip() for optimizer in self.optimizers]
            if not (math.isfinite(number := loss.item()) and all(map(math.isfinite, map(float, norms)))):
                self._undo()
                bad = [norm for norm in map(float, norms) if not math.isfinite(norm)]
                raise self._fault(args, number, bad[0] if bad else float(norms[0]), random_state)
            for optimizer in self.optimizers:
                optimizer.descend()
        return {"loss": loss.detach(), **{name: part.detach() for name, part in report.items()}, "grad_norm": norms[0]}

    def _undo(self) -> None:
        """Forget a plain pass; the weights have not been touched yet."""
        for optimizer in self.optimizers:
            optimizer.flat.grad.zero_()
        for group, kept in zip(self._buffers, self._kept, strict=True):
            for buffer, old in zip(group, kept.split([buffer.numel() for buffer in group]), strict=True):
                buffer.copy_(old)

    def _fault(
        self, args: tuple[Any, ...], loss: float, norm: float, random_state: Tensor | None
    ) -> GradientFaultError:
        if random_state is not None:
            torch.set_rng_state(random_state)
        return GradientFaultError(self, args, loss, norm)

    def _step(self, state: State, args: Any) -> tuple[Report, Tensor]:
        """The same as a function of all it reads."""

        def calc(data: list[Tensor], buffers: dict[str, Tensor], args: Any) -> Loss:
            flats = [optimizer.flat for optimizer in self.optimizers] + self._frozen
            views: dict[nn.Parameter, Tensor] = {}
            for flat, tensor in zip(flats, [*data, *state["frozen"]], strict=True):
                views.update(zip(flat.parameters, flat.unflatten(tensor), strict=True))
            names = self._root.own_parameters().items()
            # what no optimiser changes, such as a fixed alpha, takes no part
            own = {name: views[parameter] for name, parameter in names if parameter in views}
            return self._root.call_with({**own, **buffers}, args)

        data = [tensors["data"] for tensors in state["optimizers"]]
        changed = list(state["buffers"].values())
        changed += [tensor for part in state["optimizers"] for name, tensor in part.items() if name not in READ_ONLY]
        before = [tensor.clone() for tensor in changed]
        grads, (loss, report) = grad_and_value(calc, has_aux=True)(data, state["buffers"], args)
        total = loss + sum(grad.norm() for grad in grads)
        is_ok = state["is_ok"].logical_and_(total.isfinite())
        pairs = zip(self.optimizers, grads, state["optimizers"], strict=True)
        norms = [optimizer.apply(grad, **tensors) for optimizer, grad, tensors in pairs]
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(torch.where(is_ok, tensor, old))
        return {"loss": loss, **report, "grad_norm": norms[0]}, total


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
    return torch.tensor(value, device=device)
