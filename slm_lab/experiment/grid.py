"""The runs of an experiment file, their folders, and what is left to train of each."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from slm_lab.experiment.growth import GROWING, grow, save_growth
from slm_lab.experiment.launch import check_known_to_processes, prepare, write_origin
from slm_lab.experiment.options import Options
from slm_lab.lib.data import ReadOnlyDocument
from slm_lab.lib.errors import LabError, RunFolderError, SpecError
from slm_lab.results.folder import RunFolder, save_spec
from slm_lab.results.run import name_algorithm
from slm_lab.spec.grid import ExperimentSpec, SpecEntry, load_specs, slug
from slm_lab.spec.loading import (
    Loaded,
    dump_spec,
    flatten_spec,
    load_spec,
    name_for_env,
)
from slm_lab.spec.schema import Spec


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a spec on an env."""

    label: str
    spec: Spec
    folder: RunFolder

    @property
    def title(self) -> str:
        """The name of the run in messages."""
        return f"{self.label} on {self.spec.env.name}"


def build_cells(experiment: ExperimentSpec, path: Path, root: Path, changes: ReadOnlyDocument) -> list[Cell]:
    """Every run of an experiment, with its spec; `changes` are those of the command line."""
    found = list(load_specs(experiment, path, changes))
    algorithms = [name_algorithm(dump_spec(loaded.spec)[loaded.spec.name]) for _, loaded in found]
    # if several entries have the same algorithm, the names of their specs tell them apart
    entries: dict[str, set[int]] = {}
    for (entry, _), algorithm in zip(found, algorithms, strict=True):
        entries.setdefault(algorithm, set()).add(id(entry))
    cells = []
    for (entry, loaded), algorithm in zip(found, algorithms, strict=True):
        spec = loaded.spec
        label = entry.label or (algorithm if len(entries[algorithm]) == 1 else _base_name(entry, loaded))
        suffix = name_for_env("", spec.env.name).strip("_")
        folder = RunFolder(root / f"{slug(label)}_{suffix}", spec.name)
        # a run that was the only one of its algorithm keeps its folder when another spec joins
        former = RunFolder(root / f"{slug(algorithm)}_{suffix}", spec.name)
        if entry.label is None and former.spec_file.exists() and not folder.path.exists():
            folder = former
        cells.append(Cell(label, spec, folder))
    counts = Counter(cell.folder.path for cell in cells)
    for cell in cells:
        if counts[cell.folder.path] > 1:
            raise SpecError(f"{path}: {cell.title} is there twice; give the runs different labels")
    return cells


def _base_name(entry: SpecEntry, loaded: Loaded) -> str:
    return entry.spec.rpartition(":")[2] if isinstance(entry.spec, str) else loaded.spec.name


@dataclass(frozen=True)
class Plan:
    """A run with its new spec, and its saved spec if it has begun."""

    cell: Cell
    saved: Spec | None = None

    def write(self, options: Options) -> None:
        """Give a new run its folder, or a longer one its new spec."""
        cell, folder = self.cell, self.cell.folder
        if self.saved is None:
            folder.path.mkdir(parents=True, exist_ok=True)
            save_spec(folder.trial_spec_file(0), cell.spec)
            # last, because it marks the run as begun
            write_origin(cell.spec, folder, options)
        elif cell.spec != self.saved:
            save_growth(folder, self.saved, cell.spec, None)
            save_spec(folder.trial_spec_file(0), cell.spec)


def check_cell(cell: Cell, options: Options) -> Plan:
    """Check that a run can be trained; one that has begun must have the same spec, apart from its length."""
    try:
        if not cell.folder.spec_file.exists():
            if others := sorted(cell.folder.path.glob("*_spec.yaml")):
                raise RunFolderError(
                    f"{cell.folder.path} has a run of another spec, {others[0].name.removesuffix('_spec.yaml')}; give "
                    "this run another label, or the experiment another name"
                )
            check_known_to_processes(cell.spec, options)
            return Plan(replace(cell, spec=prepare(cell.spec, place=cell.folder.path)[0]))
        saved = load_spec(cell.folder.spec_file, cell.folder.name).spec
    except LabError as error:
        raise type(error)(f"{cell.title}: {error}") from None
    there, here = (flatten_spec(dump_spec(spec)[spec.name]) for spec in (saved, cell.spec))
    changed = {key: here.get(key) for key in {**here, **there} if here.get(key) != there.get(key)}
    # values that are decided when a run begins or grows, so the saved spec has others
    decided = {"meta.compile": "auto", "meta.eval_frequency": None}
    changed = {key: value for key, value in changed.items() if key not in decided or value != decided[key]}
    if not changed:
        return Plan(replace(cell, spec=saved), saved)
    try:
        return Plan(replace(cell, spec=grow(cell.folder, saved, changed, None)), saved)
    except SpecError:
        key = next((key for key in changed if key not in GROWING), next(iter(changed)))
        raise RunFolderError(
            f"{cell.title}: {cell.folder.path} was trained with {key} {there.get(key)}, the experiment has "
            f"{here.get(key)}; give this run another label, or the experiment another name"
        ) from None
