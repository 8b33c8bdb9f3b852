"""All rows, in the order of the page."""

from bench.faults import crowd, death, grid, hostile, kill, secrets, soak, stop, tested
from bench.faults.row import Row

ROWS: tuple[Row, ...] = (
    *kill.ROWS,
    *grid.ROWS,
    *stop.ROWS,
    *death.ROWS,
    tested.NAN,
    tested.DISK,
    *hostile.ROWS,
    tested.HUB,
    *secrets.ROWS,
    tested.SHELL,
    *crowd.ROWS,
    tested.HUB_FAULTS,
    *soak.ROWS,
)
ROW_BY_NAME = {row.name: row for row in ROWS}
