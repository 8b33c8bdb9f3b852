"""From a name or file to a validated Spec: placeholders, overrides, and errors that say what to do."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from slm_lab.lib.errors import SpecError, nearest
from slm_lab.lib.secret import find_secret
from slm_lab.spec.check import check_combination, find_remarks
from slm_lab.spec.compat import modernize
from slm_lab.spec.net import ROLES, NetSpec
from slm_lab.spec.published import drop_dead_search, is_published
from slm_lab.spec.reader import kind_of, parse_value, printable, read_document
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS, Spec, build_spec_model
from slm_lab.spec.types import ScheduleSpec

SHIPPED = Path(__file__).parent
SUFFIXES = (".json", ".yaml", ".yml")
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
SECTIONS = ("agent", "env", "meta", "search")
MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Loaded:
    """A validated spec, where it came from, and notes on older spellings in it."""

    spec: Spec
    source: Path
    notes: tuple[str, ...]


def load_spec(
    source: str | Path, name: str | None = None, overrides: Mapping[str, Any] | None = None, *, extend_name: bool = True
) -> Loaded:
    """Load one spec of a file, or a shipped spec by its bare name."""
    overrides = overrides or {}
    path, name = locate(source, name)
    raw = _select(read_specs(path), name, path)
    where = f"spec '{printable(name)}' in {path}"
    origins = {place: key for place, key in _placeholder_places(raw) if key in overrides}
    raw, used = _fill(raw, overrides)
    env = raw.get("env")
    env_name = env.get("name") if isinstance(env, dict) else None
    given = {key: value for key, value in overrides.items() if key not in used}
    raw = _override(raw, given, where, used)
    _refuse_unfilled(raw, where)
    notes = [] if _is_named(source, path) else [f"there is no such spec in {source}; it is from {_in_package(path)}"]
    if extend_name and "env" in used:
        name = name_for_env(name, str(overrides["env"]))
    elif extend_name and overrides.get("env.name", env_name) != env_name:
        name = name_for_env(name, str(overrides["env.name"]))
        notes.append(f"the run is called {printable(name)}, since the spec's own env is {printable(str(env_name))}")
    raw = _inline_arc_files(raw, path)
    origins |= {key: key for key in given}
    spec, more = parse_spec(
        {**raw, "name": name}, where, {place: (key, overrides[key]) for place, key in origins.items()}
    )
    return Loaded(spec, path, (*notes, *more))


def parse_spec(
    raw: dict[str, Any], where: str = "spec", given: Mapping[str, tuple[str, Any]] | None = None
) -> tuple[Spec, tuple[str, ...]]:
    """Validate plain data as a spec; all mistakes are reported at once.

    `given` has the keys and values of the command line, by the dotted paths that they set.
    """
    refuse_secrets(raw, where)
    published = is_published(raw)
    try:
        raw, notes = modernize(raw)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    model = build_spec_model()
    try:
        spec = model.model_validate(raw)
        if published:
            spec = drop_dead_search(spec, notes)
        problems = _role_problems(raw) or check_combination(spec)
    except ValidationError as error:
        problems = [*_describe_all(error, model), *_role_problems(raw)]
    problems = [_name_origin(problem, given or {}) for problem in dict.fromkeys(problems)]
    if problems and all(problem.startswith("-s ") for problem in problems):
        raise SpecError("\n".join(problems[:MAX_PROBLEMS]))
    if problems:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        shown = problems[:MAX_PROBLEMS]
        shown += [f"... and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        # a dotted path may be part of a contradiction; a placeholder has to be filled
        changes = ", ".join(_show_change(*change) for place, change in (given or {}).items() if place == change[0])
        where += f" with {changes}" if changes else ""
        raise SpecError(f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in shown))
    agent = spec.agent.model_copy(update={"net": spec.agent.net.resolved()})
    return spec.model_copy(update={"agent": agent}), tuple(dict.fromkeys([*notes, *find_remarks(spec)]))


def _name_origin(problem: str, given: Mapping[str, tuple[str, Any]]) -> str:
    """A mistake under the name it has on the command line, if it was made there."""
    for place, (key, value) in given.items():
        if problem.startswith((f"{place}:", f"{place}.", f"{place}[")):
            rest = problem.removeprefix(place)
            return f"{_show_change(key, value)}{rest if rest.startswith(':') else f': {problem}'}"
    return problem


def _show_change(key: str, value: Any) -> str:
    return f"-s {printable(key)}={printable(value if isinstance(value, str) else json.dumps(value), limit=60)}"


def refuse_secrets(raw: Mapping[str, Any], where: str) -> None:
    """A spec is saved with its run and shared with it, so it may hold no secret."""
    if (found := find_secret(raw)) is not None:
        path, kind = found
        raise SpecError(
            f"{where}: {path} holds {kind}, and a spec is saved and shared with its run; take it out and let your code "
            "read it from an environment variable"
        )


def dump_spec(spec: Spec) -> dict[str, Any]:
    """The resolved spec as a document that loads back to the same spec."""
    data = spec.model_dump(mode="json", serialize_as_any=True)
    return {data.pop("name"): data}


def flatten_spec(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A spec by dotted paths; lists are values."""
    flat: dict[str, Any] = {}
    for key, value in spec.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_spec(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# --- finding


def locate(source: str | Path, name: str | None) -> tuple[Path, str]:
    """The file and spec name meant by a path, a path inside the package, a shipped file's name, or a bare spec name."""
    path = Path(source)
    if path.suffix in SUFFIXES:
        found = find_file(path, name)
        return found, _only_name(found) if name is None else name
    if name not in (None, str(source)):
        if (file := find_bare_file(str(source), str(name))) is not None:
            return file, str(name)
        raise SpecError(f"'{source}' is not a file, so it takes no second name '{name}'; files end in .json or .yaml")
    hits = [file for file in spec_files() if str(source) in spec_names(file)]
    if not hits:
        known = [known for file in spec_files() for known in spec_names(file)]
        raise SpecError(
            f"no file and no shipped spec is called '{source}'{nearest(str(source), known)} "
            "(`slm-lab spec list` shows what is shipped)"
        )
    return hits[0], str(source)


def find_bare_file(stem: str, name: str) -> Path | None:
    """A shipped file by its name without suffix; if a spec is called so too, only with the name of a spec it holds."""
    for file in spec_files():
        if file.stem == stem and (name in (names := spec_names(file)) or stem not in names):
            return file
    return None


def find_file(path: Path, name: str | None = None) -> Path:
    """A spec file by its path, also of a shipped file from any folder.

    Published documents name files that are shipped elsewhere or with another suffix. Where there is no such file with
    that spec, its name is enough, or else the name of the spec.
    """
    files = spec_files()
    existing = next((candidate for candidate in _candidates(path) if candidate.is_file()), None)
    if existing is not None and (existing not in files or name is None or name in spec_names(existing)):
        return existing
    holding = [file for file in files if name is not None and name in spec_names(file)]
    if existing is not None and not holding:
        return existing
    if not path.is_absolute():  # which is a file of one's own
        same = [file for file in files if file.stem == path.stem]
        for found in (*(file for file in same if file in holding), *holding, *(same if name is None else ())):
            return found
    known = [_in_package(file) for file in files]
    raise SpecError(f"no spec file {path}{nearest(str(path), known)} (`slm-lab spec list` shows what is shipped)")


def _candidates(path: Path) -> list[Path]:
    # `slm_lab/spec/...` names a shipped file from any folder, as specs are written down in result tables
    if path.parts[:2] == ("slm_lab", "spec"):
        return [path, SHIPPED.joinpath(*path.parts[2:])]
    return [path] if path.is_absolute() else [path, SHIPPED / path]


def _is_named(source: str | Path, found: Path) -> bool:
    """Whether a file is the one that was asked for: by its path, or by no path at all."""
    return Path(source).suffix not in SUFFIXES or found in _candidates(Path(source))


def _in_package(file: Path) -> str:
    return str(file.relative_to(SHIPPED.parent.parent))


def spec_files() -> list[Path]:
    """Every shipped spec file."""
    return sorted(file for file in SHIPPED.rglob("*") if file.suffix in SUFFIXES)


def is_shipped(name: str) -> bool:
    """Whether a shipped spec, or a shipped file without its suffix, is called so."""
    return any(name == file.stem or name in spec_names(file) for file in spec_files())


def read_specs(path: Path) -> dict[str, Any]:
    """The specs of a file by name; the published lab saved one alone, with its name inside."""
    document = read_document(path)
    if isinstance(document.get("name"), str) and {"agent", "env"} <= document.keys():
        return {document["name"]: document}
    return document


def spec_names(path: Path) -> list[str]:
    """Names of the specs in a file."""
    return [name for name in read_specs(path) if not name.startswith("_")]


def _only_name(path: Path) -> str:
    names = spec_names(path)
    if len(names) != 1:
        held = ", ".join(printable(known) for known in names[:MAX_PROBLEMS])
        raise SpecError(f"{path} holds {len(names)} specs" + (f"; name one of: {held}" if names else ""))
    return names[0]


def _select(document: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    names = [known for known in document if not known.startswith("_")]
    if name not in names:
        held = ", ".join(printable(known) for known in names[:MAX_PROBLEMS]) or "none"
        raise SpecError(f"{path} has no spec '{printable(name)}'{nearest(name, names)} (it holds: {held})")
    if not isinstance(document[name], dict):
        raise SpecError(f"{path}: '{printable(name)}' is not a spec but {kind_of(document[name])}")
    return {key: value for key, value in document[name].items() if key != "name"}


# --- placeholders and overrides


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` of the command line; the value is a number, true/false/null, JSON, or else text."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise SpecError(f"-s takes KEY=VALUE, got '{text}'")
    try:
        return key.strip(), parse_value(value)
    except SpecError as error:
        raise SpecError(f"-s {key.strip()}: {error}") from None


def _fill(raw: dict[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    used: set[str] = set()

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        if not isinstance(node, str):
            return node
        whole = _PLACEHOLDER.fullmatch(node)
        if whole and whole[1] in values:
            used.add(whole[1])
            return values[whole[1]]
        for key in _PLACEHOLDER.findall(node):
            if key in values:
                used.add(key)
                node = node.replace(f"${{{key}}}", str(values[key]))
        return node

    return fill(raw), used


def _override(raw: dict[str, Any], values: Mapping[str, Any], where: str, used: Iterable[str]) -> dict[str, Any]:
    for key, value in values.items():
        path = key.split(".")
        if len(path) < 2 or path[0] not in SECTIONS or "" in path:
            leaves = [leaf for leaf, _ in _walk(raw)]
            ends = [leaf for leaf in leaves if leaf.endswith(f".{key}")]
            hint = f"; did you mean '{ends[0]}'?" if ends else nearest(key, [*_placeholders(raw), *used, *leaves])
            raise SpecError(
                f"-s {key}: {where} has no ${{{key}}} and '{key}' is no dotted path of it{hint} "
                f"(dotted paths start with {', '.join(SECTIONS)}; e.g. -s agent.algorithm.gamma=0.98)"
            )
        node = raw
        for part in path[:-1]:
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise SpecError(f"-s {key}: '{part}' is {kind_of(child)} and has no keys")
            node = child
        node[path[-1]] = value
    return raw


def find_placeholders(source: str | Path, name: str) -> list[str]:
    """The keys that a spec leaves to be filled in, such as `env`."""
    path, name = locate(source, name)
    return list(_placeholders(_select(read_specs(path), name, path)))


def _walk(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _walk(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}[{index}]")
    else:
        yield path, node


def _placeholder_places(raw: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where each placeholder stands."""
    return ((path, key) for path, leaf in _walk(raw) if isinstance(leaf, str) for key in _PLACEHOLDER.findall(leaf))


def _placeholders(raw: dict[str, Any]) -> dict[str, str]:
    return {key: path for path, key in _placeholder_places(raw)}


def _refuse_unfilled(raw: dict[str, Any], where: str) -> None:
    missing = _placeholders(raw)
    if missing:
        lines = "\n".join(f"  {path}: ${{{key}}} is not set; add -s {key}=VALUE" for key, path in missing.items())
        raise SpecError(f"{where} has placeholders without a value:\n{lines}")


def name_for_env(name: str, env: str) -> str:
    """The name of a spec whose env is given at the start: `ppo_atari` with `ALE/Pong-v5` becomes `ppo_atari_pong`."""
    bare = re.sub(r"-v\d+$", "", re.split(r"[/:]", env)[-1])
    return f"{name}_{re.sub(r'[^A-Za-z0-9]+', '_', bare).strip('_').lower() or 'env'}"


def _inline_arc_files(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Read `arc_file` beside the spec into `arc`, so that the saved spec is complete by itself."""
    agent = raw.get("agent")
    if not isinstance(agent, dict):
        return raw
    nets = {key: _inline_arcs(agent[key], path, f"agent.{key}") for key in ("net", "critic_net") if key in agent}
    return {**raw, "agent": {**agent, **nets}}


def _inline_arcs(net: Any, path: Path, where: str) -> Any:
    """The same for one net, or for one encoder of a net."""
    if not isinstance(net, dict):
        return net
    net = dict(net)
    for lead in ("", *(f"{role}_" for role in ROLES)):
        arc, file, encoders = f"{lead}arc", f"{lead}arc_file", f"{lead}encoders"
        if file in net:
            if arc in net:
                raise SpecError(f"{where}.{file}: contradicts {where}.{arc}; give only one of them")
            net[arc] = _read_arc(net.pop(file), path, f"{where}.{file}")
        if isinstance(net.get(encoders), dict):
            net[encoders] = {
                name: _inline_arcs(encoder, path, f"{where}.{encoders}.{printable(name)}")
                for name, encoder in net[encoders].items()
            }
    return net


def _read_arc(given: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(given, str):
        raise SpecError(f"{where}: the name of a file expected, got {_show(given)}")
    try:
        folder = path.resolve().parent
        file = (folder / given).resolve()
        is_inside = file.is_relative_to(folder)
        is_file = is_inside and file.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, or a link to itself
        is_inside, is_file = True, False
    if not is_inside:
        raise SpecError(f"{where}: {_show(given)} lies outside the spec's folder")
    if not is_file:
        raise SpecError(f"{where}: there is no file {_show(given)}")
    arc = read_document(file)
    if missing := _placeholders(arc):
        raise SpecError(f"{where}: {_show(given)} holds ${{{next(iter(missing))}}}; such a file takes no placeholders")
    return arc


# --- messages


# Keys of the pair of nets, not of one of them.
PAIR_KEYS = ("shared", "use_same_optim", *ROLES)
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "mapping",
    "float_type": "number",
    "int_from_float": "whole number",
    "int_type": "whole number",
    "model_attributes_type": "mapping",
    "model_type": "mapping",
    "string_type": "text",
    "tuple_type": "list",
}


def _role_problems(raw: dict[str, Any]) -> list[str]:
    """Mistakes in the keys of one net alone, which its model keeps unread until that net is built."""
    agent = raw.get("agent")
    given = agent.get("net") if isinstance(agent, dict) else None
    if not isinstance(given, dict) or not isinstance(given.get("type"), str) or given["type"] not in NET_SPECS:
        return []
    model = NET_SPECS[given["type"]]
    prefixes = tuple(f"{role}_" for role in ROLES)
    common = {key: value for key, value in given.items() if key not in ROLES and not key.startswith(prefixes)}
    known = [key for key in model.model_fields if key not in PAIR_KEYS]
    whole = _whole_net_errors(model, common)
    problems: list[str] = []
    for role in ROLES:
        nested = given[role] if isinstance(given.get(role), dict) else {}
        prefixed = {key.removeprefix(f"{role}_"): given[key] for key in given if key.startswith(f"{role}_")}
        own = {}
        for key, value in {**nested, **prefixed}.items():
            lead = f"{role}_" if key in prefixed else f"{role}."
            if key in nested and key in prefixed:
                problems.append(f"agent.net.{lead}{printable(key)}: also given in agent.net.{role}; remove one of them")
            elif key not in known:
                hint = nearest(key, known) if len(problems) < MAX_PROBLEMS else ""
                hint = hint.replace("mean '", f"mean '{role}_") if key in prefixed else hint
                problems.append(f"agent.net.{lead}{printable(key)}: unknown key{hint}")
            else:
                own[key] = value
        try:
            model.model_validate({**common, **own})
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                if detail["loc"] and detail["loc"][0] in own:
                    lead = f"{role}_" if detail["loc"][0] in prefixed else f"{role}."
                    problems.append(_describe(detail, model, f"agent.net.{lead}"))
                elif not detail["loc"] and detail["msg"] not in whole:
                    problems.append(f"agent.net.{role}: {detail['ctx']['error']}")
    return problems


def _whole_net_errors(model: type[NetSpec], common: dict[str, Any]) -> set[str]:
    """Messages about the common keys as a whole, which belong to neither net alone."""
    try:
        model.model_validate(common)
    except ValidationError as error:
        return {detail["msg"] for detail in error.errors(include_url=False) if not detail["loc"]}
    return set()


def _describe_all(error: ValidationError, model: type[BaseModel]) -> list[str]:
    every = error.errors(include_url=False)
    details = [detail for detail in every if not _is_other_branch(detail)] or every
    described = [_describe(detail, model) for detail in details[:MAX_PROBLEMS]]
    # the rest is only counted: a hint for each of thousands would take seconds
    return [*described, *(str(detail["loc"]) for detail in details[MAX_PROBLEMS:])]


def _is_other_branch(error: ErrorDetails) -> bool:
    """Whether an error is about a form of the value that was not meant: no list for a number, no number for a list."""
    branch = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "")
    if branch.startswith("tuple["):
        return error["type"] == "tuple_type"
    return branch in ("float", "constrained-float") and isinstance(error["input"], (list, tuple))


def _describe(error: ErrorDetails, model: type[BaseModel], prefix: str = "") -> str:
    """One line for one mistake: where, what, and the nearest valid choice."""
    path, at = _resolve(error["loc"], model)
    shown = prefix + _join(path) if path else "spec"
    kind, context, given = error["type"], error.get("ctx", {}), _show(error["input"])
    if kind == "extra_forbidden":
        hint = nearest(str(path[-1]), at.model_fields if at else [])
        return f"{shown}: unknown key{hint or _other_homes(str(path[-1]))}"
    if kind == "missing":
        return f"{shown}: required {'item' if isinstance(path[-1], int) else 'key'} is missing"
    if kind == "union_tag_invalid":
        known = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        tag = str(context["tag"])
        return (
            f"{shown}.{_tag_key(context)}: unknown '{printable(tag)}'{nearest(tag, known)} (known: {', '.join(known)})"
        )
    if kind == "union_tag_not_found":
        return f"{shown}: needs the key {context['discriminator']}"
    if kind == "value_error":
        return f"{shown}: {context['error']}"
    if kind == "literal_error":
        known = re.findall(r"'([^']+)'", str(context["expected"]))
        expected = str(context["expected"]).replace("False", "false").replace("True", "true")
        return f"{shown}: {expected} expected, got {given}{nearest(str(error['input']), known)}"
    if kind == "string_pattern_mismatch" and path == ["name"]:
        return f"{shown}: up to 128 letters, digits, '_', '.' or '-' expected, a letter or digit first, got {given}"
    if kind == "string_pattern_mismatch":
        return f"{shown}: text that matches {context['pattern']} expected, got {given}"
    if kind == "string_too_short":
        return f"{shown}: text expected, got {given}"
    if kind == "too_long":
        return f"{shown}: at most {context['max_length']} items expected, got {given}"
    message = _EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ").removeprefix("a ")
    return f"{shown}: {message} expected, got {given}"


def _other_homes(key: str) -> str:
    """Where a key that is unknown here would be known."""
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
    return f"; it is a key of {' and of '.join(homes)}" if homes else ""


def _tag_key(context: dict[str, Any]) -> str:
    return str(context["discriminator"]).strip("'")


def _show(value: Any) -> str:
    return printable(json.dumps(value, default=str, ensure_ascii=False), limit=60)


def _join(path: list[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}" if text else printable(part)
    return text


def _resolve(loc: tuple[int | str, ...], model: type[BaseModel]) -> tuple[list[str | int], type[BaseModel] | None]:
    """Drop the union tags from an error's location and find the model that holds its last key."""
    path: list[str | int] = []
    holder: type[BaseModel] | None = model
    candidates: list[type[BaseModel]] = [model]
    tag_may_follow = False
    values: list[type[BaseModel]] | None = None
    for part in loc:
        if tag_may_follow and any(part in _tags(kind) for kind in candidates):
            candidates = [kind for kind in candidates if part in _tags(kind)] or candidates
            tag_may_follow = False
            continue
        if not candidates and values is None and isinstance(part, str):
            continue  # the form of a plain value, such as float or tuple, in a union of them
        holder = candidates[0] if candidates else None
        field = holder.model_fields.get(str(part)) if holder else None
        path.append(part)
        if values is not None:  # a key of a mapping leads to one of its values
            candidates, values = values, None
        else:
            candidates = list(_models_in(field.annotation)) + list(_models_in_metadata(field.metadata)) if field else []
            values = list(_models_in_values(field.annotation)) if field else None
            values = values or None
        tag_may_follow = len(candidates) > 1 or ScheduleSpec in candidates
    return path, holder


def _models_in_metadata(metadata: list[Any]) -> Iterator[type[BaseModel]]:
    for item in metadata:
        yield from _models_in(item)


def _models_in_values(annotation: Any) -> Iterator[type[BaseModel]]:
    if get_origin(annotation) is dict:
        yield from _models_in(get_args(annotation)[1])


def _tags(kind: type[BaseModel]) -> set[str]:
    """The values of `name` or `type` by which a model is chosen."""
    if kind is ScheduleSpec:
        return {"number", "schedule"}
    for key in ("name", "type"):
        field = kind.model_fields.get(key)
        if field is not None:
            return {str(choice) for choice in get_args(field.annotation)}
    return set()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for part in get_args(annotation):
            yield from _models_in(part)
