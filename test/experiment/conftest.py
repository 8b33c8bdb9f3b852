"""What tests of sessions share."""

from collections.abc import Iterator

import pytest
from loguru import logger


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What is logged as a warning or worse."""
    lines: list[str] = []
    handle = logger.add(lambda message: lines.append(message.record["message"]), level="WARNING")
    yield lines
    logger.remove(handle)
