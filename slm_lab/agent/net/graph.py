"""A function of tensors as machine code. The compiler takes seconds to import, so only `engine.py` loads this."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._inductor import compile as compile_inductor
from torch.fx.experimental.proxy_tensor import make_fx


def compile_graph(function: Callable[..., list[Any]], example: Sequence[Tensor]) -> Callable[..., Sequence[Any]]:
    """What a function does with tensors of these shapes, as machine code.

    It is run once on tensors that have shapes but no values.
    """
    graph = make_fx(function, tracing_mode="fake")(*example)
    options = {
        # dropout draws the numbers that plain calls would draw
        "fallback_random": True,
        "triton.cudagraphs": example[0].device.type == "cuda",
    }
    compiled: Callable[..., Sequence[Any]] = compile_inductor(graph, list(example), options=options)
    return compiled
