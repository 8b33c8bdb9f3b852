"""Where functions are compiled."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

# every shape costs seconds; a function that meets more of them than this should not be compiled
MAX_SHAPES = 8


class CompiledFunction:
    """A function of fixed shapes as one graph; without a graph break, and without a check of anything but shapes.

    Dynamo would check at every call that no object it has seen was replaced: half the time of a small update. Nets,
    optimisers and settings stay the same objects from start to end here, so shapes are all that may differ.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function = function
        self.is_cuda = device.type == "cuda"
        self.graphs: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = tuple(tensor.shape for tensor in _tensors(args))
        graph = self.graphs.get(key)
        if graph is not None:
            return graph(*args)
        if len(self.graphs) == MAX_SHAPES:
            raise RuntimeError(f"{self.function} met more than {MAX_SHAPES} shapes; it must not be compiled: {key}")
        graph = self.graphs[key] = self._compile()
        with _one_at_a_time():
            return graph(*args)

    def _compile(self) -> Callable[..., Any]:
        return torch.compile(  # type: ignore[call-overload]  # torch's overloads lack isolate_recompiles
            self.function,
            fullgraph=True,
            dynamic=False,
            # without checks two functions of the same code could not be told apart
            isolate_recompiles=True,
            options={
                "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
                # dropout draws the numbers that plain calls would draw
                "fallback_random": True,
                "triton.cudagraphs": self.is_cuda,
            },
        )


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, tuple):
            yield from _tensors(arg)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Sessions that start together compile one after the other; all but the first find the result on disk."""
    with (Path(gettempdir()) / f"slm_lab_compile_{os.getuid()}.lock").open("w") as file:
        # freed by the system when the process ends, however it ends
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
