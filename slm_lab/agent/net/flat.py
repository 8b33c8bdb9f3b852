"""All parameters of a role in one contiguous tensor, so that clipping and optimising are one operation each."""

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, nn


class FlatParams:
    """Parameters and gradients as two flat tensors; the modules' own are views of them.

    `state_dict` of the modules is unchanged, `.backward()` fills `grad`, and nothing is ever copied.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # a shared parameter appears once
        self.parameters = list(dict.fromkeys(parameters))
        first = self.parameters[0]
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.data = torch.empty(sum(self.sizes), dtype=first.dtype, device=first.device)
        self.grad = torch.zeros_like(self.data)
        views = zip(
            self.parameters, self.view_as_parameters(self.data), self.view_as_parameters(self.grad), strict=True
        )
        for parameter, data, grad in views:
            data.copy_(parameter.detach())
            parameter.data = data
            parameter.grad = grad

    def view_as_parameters(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor as views in the parameters' shapes."""
        # apart rather than by one split, whose results torch does not let be written to
        ends = list(accumulate(self.sizes))
        return [
            flat[end - size : end].view(shape) for end, size, shape in zip(ends, self.sizes, self.shapes, strict=True)
        ]

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad.zero_()

    def clip_grad(self, max_norm: float | None) -> Tensor:
        """Scale the gradient down to `max_norm`; returns its norm before."""
        norm = self.grad.norm()
        if max_norm is not None:
            self.grad.div_((norm / max_norm).clamp_(min=1.0))
        return norm
