"""A policy as a function of plain tensors, which is what other runtimes take: one input per part of an observation."""

import copy
import warnings

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.deploy.policy import Policy, Tree, list_leaves
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env import layout
from slm_lab.env.gym_types import GymSpace
from slm_lab.env.mask import count_choices
from slm_lab.lib.array import Array
from slm_lab.lib.errors import LabError

OBS, MASK, STATE, ACTION, NEXT_STATE = "obs", "mask", "state", "action", "next_state"


def name_leaves(space: GymSpace, lead: str) -> list[str]:
    """A name for each part of a space, e.g. `obs`, or `obs.arm.0`."""
    return [".".join((lead, *map(str, path))) for path, _ in layout.list_leaves(space)]


class Graph(nn.Module):
    """Parts of observations, then the mask and the hidden state where there are any, to parts of actions.

    The next hidden state follows the actions.
    """

    def __init__(self, trained: TrainedAgent) -> None:
        super().__init__()
        # weights of its own: those of an agent that was built to train are views of one tensor
        self.policy = copy.deepcopy(trained.policy)
        self.space = trained.observation_space
        self.num_leaf = len(layout.list_leaves(self.space))
        self.input_names = name_leaves(self.space, OBS)
        self.input_names += [MASK] if self.policy.mask_size else []
        self.input_names += [STATE] if self.policy.state_size else []
        self.output_names = name_leaves(trained.action_space, ACTION)
        self.output_names += [NEXT_STATE] if self.policy.state_size else []
        self.trained = trained

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in the order of their names."""
        obs = rebuild(self.space, list(leaves[: self.num_leaf]))
        rest = list(leaves[self.num_leaf :])
        mask = rest.pop(0) if self.policy.mask_size else None
        out = self.policy(obs, mask, rest[0] if rest else None)
        action, state = out if self.policy.state_size else (out, None)
        return *list_leaves(action), *([] if state is None else [state])

    def sample(self, num: int, seed: int = 0) -> dict[str, Array]:
        """Random inputs by name: within the bounds of the spaces, or about where observations were in training."""
        rng = np.random.default_rng(seed)
        spread = _find_spread(self.policy)
        leaves = [leaf for _, leaf in layout.list_leaves(self.space)]
        parts = layout.calc_parts(self.space)
        values = [
            _sample(leaf, num, rng, None if spread is None else spread[:, part.start : part.stop])
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        if self.policy.mask_size:
            values.append(self._sample_mask(num, rng))
        if self.policy.state_size:
            values.append(rng.uniform(-1, 1, (num, self.policy.state_size)).astype(np.float32))
        return dict(zip(self.input_names, values, strict=True))

    def _sample_mask(self, num: int, rng: np.random.Generator) -> Array:
        """Masks (N, M) that forbid some choices and leave at least one of each part."""
        mask = rng.random((num, self.policy.mask_size)) < 0.6
        start = 0
        for count in count_choices(self.trained.agent.facts.action_space):
            mask[np.arange(num), start + rng.integers(count, size=num)] = True
            start += count
        return mask

    def trace(self) -> torch.export.ExportedProgram:
        """The program of torch for batches of any size."""
        # two rows: a size of one would be taken for a constant
        inputs = tuple(torch.from_numpy(value) for value in self.sample(2).values())
        batch = torch.export.Dim("batch", min=1, max=2**20)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(self, inputs, dynamic_shapes=(tuple({0: batch} for _ in inputs),))
        except Exception as error:  # torch's tracer may raise anything for a user's own net
            reason = " ".join(str(error).split())[:300]
            raise LabError(f"the net cannot be traced ({type(error).__name__}: {reason}); export it as .slm") from error


def rebuild(space: GymSpace, leaves: list[Tensor]) -> Tree:
    """The structure of an observation, filled from the front of the list."""
    if isinstance(space, spaces.Dict):
        return {key: rebuild(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(rebuild(part, leaves) for part in space.spaces)
    return leaves.pop(0)


def _find_spread(policy: Policy) -> Array | None:
    """Mean and std (2, D) of what the normaliser saw; None without one."""
    mean, std = policy.normalize.mean, policy.normalize.std
    return None if mean is None or std is None else torch.stack([mean.flatten(), std.flatten()]).cpu().numpy()


def _sample(space: GymSpace, num: int, rng: np.random.Generator, spread: Array | None) -> Array:
    shape = (num, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, num).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(space.nvec, size=shape)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    if spread is not None:
        # wider than in training, so that some are clipped
        drawn = rng.normal(size=(num, spread.shape[1])) * 4 * spread[1] + spread[0]
        drawn = drawn.reshape(shape)
    else:
        low, high = (np.clip(bound, -1e6, 1e6).astype(np.float64) for bound in (space.low, space.high))
        bounded = space.bounded_below & space.bounded_above
        drawn = np.where(bounded, low + (high - low) * rng.random(shape), rng.normal(size=shape) * 3)
    if np.issubdtype(space.dtype, np.integer):
        limits = np.iinfo(space.dtype)
        drawn = np.clip(np.rint(drawn), limits.min, limits.max)
    return drawn.astype(space.dtype)
