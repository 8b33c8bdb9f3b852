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
# a look for a free core measures this long; the next look follows this much later
WATCH_SECONDS, POLL_SECONDS = 5.0, 15.0
# free share of a core that is enough to start: at the lowest priority a row takes nothing from others
MIN_FREE = 0.1


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row."""

    row: Row
    # 0 if the row now has a finished run
    exit_code: int
    num_attempt: int
    # of all its processes, during this call only
    core_seconds: float


Launch = Callable[[Sequence[str]], int]


def launch_command(arguments: Sequence[str]) -> int:
    """Run `slm-lab` in a separate process with visible output; returns its exit code, or that of a requested stop.

    If this process is killed, the run saves itself and ends.
    """
    process = subprocess.Popen([sys.executable, "-m", "slm_lab.cli", *arguments], env=child_environment())
    asked = 0

    def on_signal(number: int, _frame: object) -> None:
        nonlocal asked
        asked = 128 + number
        # Ctrl-C reaches the run from the terminal; other signals reach only this process
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
            row = state.row
            share = 1 - state.resumable_frames / (row.max_frame * row.max_session)
            costs.append((row, share * estimate(row, measured, 1).core_seconds))
    return sorted(costs, key=lambda cost: cost[1])


def wait_for_core() -> None:
    """Return once a core is not fully used by processes of normal priority."""
    has_told = False
    while _find_free_cores() < MIN_FREE:
        if not has_told:
            logger.info("No core is free; waiting for one")
            has_told = True
        time.sleep(POLL_SECONDS)


def _find_free_cores() -> float:
    try:
        before = _read_times()
        time.sleep(WATCH_SECONDS)
        free, total = (after - old for after, old in zip(_read_times(), before, strict=True))
    except FileNotFoundError:
        return num_cores()  # not Linux: rely on the priority alone
    return num_cores() * free / total if total else num_cores()


def _read_times() -> tuple[int, int]:
    """Time of all cores since boot: idle or at low priority, and in total."""
    first_line = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0]
    times = [int(word) for word in first_line.split()[1:9]]
    _user, nice, _system, idle, iowait, *_ = times
    return nice + idle + iowait, sum(times)


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
        if (frames := after.frames - state.resumable_frames) > 0:
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
