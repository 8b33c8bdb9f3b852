"""Searched keys as axes: values of any type as positions from 0 to 1."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slm_lab.lib.array import Array


@dataclass(frozen=True)
class SearchedKey:
    """A searched key and its scale."""

    path: str
    is_choice: bool
    is_log: bool
    # the share of the ranking that it explains, if known
    importance: float | None = None

    @property
    def name(self) -> str:
        """The last part of the path, with its parent if it is short, as in `actor.lr`."""
        *parents, last = self.path.split(".")
        return f"{parents[-1]}.{last}" if len(last) < 4 and parents else last


@dataclass(frozen=True)
class Axis:
    """Values of a key as positions from 0 to 1, with their labels."""

    place: Array
    ticks: list[float]
    labels: list[str]


def read_axis(key: SearchedKey, values: Sequence[Any]) -> Axis:
    """The positions of a key's values on its axis."""
    if key.is_choice:
        names = [show_name(value) for value in values]
        known = sorted(set(names), key=lambda name: (_as_number(name), name))
        places = {name: (index + 0.5) / len(known) for index, name in enumerate(known)}
        return Axis(np.array([places[name] for name in names]), list(places.values()), known)
    numbers = np.asarray(values, float)
    scaled = np.log10(numbers) if key.is_log else numbers
    low, high = float(scaled.min()), float(scaled.max())
    span = high - low or 1.0
    ticks = np.linspace(low, high, 5) if high > low else np.array([low])
    labels = [f"{10**tick if key.is_log else tick:.3g}" for tick in ticks]
    return Axis((scaled - low) / span, ((ticks - low) / span).tolist(), labels)


def show_name(value: object) -> str:
    """A choice as text."""
    return value if isinstance(value, str) else json.dumps(value)


def _as_number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf
