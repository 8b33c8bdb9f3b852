"""All parameters of a role in one contiguous tensor, so that clipping and optimising are one operation each."""

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, nn


class Spread(nn.Parameter):
    """Stds or log stds of noise, of any shape: weight decay leaves them alone."""


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
        ends = list(accumulate(self.sizes))
        for parameter, size, end in zip(self.parameters, self.sizes, ends, strict=True):
            view = self.data[end - size : end].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.grad[end - size : end].view(parameter.shape)

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor in the parameters' shapes; its gradient is one concatenation, where slices would add up."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]
