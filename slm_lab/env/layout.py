"""What the numbers of a flat observation are: named parts, in order."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from slm_lab.lib.errors import EnvError

# the only part of an observation that has no named parts
WHOLE = "obs"
# what MuJoCo Playground calls the part that only critics may see
PRIVILEGED = "privileged_state"


@dataclass(frozen=True)
class ObsPart:
    """One entry of a Dict observation: where it lies in the flat one, and its own shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def is_privileged(self) -> bool:
        """Whether it is meant for critics: an agent at work would not know it."""
        return self.name == PRIVILEGED


def calc_parts(space: gym.Space[Any]) -> tuple[ObsPart, ...]:
    """The parts of an observation in the order in which gymnasium flattens it; nested names are joined by dots."""
    parts: list[ObsPart] = []
    start = 0
    for name, leaf in _leaves(space, ""):
        size = spaces.flatdim(leaf)
        is_box = isinstance(leaf, spaces.Box)
        shape = leaf.shape if is_box and leaf.shape is not None else (size,)
        parts.append(ObsPart(name or WHOLE, start, start + size, shape))
        start += size
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise EnvError(f"env.name: parts of the observation have the same name: {', '.join(names)}")
    return tuple(parts)


def _leaves(space: gym.Space[Any], prefix: str) -> list[tuple[str, gym.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        named = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        named = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        return [(prefix, space)]
    if not named:
        raise EnvError("env.name: the observation has no parts")
    return [leaf for key, part in named for leaf in _leaves(part, f"{prefix}.{key}" if prefix else str(key))]


def in_one_line(space: gym.Space[Any]) -> str:
    """A space as it may stand in a message; numpy would break the line in arrays of two dimensions."""
    return " ".join(str(space).split())


def show_parts(parts: tuple[ObsPart, ...]) -> str:
    """Names and shapes, as they may stand in a message."""
    return ", ".join(f"{part.name} {part.shape}" for part in parts)
