"""Weights in `.pt` files: those of the published SLM-Lab, and models that this lab wrote before it used safetensors."""

import io
import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slm_lab.lib.data import State
from slm_lab.lib.errors import CheckpointError, UnreadableError
from slm_lab.lib.io import read_bytes
from slm_lab.spec.reader import printable

# functions and classes of weights; others that torch's loader allows can take memory that the file does not fill
_KNOWN = re.compile(r"torch\._utils _rebuild_tensor_v2|collections OrderedDict|torch \w+Storage")
_NAMES = ("GLOBAL", "STACK_GLOBAL", "INST")
# The largest net has a few thousand; too many nested tuples would crash the process.
MAX_OPCODES = 20_000


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of one net by name, as `torch.save(net.state_dict(), ...)` writes them."""
    state = _load(path)
    if not isinstance(state, dict) or not all(type(k) is str and isinstance(v, Tensor) for k, v in state.items()):
        raise CheckpointError(f"{path}: refused (it does not hold the weights of one net)")
    if any(tensor.nbytes > tensor.untyped_storage().nbytes() for tensor in state.values()):
        raise CheckpointError(f"{path}: refused (a tensor is larger than its bytes)")
    return state


def load_old_model(path: Path) -> State:
    """A model that this lab wrote with torch."""
    state = _decode(_load(path))
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: refused (it does not hold a model)")
    return state


def _load(path: Path) -> Any:
    """Load with torch's safe loader, after a check that the file asks for no more memory than it has bytes."""
    try:
        data = read_bytes(path)
        _check(data)
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except UnreadableError as error:
        raise CheckpointError(str(error)) from None
    except pickle.UnpicklingError as error:
        # only the first line: the others say how to trust the file
        raise CheckpointError(f"{path}: refused ({printable(str(error).splitlines()[0], limit=100)})") from None
    except (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError) as error:
        raise CheckpointError(f"{path}: refused (it does not fit together: {type(error).__name__})") from None
    except (RuntimeError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: refused (it does not fit together: {type(error).__name__})") from None


def _check(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if is_packed or sum(entry.file_size for entry in entries) > len(data):
            raise pickle.UnpicklingError("its parts are larger than the whole")
        for entry in entries:
            if entry.filename.endswith("/data.pkl"):
                _check_document(archive.read(entry))


def _check_document(document: bytes) -> None:
    for count, (opcode, argument, _) in enumerate(pickletools.genops(document)):
        if opcode.name in _NAMES and not _KNOWN.fullmatch(str(argument)):
            raise pickle.UnpicklingError(f"it names {str(argument).replace(' ', '.')}, which no weights have")
        if count > MAX_OPCODES:
            raise pickle.UnpicklingError("it has more parts than a net")


def _decode(value: Any) -> Any:
    """Restore arrays, which were saved as tensors under a special key."""
    if not isinstance(value, dict):
        return value
    if isinstance(array := value.get("__array__"), Tensor):
        return array.numpy()
    return {key: _decode(item) for key, item in value.items()}
