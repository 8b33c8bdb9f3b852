"""Reads spec files from any source: duplicate keys are errors, nothing runs, and hostile sizes are refused early."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError, UnreadableError
from slm_lab.lib.io import EXPONENT_FLOAT, read_text

MAX_BYTES = 300_000
MAX_DEPTH = 64
MAX_NODES = 10_000
MAX_TEXT = 20_000
MAX_INT = 2**63

# Neither part can fail after a long look ahead, so the time stays linear in the text.
_STRING_OR_PLACEHOLDER = re.compile(r'"(?:[^"\\]++|\\.)*+"?|(\$\{[^{}"\n]*\})')


class _TooLargeError(Exception):
    """A document that is too large for a spec."""


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
                        problem = f"duplicate key '{printable(key.value)}'"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > MAX_NODES:
            raise _TooLargeError


def _checked(kind: str) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], object]:
    """PyYAML's own constructor, whose KeyError or IndexError for `!!bool x` becomes an error in the YAML."""
    construct = yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]

    def checked(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
        try:
            return construct(loader, node)
        except (LookupError, ValueError):
            problem = f"'{printable(str(node.value))}' is not a valid {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    return checked


for _kind in ("bool", "int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _checked(_kind))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT_FLOAT, list("-+0123456789."))
# Dates would be objects; a spec has no use for them.
_Loader.yaml_constructors = {
    tag: construct for tag, construct in _Loader.yaml_constructors.items() if tag != "tag:yaml.org,2002:timestamp"
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_document(path: Path) -> Document:
    """Read a JSON or YAML file of specs as plain data."""
    try:
        text = read_text(path, MAX_BYTES)
    except UnreadableError as error:
        raise SpecError(str(error)) from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        data = _plain(_parse_json(text) if path.suffix == ".json" else _parse_yaml(text))
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not valid YAML: {_one_line(error)}") from None
    except (_TooLargeError, RecursionError):
        raise SpecError(f"{path}: nested too deep or grows too large to be a spec") from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: expected a mapping of spec names to specs, got {kind_of(data)}")
    return data


def _parse_json(text: str) -> object:
    # ${key} may stand unquoted where a number is due
    return _strict_json(_STRING_OR_PLACEHOLDER.sub(lambda m: f'"{m[1]}"' if m[1] else m[0], text))


def _strict_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_whole_number)


def parse_value(text: str) -> Any:
    """A value from the command line: a number, true/false/null, JSON, or the text itself."""
    try:
        return _plain(_typed(text))
    except (_TooLargeError, RecursionError):
        raise SpecError(f"'{printable(text)}' is nested too deep or too large") from None
    except ValueError as error:
        raise SpecError(f"'{printable(text)}': {error}") from None


def _typed(text: str) -> object:
    try:
        return _strict_json(text)
    except json.JSONDecodeError:
        pass
    try:
        # .5 and +5, which JSON does not take
        return float(text) if re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", text.strip()) else text
    except ValueError:
        return text


def _parse_yaml(text: str) -> object:
    # libyaml composes recursively in C and would crash on deep nesting; its events come one by one
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or count > MAX_NODES:
            raise _TooLargeError
        if isinstance(event, yaml.ScalarEvent):
            _text(event.value)
    return yaml.load(text, Loader=_Loader)


def _unique(pairs: list[tuple[str, object]]) -> Document:
    data: Document = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"duplicate key '{printable(key)}'")
        data[key] = value
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number a spec can hold")


def _whole_number(digits: str) -> int:
    # Python itself refuses thousands of digits, with advice that is of no use here
    return int(digits) if len(digits) <= 20 else MAX_INT


def _plain(data: object) -> Any:
    """A copy without shared references, within the limits; refuses anything but plain data."""
    count = 0

    def copy(value: object, depth: int) -> object:
        nonlocal count
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise _TooLargeError
        if isinstance(value, dict):
            return {_text(_key(key)): copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [copy(item, depth + 1) for item in value]
        if isinstance(value, str):
            return _text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return _number(value)
        raise ValueError(f"holds {kind_of(value)}, which a spec cannot")

    return copy(data, 0)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"key '{printable(str(key))}' is not text; put it in quotes")
    return key


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"text longer than {MAX_TEXT:,} characters")
    if "\0" in value:
        raise ValueError("text holds a NUL character")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("text holds half a character (a lone surrogate)")
    return value


def _number(value: int | float) -> int | float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number a spec can hold")
    elif not -MAX_INT <= value < MAX_INT:
        raise ValueError("a whole number beyond 64 bits is not one a spec can hold")
    return value


def kind_of(value: object) -> str:
    """The kind of a value, in words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    words = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
    return words.get(type(value), f"a {type(value).__name__}")


def printable(text: str, limit: int = 80) -> str:
    """Text of a file for a message: short, on one line, without terminal codes."""
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = printable(getattr(error, "problem", None) or str(error).splitlines()[0], limit=160)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
