"""A function of tensors as machine code. The compiler takes seconds to import, so only `engine.py` loads this."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor import compile as compile_inductor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def compile_graph(
    function: Callable[..., list[Any]], state: Sequence[Tensor], inputs: Sequence[Tensor]
) -> Callable[..., Sequence[Any]]:
    """`function(*state, *inputs)` for inputs of these shapes, as machine code that is called with inputs alone.

    The function is run once, on tensors that have shapes but no values.
    """
    graph = make_fx(function, tracing_mode="fake")(*state, *inputs)
    _fix_state(graph, state)
    is_cuda = inputs[0].device.type == "cuda"
    options = {
        # dropout draws the numbers that plain calls would draw
        "fallback_random": True,
        "triton.cudagraphs": is_cuda,
        # calls of kernels from C++ rather than Python: a third less time for small nets
        "cpp_wrapper": not is_cuda,
        # by way of exp, within 1e-7 of the truth: a quarter less time for the small nets that have it
        "cpp.use_decompose_tanh": True,
        # the engine has compared shapes and strides already
        "size_asserts": False,
        "alignment_asserts": False,
    }
    compiled: Callable[..., Sequence[Any]] = compile_inductor(graph, list(inputs), options=options)
    return _copy_results(compiled) if is_cuda else compiled


def _fix_state(graph: GraphModule, state: Sequence[Tensor]) -> None:
    """Make the first arguments of a graph a part of it: tensors whose place in memory never changes."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"][: len(state)]
    for index, (place, tensor) in enumerate(zip(places, state, strict=True)):
        graph.register_buffer(f"state_{index}", tensor)
        with graph.graph.inserting_before(place):
            own = graph.graph.get_attr(f"state_{index}")
        own.meta.update(place.meta)
        place.replace_all_uses_with(own)
        graph.graph.erase_node(place)
    graph.recompile()


def _copy_results(compiled: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """A CUDA graph writes its results to the same place each time; those of several steps are kept."""

    def call(*inputs: Tensor) -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        return [result.clone() for result in compiled(*inputs)]

    return call
