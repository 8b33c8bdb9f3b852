"""Select the parts of an observation that a net sees."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slm_lab.agent.net.recurrent import RecurrentBody
from slm_lab.env.layout import WHOLE, ObsPart, show_parts
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.spec.net import ConvNetSpec, DictNetSpec, NetSpec
from slm_lab.spec.reader import printable

Shape = tuple[int, ...]
Parts = tuple[ObsPart, ...]


class Select(nn.Module):
    """Some parts of flat observations (..., D), concatenated; a single part keeps its own shape."""

    def __init__(self, parts: Parts, shape: Shape) -> None:
        super().__init__()
        # one slice for adjacent parts
        self.slices: list[slice] = []
        for part in parts:
            if self.slices and self.slices[-1].stop == part.start:
                self.slices[-1] = slice(self.slices[-1].start, part.stop)
            else:
                self.slices.append(slice(part.start, part.stop))
        self.shape = shape

    def forward(self, obs: Tensor) -> Tensor:
        taken = [obs[..., one] for one in self.slices]
        seen = taken[0] if len(taken) == 1 else torch.cat(taken, -1)
        return seen if len(self.shape) == 1 else seen.unflatten(-1, self.shape)


@dataclass(frozen=True)
class View:
    """What a net sees of an observation: the selection (None if it sees all), its shape and its parts."""

    select: Select | None
    shape: Shape
    parts: Parts


class SelectingNet(nn.Module):
    """A body behind a selection."""

    def __init__(self, select: Select, body: nn.Module) -> None:
        super().__init__()
        self.select = select
        self.body = body
        self.out_size = int(body.out_size)  # type: ignore[arg-type]

    def forward(self, obs: Tensor) -> Tensor:
        """Features (B, out_size)."""
        return self.body(self.select(obs))


class SelectingRecurrentNet(RecurrentBody):
    """A body with a hidden state behind a selection."""

    def __init__(self, select: Select, body: RecurrentBody) -> None:
        super().__init__()
        self.select = select
        self.body = body
        self.state_size, self.out_size, self.seq_len = body.state_size, body.out_size, body.seq_len

    def step(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        return self.body.step(self.select(obs), carry)

    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        return self.body.unroll(self.select(obs), carry, reset)


def with_selection(select: Select | None, body: nn.Module) -> nn.Module:
    """A body behind a selection, if there is one."""
    if select is None:
        return body
    return SelectingRecurrentNet(select, body) if isinstance(body, RecurrentBody) else SelectingNet(select, body)


def build_view(spec: NetSpec, obs_shape: Shape, parts: Parts = ()) -> View:
    """The view that a net's spec asks for; without `parts` the observation has no names."""
    parts = parts or (ObsPart(WHOLE, 0, math.prod(obs_shape), obs_shape),)
    view = View(None, obs_shape, parts)
    if spec.obs_keys is not None:
        view = _select(find_parts(spec.obs_keys, parts, "agent.net.obs_keys"), view)
    elif any(part.is_mask for part in parts):
        view = _select(tuple(part for part in parts if not part.is_mask), view)
    if isinstance(spec, ConvNetSpec) and len(view.shape) != 3 and any(len(part.shape) > 1 for part in view.parts):
        raise SpecError(
            f"agent.net.type: {spec.type} reads one image, the observation has the parts {show_parts(view.parts)}; "
            "name one of them in obs_keys, or use DictNet with an encoder for each"
        )
    return view


def for_acting(spec: NetSpec, parts: Parts) -> NetSpec:
    """The spec of a net that acts: without `obs_keys` it sees all but the privileged parts and the mask."""
    if spec.obs_keys is not None or not any(part.is_privileged for part in parts):
        return spec
    return spec.model_copy(
        update={"obs_keys": tuple(part.name for part in parts if not part.is_privileged and not part.is_mask)}
    )


def _select(chosen: Parts, whole: View) -> View:
    if len(whole.shape) > 1:
        return whole  # a Box has a single part
    shape = (chosen[0].shape or (1,)) if len(chosen) == 1 else (sum(part.stop - part.start for part in chosen),)
    if chosen == whole.parts and shape == whole.shape:
        return whole
    moved = []
    start = 0
    for part in chosen:
        stop = start + part.stop - part.start
        moved.append(ObsPart(part.name, start, stop, part.shape))
        start = stop
    return View(Select(chosen, shape), shape, tuple(moved))


def find_parts(names: Iterable[str], parts: Parts, where: str) -> Parts:
    """The parts of these names, in this order."""
    known = {part.name: part for part in parts}
    for name in names:
        if name not in known:
            raise SpecError(
                f"{where}: the observation has no part '{printable(name)}'{nearest(name, known)} "
                f"(its parts: {show_parts(parts)})"
            )
    return tuple(known[name] for name in names)


def check_names(nets: dict[str, NetSpec | None], parts: Parts) -> None:
    """Refuse names that are not parts of the env's observations; the error has the key in the spec."""
    for where, net in nets.items():
        if net is None:
            continue
        common = {"obs_keys": net.obs_keys, "encoders": net.encoders if isinstance(net, DictNetSpec) else None}
        for lead, keys in (("", common), ("actor_", net.actor), ("critic_", net.critic)):
            for key in ("obs_keys", "encoders"):
                find_parts(keys.get(key) or (), parts, f"{where}.{lead}{key}")
