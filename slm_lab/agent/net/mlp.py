"""Fully connected body."""

import math

from torch import Tensor, nn

from slm_lab.agent.net.activation import build_activation
from slm_lab.spec.net import MLPBodySpec


class MLPNet(nn.Module):
    """Hidden layers on a flattened observation."""

    def __init__(self, spec: MLPBodySpec, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.is_flat = len(obs_shape) == 1
        size = math.prod(obs_shape)
        layers: list[nn.Module] = []
        for width in spec.hid_layers:
            layers.append(nn.Linear(size, width))
            if spec.batch_norm:
                layers.append(nn.BatchNorm1d(width))
            if spec.layer_norm:
                layers.append(nn.LayerNorm(width))
            layers.append(build_activation(spec.hid_layers_activation))
            size = width
        self.layers = nn.Sequential(*layers)
        self.out_size = size

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        obs = obs.float()
        return self.layers(obs if self.is_flat else obs.flatten(1))
