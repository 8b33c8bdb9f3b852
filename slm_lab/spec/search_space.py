"""The `search` section: `path__space: arguments`, flat or nested."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slm_lab.lib.errors import nearest
from slm_lab.spec.schema import Spec

# Number of arguments of each space; choice takes any list.
SPACES: dict[str, int] = {
    "uniform": 2,
    "quniform": 3,
    "loguniform": 2,
    "qloguniform": 3,
    "randn": 2,
    "qrandn": 3,
    "randint": 2,
    "qrandint": 3,
    "lograndint": 2,
    "qlograndint": 3,
    "choice": 0,
}


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
    problems = []
    known = set(_paths(spec.model_dump(mode="json", serialize_as_any=True)))
    for key, arguments in dimensions(spec.search):
        path, mark, space = key.rpartition("__")
        if not mark:
            problems.append(f"search.{key}: a search key ends in a space, e.g. {key}__uniform")
        elif space not in SPACES:
            problems.append(f"search.{key}: unknown space '{space}'{nearest(space, SPACES)}")
        elif not isinstance(arguments, list) or not arguments:
            problems.append(f"search.{key}: {space} takes a list of arguments")
        elif space != "choice" and len(arguments) != SPACES[space]:
            problems.append(f"search.{key}: {space} takes {SPACES[space]} arguments, got {len(arguments)}")
        elif path not in known:
            problems.append(f"search.{key}: the spec has no key '{path}'{nearest(path, known)}")
    return problems


def _paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
            # keys of one net may be searched by their prefixed name
            if path.endswith(("net.actor", "net.critic")):
                yield from (
                    f"{path[: -len(key)]}{key}_{inner}" for inner in _paths(value)
                )
