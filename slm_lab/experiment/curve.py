"""Curves of tables: the rows that can be drawn, their mean over sessions, and fewer points that look the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from slm_lab.experiment.analysis import Array, Table

# Everything else in a table belongs to the algorithm.
BOOKKEEPING = {"total_reward", "total_reward_ma", "fps", "frame", "wall_t", "t", "epi", "opt_step"}
GRID_POINTS = 1000
# Values near the float limit overflow inside the renderers, and no axis could show them.
LARGEST = 1e100


@dataclass(frozen=True)
class Average:
    """The mean of several curves and its spread, at frames that all of them reach."""

    x: Array
    mean: Array
    std: Array
    # whether the curves had frames of their own
    is_interpolated: bool


def read_curve(table: Table, column: str) -> tuple[Array, Array]:
    """The rows of a column that can be drawn, by increasing frame; of rows at the same frame the last counts."""
    x = np.asarray(table.get("frame", ()), dtype=float)
    y = np.asarray(table.get(column, ()), dtype=float)
    size = min(x.size, y.size)
    x, y = x[:size], y[:size]
    # NaN compares false as well.
    drawable = (np.abs(x) < LARGEST) & (np.abs(y) < LARGEST)
    x, y = x[drawable][::-1], y[drawable][::-1]
    x, last = np.unique(x, return_index=True)
    return x, y[last]


def average_curves(curves: Sequence[tuple[Array, Array]]) -> Average | None:
    """Mean and spread where the frames of the curves overlap; None where they share none."""
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
    return Average(grid, values.mean(axis=0), values.std(axis=0), is_interpolated)


def pick_points(y: Array, limit: int) -> Array:
    """Indices of at most `limit` points: the ends, and the lowest and the highest of each stretch between them."""
    if y.size <= limit:
        return np.arange(y.size)
    num_stretch = (limit - 2) // 2
    edges = np.linspace(1, y.size - 1, num_stretch + 1).astype(int)
    picked = [0, y.size - 1]
    for start, end in pairwise(edges):
        picked += [start + int(np.argmin(y[start:end])), start + int(np.argmax(y[start:end]))]
    return np.unique(picked)
