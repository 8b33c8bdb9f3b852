"""Sinks for the rows of a session: TensorBoard, Weights & Biases, MLflow and trackio."""

import hashlib
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from loguru import logger

from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec, flatten_spec
from slm_lab.spec.schema import SINKS, Spec

# name of the project, unless an environment variable of the service sets another
PROJECT = "slm-lab"
TIME_COLUMNS = ("fps", "wall_t", "t", "epi", "opt_step")


class Sink(Protocol):
    """Receives rows; a sink that raises an error is dropped, and training continues."""

    title: str

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Write a row without blocking the training."""

    def close(self) -> None:
        """Send what is left, within seconds."""


def build_sinks(spec: Spec, folder: RunFolder, trial: int, session: int, next_frame: int = 0) -> list[Sink]:
    """The sinks that a spec asks for; in a resumed session they replace rows from `next_frame` on."""
    sinks: list[Sink] = []
    if spec.meta.tensorboard:
        # the import takes half a second
        module: Any = importlib.import_module("slm_lab.experiment.tensorboard_sink")
        path = folder.log_file(trial, session).with_suffix("")
        sinks.append(module.TensorBoardSink(path, next_frame, list_hyperparameters(spec)))
    return [*sinks, *(kind(spec, folder, trial, session) for kind in _find_optional(spec))]


def check_sinks(spec: Spec) -> None:
    """Raise an error for a missing package, before anything is written."""
    _find_optional(spec)


def list_hyperparameters(spec: Spec) -> dict[str, str | float]:
    """The spec by dotted paths, without unset keys; values are numbers or text, others as JSON."""
    flat = flatten_spec(dump_spec(spec)[spec.name])
    return {
        key: value if isinstance(value, str | float | int) else json.dumps(value)
        for key, value in flat.items()
        if value is not None
    }


def calc_run_id(group: str, trial: int, session: int, seed: int) -> str:
    """An id that stays when a session resumes; the seed tells apart runs that machines start in the same second."""
    return hashlib.sha256(f"{group}/t{trial}/s{session}/{seed}".encode()).hexdigest()[:16]


def group_row(kind: Literal["train", "eval"], row: Mapping[str, float]) -> dict[str, float]:
    """A row as sinks expect it: known values in the groups train, eval and time, without the frame."""
    known = {name: value for name, value in row.items() if name != "frame" and not math.isnan(value)}
    if kind == "eval":
        # the others repeat those of the training row
        return {f"eval/{name}": value for name, value in known.items() if name not in (*TIME_COLUMNS, "lr")}
    return {f"{'time' if name in TIME_COLUMNS else 'train'}/{name}": value for name, value in known.items()}


def write_row(sinks: list[Sink], row: Mapping[str, float], frame: int) -> None:
    """Write a row to every sink; drop a sink that fails, with a warning."""
    for sink in list(sinks):
        try:
            sink.write(row, frame)
        except Exception as error:  # whatever is wrong with a sink, training goes on
            sinks.remove(sink)
            _warn(sink, f"no rows from frame {frame} on, training continues without", error)
            _close(sink)


def close_sinks(sinks: list[Sink]) -> None:
    """Close every sink."""
    while sinks:
        sink = sinks.pop()
        error = _close(sink)
        if error is not None:
            _warn(sink, "the last rows may be missing there", error)


def _close(sink: Sink) -> Exception | None:
    try:
        sink.close()
    except Exception as error:  # as above
        return error
    return None


def _warn(sink: Sink, what: str, error: Exception) -> None:
    # messages of other libraries may have many lines
    reason = " ".join(str(error).split()) or type(error).__name__
    logger.warning(f"{sink.title}: {what}: {reason}")


def _find_optional(spec: Spec) -> list[Any]:
    """The classes of the sinks with optional packages that a spec asks for."""
    asked = spec.meta.model_dump()
    kinds = []
    for name in SINKS:
        # TensorBoard is always installed
        if name == "tensorboard" or not asked[name]:
            continue
        try:
            module: Any = importlib.import_module(f"slm_lab.experiment.{name}_sink")
        except ImportError as error:
            # any ImportError: the folder wandb/ that W&B leaves beside scripts can be imported as an empty package
            if error.name != name:
                raise
            raise LabError(f"meta.{name}: {name} is not installed; get it with `uv sync --group {name}`") from None
        kinds.append(vars(module)[f"{name.title()}Sink"])
    return kinds
