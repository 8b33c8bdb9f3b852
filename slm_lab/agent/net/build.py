"""Builds the body a spec names."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc import build_arc, materialize
from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import NetSpec, TorchArcNetSpec


class TorchArcNet(nn.Module):
    """A body described by the TorchArc schema."""

    def __init__(self, spec: TorchArcNetSpec, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = 1 / 255 if spec.normalize else None
        assert spec.arc is not None, "the schema sees to it"
        self.layers = build_arc(spec.arc, "agent.net.arc")
        if len(self.layers.input_names) != 1:
            raise SpecError(f"agent.net.arc.graph.input: one input expected, got {self.layers.input_names}")
        out = materialize(self.layers, torch.zeros(1, *obs_shape))
        if not isinstance(out, Tensor):
            raise SpecError("agent.net.arc.graph.output: the body of an agent has one output")
        if out.dim() < 2:
            raise SpecError("agent.net.arc.graph.output: a body gives features (B, ...) for each row, not a number")
        self.out_size = out.flatten(1).shape[1]
        self.is_flat = out.dim() == 2

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        obs = obs.float()
        out = self.layers(obs * self.scale if self.scale is not None else obs)
        return out if self.is_flat else out.flatten(1)


BodyBuilder = Callable[[Any, tuple[int, ...]], nn.Module]
NETS: dict[str, BodyBuilder] = {
    "MLPNet": MLPNet,
    "ConvNet": ConvNet,
    "DuelingMLPNet": MLPNet,
    "DuelingConvNet": ConvNet,
    "RecurrentNet": RecurrentNet,
    "TorchArcNet": TorchArcNet,
}


def build_body(spec: NetSpec, obs_shape: tuple[int, ...]) -> nn.Module:
    """The body; its `out_size` tells the number of its features."""
    return NETS[spec.type](spec, obs_shape)
