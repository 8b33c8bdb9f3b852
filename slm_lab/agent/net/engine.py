"""Where functions are compiled."""

import fcntl
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# every shape costs seconds; a function that meets more of them than this should not be compiled
MAX_SHAPES = 8


class CompiledFunction:
    """`function(state, args)` as one graph per set of shapes; called with the arguments alone.

    It is run once on tensors without values to see what it does, and never again: what it reads must be in the state,
    which stays the same tensors and may be written to, or in the arguments, which are tensors or tuples of them. So
    there is nothing to check at a call but shapes. (torch.compile checks at every call that no object it has seen was
    replaced, which takes as long as a small update does.)
    """

    def __init__(self, function: Callable[[Any, Any], Any], state: Any) -> None:
        self.function = function
        self.state = state
        self.leaves, self._layout = pytree.tree_flatten(state)
        self.graphs: dict[tuple[torch.Size, ...], Callable[[list[Tensor]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        inputs = list(_tensors(args))
        key = tuple(tensor.shape for tensor in inputs)
        graph = self.graphs.get(key)
        if graph is None:
            if len(self.graphs) == MAX_SHAPES:
                raise RuntimeError(f"{self.function} must not be compiled: it met more than {MAX_SHAPES} shapes")
            with _one_at_a_time():
                graph = self.graphs[key] = self._compile(args, inputs)
        return graph(inputs)

    def _compile(self, args: tuple[Any, ...], inputs: list[Tensor]) -> Callable[[list[Tensor]], Any]:
        # the compiler takes seconds to import, and most runs do without
        compiler = importlib.import_module("slm_lab.agent.net.graph")
        num_state = len(self.leaves)
        layout: list[Any] = []

        def flat_function(*tensors: Tensor) -> list[Any]:
            state = pytree.tree_unflatten(tensors[:num_state], self._layout)
            out, out_layout = pytree.tree_flatten(self.function(state, _refill(args, iter(tensors[num_state:]))))
            layout[:] = [out_layout]
            return out

        compiled = compiler.compile_graph(flat_function, [*self.leaves, *inputs])
        (out_layout,) = layout
        leaves = self.leaves

        def call(inputs: Sequence[Tensor]) -> Any:
            return pytree.tree_unflatten(compiled(*leaves, *inputs), out_layout)

        return call


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, tuple):
            yield from _tensors(arg)


def _refill(arg: Any, tensors: Iterator[Tensor]) -> Any:
    """The same arguments with other tensors in their places."""
    if isinstance(arg, Tensor):
        return next(tensors)
    if not isinstance(arg, tuple):
        return arg
    items = [_refill(item, tensors) for item in arg]
    return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Sessions that start together compile one after the other; all but the first find the result on disk."""
    with (Path(gettempdir()) / f"slm_lab_compile_{os.getuid()}.lock").open("w") as file:
        # freed by the system when the process ends, however it ends
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
