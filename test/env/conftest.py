"""What tests of envs share."""

from collections.abc import Iterator

import pytest
from loguru import logger


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Lines of the log as they are written."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="INFO")
    yield lines
    logger.remove(sink)
