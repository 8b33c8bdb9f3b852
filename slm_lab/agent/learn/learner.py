"""A net and what trains it."""

from typing import Generic, Protocol

import torch
from torch import nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.learn.optim import FlatOptimizer
from slm_lab.agent.learn.target import Net, Target
from slm_lab.spec.net import NetSpec


class Weights(Protocol):
    """A net and its parameters as one flat tensor."""

    @property
    def net(self) -> nn.Module:
        """The net."""

    @property
    def flat(self) -> FlatParams:
        """Its parameters."""


class Learner(Generic[Net]):
    """A net with its flat parameters and optimiser and, where asked for, a target net that follows it."""

    def __init__(self, net: Net, spec: NetSpec, device: torch.device, has_target: bool = False) -> None:
        # evaluation mode, except in the pass that a gradient is taken of
        self.net = net.to(device).eval()
        self.flat = FlatParams(net.parameters())
        self.optimizer = FlatOptimizer(self.flat, spec)
        self.target = Target(net, self.flat, spec) if has_target else None
