"""Recorded steps, in a file of `slm-lab collect` or a dataset of Minari: learned from without an env."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from slm_lab.agent.memory.batch import Batch
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document, State
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.lib.io import write_bytes

KEY = "slm_lab_steps"
# what a dataset's id in a spec begins with
MINARI = "minari:"
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def save_steps(path: Path, steps: Mapping[str, Array], facts: Document) -> None:
    """Write steps (M, ...) in order, with facts about them."""
    write_bytes(path, save({name: np.ascontiguousarray(steps[name]) for name in FIELDS}, {KEY: json.dumps(facts)}))


def load_minari(where: str) -> ModuleType:
    """The module of Minari's datasets, whose package is optional."""
    try:
        return importlib.import_module("slm_lab.agent.memory.minari_data")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("slm_lab"):
            raise
        raise LabError(f"{where}: {error.name} is not installed; get it with `uv sync --group minari`") from None


def load_steps(source: str | Path) -> tuple[dict[str, Tensor], Document]:
    """Steps (M, ...) and the facts about them, of a file, or of a dataset by `minari:ID` or its folder.

    Nothing in a file is run.
    """
    name, path = str(source), Path(source)
    if name.startswith(MINARI) or path.is_dir():
        steps, facts = load_minari("agent.algorithm.data").read_minari(name.removeprefix(MINARI))
        return {field: torch.from_numpy(np.ascontiguousarray(steps[field])) for field in FIELDS}, facts
    return _load_file(path)


def _load_file(path: Path) -> tuple[dict[str, Tensor], Document]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get(KEY, "null"))
            missing = [name for name in FIELDS if name not in file.keys()]  # noqa: SIM118  it is no dict
            steps = {} if missing else {name: file.get_tensor(name) for name in FIELDS}
    except FileNotFoundError:
        raise SpecError(f"agent.algorithm.data: there is no file {path}; write one with slm-lab collect") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise SpecError(f"agent.algorithm.data: {path} cannot be read: {error}") from None
    if missing or not isinstance(facts, dict):
        lacking = f" (no {', '.join(missing)})" if missing else ""
        raise SpecError(
            f"agent.algorithm.data: {path} holds no recorded steps{lacking}; write some with slm-lab collect"
        )
    if len({len(part) for part in steps.values()}) != 1 or not len(steps["reward"]):
        raise SpecError(f"agent.algorithm.data: {path} is empty, or its parts are of unequal length")
    return steps, facts


class Dataset:
    """Draws batches of recorded steps uniformly; what is drawn depends on the generator alone."""

    def __init__(
        self,
        path: str | Path,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
        gamma: float,
        batch_size: int,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        steps, self.facts = load_steps(path)
        where = f"agent.algorithm.data: {path} is of {self.facts.get('env')}"
        for name, wanted in (("obs", obs_shape), ("next_obs", obs_shape), ("action", action_shape)):
            if tuple(steps[name].shape[1:]) != wanted:
                raise SpecError(f"{where}, whose {name} has shape {list(steps[name].shape[1:])}, not {list(wanted)}")
        if steps["action"].is_floating_point() != action_dtype.is_floating_point:
            raise SpecError(f"{where}, whose actions are of another kind than this env's")
        # for the statistics of a normaliser
        self.obs = steps["obs"]
        self.batch_size = batch_size
        self.generator = generator
        self.size = len(steps["reward"])
        discount = gamma * (1 - steps["terminated"].float())
        parts = {
            "obs": steps["obs"],
            "action": steps["action"].to(action_dtype),
            "reward": steps["reward"].float(),
            "next_obs": steps["next_obs"],
            "discount": discount,
        }
        self.parts = {name: part.to(device) for name, part in parts.items()}
        self.weight = torch.ones(batch_size, device=device)

    def sample(self, frame: int) -> Batch:
        """A batch, with raw observations."""
        device = self.generator.device
        index = torch.randint(self.size, (self.batch_size,), generator=self.generator, device=device)
        drawn = {name: part.index_select(0, index) for name, part in self.parts.items()}
        return Batch(**drawn, weight=self.weight, slot=index)

    def update_priority(self, slot: Tensor, error: Tensor) -> None:
        """Nothing: all steps are drawn alike."""

    def state_dict(self) -> State:
        """Nothing: the file stays where it is."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to take."""
