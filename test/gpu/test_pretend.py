"""The pretend GPU refuses what a real one refuses, and counts what makes the host wait."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from test.gpu.ledger import DeviceError
from test.gpu.pretend import CUDA, pretend_gpu

MISTAKES: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + torch.ones(3),
    "cat": lambda x: torch.cat([x, torch.ones(1)]),
    "index": lambda x: x.index_select(0, torch.tensor([0])),
    "generator": lambda x: torch.rand(3, generator=torch.Generator("cpu"), device=CUDA),
    "generator of the device": lambda x: torch.rand(3, generator=torch.Generator(CUDA)),
    "numpy": lambda x: x.numpy(),
    "write": lambda x: torch.ones(3).add_(x),
    "layer": lambda x: torch.nn.Linear(3, 1)(x),
}
WAITS: dict[str, Callable[[Tensor], Any]] = {
    "number": lambda x: float(x.sum()),
    "truth": lambda x: bool((x > 0).all()),
    "download": lambda x: x.cpu(),
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(force=True),
    "upload": lambda x: torch.ones(3).to(CUDA),
    "upload of a list": lambda x: torch.tensor([1.0], device=CUDA),
    "upload that is not pinned": lambda x: torch.ones(3).to(CUDA, non_blocking=True),
    "write from the host": lambda x: x.copy_(torch.ones(3)),
    "number from the host": lambda x: x.__setitem__(0, torch.tensor(1.0)),
    "index of the host": lambda x: x[torch.tensor([0, 1])],
    "list as index": lambda x: x[[0, 1]],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "event": lambda x: torch.cuda.Event().synchronize(),
}
QUICK: dict[str, Callable[[Tensor], Any]] = {
    "compute": lambda x: torch.where(x > 0, x + 1, 0.0).masked_fill(x > 2, 1.0),
    "fill": lambda x: x.fill_(2),
    "fill a part": lambda x: x.__setitem__(0, 1.0),
    "fill under a mask": lambda x: x.__setitem__(x > 0, 1.0),
    "number as argument": lambda x: x * torch.tensor(2.0),
    "there already": lambda x: x.to(CUDA),
    "draw": lambda x: torch.rand(3, generator=torch.Generator(CUDA), device=CUDA),
    "pinned upload": lambda x: x.copy_(torch.ones(3).pin_memory(), non_blocking=True),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mixed_devices_are_refused(mistake: Callable[[Tensor], Any]) -> None:
    with pretend_gpu(), pytest.raises((DeviceError, TypeError)):
        mistake(torch.ones(3, device=CUDA))


@pytest.mark.parametrize("call", [*WAITS.values(), *QUICK.values()], ids=[*WAITS, *QUICK])
def test_waits_are_counted(call: Callable[[Tensor], Any]) -> None:
    with pretend_gpu() as ledger:
        x = torch.ones(3, device=CUDA)
        ledger.clear()
        call(x)
        assert ledger.num_wait == (call in WAITS.values()), ledger.waits


def test_a_download_that_is_not_waited_for_is_garbage() -> None:
    with pretend_gpu():
        host = torch.ones(3, device=CUDA).to("cpu", non_blocking=True)
        assert host.isnan().all()
        torch.cuda.synchronize()
        assert host.tolist() == [1, 1, 1]


def test_pinned_memory_is_left_alone_until_it_was_read() -> None:
    with pretend_gpu():
        host = torch.zeros(3, pin_memory=True)
        x = host.to(CUDA, non_blocking=True)
        host.numpy()[:] = 1
        with pytest.raises(DeviceError, match="overwritten before the device had read it"):
            x.tolist()
