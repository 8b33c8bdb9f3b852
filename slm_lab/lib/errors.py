"""The errors a user can cause; everything else is a bug and shows its traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class LabError(Exception):
    """A mistake in the input: shown as one clear message, exit code 2."""


class SpecError(LabError):
    """A spec that cannot be run as written."""


class EnvError(LabError):
    """An env that cannot be made or used."""


class EnvFaultError(EnvError):
    """An env returned a number that is not finite, or a value that does not match its spaces.

    `tensor` is what it is about, `env` the index of the env, `problem` the fault in a few words; `record` is what the
    step can be done again from, added by the batch of envs, which knows seeds and actions. `num_frame` is how many
    frames the session would have gone on by: those of a step in training, none in a reset or an evaluation.
    """

    def __init__(self, message: str, tensor: str, env: int, problem: str = "is not finite") -> None:
        super().__init__(message)
        self.tensor = tensor
        self.env = env
        self.problem = problem
        self.record: dict[str, Any] | None = None
        self.num_frame = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # workers send it to their session
        return type(self), (str(self), self.tensor, self.env, self.problem)


class RunFolderError(LabError):
    """A run folder that is missing, foreign or cannot be resumed."""


class CheckpointError(LabError):
    """A checkpoint file that is damaged or does not belong to the run."""


class StorageError(LabError, OSError):
    """A file that cannot be written: a full disk, a read-only or missing folder.

    An OSError too, for callers that do not need the file.
    """


class UnreadableError(LabError, OSError):
    """A path that cannot be read as a file: a pipe, a device, a folder, or too many bytes.

    An OSError too, for callers that do not need the file.
    """


class VideoError(LabError):
    """A video that cannot be written as asked."""


class ShareError(LabError):
    """Runs that cannot be uploaded to or downloaded from a store."""


class DivergenceError(Exception):
    """Training produced a value that is not finite, which stops the session."""


class WorkerError(Exception):
    """A worker process failed; the message carries the worker's own traceback."""


class WorkerDeathError(WorkerError):
    """A worker process is gone; perhaps the signal that stops the run also reached it."""


class EnvHangError(WorkerError):
    """A call of an env does not return."""


class EnvExitError(WorkerError):
    """An env called sys.exit or os._exit, which would end the session without a result."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint `; did you mean 'x'?`, or nothing if no choice is close."""
    options = list(choices)
    match = get_close_matches(name, options, n=1, cutoff=0.6)
    if not match:
        lowered = {option.lower(): option for option in options}
        match = [lowered[m] for m in get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)]
    return f"; did you mean '{match[0]}'?" if match else ""
