"""Checkpoints that are whole, hashed, and loaded without running anything in them."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm_lab.experiment.folder import previous_file
from slm_lab.experiment.safe_state import check_state
from slm_lab.lib.errors import CheckpointError, StorageError
from slm_lab.lib.io import read_sealed, seal, write_bytes

_ARRAY = "__array__"


def _to_plain(value: Any) -> Any:
    """Only tensors and plain Python: what a safe loader accepts."""
    if isinstance(value, np.ndarray):
        # numpy gives a single number a dimension here, which would not come back as it was
        return {_ARRAY: torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY} and isinstance(value[_ARRAY], torch.Tensor):
            return value[_ARRAY].numpy()
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value


def save_state(path: Path, state: dict[str, Any], keep_previous: bool = False) -> None:
    """Write a state; the one before stays under another name until the next call, if asked."""
    buffer = io.BytesIO()
    torch.save(_to_plain(state), buffer)
    if not path.parent.is_dir():
        # making it anew would leave a folder that is no run
        raise StorageError(f"{path.parent}: is gone; was the run removed or moved while it trained?")
    write_bytes(path, seal(buffer.getvalue()), previous_file(path) if keep_previous else None)


def load_state(path: Path) -> dict[str, Any]:
    """Read a state; a single changed bit is an error."""
    try:
        payload = read_sealed(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if payload is None:
        raise CheckpointError(f"{path}: damaged or not a checkpoint of this lab (its hash does not match)")
    try:
        check_state(payload)
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: refused ({reason[:200]})") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: does not hold a state")
    return _from_plain(state)


def load_latest(
    path: Path, finish: Callable[[dict[str, Any]], None] = lambda _: None
) -> tuple[dict[str, Any] | None, list[str]]:
    """The last good state, or None if there is none yet, and what was wrong with those passed over.

    `finish` reads what belongs to a state and lies in other files; it may find that they are damaged.
    """
    problems: list[str] = []
    for candidate in (path, previous_file(path)):
        if candidate.exists():
            try:
                state = load_state(candidate)
                finish(state)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            if candidate != path and path.exists():
                # the next save would put it in the place of the good one
                os.replace(path, path.with_name(f"{path.name}.damaged"))
            return state, problems
    if problems:
        raise CheckpointError("; ".join(problems) + "; no good checkpoint is left to continue from")
    return None, problems
