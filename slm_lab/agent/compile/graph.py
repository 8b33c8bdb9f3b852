"""A function of tensors as machine code. The compiler takes seconds to import, so only `engine.py` loads this.

`torch.compile` makes the same machine code, but adds layers that check and unwrap at every call, which are not needed
here. One act of PPO on CartPole takes about 90 us without them, 110 us with those for gradients and views, and 210 us
with the checks of Python code too, as much as plain calls.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from slm_lab.agent.compile.products import build_decompositions

Call = Callable[[list[Tensor]], Sequence[Any]]


def compile_graph(
    function: Callable[..., list[Any]], state: Sequence[Tensor], inputs: Sequence[Tensor], is_captured: bool
) -> Call:
    """`function(*state, *inputs)` for inputs of these shapes, as machine code that is called with all of them.

    The function is traced once, on tensors with shapes but without values. It writes to the state in place. On a GPU
    the result is a CUDA graph, unless it will be part of a larger one.
    """
    is_cuda = inputs[0].device.type == "cuda"
    is_captured = is_captured and is_cuda
    options = {
        # dropout draws the same random numbers as plain calls
        "fallback_random": True,
        "triton.cudagraphs": is_captured,
        # call kernels from C++ instead of Python: a third less time for small nets
        "cpp_wrapper": not is_cuda,
        # tanh by exp, with an error below 1.8e-7: a quarter less time for small nets with tanh
        "cpp.use_decompose_tanh": True,
        # the engine has already compared shapes and strides
        "size_asserts": False,
        "alignment_asserts": False,
    }
    decompositions = select_decomp_table()
    if not is_cuda:
        decompositions = {**decompositions, **build_decompositions()}
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in (*state, *inputs)]
    with torch.no_grad(), config.patch(options):
        with mode:
            graph = make_fx(functionalize(function, remove="mutations"), decompositions)(*fakes)
        with V.set_fake_mode(mode), tracing(TracingContext(mode)):
            compiled = assemble(graph, fakes, len(state), is_cuda, is_captured)
    return _copy_results(compiled) if is_captured else compiled


def assemble(graph: GraphModule, fakes: list[Any], num_state: int, is_cuda: bool, is_captured: bool) -> Call:
    """The machine code of a graph without gradients; from the cache on disk if it was compiled before."""
    code = compile_fx_inner(
        graph,
        fakes,
        # the state stays in the same memory, so a CUDA graph need not copy it
        static_input_idxs=range(num_state),
        cudagraphs=BoxedBool(is_captured),
        cpp_wrapper=not is_cuda,
        is_inference=True,
    )
    assert isinstance(code, CompiledFxGraph)
    assert code.current_callable is not None
    if not is_cuda:
        return code.current_callable

    def call_owned(tensors: list[Tensor]) -> Sequence[Any]:
        # keeps `code` alive: its destructor deletes the partitions that a captured graph calls
        return code(tensors)

    return call_owned


def _copy_results(compiled: Call) -> Call:
    """Copy the results of a CUDA graph, which writes to the same memory each time."""

    def call(tensors: list[Tensor]) -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        return [result.clone() for result in compiled(tensors)]

    return call
