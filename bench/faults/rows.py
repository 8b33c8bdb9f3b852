"""All rows, in the order of the page."""

from bench.faults import death, grid, hostile, kill
from bench.faults.row import Row

ROWS: tuple[Row, ...] = (*kill.ROWS, *grid.ROWS, *death.ROWS, *hostile.ROWS)
ROW_BY_NAME = {row.name: row for row in ROWS}
