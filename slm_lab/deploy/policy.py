"""The deterministic policy of an agent as one plain module: raw observations in, actions of the env out.

It has everything between the two inside: the order of the parts of an observation, the normaliser, the net, and the
map from the policy's range to the env's.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.net.noisy import find_noisy, quiet
from slm_lab.env.gym_types import GymSpace
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.make import EnvFacts
from slm_lab.env.normalize import ObsEncoder
from slm_lab.env.vec_env import ActionMap

# a tensor, or a dict or tuple of such
Tree = Any


def to_torch_dtype(dtype: Any) -> torch.dtype:
    """The type of a numpy array's numbers as torch calls it."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


class Flatten(nn.Module):
    """Observations of any structure as rows, as in training: choices become one-hot, parts stand side by side."""

    def __init__(self, facts: EnvFacts) -> None:
        super().__init__()
        self.space: GymSpace = facts.obs_space if facts.source_space is None else facts.source_space
        self.dtype = to_torch_dtype(facts.obs_space.dtype)
        # one array that nets read as it is
        self.is_plain = facts.source_space is None

    def forward(self, obs: Tree) -> Tensor:
        """Rows (B, ...) of the type of the env's own numbers."""
        if self.is_plain:
            return obs.to(self.dtype)
        leaves = _encode(self.space, obs, self.dtype)
        return leaves[0] if len(leaves) == 1 else torch.cat(leaves, 1)


def _encode(space: GymSpace, obs: Tree, dtype: torch.dtype) -> list[Tensor]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _encode(part, obs[key], dtype)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part, one in zip(space.spaces, obs, strict=True) for leaf in _encode(part, one, dtype)]
    if isinstance(space, spaces.Discrete):
        return [_one_hot(obs, int(space.start), int(space.n), dtype)]
    if isinstance(space, spaces.MultiDiscrete):
        columns = obs.flatten(1).unbind(1)
        pairs = zip(space.start.flatten().tolist(), space.nvec.flatten().tolist(), strict=True)
        return [_one_hot(column, *pair, dtype) for column, pair in zip(columns, pairs, strict=True)]
    return [(obs.flatten(1) if obs.dim() > 1 else obs.unsqueeze(1)).to(dtype)]


def _one_hot(choice: Tensor, start: int, num: int, dtype: torch.dtype) -> Tensor:
    return (choice.unsqueeze(-1) == torch.arange(start, start + num, device=choice.device)).to(dtype)


class Normalize(nn.Module):
    """What `ObsEncoder` does with statistics that no longer change, and with the same bits."""

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, encoder: ObsEncoder) -> None:
        super().__init__()
        self.clip, self.dtype = encoder.clip, encoder.dtype
        stats = encoder.stats
        mean, std = None, None
        if stats is not None:
            # as the encoder has them: float64, so that large numbers keep their small differences
            mean, std = torch.as_tensor(stats.mean), torch.sqrt(torch.as_tensor(stats.var) + encoder.eps)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations as the net sees them."""
        if self.mean is not None and self.std is not None:
            obs = (obs - self.mean) / self.std
        if self.clip is not None:
            obs = obs.clamp(-self.clip, self.clip)
        return obs.to(self.dtype)


class EnvAction(nn.Module):
    """Actions of the policy as those of the env; what `ActionMap` does to arrays."""

    scale: Tensor
    center: Tensor
    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, space: GymSpace) -> None:
        super().__init__()
        self.space = space
        self.shape = tuple(space.shape or ())
        self.dtype = to_torch_dtype(space.dtype)
        self.parts = nn.ModuleList()
        known = ActionMap(space)
        if isinstance(space, spaces.Box):
            self.is_whole = bool(known.is_whole)
            for name, numbers in (("scale", known.scale), ("center", known.center)):
                self.register_buffer(name, torch.as_tensor(np.asarray(numbers)))
            for name, numbers in (("low", space.low), ("high", space.high)):
                self.register_buffer(name, torch.as_tensor(numbers).to(self.scale.dtype))
        elif isinstance(space, HybridSpace):
            self.parts.extend(EnvAction(leaf) for leaf in space.leaves)
        elif known.start is not None:
            self.register_buffer("start", torch.as_tensor(np.asarray(known.start)))
        self.has_start = known.start is not None

    def forward(self, action: Tensor) -> Tree:
        """Actions (B, ...); those of a Dict or Tuple in their structure."""
        space = self.space
        if isinstance(space, HybridSpace):
            pairs = zip(self.parts, space.slices, strict=True)
            return _build(space.source, [part(action[:, place]) for part, place in pairs])
        if isinstance(space, spaces.Box):
            scaled = self.scale_up(action)
            if self.is_whole:
                scaled = scaled.round()
            return torch.minimum(torch.maximum(scaled, self.low), self.high).to(self.dtype)
        mapped = action.reshape(action.shape[0], *self.shape).to(self.dtype)
        return mapped + self.start if self.has_start else mapped

    def scale_up(self, action: Tensor) -> Tensor:
        """Numbers (B, ...) in the range of a Box, before they are rounded and clipped."""
        return action.reshape(action.shape[0], *self.shape) * self.scale + self.center


def _build(space: GymSpace, values: list[Tensor]) -> Tree:
    """The structure of a space, filled with values from the front of the list."""
    if isinstance(space, spaces.Dict):
        return {key: _build(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build(part, values) for part in space.spaces)
    return values.pop(0)


class Policy(nn.Module):
    """Raw observations (B, ...) to actions (B, ...) that the env takes.

    With a recurrent net it also takes the hidden state (B, S), zeros at the start of an episode, and returns the next
    one beside the action. An agent trained with masks takes them (B, M) too.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        algorithm = agent.algorithm
        self.flatten = Flatten(agent.facts)
        self.normalize = Normalize(agent.encode)
        self.net: Any = algorithm.net
        self.family = algorithm.family
        self.to_env = EnvAction(agent.facts.action_space)
        self.noisy = find_noisy(self.net)
        # numbers of the hidden state; 0 without one
        self.state_size = int(self.net.state_size)
        # numbers of a mask of actions; 0 without one
        self.mask_size = 0 if agent.facts.mask is None else agent.facts.mask.stop - agent.facts.mask.start
        self.eval()

    def encode(self, obs: Tree, mask: Tensor | None = None) -> Tensor:
        """Observations as the net sees them."""
        seen = self.normalize(self.flatten(obs))
        return seen if mask is None else torch.cat([seen, mask.to(seen.dtype)], -1)

    def calc_param(self, obs: Tree, mask: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the net says of actions, and the next hidden state."""
        seen = self.encode(obs, mask)
        if not self.noisy:
            return self.net.step(seen, state)
        with quiet(self.noisy):
            return self.net.step(seen, state)

    def forward(self, obs: Tree, mask: Tensor | None = None, state: Tensor | None = None) -> Tree:
        """The most likely action; with a recurrent net a pair of that and the next hidden state."""
        param, state = self.calc_param(obs, mask, state)
        action = self.to_env(self.family.to_env(self.family.mode(param)))
        return (action, state) if self.state_size else action


def list_leaves(tree: Tree) -> list[Any]:
    """The leaves of a dict or tuple, in order."""
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in list_leaves(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in list_leaves(part)]
    return [tree]
