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
from slm_lab.spec.check import check_combination
from slm_lab.spec.compat import modernize
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import Spec, build_spec_model

SHIPPED = Path(__file__).parent
SUFFIXES = (".json", ".yaml", ".yml")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
SECTIONS = ("agent", "env", "meta", "search")


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
    path, name = locate(source, name)
    document = read_document(path)
    raw = _select(document, name, path)
    where = f"spec '{name}' in {path}"
    raw, used = _fill(raw, overrides or {})
    raw = _override(raw, {key: value for key, value in (overrides or {}).items() if key not in used}, where, used)
    _refuse_unfilled(raw, where)
    if extend_name and "env" in used:
        name = f"{name}_{_short_env(str((overrides or {})['env']))}"
    raw = _inline_arc_files(raw, path)
    spec, notes = parse_spec({**raw, "name": name}, where)
    return Loaded(spec, path, notes)


def parse_spec(raw: dict[str, Any], where: str = "spec") -> tuple[Spec, tuple[str, ...]]:
    """Validate plain data as a spec; all mistakes are reported at once."""
    try:
        raw, notes = modernize(raw)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    model = build_spec_model()
    try:
        spec = model.model_validate(raw)
        problems = _role_problems(spec, raw) or check_combination(spec)
    except ValidationError as error:
        problems = [_describe(detail, model) for detail in error.errors(include_url=False)]
    if problems:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise SpecError(f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in dict.fromkeys(problems)))
    return spec, tuple(dict.fromkeys(notes))


def dump_spec(spec: Spec) -> dict[str, Any]:
    """The resolved spec as a document that loads back to the same spec."""
    data = spec.model_dump(mode="json", serialize_as_any=True)
    return {data.pop("name"): data}


# --- finding


def locate(source: str | Path, name: str | None) -> tuple[Path, str]:
    """The file and spec name meant by a path, a path inside the package, or a bare spec name."""
    path = Path(source)
    if path.suffix in SUFFIXES:
        found = find_file(path)
        return found, name or _only_name(found)
    hits = [file for file in spec_files() if str(source) in spec_names(file)]
    if not hits:
        known = [known for file in spec_files() for known in spec_names(file)]
        raise SpecError(
            f"no file and no shipped spec is called '{source}'{nearest(str(source), known)} "
            "(`slm-lab spec list` shows what is shipped)"
        )
    return hits[0], str(source)


