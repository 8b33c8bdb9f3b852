"""Which device a session computes on, and the ways to it and back."""

import gc

import torch
from torch import Tensor

from slm_lab.lib.array import Array
from slm_lab.lib.errors import SpecError

# how torch says so: on CPUs of two kinds, on GPUs, and for sizes beyond any memory
_TOO_LARGE = ("can't allocate memory", "not enough memory", "out of memory", "overflow")


def pick_device(name: str, index: int) -> torch.device:
    """`auto` takes an NVIDIA GPU if there is one, and spreads sessions and trials over several by their index.

    It never takes a Mac's GPU, which is slower than its CPU at the small nets of most specs.
    """
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", index % torch.cuda.device_count())
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SpecError(f"meta.device: '{name}' asked for, but torch finds no GPU; use cpu or auto")
    if name == "mps" and not torch.backends.mps.is_available():
        raise SpecError("meta.device: 'mps' asked for, but torch finds no GPU of Apple here; use cpu or auto")
    return torch.device(name)


def set_up(device: torch.device) -> None:
    """Have a GPU compute products by its tensor cores (TF32), and the same numbers each time."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.deterministic = True


def is_too_large(error: RuntimeError) -> bool:
    """Whether torch says that a tensor does not fit into the memory of the machine or its GPU."""
    return any(text in str(error) for text in _TOO_LARGE)


def as_tensor(value: Array | Tensor) -> Tensor:
    """An array as a tensor that shares its memory; three times as fast as `torch.as_tensor`. Tensors stay."""
    return value if isinstance(value, Tensor) else torch.from_numpy(value)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; to a GPU from pinned memory, so that the host need not wait for the copy."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape on the host; those of a GPU in one transfer, for which the host waits once."""
    if tensors[0].device.type == "cpu":
        return tensors
    return torch.stack(tensors).cpu().unbind()


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in double precision; GPUs of Apple do not."""
    return device.type != "mps"


def to_widest(tensor: Tensor) -> Tensor:
    """A tensor in double precision if its device has it, otherwise as it is."""
    return tensor.double() if has_float64(tensor.device) else tensor


def count_gpus() -> int:
    """GPUs that torch finds."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def free_memory() -> None:
    """Give a GPU's memory that is no longer used back: torch would keep it from the processes of sessions."""
    if torch.cuda.is_initialized():
        # agents are parts of cycles
        gc.collect()
        torch.cuda.empty_cache()
