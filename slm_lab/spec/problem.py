"""Mistakes in a spec, in one line each: where, what was expected, and the nearest valid choice."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.spec import foreign
from slm_lab.spec.net import PAIR_KEYS, NetSpec
from slm_lab.spec.reader import printable
from slm_lab.spec.roles import NETS, ROLES, nested_path, written_path
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS

MAX_PROBLEMS = 20
# keys of a mapping up to which a mistake lists all of them
MAX_KNOWN = 12


class Change(NamedTuple):
    """A key that was set: by `-s`, or in an experiment file."""

    key: str
    value: Any
    # as it is written there
    written: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{printable(self.written, limit=300)}={printable(value, limit=60)}"


# by the dotted paths that they set
Given = Mapping[str, Change]

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "mapping",
    "float_type": "number",
    "int_from_float": "whole number",
    "int_type": "whole number",
    "list_type": "list",
    "model_attributes_type": "mapping",
    "model_type": "mapping",
    "string_type": "text",
    "tuple_type": "list",
}


def refuse(problems: list[str], where: str, given: Given) -> None:
    """Raise all problems at once, each as it is written if it is of a key that was set."""
    named = {problem: _name_origin(problem, given) for problem in problems}
    if not named:
        return
    problems = [origin or problem for problem, origin in named.items()]
    if all(named.values()):
        raise SpecError("\n".join(problems[:MAX_PROBLEMS]))
    count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
    shown = problems[:MAX_PROBLEMS]
    shown += [f"... and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    # a dotted path may be part of a contradiction; a placeholder has to be filled
    changes = ", ".join(str(change) for place, change in given.items() if place == change.key)
    where += f" with {changes}" if changes else ""
    raise SpecError(f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in shown))


def _name_origin(problem: str, given: Given) -> str | None:
    """A problem of a key that was set, as it is written there."""
    for place, change in given.items():
        path = written_path(place)
        if problem.startswith((f"{path}:", f"{path}.", f"{path}[")):
            rest = problem.removeprefix(path)
            return f"{change}{rest if rest.startswith(':') else f': {problem}'}"
    return None


def describe_all(error: ValidationError, model: type[BaseModel], data: object, where: str = "") -> list[str]:
    """A line for each mistake in `data`, the input of the model; `where` is its place in the spec."""
    every = error.errors(include_url=False)
    details = [detail for detail in every if not _is_other_branch(detail)] or every
    described = [_describe(detail, model, data, where) for detail in details[:MAX_PROBLEMS]]
    # the rest is only counted: a hint for each of thousands would take seconds
    return [*described, *(str(detail["loc"]) for detail in details[MAX_PROBLEMS:])]


def describe_first(error: ValidationError, model: type[BaseModel], data: object, where: str) -> str:
    """The mistake to report first: an unknown key is often a misspelled missing one."""
    lines = describe_all(error, model, data, where)
    return next((line for line in lines if ": unknown key" in line), lines[0])


def _is_other_branch(error: ErrorDetails) -> bool:
    """Whether an error is about another form of the value than the given one, such as a list for a number."""
    branch = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "")
    if branch.startswith(("tuple[", "list[", "is-instance[")):
        return error["type"] in ("tuple_type", "list_type", "needs_python_object")
    is_plain = branch in ("int", "float", "constrained-float", "str", "constrained-str")
    return is_plain and isinstance(error["input"], (list, tuple))


def _describe(error: ErrorDetails, model: type[BaseModel], data: object, where: str) -> str:
    path = list(_keys(error, data))
    shown = written_path(".".join(filter(None, (where, _join(path))))) or "spec"
    kind, context, given = error["type"], error.get("ctx", {}), show(error["input"])
    if kind == "extra_forbidden":
        return f"{shown}: unknown key{_known_key(path, model, data, is_whole=not where)}"
    if kind == "missing":
        return f"{shown}: required {'item' if isinstance(path[-1], int) else 'key'} is missing"
    if kind == "union_tag_invalid":
        known = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        tag, key = str(context["tag"]), str(context["discriminator"]).strip("'")
        own = "; your own needs --import MODULE" if shown in ("agent.algorithm", "agent.memory", "agent.net") else ""
        return f"{shown}.{key}: unknown '{printable(tag)}'{nearest(tag, known)} (known: {', '.join(known)}{own})"
    if kind == "union_tag_not_found":
        return f"{shown}: needs the key {context['discriminator']}"
    if kind == "value_error":
        # a check of the whole document names the key itself
        return f"{shown}: {context['error']}" if path or where else str(context["error"])
    if kind == "literal_error":
        known = re.findall(r"'([^']+)'", str(context["expected"]))
        expected = str(context["expected"]).replace("False", "false").replace("True", "true")
        return f"{shown}: {expected} expected, got {given}{nearest(str(error['input']), known)}"
    if kind == "string_pattern_mismatch" and path == ["name"]:
        return f"{shown}: up to 128 letters, digits, '_', '.' or '-' expected, a letter or digit first, got {given}"
    if kind == "string_pattern_mismatch" and path == ["meta", "device"]:
        return f"{shown}: auto, cpu, mps, cuda or cuda:N expected, got {given}"
    if kind == "string_pattern_mismatch":
        return f"{shown}: text that matches {context['pattern']} expected, got {given}"
    if kind == "string_too_short":
        return f"{shown}: text expected, got {given}"
    if kind in ("too_long", "too_short"):
        limit = context["max_length"] if kind == "too_long" else context["min_length"]
        amount = f"at {'most' if kind == 'too_long' else 'least'} {limit} item{'' if limit == 1 else 's'}"
        return f"{shown}: {amount} expected, got {given}"
    message = _EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ").removeprefix("a ")
    # what a YAML file may hold is text on the command line
    is_yaml = message in ("mapping", "list") and isinstance(error["input"], str) and error["input"][:1] in ("{", "[")
    hint = "; -s takes JSON, with double quotes around keys and text" if is_yaml else ""
    return f"{shown}: {message} expected, got {given}{hint}"


def _keys(error: ErrorDetails, data: object) -> Iterator[str | int]:
    """The keys of an error's location, without the parts that name a member of a union."""
    last = len(error["loc"]) - 1
    for index, key in enumerate(error["loc"]):
        if isinstance(data, (list, tuple)):
            data = dict(enumerate(data))
        if isinstance(data, dict) and key in data:
            data = data[key]
        elif index < last or error["type"] != "missing":
            continue
        yield key


