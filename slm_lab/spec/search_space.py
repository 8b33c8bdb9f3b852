"""The `search` section: `path__space: arguments`, flat or nested.

A sampler knows numbers between two bounds, on a plain or a logarithmic scale. Each space is one of those, and `decode`
makes what the spec gets of it: a multiple of a step, a draw from a normal distribution, or one of the choices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from slm_lab.lib.errors import nearest
from slm_lab.spec.reader import printable
from slm_lab.spec.roles import nested_path, written_path
from slm_lab.spec.schema import Spec

# What each space takes; choice takes any list.
SPACES: dict[str, tuple[str, ...]] = {
    "uniform": ("low", "high"),
    "quniform": ("low", "high", "step"),
    "loguniform": ("low", "high"),
    "qloguniform": ("low", "high", "step"),
    "randn": ("mean", "std"),
    "qrandn": ("mean", "std", "step"),
    "randint": ("low", "high"),
    "qrandint": ("low", "high", "step"),
    "lograndint": ("low", "high"),
    "qlograndint": ("low", "high", "step"),
    "choice": (),
}
# The part of a normal distribution that is searched: within 3.7 standard deviations.
NORMAL_BOUNDS = (1e-4, 1 - 1e-4)
# At most this many mistakes are given a near key; thousands of them would take minutes.
MAX_HINTS = 5


@dataclass(frozen=True)
class Dimension:
    """One searched key."""

    path: str
    space: str
    args: tuple[Any, ...]

    @property
    def is_whole(self) -> bool:
        """Whether a sampler suggests whole numbers."""
        return "int" in self.space or self.space == "choice"

    @property
    def is_log(self) -> bool:
        """Whether a sampler uses a logarithmic scale."""
        return "log" in self.space

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of a sampler, both included."""
        if self.space == "choice":
            return 0, len(self.args) - 1
        if "randn" in self.space:
            return NORMAL_BOUNDS
        low, high = self.args[:2]
        if self.is_whole:
            # as in Ray Tune, whose spaces these are: the upper end is left out, unless there is a step
            return int(low), int(high) - (0 if self.space.startswith("q") else 1)
        return float(low), float(high)

    def decode(self, drawn: float) -> Any:
        """The value in the spec for a sampler's suggestion."""
        if self.space == "choice":
            return self.args[int(drawn)]
        value = drawn
        if "randn" in self.space:
            value = NormalDist(self.args[0], self.args[1]).inv_cdf(drawn)
        if self.space.startswith("q"):
            step = self.args[2]
            value = round(value / step) * step
            if "randn" not in self.space:
                low, high = self.args[:2]
                first, last = find_multiples(low, high, step)
                value = min(max(value, first * step), last * step)
            # 0.1 * 3 is not 0.3
            value = float(f"{value:.12g}")
        return int(value) if self.is_whole else float(value)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values at the ends, or every choice."""
        return self.args if self.space == "choice" else tuple(self.decode(bound) for bound in self.bounds)


def dimensions(search: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of a search section as (dotted key, arguments), whether written flat or nested."""
    for key, value in search.items():
        if isinstance(value, dict):
            for inner, arguments in dimensions(value):
                yield f"{key}.{inner}", arguments
        else:
            yield key, value


def read_dimensions(spec: Spec) -> list[Dimension]:
    """The searched keys of a checked spec."""
    found = []
    for key, arguments in dimensions(spec.search):
        path, _, space = key.rpartition("__")
        found.append(Dimension(path, space, tuple(arguments)))
    return found


def search_problems(spec: Spec) -> dict[str, str]:
    """Mistakes in the search section of a spec, by key."""
    problems: dict[str, str] = {}
    known = set(_paths(spec.model_dump(mode="json", serialize_as_any=True, exclude={"search"})))
    written = {written_path(path) for path in known}
    searched: set[str] = set()
    for key, arguments in dimensions(spec.search):
        path, mark, space = key.rpartition("__")
        shown = f"search.{printable(key, limit=160)}"
        with_hint = len(problems) < MAX_HINTS
        if not mark:
            problems[key] = f"{shown}: a search key ends in a space, e.g. {shown.removeprefix('search.')}__uniform"
        elif space not in SPACES:
            hint = nearest(space, SPACES) if with_hint else ""
            problems[key] = f"{shown}: unknown space '{printable(space)}'{hint}"
        elif not isinstance(arguments, list) or not arguments:
            problems[key] = f"{shown}: {space} takes a list of arguments"
        elif space != "choice" and (problem := _argument_problem(space, arguments)):
            problems[key] = f"{shown}: {space} {problem}"
        elif nested_path(path) not in known:
            hint = _nearest_path(path, written) if with_hint else ""
            hint = hint or "; remove it, or search nothing with -s 'search={}'"
            problems[key] = f"{shown}: the spec has no key '{printable(path, limit=160)}'{hint}"
        elif nested_path(path) in searched:
            problems[key] = f"{shown}: '{path}' is searched twice; keep one of them"
        searched.add(nested_path(path))
    return problems


def _nearest_path(path: str, known: set[str]) -> str:
    """The nearest key as a hint; in a section that exists, only one whose own name is near."""
    place, _, leaf = path.rpartition(".")
    beside = [one.removeprefix(f"{place}.") for one in known if one.rpartition(".")[0] == place]
    return "" if place in known and not nearest(leaf, beside) else nearest(path, known)


def _argument_problem(space: str, arguments: list[Any]) -> str | None:
    takes = SPACES[space]
    if len(arguments) != len(takes):
        return f"takes {len(takes)} arguments ({', '.join(takes)}), got {len(arguments)}"
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in arguments):
        return f"takes numbers ({', '.join(takes)})"
    if "int" in space and not all(float(value).is_integer() for value in arguments):
        return "takes whole numbers"
    given = dict(zip(takes, arguments, strict=True))
    if "low" in given and not given["low"] < given["high"]:
        return f"needs low below high, got {given['low']} and {given['high']}"
    if "log" in space and given["low"] <= 0:
        return f"needs low above 0, got {given['low']}"
    for part in ("std", "step"):
        if part in given and given[part] <= 0:
            return f"needs {part} above 0, got {given[part]}"
    if "low" in given and "step" in given:
        first, last = find_multiples(given["low"], given["high"], given["step"])
        if first > last:
            return f"has no multiple of {given['step']} between {given['low']} and {given['high']}"
    return None


def find_multiples(low: float, high: float, step: float) -> tuple[int, int]:
    """The first and the last multiple of a step within bounds; 0.3 / 0.1 is 2.9999999999999996."""
    return math.ceil(round(low / step, 9)), math.floor(round(high / step, 9))


def _paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
