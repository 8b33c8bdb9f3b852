"""Train rows on this machine, one at a time: a run already uses every core."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.plan import OPEN, Speeds, add_cost, estimate
from slm_lab.benchmark.result import Result
from slm_lab.benchmark.state import RowState, Standing, find_states
from slm_lab.lib.parent import child_environment
from slm_lab.lib.runtime import num_cores, share_niceness

# exit codes of a run that saved itself and stopped at a signal
STOP_CODES = (130, 143)
# how long the machine is watched for a free core, and between two looks
WATCH_SECONDS, POLL_SECONDS = 5.0, 15.0
# share of a core that is worth a start; at the lowest priority even that is no loss to others
MIN_FREE = 0.1


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row."""

    row: Row
    # 0 if it has a finished run now
    exit_code: int
    num_attempt: int
    # of all its processes, in this call alone
    core_seconds: float


Launch = Callable[[Sequence[str]], int]


def launch_command(arguments: Sequence[str]) -> int:
    """Run `slm-lab` in a separate process with visible output; returns its exit code, or that of a requested stop.

    It saves and ends if this process is killed.
    """
    process = subprocess.Popen([sys.executable, "-m", "slm_lab.cli", *arguments], env=child_environment())
    asked = 0

    def on_signal(number: int, _frame: object) -> None:
        nonlocal asked
        asked = 128 + number
        # the terminal sends Ctrl-C to the run as well, which saves itself and ends; other signals come to us alone
        if number != signal.SIGINT:
            process.send_signal(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked or (128 - code if code < 0 else code)


def become_idle() -> None:
    """Lower the priority of this process and all it starts."""
    os.nice(19)
    share_niceness()


def order_by_cost(states: Sequence[RowState], measured: Speeds) -> list[tuple[Row, float]]:
    """Rows that need a run, with their remaining core-seconds, cheapest first."""
    costs = []
    for state in states:
        if state.standing in OPEN:
            row, done = state.row, state.frames if state.standing is Standing.STOPPED else 0
            share = 1 - done / (row.max_frame * row.max_session)
            costs.append((row, share * estimate(row, measured, 1).core_seconds))
    return sorted(costs, key=lambda cost: cost[1])


def wait_for_core() -> None:
    """Return once a core is not fully used by processes of normal priority."""
    has_said = False
    while _find_free_cores() < MIN_FREE:
        if not has_said:
            logger.info("No core is free; waiting for one")
            has_said = True
        time.sleep(POLL_SECONDS)


def _find_free_cores() -> float:
    try:
        before = _read_times()
        time.sleep(WATCH_SECONDS)
        free, total = (after - old for after, old in zip(_read_times(), before, strict=True))
    except FileNotFoundError:
        return num_cores()  # not Linux: its priority has to do
    return num_cores() * free / total if total else num_cores()


def _read_times() -> tuple[int, int]:
    """Time of all cores since boot: idle or at low priority, and in total."""
    words = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
    _, nice, _, idle, waiting, *_ = times = [int(word) for word in words]
    return nice + idle + waiting, sum(times)


def run_rows(
    rows: Sequence[Row],
    results: dict[str, Result],
    data_dir: Path,
    retries: int,
    launch: Launch = launch_command,
    submitted: Collection[str] = (),
    wait: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Train missing rows, each after a `wait`; stopped runs resume, failed ones are retried in a new folder."""
    outcomes = []
    for number, row in enumerate(rows, 1):
        (state,) = find_states([row], results, data_dir, submitted)
        if state.standing in (Standing.RUNNING, Standing.SUBMITTED):
            logger.info(f"Row {number} of {len(rows)}: {row.key} is training elsewhere")
        if state.standing not in OPEN:
            continue
        wait()
        logger.info(f"Row {number} of {len(rows)}: {row.key} with {row.spec_name}")
        outcome = _run_row(state, data_dir, retries, launch)
        outcomes.append(outcome)
        (after,) = find_states([row], results, data_dir, submitted)
        if (frames := after.frames - (state.frames if state.standing is Standing.STOPPED else 0)) > 0:
            add_cost(data_dir, row, outcome.core_seconds, frames)
        logger.info(f"{row.key} took {outcome.core_seconds / 3600:.2f} core-hours")
        if outcome.exit_code in STOP_CODES:
            break
    return outcomes


def _run_row(state: RowState, data_dir: Path, retries: int, launch: Launch) -> Outcome:
    row, code, before = state.row, 1, os.times()
    for attempt in range(1, retries + 2):
        if attempt == 1 and state.standing is Standing.STOPPED and state.run is not None:
            arguments = ["run", f"train@{state.run.path}", "--data-dir", str(data_dir)]
        else:
            arguments = [*row.command, "--data-dir", str(data_dir)]
        code = launch(arguments)
        if code == 0 or code in STOP_CODES:
            break
        logger.warning(f"{row.key} ended with exit code {code} in attempt {attempt} of {retries + 1}")
    after = os.times()
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    return Outcome(row, code, attempt, taken)
