"""Gradient steps over all minibatches of a batch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.compile.capture import CapturedFunction
from slm_lab.agent.compile.engine import CompiledFunction, CompileError, warn_once
from slm_lab.agent.learn.gradient import GradientStep, Report, numbers_to_tensors

# gather the rows of all epochs at once up to this size, which fits into the second-level cache of a CPU
MAX_BYTES = 2**20


class Sweep:
    """One gradient step for each minibatch of `size` rows; compiled on a GPU, all of them are one launch.

    Separate steps of a small net would keep the host busier than the GPU: each needs a launch, and copies of all inputs
    and results.
    """

    def __init__(self, step: GradientStep, size: int) -> None:
        self.step = step
        self.size = size
        self.function: CompiledFunction | None = None
        # dropout would draw the same numbers at every launch
        if step.graph is not None and step.device.type == "cuda" and not step.has_dropout:
            self.function = CompiledFunction(step.compute, step.graph.state, is_captured=False)
        self.graphs: dict[tuple[Any, ...], CapturedFunction] = {}
        # names of results per sample; known once the step is traced
        self.names: tuple[str, ...] = ()

    def __call__(self, batch: Any, orders: Tensor, *args: Any) -> Iterator[Report]:
        """The report of each step, `step(minibatch, *args)`.

        The batch is a NamedTuple of tensors (N, ...), the missing ones last; `orders` (E, N) is the order of its rows
        in each epoch.
        """
        if self.function is not None:
            try:
                rows, *samples = self._launch(self.function, batch, orders, args)
            except CompileError as error:
                warn_once(str(error), "gradient steps are launched one by one")
                self.function = None
            else:
                yield from self._read(rows, samples, batch, orders, args)
                return
        fields = [_by_pixel(field) for field in _given(batch)]
        for order in self._join(orders, batch):
            # one gather per field; minibatches are views of it
            parts = [_gather(field, order).split(self._sizes(len(order))) for field in fields]
            for minibatch in zip(*parts, strict=True):
                yield self.step(type(batch)(*minibatch), *args)

    def _join(self, orders: Tensor, batch: Any) -> Tensor:
        """The orders of all epochs as a single one, if that gives the same minibatches and the rows are few."""
        num_bytes = sum(field[0].nbytes for field in _given(batch)) * orders.numel()
        return orders.view(1, -1) if num_bytes <= MAX_BYTES and orders.shape[1] % self.size == 0 else orders

    def _launch(self, function: CompiledFunction, batch: Any, orders: Tensor, args: tuple[Any, ...]) -> list[Tensor]:
        """The numbers of each step (S, ...), then the results per sample, concatenated over all steps."""
        guard = self.step.guard
        if guard.on_step is not None:
            guard.on_step()
        guard.make_room()
        inputs = [orders, *numbers_to_tensors(args, self.step.device), *_given(batch)]

        def take_steps(inputs: Sequence[Tensor]) -> list[Tensor]:
            numbers, fields = inputs[1 : 1 + len(args)], inputs[1 + len(args) :]
            made = [
                function(type(batch)(*[field.index_select(0, index) for field in fields]), *numbers)
                for index in self._split(inputs[0])
            ]
            samples, rows = zip(*made, strict=True)
            self.names = tuple(samples[0])
            return [torch.stack(rows), *[torch.cat([part[name] for part in samples]) for name in self.names]]

        key = tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs])
        with torch.no_grad():
            if key not in self.graphs:
                self.graphs[key] = CapturedFunction(take_steps, inputs, function.tensors)
            return self.graphs[key](inputs)

    def _read(
        self, rows: Tensor, samples: list[Tensor], batch: Any, orders: Tensor, args: tuple[Any, ...]
    ) -> Iterator[Report]:
        def build_get_args(index: Tensor) -> Callable[[], tuple[Any, ...]]:
            return lambda: (type(batch)(*[field.index_select(0, index) for field in _given(batch)]), *args)

        indices = self._split(orders)
        parts = [part.split([len(index) for index in indices]) for part in samples]
        for number, (index, row) in enumerate(zip(indices, rows.unbind(), strict=True)):
            own = dict(zip(self.names, [part[number] for part in parts], strict=True))
            yield self.step.read(own, row, build_get_args(index), [])

    def _split(self, orders: Tensor) -> list[Tensor]:
        """The rows of each minibatch."""
        return [index for order in orders.unbind() for index in order.split(self._sizes(len(order)))]

    def _sizes(self, num_row: int) -> list[int]:
        """Rows of each minibatch; a single remaining row joins the last minibatch, because one row has no std."""
        sizes = [self.size] * (num_row // self.size)
        rest = num_row - sum(sizes)
        if rest == 1 and sizes:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        return sizes


def _given(batch: Any) -> list[Tensor]:
    return [field for field in batch if field is not None]


def _by_pixel(field: Tensor) -> Tensor:
    """Images (N, C, H, W) in channels-last memory format, as convolutions read them, converted once for all epochs."""
    return field.contiguous(memory_format=torch.channels_last) if field.dim() == 4 else field


def _gather(field: Tensor, index: Tensor) -> Tensor:
    if field.dim() != 4:
        return field.index_select(0, index)
    # as contiguous rows of memory
    return field.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
