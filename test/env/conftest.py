"""What tests of envs share."""

from collections.abc import Iterator

import pytest
from loguru import logger


def _record(level: str) -> Iterator[list[str]]:
    """Lines of the log from a level on, as they are written."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level=level)
    yield lines
    logger.remove(sink)


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What is told."""
    yield from _record("INFO")


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What is warned of."""
    yield from _record("WARNING")
