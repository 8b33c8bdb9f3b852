"""SIGTERM and Ctrl-C become a wish to stop; a second one ends the process at once."""

import math
import signal
import threading
import time
from types import FrameType


class StopSignal:
    """Remembers the first stop signal; the loop asks, saves and ends."""

    def __init__(self, is_patient: bool = False) -> None:
        # whether further signals change nothing: a batch system tells a session and its parent, who passes it on
        self.is_patient = is_patient
        self.number: int | None = None
        # when it came, by the monotonic clock
        self.since = math.inf
        self._old: dict[int, signal.Handlers] = {}

    def __enter__(self) -> "StopSignal":
        # only the main thread may handle signals; elsewhere the caller stops the run
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._handle)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number is not None and not self.is_patient:
            raise KeyboardInterrupt
        if self.number is None:
            self.number, self.since = number, time.monotonic()

    def __call__(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + self.number if self.number is not None else 0
