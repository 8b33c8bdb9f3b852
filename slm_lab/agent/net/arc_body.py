"""A body written as data."""

import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc import build_arc
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import TorchArcBodySpec, TorchArcNetSpec


class TorchArcNet(nn.Module):
    """A body described by the TorchArc schema; `where` is its place in the spec, for messages."""

    def __init__(
        self, spec: TorchArcBodySpec | TorchArcNetSpec, obs_shape: tuple[int, ...], where: str = "agent.net"
    ) -> None:
        super().__init__()
        self.scale = 1 / 255 if spec.normalize else None
        assert spec.arc is not None, "the schema sees to it"
        self.layers = build_arc(spec.arc, f"{where}.arc")
        out = self.layers.materialize(torch.zeros(1, *obs_shape))
        if not isinstance(out, Tensor):
            raise SpecError(f"{where}.arc.graph.output: the body of an agent has one output")
        if out.dim() < 2:
            raise SpecError(f"{where}.arc.graph.output: a body gives features (B, ...) for each row, not a number")
        self.out_size = out.flatten(1).shape[1]
        self.is_flat = out.dim() == 2

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        obs = obs.float()
        out = self.layers(obs * self.scale if self.scale is not None else obs)
        return out if self.is_flat else out.flatten(1)
