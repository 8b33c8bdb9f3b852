"""Experiment files: several specs on several envs with several seeds, as one unit."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import SUFFIXES
from slm_lab.spec.problem import describe_all, refuse
from slm_lab.spec.reader import kind_of, read_document
from slm_lab.spec.types import Model, PositiveInt, Str

KEY = "experiment"


class SpecEntry(Model):
    """A spec of the grid."""

    spec: Str | Document = Field(
        description="Shipped spec, `file.yaml`, `file.yaml:name` (beside the experiment file), or a spec itself."
    )
    label: Str | None = Field(None, min_length=1, description="Its name in tables and figures; null: the algorithm's.")
    set: Document = Field({}, description="Keys to change, by dotted path.")


class EnvEntry(Model):
    """An env of the grid."""

    name: Str = Field(min_length=1, description="The env.")
    set: Document = Field({}, description="Keys to change in this env, by dotted path.")


class RunEntry(SpecEntry):
    """A run beside the grid."""

    env: Str | None = Field(None, description="The env; null: the spec's own.")
    seeds: PositiveInt | None = Field(None, description="Number of sessions; null: as in the grid.")


def _entry(key: str) -> BeforeValidator:
    """Text stands for a mapping with one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class ExperimentSpec(Model):
    """Every spec on every env, each with the same number of sessions; and runs beside that grid."""

    name: Str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$",
        description="Name of its folder; null: that of the file.",
    )
    specs: tuple[Annotated[SpecEntry, _entry("spec")], ...] = Field((), description="Specs of the grid.")
    envs: tuple[Annotated[EnvEntry, _entry("name")], ...] = Field(
        (), description="Envs of the grid; empty: each spec's own."
    )
    runs: tuple[RunEntry, ...] = Field((), description="Runs beside the grid, one by one.")
    seeds: PositiveInt = Field(4, description="Sessions of each run.")
    set: Document = Field({}, description="Keys to change in every run, by dotted path.")

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        if not self.specs and not self.runs:
            raise ValueError("specs: give at least one spec, e.g. [ppo_cartpole]")
        return self


def is_experiment_file(source: str) -> bool:
    """Whether a file is an experiment rather than specs."""
    path = Path(source)
    return path.suffix in SUFFIXES and path.is_file() and KEY in read_document(path)


def read_experiment(path: Path) -> ExperimentSpec:
    """The experiment of a file; all mistakes are reported at once."""
    document = read_document(path)
    others = [key for key in document if key != KEY and not key.startswith("_")]
    if others:
        raise SpecError(f"{path}: '{others[0]}' beside `{KEY}`; give specs in a file of their own, or under specs")
    return parse_experiment(document[KEY], str(path))


def parse_experiment(raw: Any, where: str) -> ExperimentSpec:
    """Plain data as an experiment."""
    if not isinstance(raw, dict):
        raise SpecError(f"{where}: `{KEY}` is {kind_of(raw)}, a mapping expected")
    try:
        return ExperimentSpec.model_validate(raw)
    except ValidationError as error:
        refuse(describe_all(error, ExperimentSpec, raw), where, {})
        raise