def find_file(path: Path) -> Path:
    """A spec file by its path, also of a shipped file from any folder."""
    # `slm_lab/spec/...` names a shipped file from any folder, as specs are written down in result tables
    candidates = [path]
    if path.parts[:2] == ("slm_lab", "spec"):
        candidates.append(SHIPPED.joinpath(*path.parts[2:]))
    elif not path.is_absolute():
        candidates.append(SHIPPED / path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    known = [str(file.relative_to(SHIPPED.parent.parent)) for file in spec_files()]
    raise SpecError(f"no spec file {path}{nearest(str(path), known)} (`slm-lab spec list` shows what is shipped)")


def spec_files() -> list[Path]:
    """Every shipped spec file."""
    return sorted(file for file in SHIPPED.rglob("*") if file.suffix in SUFFIXES)


def spec_names(path: Path) -> list[str]:
    """Names of the specs in a file."""
    return [name for name in read_document(path) if not name.startswith("_")]


def _only_name(path: Path) -> str:
    names = spec_names(path)
    if len(names) != 1:
        raise SpecError(f"{path} holds {len(names)} specs; name one of: {', '.join(names)}")
    return names[0]


def _select(document: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    names = [known for known in document if not known.startswith("_")]
    if name not in names:
        raise SpecError(f"{path} has no spec '{name}'{nearest(name, names)} It holds: {', '.join(names)}")
    if not isinstance(document[name], dict):
        raise SpecError(f"{path}: '{name}' is not a spec but a {type(document[name]).__name__}")
    return {key: value for key, value in document[name].items() if key != "name"}


# --- placeholders and overrides


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` of the command line; the value is a number, true/false/null, JSON, or else text."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise SpecError(f"-s takes KEY=VALUE, got '{text}'")
    return key.strip(), parse_value(value)


def parse_value(text: str) -> Any:
    """A value as typed: a number, true/false/null, JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text) if re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", text.strip()) else text
    except ValueError:
        return text


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
            known = [*_placeholders(raw), *used, *("agent.", "env.", "meta.", "search.")]
            raise SpecError(
                f"-s {key}: {where} has no ${{{key}}} and '{key}' is no dotted path of it{nearest(key, known)} "
                f"(dotted paths start with {', '.join(SECTIONS)}; e.g. -s agent.algorithm.gamma=0.98)"
            )
        node = raw
        for part in path[:-1]:
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise SpecError(f"-s {key}: '{part}' is a {type(child).__name__} and has no keys")
            node = child
        node[path[-1]] = value
    return raw


def _walk(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _walk(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}[{index}]")
    else:
        yield path, node


def _placeholders(raw: dict[str, Any]) -> dict[str, str]:
    return {key: path for path, leaf in _walk(raw) if isinstance(leaf, str) for key in _PLACEHOLDER.findall(leaf)}


def _refuse_unfilled(raw: dict[str, Any], where: str) -> None:
    missing = _placeholders(raw)
    if missing:
        lines = "\n".join(f"  {path}: ${{{key}}} is not set; add -s {key}=VALUE" for key, path in missing.items())
        raise SpecError(f"{where} has placeholders without a value:\n{lines}")


def _short_env(env: str) -> str:
    """`ALE/Pong-v5` becomes `pong`."""
    return re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"-v\d+$", "", re.split(r"[/:]", env)[-1])).strip("_").lower() or "env"


def _inline_arc_files(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Read `arc_file` beside the spec into `arc`, so that the saved spec is complete by itself."""
    net = raw.get("agent", {}).get("net") if isinstance(raw.get("agent"), dict) else None
    if not isinstance(net, dict):
        return raw
    net = dict(net)
    for key in [key for key in net if key == "arc_file" or key.endswith("_arc_file")]:
        folder = path.resolve().parent
        file = (folder / str(net.pop(key))).resolve()
        if not file.is_relative_to(folder):
            raise SpecError(f"agent.net.{key}: {file.name} lies outside the spec's folder")
        net[key.removesuffix("_file")] = read_document(file)
    return {**raw, "agent": {**raw["agent"], "net": net}}


# --- messages


def _role_problems(spec: Spec, raw: dict[str, Any]) -> list[str]:
    problems = []
    given = raw["agent"]["net"]
    net_model = type(spec.agent.net)
    for role in ("actor", "critic"):
        try:
            spec.agent.net.for_role(role)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                key = str(detail["loc"][0]) if detail["loc"] else ""
                prefixed = f"{role}_{key}" in given
                problems.append(_describe(detail, net_model, f"agent.net.{role}{'_' if prefixed else '.'}"))
    return problems


def _describe(error: ErrorDetails, model: type[BaseModel], prefix: str = "") -> str:
    """One line for one mistake: where, what, and the nearest valid choice."""
    path, at = _resolve(error["loc"], model)
    shown = prefix + _join(path) if path else prefix.rstrip("._") or "spec"
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = list(at.model_fields) if at else []
        return f"{shown}: unknown key{nearest(str(path[-1]), known)}"
    if kind == "missing":
        return f"{shown}: required key is missing"
    if kind == "union_tag_invalid":
        known = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        return (
            f"{shown}.{_tag_key(context)}: unknown '{context['tag']}'"
            f"{nearest(str(context['tag']), known)} (known: {', '.join(known)})"
        )
    if kind == "union_tag_not_found":
        return f"{shown}: needs the key {context['discriminator']}"
    if kind == "value_error":
        return f"{shown}: {context['error']}"
    if kind == "literal_error":
        known = re.findall(r"'([^']+)'", str(context["expected"]))
        hint = nearest(str(error["input"]), known)
        return f"{shown}: {context['expected']} expected, got {_show(error['input'])}{hint}"
    message = error["msg"].removeprefix("Input should be ").removeprefix("a ").removeprefix("an ")
    return f"{shown}: {message} expected, got {_show(error['input'])}"


def _tag_key(context: dict[str, Any]) -> str:
    return str(context["discriminator"]).strip("'")


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: list[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _resolve(loc: tuple[int | str, ...], model: type[BaseModel]) -> tuple[list[str | int], type[BaseModel] | None]:
    """Drop the union tags from an error's location and find the model that holds its last key."""
    path: list[str | int] = []
    holder: type[BaseModel] | None = model
    candidates: list[type[BaseModel]] = [model]
    for part in loc:
        tagged = [kind for kind in candidates if len(candidates) > 1 and part in _tags(kind)]
        if tagged:
            candidates = tagged
            continue
        holder = candidates[0] if candidates else None
        field = holder.model_fields.get(str(part)) if holder else None
        if holder is None and isinstance(part, str) and part in ("number", "schedule"):
            continue
        if field is None and part in ("number", "schedule"):
            continue
        path.append(part)
        candidates = list(_models_in(field.annotation)) + list(_models_in_metadata(field.metadata)) if field else []
    return path, holder


def _models_in_metadata(metadata: list[Any]) -> Iterator[type[BaseModel]]:
    for item in metadata:
        yield from _models_in(item)


def _tags(kind: type[BaseModel]) -> set[str]:
    """The values of `name` or `type` by which a model is chosen."""
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
