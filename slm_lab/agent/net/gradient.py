"""One gradient step: a loss, its gradient, clipping and the optimisers, as plain calls or as one compiled graph."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from slm_lab.agent.net.engine import CompiledFunction
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.functional import Root
from slm_lab.agent.net.optim import FlatOptimizer

CalcLoss = Callable[..., tuple[Any, ...]]


class GradientStep:
    """Changes the weights of a net once: `step(*args)` gives what `calc_loss(*args)` gives, and the gradient's norm.

    `calc_loss` returns the loss and anything made of tensors after it. To be compiled it must be closed: every tensor
    it reads is an argument or belongs to `net` or one of the `frozen` nets, which learn nothing from it; what it draws
    comes in as an argument; no number leaves the device within it, and shapes do not change. Numbers among the
    arguments reach a compiled loss as tensors, so that a schedule compiles nothing anew.
    """

    def __init__(
        self,
        calc_loss: CalcLoss,
        net: nn.Module,
        optimizers: Sequence[FlatOptimizer],
        frozen: Mapping[nn.Module, FlatParams] | None = None,
        is_compiled: bool = False,
    ) -> None:
        self.calc_loss = calc_loss
        self.optimizers = list(optimizers)
        self._parameters = [parameter for optimizer in self.optimizers for parameter in optimizer.flat.parameters]
        self._device = self._parameters[0].device
        self._graph: CompiledFunction | None = None
        if is_compiled:
            frozen = frozen or {}
            self._root = Root(calc_loss, [net, *frozen])
            self._frozen = list(frozen.values())
            state = {
                "optimizers": [optimizer.tensors() for optimizer in self.optimizers],
                "frozen": [flat.data for flat in self._frozen],
                "buffers": self._root.own_buffers(),
            }
            self._graph = CompiledFunction(self._step, state)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self._graph is not None:
            # the graph takes its gradient within; autograd need not follow what goes in and out
            with torch.no_grad():
                out: tuple[Any, ...] = self._graph(*numbers_to_tensors(args, self._device))
            return out
        loss, *rest = self.calc_loss(*args)
        # nets that the loss passes through on the way have no gradient of their own
        loss.backward(inputs=self._parameters)
        norms = [optimizer.step() for optimizer in self.optimizers]
        return loss, *rest, norms[0]

    def _step(self, state: dict[str, Any], args: Any) -> tuple[Any, ...]:
        """The same as a function of all it reads."""

        def calc(data: list[Tensor], buffers: dict[str, Tensor], args: Any) -> tuple[Tensor, Any]:
            flats = [optimizer.flat for optimizer in self.optimizers] + self._frozen
            views: dict[nn.Parameter, Tensor] = {}
            for flat, tensor in zip(flats, [*data, *state["frozen"]], strict=True):
                views.update(zip(flat.parameters, flat.unflatten(tensor), strict=True))
            names = self._root.own_parameters().items()
            # what no optimiser changes, such as a fixed alpha, takes no part
            own = {name: views[parameter] for name, parameter in names if parameter in views}
            out = self._root.call_with({**own, **buffers}, args)
            return out[0], out

        data = [tensors["data"] for tensors in state["optimizers"]]
        grads, (_, out) = grad_and_value(calc, has_aux=True)(data, state["buffers"], args)
        pairs = zip(self.optimizers, grads, state["optimizers"], strict=True)
        norms = [optimizer.apply(grad, **tensors) for optimizer, grad, tensors in pairs]
        return *out, norms[0]


def numbers_to_tensors(args: tuple[Any, ...], device: torch.device) -> list[Any]:
    """Numbers among arguments as tensors; anything else as it is."""
    return [_number(arg, device) if isinstance(arg, float) else arg for arg in args]


@lru_cache(maxsize=64)
def _number(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)
