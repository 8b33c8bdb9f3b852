"""Compile functions of tensors, with plain calls as the fallback."""

import ast
import hashlib
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from slm_lab.lib.io import cache_folder
from slm_lab.lib.runtime import processor_name
from slm_lab.lib.system import user_number, wait_for_lock

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# compiling takes seconds, so a function with more shapes of arguments than this should not be compiled
MAX_GRAPHS = 8
# the modules that use private parts of torch
PRIVATE = tuple(Path(__file__).parent / name for name in ("graph.py", "products.py"))


class CompileError(RuntimeError):
    """A function cannot be compiled here, or its machine code fails; no tensor has changed, and plain calls work."""


def describe_failure(error: Exception) -> str:
    """An error of a compiler or driver in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # errors of compiler processes have their cause at the end
    reason = lines[-1] if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {reason}"


@lru_cache(maxsize=8)
def warn_once(reason: str, remedy: str = "plain calls are used") -> None:
    """One warning, even if many functions fail for the same reason."""
    logger.warning(f"Compiling failed, so {remedy} from here on: {reason}")


class CompileClock:
    """Seconds that this process has spent on compiling or waiting for it; calls `on_change` at start and end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.on_change: Callable[[bool], None] = lambda is_compiling: None

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self.on_change(True)

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._began
        self.on_change(False)


# one for the process, because functions are compiled wherever they are first called
CLOCK = CompileClock()


class CompiledFunction:
    """`function(state, args)` as one graph for each form of the arguments; called with the arguments alone.

    It is traced once, on tensors without values, and never run again. So everything it reads must be in the arguments
    or in the state, whose tensors always stay the same and may be written to. A call only has to check the shapes of
    its arguments. (torch.compile checks at every call that no object it has seen was replaced, which takes as long as a
    small update.)
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        state: Any,
        writes: bool = True,
        plain: Callable[..., Any] | None = None,
        is_captured: bool = True,
    ) -> None:
        self.function = function
        # on a GPU: whether each call is one launch, or part of a larger one
        self.is_captured = is_captured
        # called instead, with the arguments, after compiling has failed
        self.plain = plain
        self.is_broken = False
        self.state = state
        self.writes = writes
        self.tensors = flatten(state)
        self.graphs: dict[tuple[Any, ...], Callable[[list[Tensor]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.is_broken and self.plain is not None:
            return self.plain(*args)
        inputs = flatten(args)
        key = tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs])
        graph = self.graphs.get(key)
        if graph is not None:
            return graph(inputs)
        try:
            return self._call_first(key, args, inputs)
        except CompileError as error:
            if self.plain is None:
                raise
            warn_once(str(error))
            self.is_broken = True
            return self.plain(*args)

    def _call_first(self, key: tuple[Any, ...], args: tuple[Any, ...], inputs: list[Tensor]) -> Any:
        """Compile for arguments of these shapes, and call the result: only a call shows whether it runs on a GPU."""
        if len(self.graphs) == MAX_GRAPHS:
            raise CompileError(f"{self.function} met arguments of more than {MAX_GRAPHS} shapes")
        state = self.tensors if self.writes else []
        before = [tensor.clone() for tensor in state]
        try:
            graph = self._compile(args, inputs)
            out = graph(inputs)
        # tracing, Inductor, Triton and the C++ compiler have their own errors; a bug in the function itself shows again
        # in the plain call
        except Exception as error:
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
            raise CompileError(describe_failure(error)) from error
        self.graphs[key] = graph
        return out

    def _compile(self, args: tuple[Any, ...], inputs: list[Tensor]) -> Callable[[list[Tensor]], Any]:
        form: list[Any] = []

        def flat_function(*flat: Tensor) -> list[Tensor]:
            tensors = iter(flat)
            out = self.function(with_tensors(self.state, tensors), with_tensors(args, tensors))
            form[:] = [build_form(out)]
            return flatten(out)

        with CLOCK, _open_lock() as lock:
            # this logger would warn about a GPU that is not needed
            logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
            # the compiler takes seconds to import, and most runs do not need it
            compiler = importlib.import_module("slm_lab.agent.compile.graph")
            # Sessions that start together compile one after the other; all but the first find the result on disk. The
            # system frees the lock when the process ends, however it ends.
            wait_for_lock(lock)
            compiled = compiler.compile_graph(flat_function, self.tensors, inputs, self.is_captured)
        (build,), state = form, self.tensors
        return lambda inputs: build(iter(compiled([*state, *inputs])))


def find_missing_part(modules: Iterable[Path] = PRIVATE) -> str | None:
    """A private part of torch that compiling needs and this version lacks; None if it has all of them.

    Looked up in torch's source files, since importing its compiler takes seconds.
    """
    for node in (node for module in modules for node in ast.parse(module.read_text()).body):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch."):
            place = Path(torch.__file__).parent.joinpath(*str(node.module).split(".")[1:])
            files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
            for name in (alias.name for alias in node.names):
                is_file = any((place / end).exists() for end in (f"{name}.py", name))
                if not is_file and not any(re.search(rf"\b{name}\b", file.read_text()) for file in files):
                    return f"{node.module}.{name}"
    return None


def flatten(value: Any) -> list[Tensor]:
    """The tensors in tuples, lists and dicts, in order."""
    tensors: list[Tensor] = []
    _add_tensors((value,), tensors)
    return tensors


def _add_tensors(items: Iterable[Any], tensors: list[Tensor]) -> None:
    for item in items:
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, (tuple, list)):
            _add_tensors(item, tensors)
        elif isinstance(item, dict):
            _add_tensors(item.values(), tensors)


def build_form(value: Any) -> Callable[[Iterator[Tensor]], Any]:
    """A function that rebuilds these tuples, lists and dicts from other tensors; fast, since every call uses it."""
    if isinstance(value, Tensor):
        return next
    if isinstance(value, dict):
        names, forms = tuple(value), [build_form(item) for item in value.values()]
        if all(form is next for form in forms):
            # zip stops after the last name
            return lambda tensors: dict(zip(names, tensors, strict=False))
        return lambda tensors: {name: form(tensors) for name, form in zip(names, forms, strict=True)}
    if isinstance(value, (tuple, list)):
        forms = [build_form(item) for item in value]
        kind = type(value)
        if hasattr(value, "_fields"):
            return lambda tensors: kind(*[form(tensors) for form in forms])
        return lambda tensors: kind([form(tensors) for form in forms])
    return lambda tensors: None


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tuples, lists and dicts with other tensors, and None for arrays."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [with_tensors(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if value is None or isinstance(value, np.ndarray):
        return None
    raise TypeError(f"{value!r} would be taken as it is now, and never again; hand it over as a tensor")


def _open_lock() -> IO[str]:
    """Open the lock of the cache of machine code, and create its folder if it is missing.

    Torch's own cache is a temporary folder. The lab's has one folder per processor, since machines may share a home.
    """
    kind = hashlib.sha256(processor_name().encode()).hexdigest()[:8]
    try:
        return _open_lock_in(Path(os.environ.get(CACHE_VARIABLE) or cache_folder() / "inductor" / kind))
    except OSError:
        # the home folder is not writable
        return _open_lock_in(Path(gettempdir()) / f"slm_lab_inductor_{user_number()}")


def _open_lock_in(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "slm_lab.lock").open("w")
    os.environ[CACHE_VARIABLE] = str(folder)
    return file
