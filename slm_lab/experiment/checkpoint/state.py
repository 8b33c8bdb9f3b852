"""Checkpoints that are whole, hashed, and loaded without running anything in them."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loguru import logger
from torch.nn.parameter import is_lazy

from slm_lab.experiment.checkpoint.safe_state import (
    DTYPES,
    MAX_DEPTH,
    MAX_DIMENSIONS,
    MAX_GROWTH,
    MAX_NODES,
    BadStateError,
    check_state,
    read_state,
    read_weights,
)
from slm_lab.lib.errors import CheckpointError, LabError, StorageError
from slm_lab.lib.io import read_bytes, read_sealed, seal, write_bytes
from slm_lab.results.folder import previous_file
from slm_lab.spec.reader import printable

_ARRAY, _UNSIGNED = "__array__", "__unsigned__"
# torch writes these in another form; their bits are kept as those of the signed type
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_UNSIGNED_OF = {signed: unsigned for unsigned, signed in _SIGNED.items()}
MAX_BITS = 2000


class _Plain:
    """Makes tensors and plain data of a state, which can be read again; a bug of whoever gives something else."""

    def __init__(self) -> None:
        self.num_node = 0

    def make(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """A copy of a value with the tensors themselves; arrays, and what torch writes in other forms, are turned."""
        self.num_node += 1
        if self.num_node > MAX_NODES:
            raise TypeError(f"a state cannot hold more than {MAX_NODES:,} entries ({path})")
        if isinstance(value, np.ndarray):
            return {_ARRAY: self.make(_to_tensor(value, path), path, _deeper(depth, path))}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, dict):
            return self._make_dict(value, path, _deeper(depth, path))
        if isinstance(value, (list, tuple)):
            below = _deeper(depth, path)
            return [self.make(item, path, below) for item in value]
        if isinstance(value, torch.Tensor):
            if value.dtype in _SIGNED:
                self.num_node += 1
                _deeper(depth, path)
                return {_UNSIGNED: _as_written(value, path).view(_SIGNED[value.dtype])}
            return _as_written(value, path)
        if value is not None and type(value) not in (bool, int, float, str):
            raise TypeError(f"a state cannot hold a {type(value).__name__} ({path})")
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise TypeError(f"a state cannot hold a number of {value.bit_length():,} bits ({path})")
        return value

    def _make_dict(self, value: dict[Any, Any], path: str, depth: int) -> dict[Any, Any]:
        place = path and f" in {path}"
        if not all(type(key) is str or (type(key) is int and key.bit_length() <= MAX_BITS) for key in value):
            raise TypeError(f"a state has keys other than texts and whole numbers{place}")
        if len(value) == 1 and isinstance(value.get(_ARRAY, value.get(_UNSIGNED)), torch.Tensor):
            raise TypeError(f"a state has a tensor under a name that stands for something else{place}")
        return {key: self.make(item, f"{path}.{key}" if path else str(key), depth) for key, item in value.items()}


def _deeper(depth: int, path: str) -> int:
    if depth >= MAX_DEPTH:
        raise TypeError(f"a state cannot be nested more than {MAX_DEPTH} deep ({path[:200]})")
    return depth + 1


def _to_tensor(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"a state cannot hold a masked array ({path})")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        # numpy gives a single number a dimension here, which would not come back as it was
        return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))
    except TypeError:
        raise TypeError(f"a state cannot hold an array of {array.dtype} ({path})") from None


def _as_written(value: torch.Tensor, path: str) -> torch.Tensor:
    """A tensor whose bits are what is written; it shares its memory with the one given wherever that can be read."""
    if value.is_meta or is_lazy(value):
        raise TypeError(f"a state cannot hold a tensor without data ({path})")
    if value.ndim > MAX_DIMENSIONS:
        raise TypeError(f"a state cannot hold a tensor of {value.ndim} dimensions ({path})")
    is_known = value.dtype in DTYPES or value.dtype in _SIGNED
    if not is_known or value.layout is not torch.strided or value.is_nested:
        raise TypeError(f"a state cannot hold a tensor of {value.dtype}, {value.layout} ({path})")
    plain = value.detach().resolve_conj().resolve_neg()
    if type(plain) is not torch.Tensor:
        # torch would write its type as well
        raise TypeError(f"a state cannot hold a {type(value).__name__} ({path})")
    if plain.nbytes > MAX_GROWTH * plain.untyped_storage().nbytes():
        # a few numbers, expanded: a reader that takes the memory could be made to take any
        plain = plain.contiguous()
    return plain


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


def _write(plain: dict[Any, Any]) -> tuple[io.BytesIO, str | None]:
    """A state as torch writes it, and why it could not be read again.

    Some is known only of the whole: how often it refers to the same bytes, and how many steps it takes to read it.
    """
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    try:
        check_state(buffer)
    except BadStateError as error:
        return buffer, str(error)
    return buffer, None


def _locate(plain: dict[Any, Any]) -> str:
    """The innermost part of a state that could not be read again even if it were alone."""
    names: list[str] = []
    while isinstance(plain, dict):
        key = next((key for key, item in plain.items() if _write({key: item})[1] is not None), None)
        if key is None:
            break
        names.append(str(key))
        plain = plain[key]
    return ".".join(names) or "all of it together"


def save_state(path: Path, state: dict[str, Any], keep_previous: bool = False) -> None:
    """Write a state; the one before stays under another name until the next call, if asked."""
    plain = _Plain().make(state)
    buffer, problem = _write(plain)
    if problem is not None:
        raise TypeError(f"a state could not be read again: {problem} ({_locate(plain)})")
    if not path.parent.is_dir():
        # making it anew would leave a folder that is no run
        raise StorageError(f"{path.parent}: is gone; was the run removed or moved while it trained?")
    write_bytes(path, seal(buffer.getvalue()), previous_file(path) if keep_previous else None)


@contextmanager
def content_errors(path: Path, problem: str = "what it holds does not fit together") -> Iterator[None]:
    """Turn what the contents of a state make fail into one line: a seal is no signature, they may be anyone's."""
    try:
        yield
    except (LabError, torch.OutOfMemoryError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # an own env or algorithm may have failed, whose place is of interest
        logger.opt(exception=True).debug(f"{path} could not be taken")
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path}: {problem} ({type(error).__name__}: {printable(reason, limit=1000)})") from None


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


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a net that another program wrote with torch; nothing in the file is run."""
    try:
        return read_weights(read_bytes(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except BadStateError as error:
        raise CheckpointError(f"{path}: refused ({error})") from None


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
                with content_errors(candidate):
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
