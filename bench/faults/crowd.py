"""Eight runs of one spec that begin in the same second."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.faults.fork import fork, wait
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import NAME, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.results.run import load_run

NUM_RUN = 8


def run_together(num_run: int, folder: Path) -> Iterator[Verdict]:
    """All have loaded everything, and wait for the same full second."""
    spec = make_spec("PPO", env={"max_frame": 400})
    data = folder / "data"
    moment = float(int(time.time()) + 2)

    def begin() -> None:
        time.sleep(max(0.0, moment - time.time()))
        result = start(spec, Options(data_dir=data))
        os._exit(result.exit_code)

    children = [fork(begin, folder / f"{index}.out") for index in range(num_run)]
    codes = [wait(child) for child in children]
    runs = sorted(data.iterdir())
    if len(runs) != num_run:
        raise RuntimeError(f"{len(runs)} folders, exit codes {codes}")
    for index, run in enumerate(runs):
        problem = f"exit codes {codes}" if any(codes) else find_difference(runs[0], run, NAME)
        problem = problem or find_mixture(run, runs)
        yield Verdict(f"run {index + 1}: {run.name}", problem is None, problem or "")


def find_mixture(run: Path, runs: list[Path]) -> str | None:
    """Whether a run names another in its files, or has lines of it."""
    load_run(str(run), run.parent)
    log = (run / "log" / f"{NAME}.log").read_text()
    if log.count("Run folder") != 1:
        return "its log is not of one run"
    others = [other.name for other in runs if other != run and f"{other.name}\n" in log]
    return f"it names {others}" if others else None


def plan(quick: bool) -> list[Batch]:
    """Five times eight, or once."""
    return [Batch(f"second {index + 1}", NUM_RUN, partial(run_together, NUM_RUN)) for index in range(1 if quick else 5)]


ROWS = (
    Row(
        "concurrency",
        "eight runs of one spec start in the same second, five times",
        "eight folders, each with a complete run, all with the same bits",
        plan,
    ),
)
