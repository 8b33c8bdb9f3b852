"""Where the rows of a session go beside its tables: TensorBoard and Weights & Biases."""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from loguru import logger

from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec


class Sink(Protocol):
    """Takes rows as they come; an error it raises is the end of the sink, not of the training."""

    title: str

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Take a row, without making training wait."""

    def close(self) -> None:
        """Hand over what is left, within seconds."""


def build_sinks(spec: Spec, folder: RunFolder, trial: int, session: int, next_frame: int = 0) -> list[Sink]:
    """The sinks that a spec asks for; what they know from `next_frame` on is to be replaced."""
    sinks: list[Sink] = []
    if spec.meta.tensorboard:
        # half a second to import, which runs without it are spared
        module: Any = importlib.import_module("slm_lab.experiment.tensorboard_sink")
        sinks.append(module.TensorBoardSink(folder.log_file(trial, session).with_suffix(""), next_frame))
    if spec.meta.wandb:
        sinks.append(_import_wandb().WandbSink(spec, folder, trial, session))
    return sinks


def check_sinks(spec: Spec) -> None:
    """Tell of a missing package before anything is written."""
    if spec.meta.wandb:
        _import_wandb()


def write_row(sinks: list[Sink], row: Mapping[str, float], frame: int) -> None:
    """Hand a row to every sink; one that fails is reported once and dropped."""
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


def _import_wandb() -> Any:
    """The module of the sink whose package is optional."""
    try:
        return importlib.import_module("slm_lab.experiment.wandb_sink")
    except ImportError as error:
        # of the name alone: the folder wandb/ that W&B leaves beside scripts passes for an empty package
        if error.name != "wandb":
            raise
        raise LabError("meta.wandb: wandb is not installed; get it with `uv sync --group wandb`") from None
