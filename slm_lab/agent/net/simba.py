"""Residual blocks behind layer normalisation, SimBa (Lee et al. 2025)."""

import math

from torch import Tensor, nn

from slm_lab.agent.net.activation import build_activation
from slm_lab.agent.net.mlp import Flatten
from slm_lab.spec.net import SimbaNetSpec

# width of the layer within a block, in widths of the net
EXPANSION = 4


class Residual(nn.Sequential):
    """Layers that add their output to their input."""

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, width)."""
        return features + super().forward(features)


class SimbaNet(nn.Sequential):
    """A linear layer, blocks of LayerNorm and two layers that add to it, and a last LayerNorm."""

    def __init__(self, spec: SimbaNetSpec, obs_shape: tuple[int, ...]) -> None:
        width = spec.width
        blocks = [
            Residual(
                nn.LayerNorm(width),
                nn.Linear(width, EXPANSION * width),
                build_activation(spec.hid_layers_activation),
                nn.Linear(EXPANSION * width, width),
            )
            for _ in range(spec.num_block)
        ]
        flatten = [] if len(obs_shape) == 1 else [Flatten()]
        super().__init__(*flatten, nn.Linear(math.prod(obs_shape), width), *blocks, nn.LayerNorm(width))
        self.out_size = width
