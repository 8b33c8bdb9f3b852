"""From a name or file to a validated Spec: placeholders, overrides, and errors that say what to do."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.lib.secret import find_secret
from slm_lab.spec import foreign
from slm_lab.spec.check import check_combination
from slm_lab.spec.compat import modernize
from slm_lab.spec.net import NetSpec
from slm_lab.spec.problem import MAX_PROBLEMS, Change, Given, describe_all, refuse, show
from slm_lab.spec.published import drop_dead_search, is_published
from slm_lab.spec.reader import kind_of, parse_value, printable, read_document
from slm_lab.spec.roles import NETS, ROLES, gather_roles, nested_path
from slm_lab.spec.schema import Spec, build_spec_model

SHIPPED = Path(__file__).parent
SUFFIXES = (".json", ".yaml", ".yml")
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
SECTIONS = ("agent", "env", "meta", "search")
# the key of a file that is an experiment, not specs
EXPERIMENT = "experiment"


@dataclass(frozen=True)
class Loaded:
    """A validated spec, where it came from, and notes on older spellings in it."""

    spec: Spec
    source: Path
    notes: tuple[str, ...]


def load_spec(
    source: str | Path,
    name: str | None = None,
    overrides: ReadOnlyDocument | None = None,
    *,
    extend_name: bool = True,
    written: Mapping[str, str] | None = None,
) -> Loaded:
    """Load one spec of a file, or a shipped spec by its bare name.

    `written` says how overrides are written, for messages; by default as on the command line.
    """
    path, name = locate(source, name)
    loaded = resolve_spec(_select(read_specs(path), name, path), name, path, overrides or {}, extend_name, written)
    if _is_named(source, path):
        return loaded
    return replace(loaded, notes=(f"there is no such spec in {source}; it is from {_in_package(path)}", *loaded.notes))


def resolve_spec(
    raw: Document,
    name: str,
    path: Path,
    overrides: ReadOnlyDocument,
    extend_name: bool = True,
    written: Mapping[str, str] | None = None,
) -> Loaded:
    """A spec of a file, as it is written there, with placeholders filled and keys set."""
    where = f"spec '{printable(name)}' in {path}"
    places = written or {}
    changes = {key: Change(key, value, places.get(key, f"-s {key}")) for key, value in overrides.items()}
    origins = {place: changes[key] for place, key in _placeholder_places(raw) if key in changes}
    raw, used = _fill(raw, overrides)
    env = raw.get("env")
    env_name = env.get("name") if isinstance(env, dict) else None
    given = {key: change for key, change in changes.items() if key not in used}
    raw = _override(gather_roles(raw, where), given, where, used)
    _refuse_unfilled(raw, where)
    notes = []
    if extend_name and "env" in used:
        name = name_for_env(name, str(overrides["env"]))
    elif extend_name and overrides.get("env.name", env_name) != env_name:
        name = name_for_env(name, str(overrides["env.name"]))
        if not _PLACEHOLDER.search(str(env_name)):
            notes.append(f"the run is called {printable(name)}, since the spec's own env is {printable(str(env_name))}")
    raw = _inline_arc_files(raw, path)
    spec, more = parse_spec({**raw, "name": name}, where, {**origins, **given})
    return Loaded(spec, path, (*notes, *more))


def parse_spec(raw: Document, where: str = "spec", given: Given | None = None) -> tuple[Spec, tuple[str, ...]]:
    """Validate plain data as a spec; all mistakes are reported at once.

    `given` has the keys that were set, by the dotted paths that they set.
    """
    refuse_secrets(raw, where)
    published = is_published(raw)
    raw = gather_roles(raw, where)
    try:
        raw, notes = modernize(raw)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    model = build_spec_model()
    try:
        spec = model.model_validate(raw)
    except ValidationError as error:
        refuse(describe_all(error, model, raw), where, given or {})
        raise
    if published:
        spec = drop_dead_search(spec, notes)
    refuse(_role_problems(spec.agent.net) or check_combination(spec), where, given or {})
    return spec, tuple(dict.fromkeys([*notes, *spec.agent.algorithm.find_remarks(spec.env.num_envs)]))


def _role_problems(net: NetSpec) -> list[str]:
    """Keys of one role that contradict the common ones."""
    problems = []
    for role in ROLES:
        try:
            net.for_role(role)
        except ValidationError as error:
            problems += describe_all(error, type(net), {}, f"agent.net.{role}")
    return problems


def refuse_secrets(raw: ReadOnlyDocument, where: str) -> None:
    """Refuse a secret in a spec, which is saved and shared with its run."""
    if (found := find_secret(raw)) is not None:
        path, kind = found
        raise SpecError(
            f"{where}: {path} holds {kind}, and a spec is saved and shared with its run; take it out and let your code "
            "read it from an environment variable"
        )


def dump_spec(spec: Spec) -> Document:
    """The resolved spec as a document that loads to the same spec."""
    data = spec.model_dump(mode="json", serialize_as_any=True)
    return {data.pop("name"): data}


def flatten_spec(spec: ReadOnlyDocument, prefix: str = "") -> Document:
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
    """A shipped file by its name without suffix; if a spec has the same name, only with a name of a spec in it."""
    for file in spec_files():
        if file.stem == stem and (name in (names := spec_names(file)) or stem not in names):
            return file
    return None


def find_file(path: Path, name: str | None = None) -> Path:
    """A spec file by its path; shipped files are found from any folder.

    Published documents name files that are shipped elsewhere or with another suffix. Where there is no such file with
    that spec, its name is enough, or else the name of the spec.
    """
    files = spec_files()
    existing = next((candidate for candidate in _candidates(path) if candidate.is_file()), None)
    if existing is not None and (name is None or existing not in files or name in spec_names(existing)):
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
    """Whether a file is the given one: by its path, or without a path."""
    return Path(source).suffix not in SUFFIXES or found in _candidates(Path(source))


def _in_package(file: Path) -> str:
    return str(file.relative_to(SHIPPED.parent.parent))


def spec_files() -> list[Path]:
    """Every shipped spec file."""
    return sorted(file for file in SHIPPED.rglob("*") if file.suffix in SUFFIXES)


def is_shipped(name: str) -> bool:
    """Whether a shipped spec, or a shipped file without its suffix, has this name."""
    return any(name == file.stem or name in spec_names(file) for file in spec_files())


def read_specs(path: Path) -> Document:
    """The specs of a file by name; the published lab saved a single spec with its name inside."""
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


def _select(document: Document, name: str, path: Path) -> Document:
    names = [known for known in document if not known.startswith("_")]
    if name not in names:
        held = ", ".join(printable(known) for known in names[:MAX_PROBLEMS]) or "none"
        raise SpecError(f"{path} has no spec '{printable(name)}'{nearest(name, names)} (it holds: {held})")
    if not isinstance(document[name], dict):
        raise SpecError(f"{path}: '{printable(name)}' is not a spec but {kind_of(document[name])}")
    if name == EXPERIMENT and not {"agent", "env"} & document[name].keys():
        command = shlex.join(["slm-lab", "run", str(path), "train"])
        raise SpecError(f"{path} is an experiment, not a spec; {command} trains it")
    return {key: value for key, value in document[name].items() if key != "name"}


# --- placeholders and overrides


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` of the command line; the value is a number, true/false/null, JSON, or text."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise SpecError(f"-s takes KEY=VALUE, got '{text}'")
    try:
        return key.strip(), parse_value(value)
    except SpecError as error:
        raise SpecError(f"-s {key.strip()}: {error}") from None


def _fill(raw: Document, values: ReadOnlyDocument) -> tuple[Document, set[str]]:
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
            return deepcopy(values[whole[1]])
        for key in _PLACEHOLDER.findall(node):
            if key in values:
                used.add(key)
                node = node.replace(f"${{{key}}}", str(values[key]))
        return node

    return fill(raw), used


def _override(raw: Document, given: Given, where: str, used: Iterable[str]) -> Document:
    for key, (_, value, written) in given.items():
        path = nested_path(key).split(".")
        if path != ["search"] and (len(path) < 2 or path[0] not in SECTIONS or "" in path):
            leaves = [leaf for leaf, _ in _walk(raw)]
            ends = [leaf for leaf in leaves if leaf.endswith(f".{key}")]
            paths = foreign.PATHS.get(key, ())
            meant = ends or [path for path in paths if nested_path(path) in leaves or path in leaves] or paths[-1:]
            hint = f"; did you mean '{meant[0]}'?" if meant else nearest(key, [*_placeholders(raw), *used, *leaves])
            raise SpecError(
                f"{written}: {where} has no ${{{key}}} and '{key}' is no dotted path of it{hint} "
                f"(dotted paths start with {', '.join(SECTIONS)}; e.g. agent.algorithm.gamma)"
            )
        node = raw
        for part in path[:-1]:
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise SpecError(f"{written}: '{part}' is {kind_of(child)} and has no keys")
            node = child
        # a key below it may be set later, and the value given to other specs too
        node[path[-1]] = deepcopy(value)
    return raw


def find_placeholders(source: str | Path, name: str) -> list[str]:
    """The placeholders of a spec, such as `env`."""
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


def _placeholder_places(raw: Document) -> Iterator[tuple[str, str]]:
    """The paths of each placeholder."""
    return ((path, key) for path, leaf in _walk(raw) if isinstance(leaf, str) for key in _PLACEHOLDER.findall(leaf))


def _placeholders(raw: Document) -> dict[str, str]:
    return {key: path for path, key in _placeholder_places(raw)}


def _refuse_unfilled(raw: Document, where: str) -> None:
    missing = _placeholders(raw)
    if missing:
        lines = "\n".join(f"  {path}: ${{{key}}} is not set; add -s {key}=VALUE" for key, path in missing.items())
        raise SpecError(f"{where} has placeholders without a value:\n{lines}")


def name_for_env(name: str, env: str) -> str:
    """The name of a spec with a given env: `ppo_atari` with `ALE/Pong-v5` becomes `ppo_atari_pong`."""
    bare = re.sub(r"-v\d+$", "", re.split(r"[/:]", env)[-1])
    return f"{name}_{re.sub(r'[^A-Za-z0-9]+', '_', bare).strip('_').lower() or 'env'}"


def _inline_arc_files(raw: Document, path: Path) -> Document:
    """Read `arc_file` beside the spec into `arc`, so that the saved spec is self-contained."""
    agent = raw.get("agent")
    if not isinstance(agent, dict):
        return raw
    nets = {key: _inline_arcs(agent[key], path, f"agent.{key}.") for key in NETS if key in agent}
    return {**raw, "agent": {**agent, **nets}}


def _inline_arcs(net: Any, path: Path, where: str) -> Any:
    """The same for one net, for the keys of one role, or for one encoder."""
    if not isinstance(net, dict):
        return net
    inlined = {**net, **{role: _inline_arcs(net[role], path, f"{where}{role}_") for role in ROLES if role in net}}
    if "arc_file" in net:
        if "arc" in net:
            raise SpecError(f"{where}arc_file: contradicts {where}arc; give only one of them")
        inlined["arc"] = _read_arc(inlined.pop("arc_file"), path, f"{where}arc_file")
    if isinstance(net.get("encoders"), dict):
        inlined["encoders"] = {
            name: _inline_arcs(encoder, path, f"{where}encoders.{printable(name)}.")
            for name, encoder in net["encoders"].items()
        }
    return inlined


def _read_arc(given: Any, path: Path, where: str) -> Document:
    if not isinstance(given, str):
        raise SpecError(f"{where}: the name of a file expected, got {show(given)}")
    try:
        folder = path.resolve().parent
        file = (folder / given).resolve()
        is_inside = file.is_relative_to(folder)
        is_file = is_inside and file.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, or a link to itself
        is_inside, is_file = True, False
    if not is_inside:
        raise SpecError(f"{where}: {show(given)} lies outside the spec's folder")
    if not is_file:
        raise SpecError(f"{where}: there is no file {show(given)}")
    arc = read_document(file)
    if missing := _placeholders(arc):
        raise SpecError(f"{where}: {show(given)} holds ${{{next(iter(missing))}}}; such a file takes no placeholders")
    return arc
