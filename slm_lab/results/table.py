"""Read the table of a session, from any source."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from pydantic_core import from_json

from slm_lab.lib.array import Array
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import open_file

# columns by name
Table = Mapping[str, Array]

# columns that every table of a session has
NEEDED = ("frame", "total_reward")
# size limit of a table: 320 MB in memory, a million rows of 40 columns
MAX_NUMBERS = 40_000_000
MAX_ROW_BYTES = 1 << 20
_PIECE = 1 << 18
_PLAIN = b"0123456789+-.eE,\n"


def read_session_table(path: Path, read: Callable[[Path], dict[str, Array]] | None = None) -> dict[str, Array]:
    """The table of a session; raises if it cannot be read or lacks a required column."""
    try:
        table = (read or read_table)(path)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path.name} is left out: {error}") from None
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise RunFolderError(f"{path.name} is left out: it has no column {' and no column '.join(missing)}")
    if not np.isfinite(table["frame"]).all():
        raise RunFolderError(f"{path.name} is left out: a frame is not a number")
    return table


def read_table(path: Path) -> dict[str, Array]:
    """Columns of numbers, read in chunks, since a file may be huge; a row truncated by a kill is dropped."""
    header: list[str] | None = None
    blocks: list[Array] = []
    count = 0
    for lines in _read_lines(path):
        if header is None:
            first, _, lines = lines.partition(b"\n")
            header = next(split_cells(first), [])
        if header:
            blocks.append(parse_rows(lines, len(header)))
            count += blocks[-1].size
        if count > MAX_NUMBERS:
            raise ValueError(f"it holds more than {MAX_NUMBERS:,} numbers")
    if not header:
        return {}
    table = np.empty((len(header), count // len(header)))
    end = 0
    # free each block once it is copied
    for index, block in enumerate(blocks):
        table[:, end : end + len(block)] = block.T
        end += len(block)
        blocks[index] = block[:0].copy()
    return dict(zip(header, table, strict=True))


def _read_lines(path: Path) -> Iterator[bytes]:
    """Complete lines, in chunks; the text after the last line break may be half a number, so it is dropped."""
    with open_file(path) as file:
        rest = b""
        while piece := file.read(_PIECE):
            lines, end, piece = piece.rpartition(b"\n")
            if end:
                yield rest + lines + end
                rest = b""
            rest += piece
            if len(rest) > MAX_ROW_BYTES:
                raise ValueError(f"it has a row of more than {MAX_ROW_BYTES:,} bytes")


def parse_rows(lines: bytes, num_column: int) -> Array:
    """The numbers of lines, a row each; rows with more or fewer cells are dropped, and an empty cell is NaN."""
    text = lines.replace(b"\r\n", b"\n").removesuffix(b"\n")
    if text.translate(None, _PLAIN):
        return _parse_any(lines, num_column)
    # rows of plain numbers as JSON, once empty cells have a value: its parser is four times as fast as numpy's
    text = b"[[" + text.replace(b"\n", b"],[") + b"]]"
    if any(gap in text for gap in (b",,", b"[,", b",]")):
        # twice, since the comma that ends one empty cell may begin another
        text = text.replace(b",,", b",NaN,").replace(b",,", b",NaN,").replace(b"[,", b"[NaN,").replace(b",]", b",NaN]")
    try:
        rows = from_json(text)
    except ValueError:
        # numbers such as 1. and 007, which JSON does not allow
        return _parse_any(lines, num_column)
    return np.array([row for row in rows if len(row) == num_column], float).reshape(-1, num_column)


def _parse_any(lines: bytes, num_column: int) -> Array:
    """The same for cells with quotes, spaces and so on; slower, and its error names a cell that is not a number."""
    rows = [[float(cell or "nan") for cell in row] for row in split_cells(lines) if len(row) == num_column]
    return np.array(rows).reshape(-1, num_column)


def split_cells(lines: bytes) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(lines.decode(), newline=""))
    except csv.Error as error:
        raise ValueError(str(error)) from None
