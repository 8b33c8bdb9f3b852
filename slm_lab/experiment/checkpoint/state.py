"""States on disk: safetensors with JSON for everything else, and a hash; reading one executes nothing in it."""

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loguru import logger
from safetensors import SafetensorError, TensorSpec, safe_open, serialize
from torch import Tensor
from torch.nn.parameter import is_lazy

from slm_lab.lib.data import State
from slm_lab.lib.errors import CheckpointError, LabError, StorageError, UnreadableError
from slm_lab.lib.io import open_file, write_bytes
from slm_lab.lib.system import memory_bytes
from slm_lab.lib.unit import format_size
from slm_lab.results.folder import previous_file
from slm_lab.spec.reader import printable

# a single key for hash and JSON, because safetensors writes several in no fixed order
KEY = "slm_lab"
# marks in the JSON for types that JSON lacks: tensors and arrays by name, dicts with other keys by their items
_TENSOR, _ARRAY, _ITEMS = "$tensor", "$array", "$items"
# longest JSON: parsed, it takes many times its size in memory
MAX_TEXT = 10_000_000
DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    }
)


# --- writing


def save_state(path: Path, state: State, keep_previous: bool = False) -> None:
    """Write a state; with `keep_previous` the old file is kept under another name until the next call."""
    data = encode_state(state)
    if not path.parent.is_dir():
        # creating it would leave a folder that is not a run
        raise StorageError(f"{path.parent}: is gone; was the run removed or moved while it trained?")
    write_bytes(path, data, previous_file(path) if keep_previous else None)


def encode_state(state: State) -> bytes:
    """A state as a file holds it: tensors, arrays and plain data; tuples become lists."""
    tensors: dict[str, Tensor] = {}
    try:
        text = json.dumps(_encode(state, "", tensors))
    except RecursionError:
        raise TypeError("a state is nested too deep, or contains itself") from None
    except ValueError as error:
        # an integer with thousands of digits
        raise TypeError(f"a state cannot be written: {error}") from None
    if len(text) > MAX_TEXT:
        raise TypeError(f"a state cannot hold {len(text):,} bytes beside its tensors; the most is {MAX_TEXT:,}")
    specs = {
        name: TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            data_ptr=tensor.data_ptr(),
            data_len=tensor.nbytes,
        )
        for name, tensor in tensors.items()
    }
    return serialize(specs, {KEY: f"{hash_content(text, tensors)} {text}"})


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors are collected in `tensors`, under names that say where they belong."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return {_ARRAY: _put(_to_tensor(value, path), path, tensors)}
    if isinstance(value, Tensor):
        return {_TENSOR: _put(_to_plain(value, path), path, tensors)}
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, dict):
        if not all(type(key) in (str, int) for key in value):
            raise TypeError(f"a state has keys other than texts and whole numbers{path and f' in {path}'}")
        items = {key: _encode(item, f"{path}.{key}" if path else str(key), tensors) for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {_ITEMS: [[key, item] for key, item in items.items()]}
    if value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"a state cannot hold a {type(value).__name__} ({path})")
    return value


def _put(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name = path.encode("ascii", "backslashreplace").decode()
    # keys may contain dots, so two paths can have the same name
    while name in tensors or name == "__metadata__":
        name += "'"
    tensors[name] = tensor
    return name


def _to_tensor(array: np.ndarray[Any, Any], path: str) -> Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"a state cannot hold a masked array ({path})")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        # ascontiguousarray gives a scalar a dimension; reshape removes it
        tensor = torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))
    except TypeError:
        raise TypeError(f"a state cannot hold an array of {array.dtype} ({path})") from None
    return _to_plain(tensor, path)


def _to_plain(tensor: Tensor, path: str) -> Tensor:
    """A plain, contiguous tensor on the CPU; the given one itself if possible."""
    is_plain = tensor.layout is torch.strided and not (tensor.is_meta or is_lazy(tensor) or tensor.is_nested)
    if not is_plain or tensor.dtype not in DTYPES:
        raise TypeError(f"a state cannot hold a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout} ({path})")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.numel() == 1:
        # a view of one number counts as contiguous, whatever its stride
        plain = plain.clone(memory_format=torch.contiguous_format)
    if type(plain) is not Tensor:
        raise TypeError(f"a state cannot hold a {type(tensor).__name__} ({path})")
    if plain.nbytes > plain.untyped_storage().nbytes():
        raise TypeError(f"a state cannot hold a tensor without its memory ({path})")
    return plain


