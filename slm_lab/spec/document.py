"""docs/SPEC.md, written from the schema so that it cannot drift from it."""

import json
import re
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from slm_lab.spec import net as nets
from slm_lab.spec.schema import (
    ALGORITHM_SPECS,
    MEMORY_SPECS,
    NET_SPECS,
    AgentSpec,
    EnvSpec,
    MetaSpec,
    SearchResources,
    SearchScheduler,
    Spec,
)
from slm_lab.spec.search_space import SPACES
from slm_lab.spec.types import ScheduleSpec

_OPTIMIZERS = (nets.AdamSpec, nets.AdamWSpec, nets.RMSpropSpec, nets.SGDSpec, nets.OtherOptimSpec)
_SCHEDULERS = (
    nets.LinearToZeroSpec,
    nets.LinearToMinSpec,
    nets.StepLRSpec,
    nets.MultiStepLRSpec,
    nets.ExponentialLRSpec,
    nets.LinearLRSpec,
    nets.CosineAnnealingLRSpec,
)


def spec_reference() -> str:
    """Every key of a spec with its type, default and meaning, as Markdown."""
    parts = [
        "# Spec reference",
        "Generated from the schema by `slm-lab spec reference`; a test fails when it drifts. "
        "A file holds specs by name; keys beginning with `_` may hold YAML anchors. "
        "`${key}` is filled by `-s key=value`; `-s agent.algorithm.gamma=0.98` sets any key by its dotted path.",
        _section("Top level", Spec, skip=("agent", "env", "meta")),
        _section("env", EnvSpec),
        _section("meta", MetaSpec),
        _section("meta.search_resources", SearchResources),
        _section("meta.search_scheduler", SearchScheduler),
        _section("agent", AgentSpec),
    ]
    for name, algorithm in ALGORITHM_SPECS.items():
        parts.append(_section(f"agent.algorithm: {name}", algorithm))
    for name, memory in MEMORY_SPECS.items():
        parts.append(_section(f"agent.memory: {name}", memory))
    for name, net in NET_SPECS.items():
        parts.append(_section(f"agent.net: {name}", net))
    parts.append(
        "Any net key may carry the prefix `actor_` or `critic_` to hold for that net alone, e.g. `actor_optim_spec`."
    )
    for optimizer in _OPTIMIZERS:
        parts.append(_section(f"optim_spec: {_names(optimizer)}", optimizer))
    for scheduler in _SCHEDULERS:
        parts.append(_section(f"lr_scheduler_spec: {_names(scheduler)}", scheduler))
    parts.append(_section("A value over time", ScheduleSpec))
    parts.append("Wherever a schedule is taken, a plain number is too.")
    spaces = "\n".join(f"- `{name}`: {count or 'any number of'} arguments" for name, count in SPACES.items())
    parts.append(f"## search\n\n`path__space: arguments`, flat or nested. Spaces:\n\n{spaces}")
    return "\n\n".join(parts) + "\n"


def _names(model: type[BaseModel]) -> str:
    return re.sub(r"[\"']", "", _type(model.model_fields["name"])).replace(" | ", ", ").replace(r" \| ", ", ")


def _section(title: str, model: type[BaseModel], skip: tuple[str, ...] = ()) -> str:
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field)} | {field.description or ''} |"
        for name, field in model.model_fields.items()
        if name not in skip
    ]
    intro = (model.__doc__ or "").strip().splitlines()[0]
    return f"## {title}\n\n{intro}\n\n| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default: Any = field.default
    if default is PydanticUndefined:
        return ""
    if isinstance(default, BaseModel):
        default = default.model_dump(mode="json")
        default = {key: default[key] for key in ("name", "lr") if key in default} or default
    return f"`{json.dumps(default)}`"


def _type(field: FieldInfo) -> str:
    text = str(field.annotation) if not isinstance(field.annotation, type) else field.annotation.__name__
    text = re.sub(r"typing\.|slm_lab\.spec\.\w+\.|<class '|'>", "", text)
    literals = re.findall(r"Literal\[([^\]]*)\]", text)
    if literals:
        shown = " | ".join(part.strip() for part in literals[0].split(","))
        text = shown + (" | null" if "None" in text else "")
    text = re.sub(r"Annotated\[(\w+)[^\]]*\]", r"\1", text)
    for model, name in (("ScheduleSpec", "schedule"), ("NoneType", "null"), ("None", "null")):
        text = text.replace(model, name)
    if "Tag(" in text or "schedule" in text:
        text = "number | schedule" + (" | null" if "null" in text else "")
    text = re.sub(r", (FieldInfo|BeforeValidator|Strict|Discriminator|Gt|Ge|Le|Lt)\(.*", "", text)
    text = re.sub(r"tuple\[.*", "list", text) if text.startswith("tuple") else text
    if "AdamSpec" in text:
        text = "optim_spec"
    if "LinearToZeroSpec" in text:
        text = "lr_scheduler_spec | null"
    return text.replace("|", "\\|")
