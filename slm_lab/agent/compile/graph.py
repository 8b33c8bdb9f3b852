"""A function of tensors as machine code. The compiler takes seconds to import, so only `engine.py` loads this.

`torch.compile` comes to the same machine code by way of layers that check and unwrap at every call; here they have
nothing to do. One act of PPO on CartPole takes about 90 us without them, 110 with those for gradients and views, and
210 with the checks of Python code too, which is what plain calls take.
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

    The function is run once, on tensors that have shapes but no values. The state is written to in place. On a GPU it
    is a CUDA graph, unless it is to be part of a larger one.
    """
    is_cuda = inputs[0].device.type == "cuda"
    is_captured = is_captured and is_cuda
    options = {
        # dropout draws the numbers that plain calls would draw
        "fallback_random": True,
        "triton.cudagraphs": is_captured,
        # calls of kernels from C++ rather than Python: a third less time for small nets
        "cpp_wrapper": not is_cuda,
        # by way of exp, within 1.8e-7 of the truth: a quarter less time for the small nets that have it
        "cpp.use_decompose_tanh": True,
        # the engine has compared shapes and strides already
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
    """Machine code of a graph without gradients; found on disk where it was made before."""
    code = compile_fx_inner(
        graph,
        fakes,
        # these stay where they are in memory, which a CUDA graph can count on
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
        # `code` must live as long as this: its destructor takes away the partitions that a captured graph calls
        return code(tensors)

    return call_owned


def _copy_results(compiled: Call) -> Call:
    """A CUDA graph writes its results to the same place each time; those of several steps are kept."""

    def call(tensors: list[Tensor]) -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        return [result.clone() for result in compiled(tensors)]

    return call
