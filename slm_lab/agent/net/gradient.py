"""One gradient step: a loss, its gradient, clipping and the optimisers, as plain calls or as one compiled graph."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from slm_lab.agent.net.engine import CompiledFunction
from slm_lab.agent.net.optim import FlatOptimizer

CalcLoss = Callable[..., tuple[Any, ...]]


class GradientStep:
    """Changes the weights of a net once: `step(*args)` gives what `calc_loss(*args)` gives, and the gradient's norm.

    `calc_loss` returns the loss and anything made of tensors after it. To be compiled it must be closed: what it draws
    comes in as an argument, no number leaves the device within it, and shapes do not change. Numbers among the
    arguments reach a compiled loss as tensors, so that a schedule compiles nothing anew.
    """

    def __init__(
        self, calc_loss: CalcLoss, net: nn.Module, optimizers: Sequence[FlatOptimizer], is_compiled: bool
    ) -> None:
        self.calc_loss = calc_loss
        self.optimizers = list(optimizers)
        self._parameters = [parameter for optimizer in self.optimizers for parameter in optimizer.flat.parameters]
        self._device = self._parameters[0].device
        self._graph: Callable[..., Any] | None = None
        if is_compiled:
            self._root = _Root(calc_loss, net)
            # each module once, under its first name: one that is shared must not be written to and restored twice
            modules = [(f"{path}.", module) for path, module in self._root.named_modules() if path]
            names = [
                (path + name, one) for path, module in modules for name, one in module.named_parameters(recurse=False)
            ]
            self._names = [
                [[name for name, one in names if one is parameter] for parameter in optimizer.flat.parameters]
                for optimizer in self.optimizers
            ]
            self._buffers = {
                path + name: one for path, module in modules for name, one in module.named_buffers(recurse=False)
            }
            self._graph = CompiledFunction(self._step, self._device)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self._graph is not None:
            # the graph takes its gradient within; autograd need not follow what goes in and out
            with torch.no_grad():
                out: tuple[Any, ...] = self._graph(*(to_tensor(arg, self._device) for arg in args))
            return out
        loss, *rest = self.calc_loss(*args)
        # nets that the loss passes through on the way have no gradient of their own
        loss.backward(inputs=self._parameters)
        norms = [optimizer.step() for optimizer in self.optimizers]
        return loss, *rest, norms[0]

    def _step(self, *args: Any) -> tuple[Any, ...]:
        """The same as a function of flat parameters, for the compiler to see whole."""
        data = tuple(optimizer.flat.data for optimizer in self.optimizers)
        grads, (_, out) = grad_and_value(self._pure_loss, has_aux=True)(data, self._buffers, args)
        norms = [optimizer.apply(grad) for optimizer, grad in zip(self.optimizers, grads, strict=True)]
        return *out, norms[0]

    def _pure_loss(self, data: tuple[Tensor, ...], buffers: dict[str, Tensor], args: Any) -> tuple[Tensor, Any]:
        values = dict(buffers)
        for flat, aliases, optimizer in zip(data, self._names, self.optimizers, strict=True):
            for names, view in zip(aliases, optimizer.flat.view_as_parameters(flat), strict=True):
                values.update(dict.fromkeys(names, view))
        out = functional_call(self._root, values, args, tie_weights=False)
        return out[0], out


class _Root(nn.Module):
    """A loss as the forward pass of the net it is of, whose weights can then be passed in."""

    def __init__(self, calc_loss: CalcLoss, net: nn.Module) -> None:
        super().__init__()
        self.calc_loss = calc_loss
        self.net = net

    def forward(self, *args: Any) -> tuple[Any, ...]:
        return self.calc_loss(*args)


def to_tensor(value: Any, device: torch.device) -> Any:
    """A number as a tensor; anything else as it is."""
    return _number(value, device) if isinstance(value, float) else value


@lru_cache(maxsize=64)
def _number(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)
