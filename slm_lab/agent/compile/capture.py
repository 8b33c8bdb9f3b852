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
        # the graph reads these
        self.inputs = [tensor.clone() for tensor in inputs]
        before = [tensor.clone() for tensor in state]
        try:
            self.launch, self.results = record(lambda: function(self.inputs), self.inputs[0].device)
        except CompileError:
            raise
        # as for anything that is compiled, torch and the driver have errors of many kinds
        except Exception as error:
            raise CompileError(describe_failure(error)) from error
        finally:
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.launch()
        # the next launch writes to the same place
        return [result.clone() for result in self.results]


def record(function: Callable[[], list[Tensor]], device: torch.device) -> tuple[Callable[[], None], list[Tensor]]:
    """What repeats all that a function launches, and the tensors it leaves its results in."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                function()
        finally:
            # what was launched before a failure still writes
            torch.cuda.current_stream().wait_stream(stream)
        # torch's own stream for this is that of the first GPU in use; other threads may allocate memory meanwhile
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            results = function()
    return graph.replay, results