def _known_key(path: list[str | int], model: type[BaseModel], data: object, is_whole: bool) -> str:
    """The nearest known key in a place, or where the key belongs."""
    *place, key = (str(part) for part in path)
    holder = _model_at(path[:-1], model, data)
    known = list(holder.model_fields) if holder else []
    if is_whole and (path_here := _find_foreign(key, model, data)):
        return f"; did you mean '{path_here.removeprefix('.'.join([*place, '']))}'?"
    is_role = place[-1:] and place[-1] in ROLES and place[-2] in NETS
    if is_role and (hint := nearest(key, [one for one in known if one not in PAIR_KEYS])):
        return hint.replace("mean '", f"mean '{place[-1]}_")  # as the mistake is written
    if (hint := nearest(key, known)) or not is_whole:
        return hint or f" (known: {', '.join(known) or 'none'})"
    families: dict[str, Mapping[str, type[BaseModel]]] = {
        "agent.algorithm": ALGORITHM_SPECS,
        "agent.memory": MEMORY_SPECS,
        "agent.net": NET_SPECS,
    }
    homes = []
    for where, kinds in families.items():
        names = [name for name, kind in kinds.items() if key in kind.model_fields]
        if names and len(names) < len(kinds):
            homes.append(f"{where} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
    if homes:
        return f"; it is a key of {' and of '.join(homes)}"
    return f" (known: {', '.join(known)})" if 0 < len(known) <= MAX_KNOWN else ""


def _find_foreign(key: str, model: type[BaseModel], data: object) -> str | None:
    """The path of a key that other libraries call so, if this spec can have it."""
    paths = foreign.PATHS.get(key, ())
    for path in paths:
        *place, leaf = nested_path(path).split(".")
        if place[0] not in model.model_fields:
            continue
        try:
            holder = _model_at(list(place), model, data)
        except (KeyError, TypeError):
            holder = None
        # a mapping that the spec leaves to its defaults may be added
        if leaf in holder.model_fields if holder else path == paths[-1]:
            return path
    return None


def _model_at(path: list[str | int], model: type[BaseModel], data: Any) -> type[BaseModel] | None:
    """The model of the mapping at a path."""
    annotation: Any = model
    kind: type[BaseModel] | None = model
    for key in path:
        data = data[key]
        if kind is not None and key in ROLES and issubclass(kind, NetSpec):
            continue  # a role has the keys of its net
        if kind is not None:
            annotation = kind.model_fields[str(key)].annotation
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        kinds = [] if get_origin(annotation) is dict or not isinstance(data, dict) else list(_models_in(annotation))
        kind = kinds[0] if len(kinds) == 1 else next((one for one in kinds if _is_tagged(one, data)), None)
    return kind


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _models_in(part)


def _is_tagged(kind: type[BaseModel], data: Document) -> bool:
    """Whether the `name`, `type` or `kind` of a mapping selects this model."""
    fields = [(key, kind.model_fields[key]) for key in ("name", "type", "kind") if key in kind.model_fields]
    return any(data.get(key) in get_args(field.annotation) for key, field in fields)


def show(value: object) -> str:
    """A value as written, shortened."""
    return printable(json.dumps(value, default=str, ensure_ascii=False), limit=60)


def _join(path: list[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}" if text else printable(part)
    return text
