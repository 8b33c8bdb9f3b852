"""docs/SPEC.md, generated from the schema."""

import inspect
import json
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slm_lab.lib.data import Document
from slm_lab.spec import net as nets
from slm_lab.spec.algorithm import AlgorithmSpec, EntropyAnneal, RNDSpec
from slm_lab.spec.critic import CategoricalCritic, EnsembleQuantileCritic, ImplicitCritic, QuantileCritic, ValueCritic
from slm_lab.spec.memory import MemorySpec
from slm_lab.spec.roles import ROLES
from slm_lab.spec.schema import (
    ALGORITHM_SPECS,
    MEMORY_SPECS,
    NET_SPECS,
    AgentSpec,
    EnvSpec,
    InitSpec,
    MetaSpec,
    SearchResources,
    SearchScheduler,
    StopSpec,
    WrapperSpec,
    build_spec_model,
)
from slm_lab.spec.sde import SDESpec
from slm_lab.spec.search_space import SPACES
from slm_lab.spec.types import ScheduleSpec

_CRITICS = (ValueCritic, QuantileCritic, EnsembleQuantileCritic, CategoricalCritic, ImplicitCritic)
_OPTIMIZERS = get_args(get_args(nets.OptimSpec)[0])
_SCHEDULERS = get_args(get_args(nets.LrSchedulerSpec)[0])
_WORDS: dict[Any, str] = {
    bool: "true/false",
    dict: "mapping",
    float: "number",
    int: "whole number",
    NoneType: "null",
    str: "text",
    ScheduleSpec: "[schedule](#schedule)",
    AgentSpec: "[mapping](#agent)",
    AlgorithmSpec: "[mapping](#agentalgorithm)",
    MemorySpec: "[mapping](#agentmemory)",
    nets.NetSpec: "[mapping](#agentnet)",
    nets.LossSpec: "[mapping](#loss_spec)",
    EntropyAnneal: "[mapping](#agentalgorithmentropy_anneal)",
    RNDSpec: "[mapping](#agentalgorithmrnd)",
    SDESpec: "[mapping](#agentalgorithmsde)",
    EnvSpec: "[mapping](#env)",
    WrapperSpec: "[wrappers](#envwrappers)",
    MetaSpec: "[mapping](#meta)",
    SearchResources: "[mapping](#metasearch_resources)",
    SearchScheduler: "[mapping](#metasearch_scheduler)",
    StopSpec: "[mapping](#metastop)",
    InitSpec: "[mapping](#agentinit_from)",
    **dict.fromkeys(_CRITICS, "[mapping](#agentalgorithmcritic)"),
    **dict.fromkeys(_OPTIMIZERS, "[mapping](#optim_spec)"),
    **dict.fromkeys(_SCHEDULERS, "[mapping](#lr_scheduler_spec)"),
}


def spec_reference() -> str:
    """Every key of a spec with its type, default and meaning, as Markdown."""
    spec = build_spec_model()
    agent = spec.model_fields["agent"].annotation
    assert isinstance(agent, type)
    parts = [
        "# Spec reference",
        "Every key of a spec with its type, default and meaning; [Write specs](WRITING_SPECS.md) explains an example.",
        "A file holds specs by name. A name has up to 128 letters, digits, `_`, `.` or `-`, and starts with a letter "
        "or digit; names that start with `_` are not specs and may hold YAML anchors. Whole numbers may be written as "
        "`1e6`.",
        "`-s key=value` fills `${key}`; `-s agent.algorithm.gamma=0.98` sets any key by its dotted path.",
        "The lab also reads specs of the [published SLM-Lab](PUBLISHED_SPECS.md).",
        "Generated from the schema by `slm-lab spec reference`; a test fails when it is out of date.",
        _section("## A spec", spec, skip=("name",)),
        _section("## env", EnvSpec),
        _section("### env.wrappers", WrapperSpec),
        _section("## meta", MetaSpec),
        _section("### meta.search_resources", SearchResources),
        _section("### meta.search_scheduler", SearchScheduler),
        _section("### meta.stop", StopSpec)
        + "\n\nAny other key is a column of the table and the value it must reach: a number, or text such as "
        "`<= 0.1`. All of them must hold.",
        _section("## agent", agent),
        _section("### agent.init_from", InitSpec),
        *_family("agent.algorithm", "name", AlgorithmSpec, ALGORITHM_SPECS.values()),
        _section("### agent.algorithm.entropy_anneal", EntropyAnneal),
        _section("### agent.algorithm.rnd", RNDSpec),
        _section("### agent.algorithm.sde", SDESpec),
        "### agent.algorithm.critic\n\nWhat a critic predicts: the mean return, or its distribution, by `kind`. "
        "`num_drop` is for algorithms with several critics, `implicit` for those with one net.",
        *(f"#{_kind(model, 'kind')}" for model in _CRITICS if model is not QuantileCritic),
        *_family("agent.memory", "name", MemorySpec, MEMORY_SPECS.values()),
        *_family("agent.net", "type", nets.NetSpec, NET_SPECS.values()),
        _section("## loss_spec", nets.LossSpec),
        "## optim_spec\n\nThe options are those of `torch.optim`. `weight_decay` applies to weights only: "
        "biases, gains of norm layers and a policy's log std do not decay.",
        *(_kind(model, "name") for model in _OPTIMIZERS),
        "## lr_scheduler_spec\n\nSchedules named as in `torch.optim.lr_scheduler` take the same options.",
        *(_kind(model, "name") for model in _SCHEDULERS),
        _section("## schedule", ScheduleSpec) + "\n\nA key that takes a schedule also takes a plain number.",
        _search_section(),
    ]
    return "\n\n".join(parts) + "\n"


