"""Checkpoints that are whole, hashed, and loaded without running anything in them."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm_lab.experiment.folder import previous_file
from slm_lab.experiment.safe_state import DTYPES, BadStateError, read_state
from slm_lab.lib.errors import CheckpointError, StorageError
from slm_lab.lib.io import read_sealed, seal, write_bytes

_ARRAY, _UNSIGNED = "__array__", "__unsigned__"
# torch writes these in another form; their bits are kept as those of the signed type
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_UNSIGNED_OF = {signed: unsigned for unsigned, signed in _SIGNED.items()}
MAX_BITS = 2000


def _to_plain(value: Any, path: str = "") -> Any:
    """Only tensors and plain data, which can be read again; a bug of whoever gives something else."""
    if isinstance(value, np.ndarray):
        # numpy gives a single number a dimension here, which would not come back as it was
        return {_ARRAY: _to_plain(torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape)), path)}
    if isinstance(value, np.generic):
        return _to_plain(value.item(), path)
    if isinstance(value, dict):
        if not all(type(key) in (str, int) for key in value):
            raise TypeError(f"a state has keys other than texts and whole numbers{path and f' in {path}'}")
        return {key: _to_plain(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, path) for item in value]
    if isinstance(value, torch.Tensor):
        if value.dtype in _SIGNED:
            return {_UNSIGNED: value.view(_SIGNED[value.dtype])}
        if value.dtype in DTYPES and value.layout is torch.strided:
            return value.detach()
        raise TypeError(f"a state cannot hold a tensor of {value.dtype}, {value.layout} ({path})")
    if value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"a state cannot hold a {type(value).__name__} ({path})")
    if type(value) is int and value.bit_length() > MAX_BITS:
        raise TypeError(f"a state cannot hold a number of {value.bit_length():,} bits ({path})")
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key: _from_plain(item) for key, item in value.items()}
        if len(plain) == 1:
            ((key, item),) = plain.items()
            if key == _ARRAY and isinstance(item, torch.Tensor):
                return item.numpy()
            if key == _UNSIGNED and isinstance(item, torch.Tensor) and item.dtype in _UNSIGNED_OF:
                return item.view(_UNSIGNED_OF[item.dtype])
        return plain
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
        state = _from_plain(read_state(payload))
    except BadStateError as error:
        raise CheckpointError(f"{path}: refused ({error})") from None
    except (RuntimeError, TypeError) as error:
        # an array of a type that numpy lacks
        raise CheckpointError(f"{path}: refused (it does not fit together: {type(error).__name__})") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: does not hold a state")
    return state


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
