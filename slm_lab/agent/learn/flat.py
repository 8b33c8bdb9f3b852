"""All parameters of a role in one contiguous tensor, so that clipping and optimising are one operation each."""

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, nn


class Spread(nn.Parameter):
    """Stds or log stds of noise, which do not decay whatever their shape."""


class FlatParams:
    """Parameters and gradients as two flat tensors; the modules' own are views of them.

    The `state_dict` of the modules is unchanged, `.backward()` fills `grad`, and no step copies between them.
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
        """Views of a flat tensor in the parameters' shapes; by `split`, whose gradient is a single concatenation."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]
