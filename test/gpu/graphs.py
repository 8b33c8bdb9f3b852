"""Compiled graphs on the pretend GPU: traced as for CUDA, run under the rules of CUDA graphs.

A CUDA graph reads and writes the addresses it was captured with. So its state must stay where it is, its inputs are
copied to a place of its own, and what it returned is gone when the next one is launched.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from slm_lab.agent.compile import capture
from test.gpu.ledger import LEDGER, DeviceError
from test.gpu.pretend import CUDA, PretendTensor


class PretendGraph:
    """A traced graph that is launched as a whole."""

    def __init__(self, graph: GraphModule, num_state: int, others: list["PretendGraph | PretendCapture"]) -> None:
        for node in graph.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": CUDA}
        graph.recompile()
        self.graph = graph
        self.num_state = num_state
        self.others = others
        self.places: list[int] = []
        self.inputs: list[PretendTensor] = []
        self.outs: list[PretendTensor] = []
        others.append(self)

    def __call__(self, tensors: Sequence[Tensor]) -> list[PretendTensor]:
        given = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
        if len(given) < len(tensors):
            raise DeviceError("a graph with tensors of the host is not captured")
        state, inputs = given[: self.num_state], given[self.num_state :]
        if not self.places:
            self.places = [tensor.data_ptr() for tensor in state]
            self.inputs = [PretendTensor(tensor.held.clone()) for tensor in inputs]
        if self.places != [tensor.data_ptr() for tensor in state]:
            raise DeviceError("state of a graph has moved: the graph still reads and writes where it was")
        LEDGER.launch("graph")
        LEDGER.launch("copy of a graph's inputs")
        with torch.inference_mode():
            # a new step begins: what graphs gave before is gone
            for out in (out for other in self.others if isinstance(other, PretendGraph) for out in other.outs):
                _poison(out.held)
            for own, one in zip(self.inputs, inputs, strict=True):
                own.held.copy_(one.held)
        LEDGER.is_paused = True
        with torch.no_grad():
            made = self.graph(*state, *self.inputs)
        LEDGER.is_paused = False
        if not self.outs:
            self.outs = [PretendTensor(out.held.clone()) for out in made]
        with torch.inference_mode():
            for own, one in zip(self.outs, made, strict=True):
                own.held.copy_(one.held)
        return list(self.outs)


class PretendCapture:
    """What was captured runs again, on what its inputs and its state hold by then; its results stay where they are."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self.function = function
        self.outs = [PretendTensor(result.held.clone()) for result in self._run()]

    def launch(self) -> None:
        """`CUDAGraph.replay`."""
        LEDGER.launch("graph")
        LEDGER.is_paused = True
        try:
            made = self._run()
        finally:
            LEDGER.is_paused = False
        with torch.inference_mode():
            for own, one in zip(self.outs, made, strict=True):
                own.held.copy_(one.held)

    def _run(self) -> list[PretendTensor]:
        results = self.function()
        held = [result for result in results if isinstance(result, PretendTensor)]
        if len(held) < len(results):
            raise DeviceError("a graph with results on the host is not captured")
        return held


def _poison(tensor: Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype != torch.bool:
        tensor.fill_(-77)


class HostMode(FakeTensorMode):
    """Traces tensors of the device as if they were of the host: gradients of fake cuda tensors need a driver."""

    def from_tensor(self, tensor: Tensor, **kwargs: Any) -> Any:
        if isinstance(tensor, PretendTensor):
            with self:
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return super().from_tensor(tensor, **kwargs)


@contextmanager
def pretend_graphs() -> Iterator[list["PretendGraph | PretendCapture"]]:
    """Within `pretend_gpu`: compiled functions are pretend graphs; yields those there are."""
    compiler = importlib.import_module("slm_lab.agent.compile.graph")
    graphs: list[PretendGraph | PretendCapture] = []

    def make_fx(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        trace = real_make_fx(*args, **kwargs)

        def call(*fakes: Any) -> Any:
            with _disable_current_modes(), fakes[0].fake_mode:
                return trace(*fakes)

        return call

    def assemble(
        graph: GraphModule, fakes: list[Any], num_state: int, is_cuda: bool, is_captured: bool
    ) -> Callable[[Sequence[Tensor]], Any]:
        assert is_cuda
        made = PretendGraph(graph, num_state, graphs if is_captured else [])
        # as part of a larger graph it is plain code
        return made if is_captured else lambda tensors: made.graph(*tensors)

    real_make_fx = compiler.make_fx
    patches: Any = {"FakeTensorMode": HostMode, "make_fx": make_fx, "assemble": assemble}

    def record(function: Callable[[], list[Tensor]], device: torch.device) -> tuple[Callable[[], None], list[Tensor]]:
        made = PretendCapture(function)
        graphs.append(made)
        return made.launch, list(made.outs)

    with mock.patch.multiple(compiler, **patches), mock.patch.object(capture, "record", record):
        yield graphs
