"""Trying again: what passes by itself, how often, and after how long."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from loguru import logger

from slm_lab.lib.errors import ShareError

T = TypeVar("T")


class TransientError(Exception):
    """A failure that may pass by itself: the server is busy, or the line was cut."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        # seconds that the server asks to wait
        self.retry_after = retry_after


@dataclass(frozen=True)
class Patience:
    """How long to try."""

    attempts: int = 5
    # seconds before the second attempt; doubled each time
    base: float = 1.0
    # a server that asks to wait longer is not waited for
    longest: float = 120.0
    # seconds without an answer, or without the next piece of one
    timeout: float = 30.0

    def call(self, what: str, where: str, function: Callable[[], T]) -> T:
        """The function's result, tried again while it fails for a while."""
        for attempt in range(1, self.attempts + 1):
            try:
                return function()
            except Exception as error:
                transient = find_transient(error)
                if transient is None:
                    raise
                asked = transient.retry_after
                # not all clients come back at the same moment
                wait = asked if asked is not None else self.base * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
                if attempt == self.attempts or wait > self.longest:
                    later = f", which asks to wait {wait:,.0f} s" if asked is not None else ""
                    raise ShareError(
                        f"{where}: cannot {what}: {transient.reason}{later} (tried {attempt} times); nothing is lost, "
                        "give the same command again later to go on where it stopped"
                    ) from None
                logger.warning(f"Cannot {what}: {transient.reason}; again in {wait:.1f} s ({attempt}/{self.attempts})")
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")


def find_transient(error: BaseException | None) -> TransientError | None:
    """The passing failure behind an error; None where there is another cause."""
    while error is not None:
        if isinstance(error, TransientError):
            return error
        error = error.__cause__
    return None
