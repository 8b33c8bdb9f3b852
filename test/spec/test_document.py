"""The reference in docs/SPEC.md and the JSON Schema, both written from the models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from slm_lab.lib.io import dump_yaml
from slm_lab.spec.document import spec_file_schema, spec_reference
from slm_lab.spec.loading import spec_files
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import ALGORITHM_SPECS, MEMORY_SPECS, NET_SPECS, EnvSpec, MetaSpec

# a fresh process, where no other test has registered anything
COMMAND = "import sys; from slm_lab.cli.main import main; sys.argv = ['slm-lab', 'spec', 'schema']; main()"


# --- docs/SPEC.md, which test/docs/test_reference.py holds current


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
        '| `normalize_advantages` | `standardize`, `percentile`, `none` | `"standardize"` |',
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


def test_every_table_of_the_reference_is_whole(reference: str) -> None:
    width = 0
    for line in reference.splitlines():
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width, line
        else:
            width = 0


# --- JSON Schema


def refusals(value: Any, schema: dict[str, Any]) -> list[str]:
    """What a validator says of a document, within all branches of `anyOf` and `oneOf` too."""
    found: list[str] = []
    errors = list(Draft202012Validator(schema).iter_errors(value))
    while errors:
        error = errors.pop()
        found.append(f"{error.json_path}: {error.message}")
        errors += error.context or []
    return found


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return spec_file_schema()


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True)
    printed: dict[str, Any] = json.loads(ran.stdout)
    return printed


def test_the_schemas_are_whole(printed: dict[str, Any], schema: dict[str, Any]) -> None:
    for each in (printed, schema):
        Draft202012Validator.check_schema(each)
    assert printed["type"] == "object"
    assert printed["additionalProperties"]["required"] == ["agent", "env"]
    kinds = {"PPOSpec", "MLPNetSpec", "OnPolicyBatchReplaySpec", "AdamSpec", "ScheduleSpec", "EnvSpec", "MetaSpec"}
    assert kinds <= set(printed["$defs"])
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("which", ["printed", "schema"])
def test_the_schemas_accept_the_shipped_specs(which: str, request: pytest.FixtureRequest) -> None:
    validator = Draft202012Validator(request.getfixturevalue(which))
    documents = [read_document(path) for path in spec_files() if "${" not in path.read_text()]
    assert len(documents) > 20
    for document in documents:
        validator.validate(document)


def demo() -> dict[str, Any]:
    return {
        "agent": {
            "algorithm": {"name": "PPO", "clip_eps_spec": {"start_val": 0.2, "end_val": None}},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "actor_hid_layers": [8], "critic_optim_spec": {"name": "SGD", "lr": 1}},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1e5, "clip_reward": [-1, 1]},
    }


def test_the_schema_accepts_what_the_loader_accepts(schema: dict[str, Any]) -> None:
    arc = {**demo(), "agent": {**demo()["agent"], "net": {"type": "TorchArcNet", "arc_file": "body.yaml"}}}
    encoders = {"a": {"type": "ConvNet", "normalize": True}, "b": {"type": "TorchArcNet", "arc_file": "body.yaml"}}
    net = {"type": "DictNet", "actor_obs_keys": ["a", "b"], "actor_encoders": encoders, "hid_layers": [8]}
    parts = {**demo(), "agent": {**demo()["agent"], "net": net}}
    assert refusals({"_anchors": [1], "demo": demo(), "arc": arc, "parts": parts}, schema) == []
    encoders["a"]["type"] = "RecurrentNet"
    assert refusals({"parts": parts}, schema)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("actor_hid_layers", "actor_hid_layer", "('actor_hid_layer' was unexpected)"),
        ("name: PPO", "name: PP0", "'PPO' was expected"),
        ("max_frame: 100000.0", "max_frame: 1.5", "env.max_frame: 1.5 is not of type 'integer'"),
        ("max_frame: 100000.0", "max_frame: 0", "env.max_frame: 0 is less than or equal to the minimum of 0"),
        ("max_frame: 100000.0", "num_envs: 1", "env: 'max_frame' is a required property"),
        ("start_val", "start_vale", "('start_vale' was unexpected)"),
        ("lr: 1", "lr: true", "lr: True is not of type 'number'"),
        ("[-1, 1]", "[-1, 1, 1]", "clip_reward: [-1, 1, 1] is too long"),
        ("env:", "environment:", "('environment' was unexpected)"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    schema: dict[str, Any], tmp_path: Path, old: str, new: str, line: str
) -> None:
    path = tmp_path / "a.yaml"
    text = dump_yaml({"demo": demo()})
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert any(line in found for found in refusals(read_document(path), schema))
