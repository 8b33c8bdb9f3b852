"""Builds the body a spec names."""

from collections.abc import Callable
from typing import Any

from torch import nn

from slm_lab.agent.net.arc_body import TorchArcNet
from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.dict_net import DictNet
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.parts import Parts, build_view, with_selection
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.agent.net.simba import SimbaNet
from slm_lab.spec.net import DictNetSpec, NetSpec

BodyBuilder = Callable[[Any, tuple[int, ...]], nn.Module]
# DictNet is not among them: it alone must know the parts of an observation
NETS: dict[str, BodyBuilder] = {
    "MLPNet": MLPNet,
    "ConvNet": ConvNet,
    "DuelingMLPNet": MLPNet,
    "DuelingConvNet": ConvNet,
    "SimbaNet": SimbaNet,
    "RecurrentNet": RecurrentNet,
    "TorchArcNet": TorchArcNet,
}


def build_body(spec: NetSpec, obs_shape: tuple[int, ...], parts: Parts = ()) -> nn.Module:
    """The body; its `out_size` tells the number of its features."""
    view = build_view(spec, obs_shape, parts)
    if isinstance(spec, DictNetSpec):
        return with_selection(view.select, DictNet(spec, view.shape, view.parts))
    return with_selection(view.select, NETS[spec.type](spec, view.shape))
