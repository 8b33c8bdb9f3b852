"""Rows of text as a table for the terminal."""

import sys
from collections.abc import Sequence

from slm_lab.spec.reader import printable


def write_columns(rows: Sequence[Sequence[str]], num_name: int) -> None:
    """Print aligned columns: the first `num_name` are names, aligned left, the rest numbers."""
    rows = [[printable(text, limit=255) for text in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.ljust(width) if place < num_name else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
