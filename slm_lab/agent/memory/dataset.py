"""Recorded steps for learning without an env: a file of `slm-lab collect`, or a Minari dataset."""

import hashlib
import importlib
import json
from collections.abc import Collection, Mapping
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
from slm_lab.lib.errors import CheckpointError, LabError, SpecError
from slm_lab.lib.io import write_bytes
from slm_lab.spec.reader import printable

KEY = "slm_lab_steps"
# prefix of a dataset's id in a spec
MINARI = "minari:"
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def save_steps(path: Path, steps: Mapping[str, Array], facts: Document) -> None:
    """Write steps (M, ...) in order, with facts about the recording."""
    write_bytes(path, save({name: np.ascontiguousarray(steps[name]) for name in FIELDS}, {KEY: json.dumps(facts)}))


def load_minari(where: str) -> ModuleType:
    """Import the module for Minari datasets, whose package is optional."""
    try:
        return importlib.import_module("slm_lab.agent.memory.minari_data")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("slm_lab"):
            raise
        raise LabError(f"{where}: {error.name} is not installed; get it with `uv sync --group minari`") from None


def load_steps(source: str | Path, needs: Collection[str] = FIELDS) -> tuple[dict[str, Tensor], Document]:
    """Read steps (M, ...) and facts about them from a file, or from a dataset by `minari:ID` or its folder.

    A file must have the fields in `needs`. Nothing in it is executed.
    """
    name, path = str(source), Path(source)
    if name.startswith(MINARI) or path.is_dir():
        steps, facts = load_minari("agent.algorithm.data").read_minari(name.removeprefix(MINARI))
        return {field: torch.from_numpy(np.ascontiguousarray(steps[field])) for field in FIELDS}, facts
    return _load_file(path, needs)


def _load_file(path: Path, needs: Collection[str]) -> tuple[dict[str, Tensor], Document]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get(KEY, "null"))
            steps = {name: file.get_tensor(name) for name in FIELDS if name in file.keys()}  # noqa: SIM118  it is no dict
    except FileNotFoundError:
        raise SpecError(f"agent.algorithm.data: there is no file {path}; write one with slm-lab collect") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise SpecError(f"agent.algorithm.data: {path} cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise SpecError(f"agent.algorithm.data: {path} holds no recorded steps; write some with slm-lab collect")
    if missing := [name for name in needs if name not in steps]:
        raise SpecError(
            f"agent.algorithm.data: {path} has no {' and no '.join(missing)}; write the steps with slm-lab collect"
        )
    if len({part.shape[:1] for part in steps.values()}) != 1 or not steps["obs"].numel():
        raise SpecError(f"agent.algorithm.data: {path} is empty, or its parts are of unequal length")
    return steps, facts


def _find_not_finite(part: Tensor) -> int | None:
    """The first step with a number that is not finite."""
    if not part.is_floating_point():
        return None
    is_finite = part.isfinite().reshape(len(part), -1).all(1)
    return None if is_finite.all() else int(is_finite.logical_not().nonzero()[0])


class Dataset:
    """Samples batches of recorded steps uniformly; samples depend only on the generator."""

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
        needs: Collection[str] = FIELDS,
    ) -> None:
        self.path = path
        steps, self.facts = load_steps(path, needs)
        where = f"agent.algorithm.data: {path} is of {printable(str(self.facts.get('env')))}"
        wanted = {"obs": obs_shape, "next_obs": obs_shape, "action": action_shape}
        for name, part in steps.items():
            if name not in wanted and part.dim() != 1:
                raise SpecError(f"{where}, whose {name} has shape {list(part.shape)}; one number per step expected")
            shape, expected = list(part.shape[1:]), list(wanted.get(name, ()))
            if shape != expected:
                raise SpecError(f"{where}, whose {name} has shape {shape}, not {expected}; use steps of this env")
        if steps["action"].is_floating_point() != action_dtype.is_floating_point:
            raise SpecError(f"{where}, whose actions are of another kind than this env's; use steps of this env")
        for name in needs:
            if (row := _find_not_finite(steps[name])) is not None:
                raise SpecError(
                    f"agent.algorithm.data: {name} of step {row} in {path} is not finite; leave the step out"
                )
        # for the statistics of a normaliser
        self.obs = steps["obs"]
        self.batch_size = batch_size
        self.generator = generator
        self.size = len(steps["obs"])
        # a file may lack fields that the algorithm does not need
        none = torch.zeros(self.size)
        steps = {"reward": none, "terminated": none, "next_obs": steps["obs"], **steps}
        discount = gamma * (1 - steps["terminated"].float())
        parts = {
            "obs": steps["obs"],
            "action": steps["action"].to(action_dtype),
            "reward": steps["reward"].float(),
            "next_obs": steps["next_obs"],
            "discount": discount,
        }
        self.digest = _calc_digest(parts)
        self.parts = {name: part.to(device) for name, part in parts.items()}
        self.weight = torch.ones(batch_size, device=device)

    def __str__(self) -> str:
        env, score = printable(str(self.facts.get("env"))), self.facts.get("mean_return")
        mean = f" with a mean return of {score:.2f}" if isinstance(score, int | float) else ""
        num_bytes = sum(part.numel() * part.element_size() for part in self.parts.values())
        return f"{self.size:,} recorded steps of {env}{mean}: {num_bytes / 1e6:,.1f} MB of memory per session"

    def sample(self, frame: int) -> Batch:
        """A batch, with raw observations."""
        device = self.generator.device
        index = torch.randint(self.size, (self.batch_size,), generator=self.generator, device=device)
        drawn = {name: part.index_select(0, index) for name, part in self.parts.items()}
        return Batch(**drawn, weight=self.weight, slot=index)

    def update_priority(self, slot: Tensor, error: Tensor) -> None:
        """Ignored, since sampling is uniform."""

    def state_dict(self) -> State:
        """A digest that identifies the steps; they stay in their file."""
        return {"digest": self.digest}

    def load_state_dict(self, state: State) -> None:
        """Refuse to resume with other steps; states of older versions have no digest."""
        if state.get("digest", self.digest) != self.digest:
            raise CheckpointError(
                f"agent.algorithm.data: {self.path} has changed since the run began; put the old steps back, or start "
                "a new run"
            )


def _calc_digest(parts: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()
