"""Returns of random play, the zero of the `strength` metric: as shipped, or in a file of their kind; needs no env."""

import functools
from pathlib import Path
from typing import NamedTuple

from pydantic import FiniteFloat, TypeAdapter

# measured by scripts/measure_random_baselines.py
SHIPPED_PATH = Path(__file__).with_name("random_baseline.json")


class RandomBaseline(NamedTuple):
    """Mean and standard deviation of the random policy's returns, and the number of episodes behind them."""

    mean: FiniteFloat
    std: FiniteFloat
    num_episode: int


_BASELINES = TypeAdapter(dict[str, RandomBaseline])


def read_baselines(path: Path) -> dict[str, RandomBaseline]:
    """The baselines of a file; one that is missing, unreadable or corrupt has none."""
    try:
        return _BASELINES.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return {}


@functools.cache
def read_shipped_baselines() -> dict[str, RandomBaseline]:
    """The baselines shipped with the package, read once."""
    return read_baselines(SHIPPED_PATH)


def find_shipped_random_return(env_name: str) -> float | None:
    """Mean return of random play as shipped; None for an env that has none."""
    shipped = read_shipped_baselines().get(env_name)
    return None if shipped is None else shipped.mean
