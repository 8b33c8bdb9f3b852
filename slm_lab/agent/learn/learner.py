"""A net with its optimiser and target net."""

from copy import deepcopy
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from slm_lab.agent.learn.flat import FlatParams
from slm_lab.agent.learn.optim import FlatOptimizer
from slm_lab.lib.due import Due
from slm_lab.spec.net import NetSpec

Net = TypeVar("Net", bound=nn.Module)


class Weights(Protocol):
    """A net and its parameters as one flat tensor."""

    @property
    def net(self) -> nn.Module:
        """The net."""

    @property
    def flat(self) -> FlatParams:
        """Its parameters."""


class Target(Generic[Net]):
    """A target net, which follows a net by small steps or full copies, including buffers of norm layers."""

    def __init__(self, source: Net, source_flat: FlatParams, spec: NetSpec, is_ok: Tensor | None = None) -> None:
        # on a GPU: false after a step that was refused, until the host checks it
        self.is_ok = is_ok
        self.net = deepcopy(source).requires_grad_(False).eval()
        self.flat = FlatParams(self.net.parameters())
        self.source_flat = source_flat
        self.buffers = list(zip(self.net.buffers(), source.buffers(), strict=True))
        self.is_polyak = spec.update_type == "polyak"
        self.coef = spec.polyak_coef
        self.due = Due(spec.update_frequency)

    @torch.no_grad()
    def follow(self) -> None:
        """After a gradient step: move by the share `polyak_coef` towards the net, with `update_type: polyak`."""
        if not self.is_polyak:
            return
        coef = self.coef if self.is_ok is None else self.coef * self.is_ok
        self.flat.data.lerp_(self.source_flat.data, coef)
        for target, source in self.buffers:
            # integers, such as counters, are copied
            target.lerp_(source, coef) if target.is_floating_point() else target.copy_(source)

    @torch.no_grad()
    def replace_if_due(self, frame: int) -> None:
        """At a frame: copy the net if a full copy is due, with `update_type: replace`."""
        if self.is_polyak or not self.due(frame):
            return
        self.flat.data.copy_(self.source_flat.data)
        for target, source in self.buffers:
            target.copy_(source)

    def skip_to(self, frame: int) -> None:
        """Resume at a frame."""
        self.due.skip_to(frame)


class Learner(Generic[Net]):
    """A net with its flat parameters, its optimiser and perhaps a target net."""

    def __init__(
        self,
        net: Net,
        spec: NetSpec,
        device: torch.device,
        has_target: bool = False,
        is_ok: Tensor | None = None,
    ) -> None:
        # evaluation mode, except in the pass for a gradient
        self.net = net.to(device).eval()
        self.flat = FlatParams(net.parameters())
        self.optimizer = FlatOptimizer(self.flat, spec)
        self.target = Target(net, self.flat, spec, is_ok) if has_target else None
        # the net that computes targets: the target net, or the net itself without one
        self.target_net = net if self.target is None else self.target.net
        self.targets = [] if self.target is None else [self.target]
