"""An hour of training: memory, open files and processes."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.faults.command import find_descendants, read_stat
from bench.faults.fork import fork, train, wait
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import make_spec
from slm_lab.spec.schema import Spec

SECONDS, QUICK_SECONDS = 3600.0, 20.0
# before this share of the time memory still settles: replays fill, allocators grow
WARM_SHARE = 0.4
SAMPLE_SECONDS = 1.0
MAX_SLOPE = 1.0
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
# rows are kept in memory, so a table that never ends is left out of what is measured: it has a row in a minute or so
_RARE = {"log_frequency": 100_000, "checkpoint_frequency": 20_000, "rigorous_eval": 2, "eval_frequency": 50_000}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO, two env workers": ("PPO", {"num_workers": 2}),
    "DoubleDQN, a full replay": ("DoubleDQN", {}),
    "SAC on Pendulum": ("SoftActorCritic", {"name": "Pendulum-v1"}),
}


@dataclass
class Watched:
    """A session under way, and what it was seen to hold."""

    name: str
    pid: int
    times: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    zombies: int = 0

    def sample(self) -> None:
        """Look once at the session and all its children."""
        family = [self.pid, *find_descendants(self.pid)]
        stats = {pid: read_stat(pid) for pid in family}
        self.times.append(time.monotonic())
        # the field after the state is numbered 4 in the manual: resident pages are number 24
        self.megabytes.append(sum(int(fields[21]) * PAGE_MB for fields in stats.values() if fields is not None))
        self.files.append(len(os.listdir(f"/proc/{self.pid}/fd")))
        self.zombies += sum(fields is not None and fields[0] == "Z" for fields in stats.values())

    def judge(self, is_long: bool) -> Iterator[Verdict]:
        """Three verdicts; a slope needs more than a look."""
        start = int(WARM_SHARE * len(self.times))
        times = np.array(self.times[start:]) - self.times[0]
        slope = float(np.polyfit(times, np.array(self.megabytes[start:]), 1)[0]) * 3600
        told = f"{slope:+.2f} MB/h at {self.megabytes[-1]:.0f} MB, {len(times)} samples"
        yield Verdict(f"{self.name}: memory, {told}", slope < MAX_SLOPE or not is_long, f"grows by {told}")
        files = self.files[start:]
        # tables and checkpoints are opened and closed again, so the level counts and not its peaks
        half = len(files) // 2
        levels = [float(np.median(part)) for part in (files[:half], files[half:])]
        yield Verdict(f"{self.name}: open files, {levels[1]:.0f}", levels[0] == levels[1], f"{levels} files")
        yield Verdict(f"{self.name}: zombies", self.zombies == 0, f"{self.zombies} seen")


def soak(seconds: float, names: tuple[str, ...], folder: Path) -> Iterator[Verdict]:
    """All at once, for the given time."""
    watched = []
    for index, name in enumerate(names):
        algorithm, env = RUNS[name]
        spec = make_spec(algorithm, env={"max_frame": 10**9, **env}, meta=_RARE)
        child = fork(lambda spec=spec, index=index: _train(spec, folder / str(index)), folder / f"{index}.out")  # type: ignore[misc]
        watched.append(Watched(name, child))
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            time.sleep(SAMPLE_SECONDS)
            for one in watched:
                one.sample()
    finally:
        for one in watched:
            os.kill(one.pid, signal.SIGTERM)
    for index, one in enumerate(watched):
        code = wait(one.pid)
        yield from one.judge(seconds >= SECONDS)
        text = (folder / f"{index}.out").read_text()
        yield Verdict(f"{one.name}: ended when asked", code == 0, f"ended with {code}: {text[-300:]}")


def _train(spec: Spec, path: Path) -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    def prepare(session: Any) -> None:
        session.should_stop = lambda: bool(asked)

    train(spec, path, prepare=prepare)


def plan(quick: bool) -> list[Batch]:
    """An hour of all, or a moment of one."""
    names, seconds = (tuple(RUNS)[:1], QUICK_SECONDS) if quick else (tuple(RUNS), SECONDS)
    return [Batch("sessions", 4 * len(names), partial(soak, seconds, names))]


ROWS = (
    Row(
        "soak",
        "an hour of training with three parallel sessions: env workers, a full replay, evaluations, checkpoints",
        f"memory grows by less than {MAX_SLOPE:g} MB/h after the first 40 %, open files stay constant, no zombies",
        plan,
        "The table of a run is in memory and grows with its rows; here it has few.",
        told="memory",
    ),
)
