"""Fully connected body."""

import math

from torch import Tensor, nn

from slm_lab.agent.net.activation import build_activation
from slm_lab.agent.net.noisy import NoisyLinear
from slm_lab.agent.net.norm import WeightNormLinear
from slm_lab.spec.net import MLPBodySpec, MLPNetSpec


class Flatten(nn.Module):
    """Images as vectors of floats."""

    def forward(self, obs: Tensor) -> Tensor:
        """Numbers (B, D)."""
        return obs.float().flatten(1)


class MLPNet(nn.Sequential):
    """Hidden layers on a vector, or on a flattened image."""

    def __init__(self, spec: MLPBodySpec, obs_shape: tuple[int, ...]) -> None:
        size = math.prod(obs_shape)
        linear: type[nn.Linear] = nn.Linear
        if isinstance(spec, MLPNetSpec) and (spec.noisy or spec.weight_norm):
            linear = NoisyLinear if spec.noisy else WeightNormLinear
        layers: list[nn.Module] = [] if len(obs_shape) == 1 else [Flatten()]
        for width in spec.hid_layers:
            layers.append(linear(size, width))
            if spec.batch_norm:
                layers.append(nn.BatchNorm1d(width))
            if spec.layer_norm:
                layers.append(nn.LayerNorm(width))
            layers.append(build_activation(spec.hid_layers_activation))
            size = width
        super().__init__(*layers)
        self.out_size = size
