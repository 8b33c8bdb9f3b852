"""Compiles the kernels that inductor wrote to a folder, for GPUs that are not there: `python aot.py FOLDER SM...`.

Triton and ptxas need neither a driver nor a device for that. It prints the kernels that fail, and exits with 1 if any.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch._inductor.runtime import triton_helpers, triton_heuristics
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

HEURISTICS = "pointwise", "reduction", "persistent_reduction", "cooperative_reduction", "split_scan", "foreach"
# sizes of the blocks that a kernel leaves open, small enough for any of them
BLOCK = {"XBLOCK": 16, "YBLOCK": 16, "R0_BLOCK": 16, "R1_BLOCK": 16}


class NoDriver:
    """What torch's helpers ask the driver for when they are imported."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda")


def is_kernel(code: str) -> bool:
    """Whether a file of inductor is one kernel; others call several, and quote them."""
    return "\n@triton_heuristics." in code and "async_compile" not in code


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """The function of a kernel's file, and what inductor says of it."""
    found: list[tuple[Any, dict[str, Any]]] = []

    def heuristic(*_: Any, triton_meta: dict[str, Any], **__: Any) -> Callable[[Any], Any]:
        def keep(function: Any) -> Any:
            found.append((function, triton_meta))
            return function

        return keep

    for name in HEURISTICS:
        setattr(triton_heuristics, name, heuristic)
    spec = importlib.util.spec_from_file_location(f"kernel_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return found[0]


def compile_kernel(path: Path, capability: int) -> None:
    """Down to machine code for a compute capability, such as 90."""
    function, meta = load(path)
    constants = dict(meta["constants"])
    for name, kind in meta["signature"].items():
        if kind == "constexpr":
            constants.setdefault(name, BLOCK.get(name, 1))
    by_place = {(function.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(function, meta["signature"], by_place, meta["configs"][0])
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})


def main() -> int:
    folder, capabilities = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    driver._active = driver._default = NoDriver()
    triton_helpers.set_driver_to_gpu = lambda: None
    kernels = [path for path in sorted(folder.rglob("*.py")) if is_kernel(path.read_text())]
    num_failed = 0
    for path in kernels:
        for capability in capabilities:
            try:
                compile_kernel(path, capability)
            except Exception as error:
                num_failed += 1
                print(f"{path} for sm_{capability}: {type(error).__name__}: {str(error)[:500]}")
    print(f"{len(kernels)} kernels for {len(capabilities)} GPUs, {num_failed} failed")
    return int(num_failed > 0 or not kernels)


if __name__ == "__main__":
    sys.exit(main())
