"""Read a table while it is written: parse only new rows, and keep every n-th row of a long table."""

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.lib.io import open_file
from slm_lab.results.metrics import MA_WINDOW
from slm_lab.results.table import MAX_ROW_BYTES, parse_rows, split_cells

# rows to keep of a table; at twice as many, every other is dropped, since no picture shows more
MAX_ROWS = 10_000
# the last rows are all kept, since scores are means over them
NUM_LAST = 2 * MA_WINDOW
_PIECE = 1 << 22
# bytes before the end of the last read: if they differ, the table was truncated in between
_NUM_SEEN = 256
_BREAK = 10


class FollowedTable:
    """Reads a growing table repeatedly; each read costs only the new rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._signature: tuple[int, ...] = ()
        self._header: list[str] = []
        self._offset = 0
        self._seen = b""
        self._blocks: list[Array] = []
        self._last = b""
        # every `stride`-th row is kept; `num_row` counts complete lines
        self.stride = 1
        self.num_row = 0
        self._table: dict[str, Array] = {}

    def read(self) -> dict[str, Array]:
        """Columns of numbers, as `read_table` returns them; a row that is not complete yet is left out."""
        with open_file(self.path) as file:
            status = os.fstat(file.fileno())
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            if signature == self._signature:
                return self._table
            start = self._offset - len(self._seen)
            file.seek(start)
            is_same = signature[0] in self._signature[:1] and file.read(len(self._seen)) == self._seen
            if not is_same:
                # another file, or a resumed session has truncated it
                self._forget()
                file.seek(0)
            try:
                self._read_new(file, status.st_size)
            except ValueError:
                self._forget()
                raise
            self._signature = signature
            self._table = self._build()
            return self._table

    def _read_new(self, file: BinaryIO, size: int) -> None:
        rest = b""
        while piece := file.read(_PIECE):
            lines, end, piece = (rest + piece).rpartition(b"\n")
            if end:
                self._take(lines + end, size)
            rest = piece
            if len(rest) > MAX_ROW_BYTES:
                raise ValueError(f"it has a row of more than {MAX_ROW_BYTES:,} bytes")

    def _take(self, lines: bytes, size: int) -> None:
        """Parse complete lines."""
        self._offset += len(lines)
        self._seen = (self._seen + lines)[-_NUM_SEEN:]
        if not self._header:
            first, _, lines = lines.partition(b"\n")
            self._header = next(split_cells(first), [])
            row = lines.find(b"\n") + 1
            while row and size / row / self.stride > 2 * MAX_ROWS:
                self.stride *= 2
        if not self._header:
            return
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _BREAK) + 1
        starts = np.r_[0, ends[:-1]] if len(ends) else ends
        self._last = b"".join([self._last, lines[starts[max(len(starts) - NUM_LAST, 0)] :] if len(ends) else b""])
        if (count := self._last.count(b"\n")) > 2 * NUM_LAST:
            self._last = b"".join(self._last.splitlines(keepends=True)[count - NUM_LAST :])
        picked = range(-self.num_row % self.stride, len(ends), self.stride)
        self.num_row += len(ends)
        if self.stride > 1:
            lines = b"".join(lines[starts[i] : ends[i]] for i in picked)
        if lines:
            self._blocks.append(parse_rows(lines, len(self._header)))
        if sum(map(len, self._blocks)) > 2 * MAX_ROWS:
            self._blocks = [np.concatenate(self._blocks)[::2]]
            self.stride *= 2

    def _build(self) -> dict[str, Array]:
        if not self._header:
            return {}
        rows = np.concatenate([np.empty((0, len(self._header))), *self._blocks])
        # keep one block: many small ones would be joined at every read
        self._blocks = [rows]
        if self.stride > 1 and "frame" in self._header:
            last = parse_rows(self._last, len(self._header))[-NUM_LAST:]
            place = self._header.index("frame")
            if len(last):
                rows = np.concatenate([rows[rows[:, place] < last[0, place]], last])
        return dict(zip(self._header, np.ascontiguousarray(rows.T), strict=True))
