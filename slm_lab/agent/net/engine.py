"""Where functions are compiled."""

import fcntl
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from slm_lab.lib.io import cache_folder

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# every shape costs seconds; a function that meets more of them than this should not be compiled
MAX_SHAPES = 8


class CompiledFunction:
    """`function(state, args)` as one graph per set of shapes; called with the arguments alone.

    It is run once on tensors without values to see what it does, and never again: what it reads must be in the state,
    which stays the same tensors and may be written to, or in the arguments. So there is nothing to check at a call but
    shapes. (torch.compile checks at every call that no object it has seen was replaced, which takes as long as a small
    update does.)
    """

    def __init__(self, function: Callable[[Any, Any], Any], state: Any) -> None:
        self.function = function
        self.state = state
        self.tensors = list(tensors_of(state))
        self.graphs: dict[tuple[torch.Size, ...], Callable[[list[Tensor]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        inputs = list(tensors_of(args))
        key = tuple([tensor.shape for tensor in inputs])
        graph = self.graphs.get(key)
        if graph is None:
            if len(self.graphs) == MAX_SHAPES:
                raise RuntimeError(f"{self.function} must not be compiled: it met more than {MAX_SHAPES} shapes")
            with _one_at_a_time():
                graph = self.graphs[key] = self._compile(args, inputs)
        return graph(inputs)

    def _compile(self, args: tuple[Any, ...], inputs: list[Tensor]) -> Callable[[list[Tensor]], Any]:
        form: list[Any] = []

        def flat_function(*flat: Tensor) -> list[Tensor]:
            tensors = iter(flat)
            out = self.function(with_tensors(self.state, tensors), with_tensors(args, tensors))
            form[:] = [out]
            return list(tensors_of(out))

        # the compiler takes seconds to import, and most runs do without
        compiler = importlib.import_module("slm_lab.agent.net.graph")
        state = self.tensors
        compiled = compiler.compile_graph(flat_function, [*state, *inputs])
        (out,) = form
        return lambda inputs: with_tensors(out, iter(compiled(*state, *inputs)))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tuples, lists and dicts with other tensors in their places."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [with_tensors(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Sessions that start together compile one after the other; all but the first find the result on disk."""
    folder = _prepare_cache()
    with (folder / "slm_lab.lock").open("w") as file:
        # freed by the system when the process ends, however it ends
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare_cache() -> Path:
    """Where machine code is kept: in the lab's own cache, since torch's is a temporary folder."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or cache_folder() / "inductor")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # no home to write to
        folder = Path(gettempdir()) / f"slm_lab_inductor_{os.getuid()}"
        folder.mkdir(exist_ok=True)
    os.environ[CACHE_VARIABLE] = str(folder)
    return folder
