"""When periodic work is due, and where the time goes."""

import time


class Due:
    """Says when periodic work is due: at each multiple passed, however large the steps are."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.next = every

    def __call__(self, frame: int) -> bool:
        if frame < self.next:
            return False
        self.next += self.every * ((frame - self.next) // self.every + 1)
        return True

    def skip_to(self, frame: int) -> None:
        """Forget what was due up to a frame."""
        self.next = self.every * (frame // self.every + 1)


class Stopwatch:
    """Splits the time of a run by phase; always on, since a lap costs a quarter of a microsecond."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.total = 0.0
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin to count now."""
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap to a phase."""
        now = time.perf_counter()
        spent = now - self._last
        self.phases[phase] = self.phases.get(phase, 0.0) + spent
        self.total += spent
        self._last = now
