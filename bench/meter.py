"""Steady speed: the time of whole rounds of acting and learning, after a warm-up."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from bench.job import Job, Measured, peak_mb

# Not counted: the round that compiles, at least one after it, and what caches and allocators need to settle.
WARM_ROUNDS = 2
WARM_SECONDS = 3.0
QUICK_WARM_SECONDS = 0.3


class Mark(NamedTuple):
    """All counts at the end of a round."""

    time: float
    cpu_time: float
    frame: int
    opt_step: int
    phases: dict[str, float]


class Meter:
    """Told of each round's end, it says when to stop, and what was measured."""

    def __init__(self, job: Job) -> None:
        self.warm_seconds = QUICK_WARM_SECONDS if job.quick else WARM_SECONDS
        self.target = job.seconds
        self.created = time.perf_counter()
        self.first = 0.0
        self.num_round = 0
        self.start: Mark | None = None
        self.end: Mark | None = None
        self.last_opt_step = 0

    def end_round(self, frame: int, opt_step: int, phases: Mapping[str, float]) -> bool:
        """Take note of a round's end, with all counts so far; whether enough was measured."""
        if self.end is not None:
            return True
        if opt_step == self.last_opt_step:
            return False  # nothing was learned since: the replay is still filling, or a rollout goes on
        self.last_opt_step = opt_step
        self.num_round += 1
        now = time.perf_counter()
        if self.num_round == 1:
            self.first = now
        mark = Mark(now, time.process_time(), frame, opt_step, dict(phases))
        if self.start is None:
            if self.num_round >= WARM_ROUNDS and now - self.first >= self.warm_seconds:
                self.start = mark
        elif now - self.start.time >= self.target:
            self.end = mark
        return self.end is not None

    def measured(self, num_param: int) -> Measured:
        """The result, once `end_round` has said that it is enough."""
        assert self.start is not None
        assert self.end is not None
        start, end = self.start, self.end
        return Measured(
            frames=end.frame - start.frame,
            seconds=end.time - start.time,
            cpu_seconds=end.cpu_time - start.cpu_time,
            opt_steps=end.opt_step - start.opt_step,
            num_param=num_param,
            phases={name: spent - start.phases.get(name, 0.0) for name, spent in end.phases.items()},
            warm_seconds=start.time - self.created,
            peak_mb=peak_mb(),
        )