def spec_file_schema() -> Document:
    """JSON Schema of a spec file, for completion in editors."""
    spec = _standard_words(build_spec_model().model_json_schema())
    definitions = spec.pop("$defs")
    spec["required"] = [key for key in spec["required"] if key != "name"]  # its key in the file
    for definition in definitions.values():
        if "arc" in definition.get("properties", {}):
            file = {"type": "string", "description": "File beside the spec that holds `arc`."}
            definition["properties"] |= {"arc_file": file}
            definition["required"] = [key for key in definition.get("required", []) if key != "arc"]
    for model in NET_SPECS.values():
        net = definitions[model.__name__]
        own = {key: value for key, value in net["properties"].items() if key not in ("type", *nets.PAIR_KEYS)}
        net["properties"] |= {f"{role}_{key}": value for role in ROLES for key, value in own.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "patternProperties": {"^_": {}},
        "additionalProperties": spec,
        "$defs": definitions,
    }


def _standard_words(node: Any) -> Any:
    """Translate bounds that pydantic writes in its own words, for types with a validator."""
    words = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    if isinstance(node, dict):
        return {
            words.get(key, key) if isinstance(value, (int, float)) else key: _standard_words(value)
            for key, value in node.items()
        }
    return [_standard_words(item) for item in node] if isinstance(node, list) else node


def _search_section() -> str:
    lines = [f"| `{name}` | `[{', '.join(takes) or 'value, ...'}]` |" for name, takes in SPACES.items()]
    return (
        "## search\n\n`path__space: arguments`, flat or nested, e.g. "
        "`agent.algorithm.gamma__uniform: [0.98, 0.999]`.\n\n| space | arguments |\n|---|---|\n" + "\n".join(lines)
    )


def _family(title: str, tag: str, base: type[BaseModel], kinds: Iterable[type[BaseModel]]) -> Iterator[str]:
    """The common keys, then each kind with its own."""
    yield _section(f"## {title}", base)
    for kind in kinds:
        yield _kind(kind, tag, base)


def _kind(model: type[BaseModel], tag: str, base: type[BaseModel] = BaseModel) -> str:
    names = _choices(model.model_fields[tag].annotation)
    known = [name for name, field in model.model_fields.items() if _is_same(field, base.model_fields.get(name))]
    return _section(f"### {tag}: {', '.join(names)}", model, skip=(tag, *known))


def _is_same(field: FieldInfo, other: FieldInfo | None) -> bool:
    return other is not None and (_type(field), describe_default(field), field.description) == (
        _type(other),
        describe_default(other),
        other.description,
    )


def _section(title: str, model: type[BaseModel], skip: tuple[str, ...] = ()) -> str:
    fields = {field.alias or name: field for name, field in model.model_fields.items() if name not in skip}
    intro = f"{title}\n\n{(inspect.getdoc(model) or '').partition(chr(10))[0]}"
    if not fields:
        return f"{intro} It has no other keys."
    if not any(field.description for field in fields.values()):
        rows = [f"| `{name}` | {_type(field)} | {describe_default(field)} |" for name, field in fields.items()]
        return f"{intro}\n\n| key | type | default |\n|---|---|---|\n" + "\n".join(rows)
    rows = [
        f"| `{name}` | {_type(field)} | {describe_default(field)} | {field.description or ''} |"
        for name, field in fields.items()
    ]
    return f"{intro}\n\n| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def describe_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default: Any = field.default
    if isinstance(default, BaseModel):
        every = default.model_dump(mode="json")
        if not {"name", "kind"} & every.keys():
            return "its own defaults"
        given = default.model_dump(mode="json", exclude_defaults=True)
        default = {key: value for key, value in every.items() if key in ("name", "kind", "lr") or key in given}
    if isinstance(default, float):
        default = float(f"{default:.4g}")
    return f"`{json.dumps(default)}`"


def _type(field: FieldInfo) -> str:
    return _words(field.annotation, field.metadata)


def _words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], (*arguments[1:], *metadata))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in _choices(annotation))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(part, metadata) for part in arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_plural(_words(arguments[0]))}"
    if origin is tuple:
        return f"[{', '.join(_words(part) for part in arguments)}]"
    known = [_WORDS[base] for base in inspect.getmro(origin or annotation) if base in _WORDS]
    return known[0] + (_bounds(metadata) if annotation in (int, float) else "")


def _plural(words: str) -> str:
    return words.replace("list of", "lists of") if "list of" in words else words.replace("number", "numbers")


def _bounds(metadata: Iterable[Any]) -> str:
    texts = []
    for item in metadata:
        for bound in item.metadata if isinstance(item, FieldInfo) else (item,):
            match bound:
                case Gt(gt=limit):
                    texts.append(f"> {limit}")
                case Ge(ge=limit):
                    texts.append(f">= {limit}")
                case Lt(lt=limit):
                    texts.append(f"< {limit}")
                case Le(le=limit):
                    texts.append(f"<= {limit}")
    if texts == [">= 0", "<= 1"]:
        return " from 0 to 1"
    return " " + " and ".join(texts) if texts else ""


def _choices(annotation: Any) -> list[str]:
    return [choice if isinstance(choice, str) else json.dumps(choice) for choice in get_args(annotation)]
