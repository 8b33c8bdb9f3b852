"""Reads spec files from anyone: duplicate keys are errors, nothing runs, and hostile sizes are refused early."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from slm_lab.lib.errors import SpecError

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_TEXT = 20_000

_STRING_OR_PLACEHOLDER = re.compile(r'"(?:\\.|[^"\\])*"|(\$\{[^}"\n]*\})')


class _TooLarge(Exception):
    """A document that grows beyond what any spec needs."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which `1e6` is a number, duplicate keys are errors and merges cannot explode."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._merged = 0
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self._checked:
            self._checked.add(id(node))
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"duplicate key '{key.value}'", key.start_mark
                        )
                    seen.add(key.value)
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > MAX_NODES:
            raise _TooLarge


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
# Dates would be objects; a spec has no use for them.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file of specs as plain data."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path}: larger than {MAX_BYTES:,} bytes; no spec file needs that")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        data = _parse_json(text) if path.suffix == ".json" else yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
        data = _plain(data)
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not valid YAML: {_one_line(error)}") from None
    except (_TooLarge, RecursionError):
        raise SpecError(f"{path}: nested too deep or grows too large to be a spec") from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: expected a mapping of spec names to specs, got {type(data).__name__}")
    return data


def _parse_json(text: str) -> Any:
    # ${key} may stand unquoted where a number is due
    quoted = _STRING_OR_PLACEHOLDER.sub(lambda m: f'"{m[1]}"' if m[1] else m[0], text)
    return json.loads(quoted, object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"duplicate key '{key[:80]}'")
        data[key] = value
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number a spec can hold")


def _plain(data: Any) -> Any:
    """A copy without shared references, within the limits; what is not plain data is refused."""
    count = 0

    def copy(value: Any, depth: int) -> Any:
        nonlocal count
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise _TooLarge
        if isinstance(value, dict):
            return {_text(_key(key)): copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [copy(item, depth + 1) for item in value]
        if isinstance(value, str):
            return _text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise ValueError(f"holds a {type(value).__name__}, which a spec cannot")

    return copy(data, 0)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"key {str(key)[:80]!r} is not text; put it in quotes")
    return key


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"text longer than {MAX_TEXT:,} characters")
    if "\0" in value:
        raise ValueError("text holds a NUL character")
    return value


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
