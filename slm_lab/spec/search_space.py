"""The `search` section: `path__space: arguments`, flat or nested."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slm_lab.lib.errors import nearest
from slm_lab.spec.reader import printable
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
# A near key is looked up for so many mistakes; thousands of them would take minutes.
MAX_HINTS = 5


@dataclass(frozen=True)
class Dimension:
    """One searched key."""

    path: str
    space: str
    args: tuple[Any, ...]


def dimensions(search: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of a search section as (dotted key, arguments), whether written flat or nested."""
    for key, value in search.items():
        if isinstance(value, dict):
            for inner, arguments in dimensions(value):
                yield f"{key}.{inner}", arguments
        else:
            yield key, value


def search_problems(spec: Spec) -> list[str]:
    """What is wrong with the search section of a spec."""
    problems: list[str] = []
    known = set(_paths(spec.model_dump(mode="json", serialize_as_any=True)))
    searched: set[str] = set()
    for key, arguments in dimensions(spec.search):
        path, mark, space = key.rpartition("__")
        shown = f"search.{printable(key, limit=160)}"
        with_hint = len(problems) < MAX_HINTS
        if not mark:
            problems.append(f"{shown}: a search key ends in a space, e.g. {shown.removeprefix('search.')}__uniform")
        elif space not in SPACES:
            hint = nearest(space, SPACES) if with_hint else ""
            problems.append(f"{shown}: unknown space '{printable(space)}'{hint}")
        elif not isinstance(arguments, list) or not arguments:
            problems.append(f"{shown}: {space} takes a list of arguments")
        elif space != "choice" and (problem := _argument_problem(space, arguments)):
            problems.append(f"{shown}: {space} {problem}")
        elif path not in known:
            hint = nearest(path, known) if with_hint else ""
            problems.append(f"{shown}: the spec has no key '{printable(path, limit=160)}'{hint}")
        elif path in searched:
            problems.append(f"{shown}: '{path}' is searched twice; keep one of them")
        searched.add(path)
    return problems


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
    return None


def _paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
            # keys of one net may be searched by their prefixed name
            if path.endswith(("net.actor", "net.critic")):
                yield from (f"{path[: -len(key)]}{key}_{inner}" for inner in _paths(value))
