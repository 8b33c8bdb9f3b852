"""The facts that an agent needs to act without its env, such as spaces, as plain JSON."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymSpace
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.layout import ObsPart, calc_parts
from slm_lab.env.make import EnvFacts
from slm_lab.env.mask import MASK, count_choices
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import EnvError
from slm_lab.lib.io import write_json

# limits on the size of observations and actions, and on nesting, since documents are not trusted
MAX_SIZE, MAX_DEPTH = 2**23, 16
_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
# JSON has no infinite numbers
_ENDLESS = {"inf": math.inf, "-inf": -math.inf}


def dump_space(space: GymSpace) -> Document:
    """A space as plain JSON."""
    match space:
        case spaces.Box():
            own: Document = {"shape": list(space.shape), "low": _dump(space.low), "high": _dump(space.high)}
        case spaces.Discrete():
            own = {"n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            own = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            own = {"n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            parts: Any = space.spaces.items()
            return {"type": "Dict", "parts": [{"name": str(name), **dump_space(part)} for name, part in parts]}
        case spaces.Tuple():
            return {"type": "Tuple", "parts": [dump_space(part) for part in space.spaces]}
        case _:
            raise EnvError(f"env.name: a space of {type(space).__name__} cannot be written down")
    return {"type": type(space).__name__, "dtype": str(space.dtype), **own}


def _dump(bound: Array) -> Any:
    """One number if all are equal, otherwise all of them in order."""
    numbers = bound.reshape(-1).tolist()
    shown = [_show(number) for number in (numbers[:1] if len(set(numbers)) == 1 else numbers)]
    return shown[0] if len(shown) == 1 else shown


def _show(number: float) -> Any:
    return number if math.isfinite(number) else str(number)


def read_space(document: Any) -> GymSpace:
    """The space of an untrusted document; an error of one line if it is invalid."""
    try:
        return _Reader().read(document)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EnvError(f"a space is not one that the lab knows ({type(error).__name__}: {reason})") from None


class _Reader:
    """Reads one space, whose parts may have at most `MAX_SIZE` numbers together."""

    def __init__(self) -> None:
        self.left = MAX_SIZE

    def read(self, document: Any, depth: int = 0) -> GymSpace:
        """The space of a document."""
        kind = document["type"]
        if kind in ("Dict", "Tuple"):
            return self._read_parts(kind, document["parts"], depth)
        dtype: Any = _DTYPES[document["dtype"]].type
        if kind == "Box":
            shape = self._read_shape(document["shape"])
            low, high = (_read_bound(document[key], shape, dtype) for key in ("low", "high"))
            if not (low <= high).all():
                raise ValueError("a lower bound above the upper one")
            return spaces.Box(low, high, dtype=dtype)
        if kind == "Discrete":
            return spaces.Discrete(self._take(document["n"]), start=_read_whole(document["start"]), dtype=dtype)
        if kind == "MultiDiscrete":
            nvec, start = (np.array(document[key], np.int64) for key in ("nvec", "start"))
            for count in nvec.reshape(-1).tolist():
                self._take(count)
            return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
        if kind == "MultiBinary":
            num = document["n"]
            return spaces.MultiBinary(self._read_shape(num) if isinstance(num, list) else self._take(num))
        raise ValueError(f"no space is called {kind!r:.50}")

    def _read_parts(self, kind: str, parts: Any, depth: int) -> GymSpace:
        if depth == MAX_DEPTH:
            raise ValueError(f"parts within parts, more than {MAX_DEPTH} deep")
        if not isinstance(parts, list) or not parts:
            raise ValueError("no parts")
        if kind == "Tuple":
            return spaces.Tuple([self.read(part, depth + 1) for part in parts])
        # a list of pairs keeps its order
        named = [(_read_name(part["name"]), self.read(part, depth + 1)) for part in parts]
        if len(dict(named)) < len(named):
            raise ValueError("two parts of the same name")
        return spaces.Dict(named)

    def _take(self, count: Any) -> int:
        """Subtract a count of numbers from those that are left, and return it."""
        if not 1 <= _read_whole(count) <= self.left:
            raise ValueError(f"from 1 to {MAX_SIZE:,} numbers expected")
        self.left -= count
        return int(count)

    def _read_shape(self, value: Any) -> tuple[int, ...]:
        shape = tuple(_read_whole(size) for size in value)
        if len(shape) > MAX_DEPTH or any(size < 1 for size in shape):
            raise ValueError("a shape that is none")
        self._take(math.prod(shape))
        return shape


def _read_name(name: Any) -> str:
    if type(name) is not str:
        raise TypeError("the name of a part is no text")
    return name


def _read_whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**62:
        raise TypeError(f"a whole number expected, got {value!r:.50}")
    return value


def _read_bound(value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, math.prod(shape)):
        raise ValueError(f"{len(numbers)} bounds for a shape of {list(shape)}")
    known = [_ENDLESS[number] if isinstance(number, str) else number for number in numbers]
    if any(type(number) not in (int, float, bool) for number in known):
        raise TypeError("a bound that is no number")
    return np.full(shape, known[0], dtype) if len(known) == 1 else np.array(known, dtype).reshape(shape)


# --- facts


def dump_facts(facts: EnvFacts) -> Document:
    """The facts about an env, as plain JSON."""
    action, mask = facts.action_space, facts.mask
    return {
        "observation": dump_space(facts.obs_space if facts.source_space is None else facts.source_space),
        "action": dump_space(action.source if isinstance(action, HybridSpace) else action),
        # of the flat observations that nets see
        "dtype": str(facts.obs_space.dtype),
        "frame_stack": facts.frame_stack,
        # the number of choices of each part of the action, if there is a mask
        "action_mask": None if mask is None else list(count_choices(action)),
    }


def save_facts(path: Path, facts: EnvFacts) -> None:
    """Write the facts about an env, unless they are there or its spaces cannot be written as JSON."""
    try:
        document = dump_facts(facts)
    except EnvError:
        return
    if not path.exists():
        write_json(path, document)


def read_facts(document: Any) -> EnvFacts:
    """The inverse of `dump_facts`, for an untrusted document."""
    if not isinstance(document, dict):
        raise EnvError("the spaces of the env are missing")
    source, action = read_space(document.get("observation")), read_space(document.get("action"))
    if isinstance(action, (spaces.Dict, spaces.Tuple)):
        action = HybridSpace(action)
    choices, frames = document.get("action_mask"), document.get("frame_stack")
    if type(frames) is not int or not 1 <= frames <= MAX_SIZE:
        raise EnvError("frame_stack: a count of frames expected")
    if choices is not None and choices != list(count_choices(action)):
        raise EnvError("action_mask: it does not fit the actions")
    parts = calc_parts(source)
    size = parts[-1].stop
    if isinstance(source, spaces.Box) and source.shape and choices is None:
        return EnvFacts(source, action, frames, parts)
    if choices is not None:
        parts = (*parts, ObsPart(MASK, size, size + sum(choices), (sum(choices),), is_mask=True))
    if parts[-1].stop > MAX_SIZE:
        raise EnvError(f"an observation has more than {MAX_SIZE:,} numbers")
    return EnvFacts(_flat_space(document.get("dtype"), parts[-1].stop), action, frames, parts, source_space=source)


def _flat_space(dtype: Any, size: int) -> spaces.Box:
    """The space of flat observations; its bounds are unknown, but agents do not need them."""
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise EnvError("dtype: the type of numbers expected, such as float32")
    kind: Any = _DTYPES[dtype].type
    if _DTYPES[dtype].kind == "f":
        return spaces.Box(-np.inf, np.inf, (size,), kind)
    if dtype == "bool":
        return spaces.Box(0, 1, (size,), kind)
    limits = np.iinfo(kind)
    return spaces.Box(limits.min, limits.max, (size,), kind)
