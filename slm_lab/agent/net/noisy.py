"""Linear layers with learned noise for exploration (Fortunato et al. 2018)."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from slm_lab.agent.learn.flat import Spread

# initial std of the noise, times the square root of the number of inputs
START_STD = 0.5


class NoisyLinear(nn.Linear):
    """Weights plus noise of a learned std; one random number per input and per output (factorised noise, eq. 10).

    The noise is a buffer that `resample` fills, so that it is saved, resumed and compiled like any other.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        std = START_STD / math.sqrt(in_features)
        self.weight_std = Spread(torch.full_like(self.weight.detach(), std))
        self.bias_std = Spread(torch.full_like(self.bias.detach(), std))
        self.register_buffer("noise_in", torch.zeros(in_features))
        self.register_buffer("noise_out", torch.zeros(out_features))
        self.is_quiet = False

    def forward(self, features: Tensor) -> Tensor:
        """Outputs (..., out_features)."""
        if self.is_quiet:
            return super().forward(features)
        weight = self.weight + self.weight_std * torch.outer(self.noise_out, self.noise_in)
        return linear(features, weight, self.bias + self.bias_std * self.noise_out)


def find_noisy(net: nn.Module) -> list[NoisyLinear]:
    """The layers of a net that have noise."""
    return [layer for layer in net.modules() if isinstance(layer, NoisyLinear)]


@torch.no_grad()
def resample(layers: Iterable[NoisyLinear], generator: torch.Generator) -> None:
    """Draw new noise."""
    for layer in layers:
        for noise in (layer.noise_in, layer.noise_out):
            noise.normal_(generator=generator)
            noise.copy_(noise.sign() * noise.abs().sqrt())


@contextmanager
def quiet(layers: list[NoisyLinear]) -> Iterator[None]:
    """Without noise, as the deterministic policy acts."""
    for layer in layers:
        layer.is_quiet = True
    try:
        yield
    finally:
        for layer in layers:
            layer.is_quiet = False
