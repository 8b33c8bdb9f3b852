"""How much faster, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds with the 95 % interval of its geometric mean; without bounds from a single repetition."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}x"
        return f"{self.mean:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def calc_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Speeds of the same repetitions against each other.

    Both sides of a repetition ran one after the other, so what slowed the machine slowed both: the pairs vary less than
    either side. Ratios spread evenly on a log scale, where Student's t gives the interval.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"needs the same repetitions of both sides, got {len(ours)} and {len(theirs)}")
    logs = np.log(np.asarray(ours, np.float64) / np.asarray(theirs, np.float64))
    mean = float(logs.mean())
    if len(logs) == 1:
        return Ratio(math.exp(mean), None, None)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