def hash_content(text: str, tensors: Mapping[str, Tensor]) -> str:
    """The hash of a state, over its JSON and the names, types, shapes and bits of its tensors."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- reading


def load_state(path: Path) -> State:
    """Read a state; a single changed bit is an error."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size > (physical := memory_bytes()):
            raise CheckpointError(
                f"{path}: refused (it has {format_size(size)}, the memory of this machine {format_size(physical)})"
            )
        with safe_open(path, framework="pt") as archive:
            expected, _, text = (archive.metadata() or {}).get(KEY, "").partition(" ")
            # mapped, not read into memory yet
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
            if not text or expected != hash_content(text, tensors):
                raise CheckpointError(f"{path}: damaged or not a checkpoint of this lab (its hash does not match)")
            return _read(path, text, {name: tensor.clone() for name, tensor in tensors.items()})
    except UnreadableError as error:
        raise CheckpointError(str(error)) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: damaged or not a checkpoint of this lab ({printable(str(error), limit=200)})"
        ) from None


def _read(path: Path, text: str, tensors: Mapping[str, Tensor]) -> State:
    """The state of a file whose hash matches, which does not mean that it can be trusted."""
    if len(text) > MAX_TEXT:
        raise CheckpointError(f"{path}: refused (it has {len(text):,} bytes beside its tensors)")
    try:
        state = _decode(json.loads(text), tensors)
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: refused (it does not fit together: {type(error).__name__})") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: refused (it does not hold a state)")
    return state


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    if _TENSOR in node:
        return tensors[node[_TENSOR]]
    if _ARRAY in node:
        return tensors[node[_ARRAY]].numpy()
    if _ITEMS in node:
        return {key: _decode(item, tensors) for key, item in node[_ITEMS]}
    return {key: _decode(item, tensors) for key, item in node.items()}


@contextmanager
def content_errors(path: Path, problem: str = "what it holds does not fit together") -> Iterator[None]:
    """Report errors that the contents of a state cause in one line: a hash is no signature, they may be forged."""
    try:
        yield
    except (LabError, torch.OutOfMemoryError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The user's env or algorithm may have failed, so log where. As text: the logger would show values of variables.
        logger.debug(f"{path} could not be taken\n{traceback.format_exc()}")
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path}: {problem} ({type(error).__name__}: {printable(reason, limit=1000)})") from None


def load_latest(path: Path, finish: Callable[[State], None] = lambda _: None) -> tuple[State | None, list[str]]:
    """The last good state, or None if there is none yet, and the problems of damaged ones.

    `finish` reads other files that belong to a state, and may find that they are damaged.
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
                # otherwise the next save would replace the good state by this one
                os.replace(path, path.with_name(f"{path.name}.damaged"))
            return state, problems
    if problems:
        raise CheckpointError("; ".join(problems) + "; no good checkpoint is left to resume from")
    if (old := path.with_suffix(".pt")).exists():
        raise CheckpointError(f"{old}: was written by another version of the lab; resume it with that one")
    return None, problems


def copy_state(value: Any, old: Any = None) -> Any:
    """A copy that training does not change; reuses the tensors of an older copy."""
    if isinstance(value, torch.Tensor):
        return value.clone() if old is None else old.copy_(value)
    if isinstance(value, dict):
        return {key: copy_state(item, None if old is None else old[key]) for key, item in value.items()}
    return value


def check_form(value: Any, like: Any, name: str) -> None:
    """Refuse saved tensors whose names, shapes or types differ from those of `like`; other values may differ."""
    if isinstance(like, dict):
        if not isinstance(value, dict) or value.keys() != like.keys():
            raise ValueError(f"{name} has other parts than that of this run")
        for key, item in like.items():
            check_form(value[key], item, f"{name}.{key}")
    elif isinstance(like, Tensor) and (
        not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype
    ):
        raise ValueError(f"{name} has another form than that of this run")


def read_frame(state: State) -> int:
    """The frame of a checkpoint."""
    frame = state["frame"]
    if type(frame) is not int or frame < 0:
        raise ValueError("its frame is not a whole number")
    return frame
