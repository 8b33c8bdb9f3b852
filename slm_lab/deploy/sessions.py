"""Hidden states that a server keeps for its clients: a bounded number, each for a limited time."""

import time
from collections import OrderedDict
from collections.abc import Callable

from slm_lab.lib.array import Array


class FullError(Exception):
    """As many sessions as the server keeps are in use."""


class Sessions:
    """Hidden states (1, S) by the id that a client chose; the one used longest ago comes first."""

    def __init__(self, max_session: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.max_session = max_session
        self.seconds = seconds
        self.now = now
        self._kept: OrderedDict[str, tuple[float, Array]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def load(self, session: str, start: Array, is_reset: bool = False) -> Array:
        """The hidden state of a session; `start` for one that is new, has expired or begins an episode."""
        self._expire()
        if session in self._kept and not is_reset:
            return self._kept[session][1]
        if session not in self._kept and len(self._kept) >= self.max_session:
            raise FullError
        self.save(session, start)
        return start

    def save(self, session: str, state: Array) -> None:
        """Keep a hidden state."""
        self._kept[session] = (self.now(), state)
        self._kept.move_to_end(session)

    def _expire(self) -> None:
        limit = self.now() - self.seconds
        while self._kept and next(iter(self._kept.values()))[0] < limit:
            self._kept.popitem(last=False)


class Rate:
    """At most `rate` requests per second of each client, in bursts of as many; the number of clients is bounded."""

    def __init__(self, rate: float, max_client: int = 10_000, now: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.max_client = max_client
        self.now = now
        # by client: how many requests it may send, and when that was counted
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def is_allowed(self, client: str) -> bool:
        """Whether a client may send a request now."""
        now = self.now()
        left, since = self._left.pop(client, (max(self.rate, 1.0), now))
        left = min(max(self.rate, 1.0), left + (now - since) * self.rate)
        is_allowed = left >= 1.0
        self._left[client] = (left - 1.0 if is_allowed else left, now)
        if len(self._left) > self.max_client:
            self._left.popitem(last=False)
        return is_allowed
