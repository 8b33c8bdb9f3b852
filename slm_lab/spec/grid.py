"""Experiment files: several specs on several envs with several seeds, as one unit."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.spec.loading import EXPERIMENT, SUFFIXES, Loaded, find_placeholders, load_spec, locate, resolve_spec
from slm_lab.spec.problem import describe_all, refuse
from slm_lab.spec.reader import kind_of, read_document
from slm_lab.spec.types import Model, PositiveInt, Str


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
    return path.suffix in SUFFIXES and path.is_file() and EXPERIMENT in read_document(path)


def read_experiment(path: Path) -> ExperimentSpec:
    """The experiment of a file; all mistakes are reported at once."""
    document = read_document(path)
    if EXPERIMENT not in document:
        raise SpecError(f"{path} is no experiment: the key `{EXPERIMENT}` is missing")
    others = [key for key in document if key != EXPERIMENT and not key.startswith("_")]
    if others:
        found = f"'{others[0]}' beside `{EXPERIMENT}`"
        raise SpecError(f"{path}: {found}; give specs in a file of their own, or under specs")
    return parse_experiment(document[EXPERIMENT], str(path))


def parse_experiment(raw: Any, where: str) -> ExperimentSpec:
    """Plain data as an experiment."""
    if not isinstance(raw, dict):
        raise SpecError(f"{where}: `{EXPERIMENT}` is {kind_of(raw)}, a mapping expected")
    try:
        return ExperimentSpec.model_validate(raw)
    except ValidationError as error:
        refuse(describe_all(error, ExperimentSpec, raw), where, {})
        raise


# keys to set, each with its value and how it is written
Layer = Mapping[str, tuple[Any, str]]


class GridRun(NamedTuple):
    """A run of an experiment: the entry it is from, its env if the experiment names one, and all keys to set."""

    entry: SpecEntry
    env: str | None
    # where the file names the env
    env_written: str
    given: Layer

    @property
    def title(self) -> str:
        """As messages name it."""
        told = self.entry.label or (self.entry.spec if isinstance(self.entry.spec, str) else "inline spec")
        return f"{told}{'' if self.env is None else f' on {self.env}'}"

    def load(self, path: Path) -> Loaded:
        """Its spec; `path` is the experiment file."""
        try:
            return self._load(path)
        except LabError as error:
            raise SpecError(f"{path}: {self.title}: {error}") from None

    def _load(self, path: Path) -> Loaded:
        entry, env, env_written, given = self
        spec = entry.spec
        source, name = _split(spec, path) if isinstance(spec, str) else ("", None)
        if env is not None:
            has_place = isinstance(spec, str) and "env" in find_placeholders(source, locate(source, name)[1])
            given = {**given, "env" if has_place else "env.name": (env, env_written)}
        overrides = {key: value for key, (value, _) in given.items()}
        written = {key: text for key, (_, text) in given.items()}
        if isinstance(spec, str):
            return load_spec(source, name, overrides, written=written)
        name = str(spec.get("name") or (entry.label and slug(entry.label)) or "inline")
        raw = {key: value for key, value in spec.items() if key != "name"}
        return resolve_spec(raw, name, path, overrides, written=written)


def list_runs(experiment: ExperimentSpec, changes: ReadOnlyDocument) -> Iterator[GridRun]:
    """Every run of an experiment; `changes` are those of the command line."""
    seeds: Layer = {"meta.max_session": (experiment.seeds, f"{EXPERIMENT}.seeds")}
    common = _read_set(experiment.set, EXPERIMENT)
    asked: Layer = {key: (value, f"-s {key}") for key, value in changes.items()}
    for index, entry in enumerate(experiment.specs):
        own = _read_set(entry.set, f"{EXPERIMENT}.specs[{index}]")
        if not experiment.envs:
            yield GridRun(entry, None, "", _layer(seeds, common, own, asked))
        for number, env in enumerate(experiment.envs):
            place = f"{EXPERIMENT}.envs[{number}]"
            given = _layer(seeds, common, _read_set(env.set, place), own, asked)
            yield GridRun(entry, env.name, f"{place}.name", given)
    for index, run in enumerate(experiment.runs):
        place = f"{EXPERIMENT}.runs[{index}]"
        count = seeds if run.seeds is None else {"meta.max_session": (run.seeds, f"{place}.seeds")}
        yield GridRun(run, run.env, f"{place}.env", _layer(count, common, _read_set(run.set, place), asked))


def _read_set(given: ReadOnlyDocument, place: str) -> Layer:
    """The keys under `set` at a place in the file."""
    return {key: (value, f"{place}.set.{key}") for key, value in given.items()}


def _layer(*layers: Layer) -> Layer:
    """The keys of all layers in the order they are set: a mapping replaces what an earlier layer set below it."""
    given: dict[str, tuple[Any, str]] = {}
    for layer in layers:
        for key, value in layer.items():
            given.pop(key, None)
            given[key] = value
    return given


def load_specs(experiment: ExperimentSpec, path: Path, changes: ReadOnlyDocument) -> Iterator[tuple[SpecEntry, Loaded]]:
    """The spec of every run, with the entry it is from."""
    return ((run.entry, run.load(path)) for run in list_runs(experiment, changes))


def _split(text: str, path: Path) -> tuple[str, str | None]:
    """The file or shipped spec that is named, and the spec in that file; own files are looked for beside `path`."""
    source, sign, name = text.rpartition(":")
    if not sign or Path(source).suffix not in SUFFIXES:
        source, name = text, ""
    beside = path.parent / source
    return str(beside) if Path(source).suffix in SUFFIXES and beside.is_file() else source, name or None


def slug(text: str) -> str:
    """Text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower() or "run"
