"""A body that reads each named part of an observation by an encoder of its own."""

import math

import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc_body import TorchArcNet
from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.parts import Parts
from slm_lab.env.layout import ObsPart
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import ConvBodySpec, DictNetSpec, EncoderSpec, MLPBodySpec


class Encoder(nn.Module):
    """One part of flat observations (B, D) in its own shape, through a body if it has one."""

    def __init__(self, spec: EncoderSpec | None, part: ObsPart, where: str) -> None:
        super().__init__()
        self.start, self.stop, self.shape = part.start, part.stop, part.shape or (1,)
        self.body = None if spec is None else _build(spec, self.shape, where)
        self.out_size = part.stop - part.start if self.body is None else int(self.body.out_size)
        # the activation whose gain `init_weights` uses
        self.activation = None if spec is None else spec.hid_layers_activation

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        part = obs[:, self.start : self.stop]
        if self.body is None:
            return part
        return self.body(part if len(self.shape) == 1 else part.unflatten(-1, self.shape))


def _build(spec: EncoderSpec, shape: tuple[int, ...], where: str) -> MLPNet | ConvNet | TorchArcNet:
    if isinstance(spec, MLPBodySpec):
        return MLPNet(spec, shape)
    return ConvNet(spec, shape, where) if isinstance(spec, ConvBodySpec) else TorchArcNet(spec, shape, where)


class DictNet(nn.Module):
    """Features of all parts side by side, in the order of the parts, then fully connected layers."""

    def __init__(self, spec: DictNetSpec, obs_shape: tuple[int, ...], parts: Parts) -> None:
        super().__init__()
        where = "agent.net.encoders"
        if unseen := sorted(spec.encoders.keys() - {part.name for part in parts}):
            raise SpecError(
                f"{where}.{unseen[0]}: the net does not see this part, only {', '.join(part.name for part in parts)}; "
                "encoders of one net alone are given as actor_encoders or critic_encoders"
            )
        self.is_flat = len(obs_shape) == 1
        assert parts[-1].stop == math.prod(obs_shape), (parts, obs_shape)
        encoders = [Encoder(spec.encoders.get(part.name), part, f"{where}.{part.name}") for part in parts]
        # in the order of the parts, since a module could not have every name that a part may have
        self.encoders = nn.ModuleList(encoders)
        self.trunk = MLPNet(spec, (sum(encoder.out_size for encoder in encoders),))
        self.out_size = self.trunk.out_size
        # what reads the observation itself: the bodies of its parts, and the trunk if a part has none
        self.readers: list[nn.Module] = [encoder.body or self.trunk for encoder in encoders]

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        flat = obs if self.is_flat else obs.flatten(1)
        return self.trunk(torch.cat([encoder(flat) for encoder in self.encoders], -1))
