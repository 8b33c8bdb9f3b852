"""A ring of rows, in which the newest step of all envs overwrites the oldest."""

import numpy as np
import torch
from torch import Tensor

from slm_lab.lib.device import upload

# name -> shape and dtype of one env's part of a row
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


def calc_row_bytes(layout: Layout, num_envs: int) -> int:
    """Bytes of one row of all envs."""
    return num_envs * sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in layout.values())


class Ring:
    """Rows of all N envs in preallocated tensors (capacity, N, ...); absolute row r is kept in slot r % capacity.

    A position, slot*N+env, is the place of one transition: its index in the same tensors as (capacity*N, ...).
    """

    def __init__(self, layout: Layout, capacity: int, num_envs: int, device: torch.device) -> None:
        self.capacity = capacity
        self.num_envs = num_envs
        self.num_position = capacity * num_envs
        self.device = device
        # rows ever written: the absolute number of the next one
        self.head = 0
        shapes = {name: ((capacity, num_envs, *shape), dtype) for name, (shape, dtype) in layout.items()}
        self.fields = {name: _build_zeros(shape, dtype, device) for name, (shape, dtype) in shapes.items()}
        self.flat = {name: field.flatten(0, 1) for name, field in self.fields.items()}
        self.is_host = device.type == "cpu"
        # numpy views of the same memory, through which rows are written three times as fast
        self._views = {name: field.numpy() for name, field in self.fields.items()} if self.is_host else {}

    @property
    def held_first(self) -> int:
        """The oldest absolute row that is still held."""
        return max(0, self.head - self.capacity)

    def write(self, row: dict[str, Tensor]) -> None:
        """Write one step of all envs at the head."""
        slot = self.head % self.capacity
        for name, value in row.items():
            if self.is_host:
                self._views[name][slot] = value.numpy()
            else:
                self.fields[name][slot].copy_(upload(value, self.device))
        self.head += 1

    def take(self, position: Tensor, *names: str) -> list[Tensor]:
        """Copies of some fields at positions (B,)."""
        # not field[position], which takes 20 times as long for images
        return [self.flat[name].index_select(0, position) for name in names]

    def rows(self, start: int, end: int) -> dict[str, Tensor]:
        """Copies of the absolute rows [start, end)."""
        if not self.held_first <= start <= end <= self.head:
            raise ValueError(f"rows {start} to {end} are not held: {self.held_first} to {self.head} are")
        spans = self.spans(start, end)
        return {name: torch.cat([field[i:j] for i, j in spans]).cpu() for name, field in self.fields.items()}

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        """Write saved rows back to where they were."""
        for name, field in self.fields.items():
            saved, done = rows[name], 0
            for i, j in self.spans(start, start + len(saved)):
                field[i:j] = saved[done : done + j - i]
                done += j - i

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """The slots of absolute rows [start, end), at most `capacity` of them, as two ranges; one may be empty."""
        begin, count = start % self.capacity, end - start
        before_edge = min(count, self.capacity - begin)
        return [(begin, begin + before_edge), (0, count - before_edge)]


def _build_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page; numpy's zeros take memory only as rows are written
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))
