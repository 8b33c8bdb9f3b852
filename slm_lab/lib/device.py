"""Which device a session computes on."""

import torch

from slm_lab.lib.errors import SpecError


def pick_device(name: str, index: int) -> torch.device:
    """`auto` takes a GPU if there is one, spreading sessions, and trials of a search, over several by their index."""
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", index % torch.cuda.device_count())
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SpecError(f"meta.device: '{name}' asked for, but torch finds no GPU; use cpu or auto")
    return torch.device(name)


def count_gpus() -> int:
    """GPUs that torch finds."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
