"""Curves from tables: select rows, average over sessions, and reduce points while keeping the shape."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.results.metrics import calc_interval, mask_partial_ma
from slm_lab.results.table import Table

# all other columns are metrics of the algorithm
BOOKKEEPING = {"total_reward", "total_reward_ma", "fps", "frame", "wall_t", "t", "epi", "opt_step"}
GRID_POINTS = 1000
# more points of a curve cannot be distinguished in a picture
MAX_POINTS = 5_000
# larger values overflow in the renderers, and no axis could show them
LARGEST = 1e100
# frames, or another measure of progress, and values
Curve = tuple[Array, Array]
# the horizontal axis, and its column
Axis = Literal["frames", "time", "updates"]
AXES: dict[Axis, str] = {"frames": "frame", "time": "wall_t", "updates": "opt_step"}
# the band around a mean: its 95 % interval, one std between sessions, or the lowest and highest session
BandKind = Literal["ci", "std", "minmax"]
# fewer resamples than usual, since there is an interval at each of a thousand frames
NUM_RESAMPLE = 1000
# the axis of a panel fits the values between these percentiles, with this many times their span on either side
CORE = (5, 95)
ROOM = 2


@dataclass(frozen=True)
class Average:
    """The mean of several curves at their common frames, with a band around it (None for too few curves)."""

    x: Array
    mean: Array
    interval: tuple[Array, Array] | None
    # whether the curves had different frames
    is_interpolated: bool


@dataclass(frozen=True)
class Limits:
    """The limits of a panel's axis, and the extremes of its values, at least one of them outside the limits."""

    low: float
    high: float
    lowest: float
    highest: float


def read_curve(table: Table, column: str, axis: Axis = "frames", smooth: int = 1) -> Curve:
    """The curve of a column by increasing frame; of rows at the same frame the last counts.

    The moving average starts where its window is full: before that it is the mean of a growing number of rows, so the
    curve would have a kink. With `smooth`, a value is the mean of that many rows up to its own. Of a long table only
    every n-th row is used.
    """
    x = np.asarray(table.get(AXES[axis], ()), dtype=float)
    y = np.asarray(table.get(column, ()), dtype=float)
    if column == "total_reward_ma" and {column, "total_reward"} <= set(table):
        y = mask_partial_ma(table)
    size = min(x.size, y.size)
    x, y = x[:size], y[:size]
    # also false for NaN
    drawable = (np.abs(x) < LARGEST) & (np.abs(y) < LARGEST)
    x, y = x[drawable], y[drawable]
    if not (x[1:] > x[:-1]).all():
        x, last = np.unique(x[::-1], return_index=True)
        y = y[::-1][last]
    # counted from the last row, which is kept; sessions with the same frames keep the same rows
    step = max(-(-x.size // MAX_POINTS), 1)
    rows = np.arange(x.size)[::-step][::-1]
    if smooth > 1:
        # not by differences of a running sum, in which a spike ruins the precision of everything after it
        return x[rows], np.array([y[max(row + 1 - smooth, 0) : row + 1].mean() for row in rows])
    return x[rows], y[rows]


def read_curves(tables: Iterable[Table], column: str, axis: Axis = "frames", smooth: int = 1) -> list[Curve]:
    """The curves of the tables that have values."""
    return [curve for table in tables if (curve := read_curve(table, column, axis, smooth))[0].size]


def list_metrics(tables: Iterable[Table]) -> list[str]:
    """Columns of the algorithm, results first: the learning rate is a setting."""
    columns = dict.fromkeys(column for table in tables for column in table if column not in BOOKKEEPING)
    return sorted(columns, key=lambda column: column == "lr")


def average_curves(curves: Sequence[Curve], band: BandKind = "ci") -> Average | None:
    """Mean and band where the frames of the curves overlap; None without curves or common frames."""
    if not curves:
        return None
    start = max(x[0] for x, _ in curves)
    end = min(x[-1] for x, _ in curves)
    if start > end:
        return None
    first = curves[0][0]
    is_interpolated = not all(np.array_equal(x, first) for x, _ in curves)
    if is_interpolated:
        points = min(max(x.size for x, _ in curves), GRID_POINTS)
        grid = np.linspace(start, end, points) if end > start else np.array([end])
    else:
        grid = first
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    return Average(grid, values.mean(axis=0), _calc_band(values, band), is_interpolated)


def _calc_band(values: Array, band: BandKind) -> tuple[Array, Array] | None:
    """The band around the mean over the first axis; None for too few curves."""
    if band == "ci":
        return calc_interval(values, NUM_RESAMPLE)
    if len(values) < 2:
        return None
    if band == "minmax":
        return values.min(axis=0), values.max(axis=0)
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
    return mean - std, mean + std


def find_constant(curves: Sequence[Curve]) -> float | None:
    """The common value of curves that never change; None if they do."""
    y = np.concatenate([y for _, y in curves])
    return float(y[0]) if y.size > 1 and np.ptp(y) <= 1e-9 * np.abs(y).max() else None


def describe_constants(constants: Mapping[str, float]) -> str:
    """One line for metrics that never change, instead of panels."""
    return f"constant: {', '.join(f'{name} {value:.4g}' for name, value in constants.items())}" if constants else ""


def find_limits(curves: Sequence[Curve]) -> Limits | None:
    """Axis limits without outliers, such as a spike at the start; None if all values fit."""
    y = np.concatenate([y for _, y in curves])
    core_low, core_high = np.percentile(y, CORE)
    span = core_high - core_low
    inner = y[(y >= core_low - ROOM * span) & (y <= core_high + ROOM * span)]
    if inner.min() == inner.max() or inner.size == y.size:
        return None
    return Limits(*(float(value) for value in (inner.min(), inner.max(), y.min(), y.max())))


def pick_points(y: Array, limit: int) -> Array:
    """Indices of at most `limit` points: both ends, and the minimum and maximum of each part in between."""
    if y.size <= limit:
        return np.arange(y.size)
    num_part = (limit - 2) // 2
    edges = np.linspace(1, y.size - 1, num_part + 1).astype(int)
    picked = [0, y.size - 1]
    for start, end in pairwise(edges):
        picked += [start + int(np.argmin(y[start:end])), start + int(np.argmax(y[start:end]))]
    return np.unique(picked)
