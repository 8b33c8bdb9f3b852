"""Many operations on a GPU as one launch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slm_lab.agent.compile.engine import CompileError, describe_failure

Function = Callable[[Sequence[Tensor]], list[Tensor]]


class CapturedFunction:
    """`function(inputs)` as one CUDA graph, for inputs of one form; it may write to the state.

    The function is called twice, to load its kernels and to record them, and never again.
    """

    def __init__(self, function: Function, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        # the graph reads its inputs here
        self.inputs = [tensor.clone() for tensor in inputs]
        before = [tensor.clone() for tensor in state]
        try:
            self.launch, self.results = record(lambda: function(self.inputs), self.inputs[0].device)
        except CompileError:
            raise
        # torch and the driver raise many kinds of errors
        except Exception as error:
            raise CompileError(describe_failure(error)) from error
        finally:
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.launch()
        # copies, because the next launch writes to the same memory
        return [result.clone() for result in self.results]


def record(function: Callable[[], list[Tensor]], device: torch.device) -> tuple[Callable[[], None], list[Tensor]]:
    """A function that repeats all launches of `function`, and the tensors with its results."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                function()
        finally:
            # after a failure, earlier launches may still be writing
            torch.cuda.current_stream().wait_stream(stream)
        # torch's default stream belongs to the first GPU in use; thread_local lets other threads allocate memory
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            results = function()
    return graph.replay, results
