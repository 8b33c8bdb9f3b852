"""Action masks: an env says which actions are allowed, by `info` or a key of its observation.

A mask travels as the last numbers of an observation, 1 where a choice is allowed, so memories, workers and checkpoints
carry it like any other part.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymEnv, GymSpace, Info
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.layout import MisfitError, find_misfit
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError

MASK = "action_mask"


class MaskMisfitError(MisfitError):
    """An invalid action mask."""

    tensor = "action mask"


def count_choices(space: GymSpace) -> tuple[int, ...]:
    """The number of choices of each part of a discrete action, all of which a mask covers; empty for other actions."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(count) for count in space.nvec.flatten())
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    if isinstance(space, HybridSpace):
        return tuple(count for leaf in space.leaves for count in count_choices(leaf))
    return ()


def read_mask(mask: object, choices: tuple[int, ...], is_over: bool = False) -> Array:
    """The allowed choices as one row of booleans; `mask` is such a row too, or has an array for each part.

    At the end of a task a mask may allow nothing. Nothing is learned from later choices, so all count as allowed.
    """
    size, many = sum(choices), len(choices) > 1
    try:
        parts = [np.asarray(part) for part in mask] if isinstance(mask, (tuple, list)) and many else [np.asarray(mask)]
    except ValueError:
        raise MaskMisfitError(f"the action mask is no array: {type(mask).__name__}") from None
    shapes = [part.shape for part in parts]
    is_fitting = shapes in ([(size,)], [(count,) for count in choices], [()] * size)
    if many and len(set(choices)) == 1:
        is_fitting |= shapes == [(len(choices), choices[0])]
    if not is_fitting:
        found = ", ".join(map(str, shapes)) if isinstance(mask, (tuple, list, np.ndarray)) else type(mask).__name__
        expected = f"({size},)" + (f", or one of each part: {', '.join(f'({count},)' for count in choices)}" * many)
        raise MaskMisfitError(f"the action mask has the shape {found}; expected {expected}")
    flat = np.concatenate([part.reshape(-1) for part in parts])
    if flat.dtype.kind not in "biuf" or not ((flat == 0) | (flat == 1)).all():
        raise MaskMisfitError("the action mask holds other values than 0 and 1")
    allowed: Array = flat.astype(bool)
    is_open = np.logical_or.reduceat(allowed, np.cumsum((0, *choices[:-1])))
    if not is_open.all():
        if is_over:
            return np.ones_like(allowed)
        what = f"every choice of part {int(np.argmin(is_open))} of the action" if many else "every action"
        raise MaskMisfitError(f"the action mask forbids {what}; allow at least one")
    return allowed


def read_masks(masks: Any, space: GymSpace, num: int) -> Array:
    """The masks of a batch (N, M); a mistake gives one line."""
    try:
        rows = [read_mask(mask, count_choices(space)) for mask in masks]
    except (MisfitError, TypeError) as error:
        raise EnvError(f"mask: {error}") from None
    if len(rows) != num:
        raise EnvError(f"mask: {len(rows)} masks for {num} observations")
    return np.stack(rows)


def sample_allowed(space: GymSpace, allowed: Array | None) -> Any:
    """A random action of a space, among those that a row of booleans allows."""
    if allowed is None:
        return space.sample()
    if isinstance(space, HybridSpace):
        sizes = [sum(count_choices(leaf)) for leaf in space.leaves]
        masks = np.split(allowed, np.cumsum(sizes)[:-1])
        pairs = zip(space.leaves, masks, strict=True)
        return space.flatten([sample_allowed(leaf, mask if mask.size else None) for leaf, mask in pairs])
    parts = np.split(allowed, np.cumsum(count_choices(space))[:-1])
    picked = np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts])
    start = space.start if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) else 0
    return (picked.reshape(space.shape or ()) + start).astype(space.dtype)


def sample_by_info(space: GymSpace, info: Any) -> Any:
    """A random action of a space, among those that the mask in `info` allows, if there is one."""
    choices = count_choices(space)
    is_masked = choices and isinstance(info, dict) and MASK in info
    return sample_allowed(space, read_mask(info[MASK], choices) if is_masked else None)


def lift_mask(env: GymEnv) -> GymEnv:
    """The env with its mask in `info`, if that is a key of the observation; otherwise the env itself."""
    space = env.observation_space
    return MaskToInfo(env) if isinstance(space, spaces.Dict) and MASK in space.spaces else env


class MaskToInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Takes the mask out of a Dict observation, so that wrappers and nets see the rest."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        rest = {key: space for key, space in env.observation_space.spaces.items() if key != MASK}
        self.observation_space = spaces.Dict(rest)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        return self._lift(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self._lift(obs, info)
        return obs, reward, terminated, truncated, info

    def _lift(self, obs: Any, info: Any) -> tuple[Any, Info]:
        if not isinstance(obs, dict) or MASK not in obs:
            return obs, info or {}
        rest = dict(obs)
        mask = rest.pop(MASK)
        return rest, {**(info or {}), MASK: mask}


class MaskedObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Flat observations followed by the mask of `info`."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.choices = count_choices(env.action_space)
        self.base = space
        self.size = int(np.prod(space.shape))
        none, every = np.zeros(sum(self.choices), space.dtype), np.ones(sum(self.choices), space.dtype)
        low, high = np.append(space.low.reshape(-1), none), np.append(space.high.reshape(-1), every)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._join(obs, info, is_over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._join(obs, info, is_over=bool(terminated)), reward, terminated, truncated, info

    def _join(self, obs: Any, info: Any, is_over: bool) -> Array:
        if (problem := find_misfit(obs, self.base.shape, self.base.dtype)) is not None:
            raise MisfitError(f"the observation {problem}")
        row: Array = np.ones(self.observation_space.shape, self.base.dtype)
        row[: self.size] = np.asarray(obs).reshape(-1)
        mask = info.get(MASK) if isinstance(info, dict) else None
        if mask is not None:
            row[self.size :] = read_mask(mask, self.choices, is_over)
        elif not is_over:
            raise MaskMisfitError(f"info has no '{MASK}', which earlier steps had")
        return row
