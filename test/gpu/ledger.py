"""What the host asks of a GPU: kernels, copies, and waits, by the line of the lab that causes them."""

import sys
import warnings
from bisect import bisect_right, insort
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class DeviceError(RuntimeError):
    """What a real GPU would refuse, or answer with garbage."""


class Copy(NamedTuple):
    """A copy between pinned memory and the device that nobody has waited for yet."""

    host: Tensor
    value: Tensor
    site: str


class Ledger:
    """What the host asked of the device."""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.kernels: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        # by address; kept alive, so that no other tensor gets it
        self.pinned: list[tuple[int, Tensor]] = []
        self.downloads: list[Copy] = []
        self.uploads: list[Copy] = []
        # within a graph, which is launched as a whole
        self.is_paused = False
        self.is_warning = False

    def set_warning(self, mode: str) -> None:
        """`torch.cuda.set_sync_debug_mode`."""
        self.is_warning = mode == "warn"

    def clear(self) -> None:
        """Count from 0."""
        for counter in (self.waits, self.kernels, self.num_bytes):
            counter.clear()

    @property
    def num_wait(self) -> int:
        return self.waits.total()

    @property
    def num_launch(self) -> int:
        return self.kernels.total()

    def launch(self, name: str) -> None:
        """Count a kernel."""
        if not self.is_paused:
            self.kernels[name] += 1

    def wait(self, kind: str) -> None:
        """The host waits until the device has done all that it was asked."""
        if self.is_paused:
            raise DeviceError(f"the host cannot wait ({kind}) within a graph: {find_site()}")
        self.waits[kind, find_site()] += 1
        if self.is_warning:
            warnings.warn(f"called a synchronizing CUDA operation ({kind})", stacklevel=2)
        for copy in self.downloads:
            copy.host.copy_(copy.value)
        for copy in self.uploads:
            if not np.array_equal(copy.host.numpy(), copy.value.numpy(), equal_nan=True):
                raise DeviceError(f"pinned memory was overwritten before the device had read it: {copy.site}")
        self.downloads, self.uploads = [], []

    def upload(self, host: Tensor, non_blocking: bool) -> None:
        """Count a copy to the device; from memory that is not pinned it waits, whatever was asked."""
        self.num_bytes["upload"] += host.nbytes
        if non_blocking and self.is_pinned(host):
            self.uploads.append(Copy(host, host.clone(), find_site()))
        else:
            self.wait("upload")

    def download(self, host: Tensor, value: Tensor, non_blocking: bool) -> None:
        """Count a copy from the device; what is not waited for is garbage until someone waits."""
        self.num_bytes["download"] += value.nbytes
        if non_blocking:
            self.downloads.append(Copy(host, value.to(host.dtype, copy=True), find_site()))
            host.fill_(float("nan") if host.is_floating_point() else -77 if host.dtype != torch.bool else 0)
        else:
            self.wait("download")

    def pin(self, tensor: Tensor) -> Tensor:
        """The same tensor, known as pinned."""
        insort(self.pinned, (tensor.data_ptr(), tensor), key=_address)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether its memory is that of a pinned tensor, through whatever view."""
        index = bisect_right(self.pinned, tensor.data_ptr(), key=_address) - 1
        if index < 0:
            return False
        begin, pinned = self.pinned[index]
        return tensor.data_ptr() < begin + max(1, pinned.nbytes)


def _address(entry: tuple[int, Tensor]) -> int:
    return entry[0]


LEDGER = Ledger()


def find_site() -> str:
    """The line of the lab that is running, and the one that called it."""
    trail: list[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(trail) < 2:
        _, package, name = frame.f_code.co_filename.rpartition("/slm_lab/")
        if package:
            trail.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(trail) or "outside of the lab"
