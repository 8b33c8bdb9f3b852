"""The errors a user can cause; everything else is a bug and shows its traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class LabError(Exception):
    """A mistake in the input: shown as one clear message, exit code 2."""


class SpecError(LabError):
    """A spec that cannot be run as written."""


class EnvError(LabError):
    """An environment that cannot be made or used as asked."""


class EnvFaultError(EnvError):
    """An env gave an observation or a reward that is not finite.

    `tensor` is which of the two, `env` the index of the env; `record` is what the step can be done again from, once
    whoever knows the seeds and the actions has added it.
    """

    def __init__(self, message: str, tensor: str, env: int) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.env = env
        self.record: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # workers send it to their session
        return type(self), (str(self), self.tensor, self.env)


class RunFolderError(LabError):
    """A run folder that is missing, foreign or cannot be continued."""


class CheckpointError(LabError):
    """A checkpoint file that is damaged or does not belong to the run."""


class StorageError(LabError, OSError):
    """A file that the system does not let be written: a full disk, a read-only or vanished folder.

    An OSError too, for those who can go on without the file.
    """


class UnreadableError(LabError, OSError):
    """What cannot be read as a file: a pipe, a device, a folder, or more bytes than any such file has.

    An OSError too, for those who can go on without the file.
    """


class VideoError(LabError):
    """A video that cannot be written as asked."""


class ShareError(LabError):
    """Runs that cannot be sent to, or fetched from, the place where they are shared."""


class DivergenceError(Exception):
    """Training produced a value that is not finite; the run stops instead of going on with it."""


class WorkerError(Exception):
    """A worker process failed; the message carries the worker's own traceback."""


class WorkerDeathError(WorkerError):
    """A worker process is gone; who stops a run may have told it too."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint `; did you mean 'x'?`, or nothing when no choice is near."""
    options = list(choices)
    match = get_close_matches(name, options, n=1, cutoff=0.6)
    if not match:
        lowered = {option.lower(): option for option in options}
        match = [lowered[m] for m in get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)]
    return f"; did you mean '{match[0]}'?" if match else ""
