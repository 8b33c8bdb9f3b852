"""Mean returns of random play, the zero of the `strength` metric, from shipped or cached files; needs no env."""

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
    """The baselines in a file; none if it is missing or cannot be read."""
    try:
        return _BASELINES.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return {}


@functools.cache
def read_shipped_baselines() -> dict[str, RandomBaseline]:
    """The baselines shipped with the package, read once."""
    return read_baselines(SHIPPED_PATH)


def find_shipped_random_return(env_name: str) -> float | None:
    """The shipped mean return of random play; None if there is none for the env."""
    shipped = read_shipped_baselines().get(env_name)
    return None if shipped is None else shipped.mean
