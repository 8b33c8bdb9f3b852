"""The time of a run, by phase."""

import time

from slm_lab.agent.compile.engine import CompileClock

COMPILE = "compile"


class Stopwatch:
    """Splits the time of a run by phase; always on, since a lap costs a quarter of a microsecond.

    Compiling happens inside the first call of a compiled function, so it is subtracted from the phase it interrupts.
    """

    def __init__(self, compiling: CompileClock) -> None:
        self.phases: dict[str, float] = {}
        self.total = 0.0
        self._compiling = compiling
        self._compiled = compiling.seconds
        self._last = time.perf_counter()

    def start(self) -> None:
        """Start counting."""
        self._last = time.perf_counter()
        self._compiled = self._compiling.seconds

    def lap(self, phase: str) -> float:
        """Add the time since the last lap to a phase; returns the current time."""
        now = time.perf_counter()
        spent = now - self._last
        self.total += spent
        if self._compiling.seconds != self._compiled:
            compiled, self._compiled = self._compiling.seconds - self._compiled, self._compiling.seconds
            self.phases[COMPILE] = self.phases.get(COMPILE, 0.0) + compiled
            spent -= compiled
        self.phases[phase] = self.phases.get(phase, 0.0) + spent
        self._last = now
        return now

    @property
    def working(self) -> float:
        """The total without compiling, which says nothing about the speed of training."""
        return self.total - self.phases.get(COMPILE, 0.0)
