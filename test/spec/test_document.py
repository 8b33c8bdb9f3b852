"""The reference in docs/SPEC.md and the JSON Schema, both written from the models."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from slm_lab.lib.io import dump_yaml
from slm_lab.spec.document import spec_file_schema, spec_reference
from slm_lab.spec.loading import spec_files
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS, EnvSpec, MetaSpec

REPOSITORY = Path(__file__).parents[2]
COMMAND = "import sys; from slm_lab.cli.main import main; sys.argv = ['slm-lab', 'spec', '{}']; main()"


def command(name: str) -> str:
    """What `slm-lab spec NAME` prints in a fresh process, where no other test has registered anything."""
    ran = subprocess.run([sys.executable, "-c", COMMAND.format(name)], capture_output=True, text=True, check=True)
    return ran.stdout


# --- docs/SPEC.md


def test_the_reference_in_docs_is_what_the_schema_says() -> None:
    printed = command("reference")
    assert printed.startswith("# Spec reference\n")
    assert (REPOSITORY / "docs/SPEC.md").read_text() == printed, "run: slm-lab spec reference > docs/SPEC.md"


@pytest.fixture(scope="module")
def reference() -> str:
    return spec_reference()


def test_the_reference_names_every_key(reference: str) -> None:
    kinds: list[type[BaseModel]] = [
        EnvSpec,
        MetaSpec,
        *ALGORITHM_SPECS.values(),
        *MEMORY_SPECS.values(),
        *NET_SPECS.values(),
    ]
    for model in kinds:
        for key in model.model_fields:
            assert f"| `{key}` |" in reference
    for name in (*ALGORITHM_SPECS, *MEMORY_SPECS):
        assert f"### name: {name}\n" in reference
    for name in NET_SPECS:
        assert f"### type: {name}\n" in reference


@pytest.mark.parametrize(
    "row",
    [
        "| `num_envs` | whole number > 0 | `1` |",
        "| `max_t` | whole number > 0 or null | `null` |",
        "| `max_frame` | whole number > 0 | required |",
        "| `clip_reward` | number > 0 or [number, number] or null | `null` |",
        "| `normalize_obs` | true/false | `false` |",
        "| `kwargs` | mapping | `{}` |",
        "| `meta` | [mapping](#meta) | its own defaults |",
        "| `gamma` | number from 0 to 1 | `0.99` |",
        "| `clip_eps_spec` | number or [schedule](#schedule) | `0.2` |",
        "| `target_kl` | number > 0 or null | `null` |",
        '| `normalize_advantages` | `standardize`, `percentile` | `"standardize"` |',
        "| `hid_layers` | list of whole numbers > 0 | `[64, 64]` |",
        "| `conv_hid_layers` | list of lists of whole numbers >= 0 | `[[32, 8, 4, 0, 1], ",
        '| `optim_spec` | [mapping](#optim_spec) | `{"name": "Adam", "lr": 0.001}` |',
        "| `betas` | [number >= 0 and < 1, number >= 0 and < 1] | `[0.9, 0.999]` |",
        "| `start_factor` | number > 0 and <= 1 | `0.3333` |",
        "| `quniform` | `[low, high, step]` |",
    ],
)
def test_types_and_defaults_read_as_words(reference: str, row: str) -> None:
    assert row in reference


def test_the_reference_shows_nothing_of_python(reference: str) -> None:
    for trace in ("typing", "Optional", "Union[", "Annotated", "FieldInfo", "NoneType", "Spec]", "<class", "Ellipsis"):
        assert trace not in reference


def test_every_link_of_the_reference_leads_to_a_heading(reference: str) -> None:
    # GitHub's rule: lower case, without punctuation, spaces become dashes
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in headings_of(reference)}
    links = set(re.findall(r"\]\(#([^)]*)\)", reference))
    assert links
    assert links <= headings


def headings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_every_table_of_the_reference_is_whole(reference: str) -> None:
    width = 0
    for line in reference.splitlines():
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width, line
        else:
            width = 0


# --- JSON Schema


def resolve(schema: dict[str, Any], reference: str) -> dict[str, Any]:
    assert reference.startswith("#/$defs/")
    node = schema["$defs"][reference.removeprefix("#/$defs/")]
    assert isinstance(node, dict)
    return node


KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "null": (type(None),),
}


def has_kind(value: object, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
    return isinstance(value, KINDS[kind]) and not (kind == "number" and isinstance(value, bool))


def refusals(value: Any, node: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    """A small JSON Schema validator: the words that our schema uses, and a failure for any other."""
    known = {"$ref", "type", "enum", "const", "anyOf", "oneOf", "properties", "additionalProperties", "required"}
    known |= {
        "patternProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "pattern",
        "minLength",
        "discriminator",
    }
    known |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    known |= {"title", "description", "default", "$defs", "$schema"}
    assert set(node) <= known, set(node) - known
    if "$ref" in node:
        return refusals(value, resolve(schema, node["$ref"]), schema, path)
    for word in ("anyOf", "oneOf"):
        if word in node:
            options = [refusals(value, option, schema, path) for option in node[word]]
            fit = sum(not option for option in options)
            if fit == 0 or (word == "oneOf" and fit > 1):
                return [f"{path}: fits {fit} of {word}", *(line for option in options for line in option)]
    found = []
    if "type" in node and not has_kind(value, node["type"]):
        return [f"{path}: not a {node['type']}"]
    found += [f"{path}: not in {node['enum']}"] if "enum" in node and value not in node["enum"] else []
    found += [f"{path}: not {node['const']}"] if "const" in node and value != node["const"] else []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        inside = node.get("minimum", value) <= value <= node.get("maximum", value)
        inside = inside and ("exclusiveMinimum" not in node or value > node["exclusiveMinimum"])
        inside = inside and ("exclusiveMaximum" not in node or value < node["exclusiveMaximum"])
        found += [] if inside else [f"{path}: outside the bounds"]
    if isinstance(value, dict):
        found += object_refusals(value, node, schema, path)
    if isinstance(value, list):
        firsts = node.get("prefixItems", [])
        for index, item in enumerate(value):
            item_schema = firsts[index] if index < len(firsts) else node.get("items", {})
            found += refusals(item, item_schema, schema, f"{path}[{index}]")
        if not node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value)):
            found.append(f"{path}: wrong number of items")
    return found


def object_refusals(value: dict[str, Any], node: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}.{key}: missing" for key in node.get("required", []) if key not in value]
    for key, item in value.items():
        patterns = [inner for pattern, inner in node.get("patternProperties", {}).items() if re.search(pattern, key)]
        inner = node.get("properties", {}).get(key) or (
            patterns[0] if patterns else node.get("additionalProperties", {})
        )
        if inner is False:
            found.append(f"{path}.{key}: unknown key")
        elif isinstance(inner, dict):
            found += refusals(item, inner, schema, f"{path}.{key}")
    return found


def check_references(schema: dict[str, Any]) -> int:
    """Follow every reference of a schema; how many there are."""
    count = 0
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "$ref" in node:
                resolve(schema, node["$ref"])
                count += 1
            for target in node.get("discriminator", {}).get("mapping", {}).values():
                resolve(schema, target)
            stack += [item for key, item in node.items() if key not in ("default", "discriminator")]
        elif isinstance(node, list):
            stack += node
    return count


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    schema = json.loads(command("schema"))
    assert isinstance(schema, dict)
    return schema


def test_the_printed_schema_is_whole(printed: dict[str, Any]) -> None:
    assert printed["type"] == "object"
    assert printed["additionalProperties"]["required"] == ["agent", "env"]
    assert check_references(printed) > 10
    kinds = {"PPOSpec", "MLPNetSpec", "OnPolicyBatchReplaySpec", "AdamSpec", "ScheduleSpec", "EnvSpec", "MetaSpec"}
    assert kinds <= set(printed["$defs"])


def test_the_schema_of_a_file_is_whole() -> None:
    schema = spec_file_schema()
    assert check_references(schema) > 10
    assert json.loads(json.dumps(schema)) == schema


def shipped() -> list[Path]:
    return [path for path in spec_files() if "${" not in path.read_text()]


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.name)
def test_the_schema_of_a_file_accepts_the_shipped_specs(path: Path) -> None:
    schema = spec_file_schema()
    assert refusals(read_document(path), schema, schema) == []


def test_the_printed_schema_accepts_the_shipped_specs(printed: dict[str, Any]) -> None:
    for path in shipped():
        assert refusals(read_document(path), printed, printed) == []


def demo() -> dict[str, Any]:
    return {
        "agent": {
            "algorithm": {"name": "PPO", "clip_eps_spec": {"start_val": 0.2, "end_val": None}},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "actor_hid_layers": [8], "critic_optim_spec": {"name": "SGD", "lr": 1}},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1e5, "clip_reward": [-1, 1]},
    }


def test_the_schema_accepts_what_the_loader_accepts() -> None:
    schema = spec_file_schema()
    arc = {**demo(), "agent": {**demo()["agent"], "net": {"type": "TorchArcNet", "arc_file": "body.yaml"}}}
    encoders = {"a": {"type": "ConvNet", "normalize": True}, "b": {"type": "TorchArcNet", "arc_file": "body.yaml"}}
    net = {"type": "DictNet", "actor_obs_keys": ["a", "b"], "actor_encoders": encoders, "hid_layers": [8]}
    parts = {**demo(), "agent": {**demo()["agent"], "net": net}}
    assert refusals({"_anchors": [1], "demo": demo(), "arc": arc, "parts": parts}, schema, schema) == []
    encoders["a"]["type"] = "RecurrentNet"
    assert refusals({"parts": parts}, schema, schema)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("actor_hid_layers", "actor_hid_layer", "actor_hid_layer: unknown key"),
        ("name: PPO", "name: PP0", "name: not PPO"),
        ("max_frame: 100000.0", "max_frame: 1.5", ".demo.env.max_frame: not a integer"),
        ("max_frame: 100000.0", "max_frame: 0", ".demo.env.max_frame: outside the bounds"),
        ("max_frame: 100000.0", "num_envs: 1", ".demo.env.max_frame: missing"),
        ("start_val", "start_vale", "start_vale: unknown key"),
        ("lr: 1", "lr: true", "lr: not a number"),
        ("[-1, 1]", "[-1, 1, 1]", "clip_reward: wrong number of items"),
        ("env:", "environment:", ".demo.environment: unknown key"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = tmp_path / "a.yaml"
    text = dump_yaml({"demo": demo()})
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    schema = spec_file_schema()
    assert any(found.endswith(line) for found in refusals(read_document(path), schema, schema))
