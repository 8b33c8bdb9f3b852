"""Train rows on this machine, one after the other: a run already uses every core."""

import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.plan import OPEN
from slm_lab.benchmark.result import Result
from slm_lab.benchmark.state import RowState, Standing, find_states
from slm_lab.lib.parent import child_environment

# exit codes of a run that was told to stop and saved itself
STOP_CODES = (130, 143)


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    row: Row
    # 0 if it has a finished run now
    exit_code: int
    num_attempt: int


Launch = Callable[[Sequence[str]], int]


def launch_command(arguments: Sequence[str]) -> int:
    """Run `slm-lab` in a process of its own, in view; returns its exit code, that of a stop if one was asked for.

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


def run_rows(
    rows: Sequence[Row],
    results: dict[str, Result],
    data_dir: Path,
    retries: int,
    launch: Launch = launch_command,
    submitted: Collection[str] = (),
) -> list[Outcome]:
    """Train what is missing; a stopped run goes on, a failed one is tried again in a new folder."""
    outcomes = []
    for number, row in enumerate(rows, 1):
        (state,) = find_states([row], results, data_dir, submitted)
        if state.standing in (Standing.RUNNING, Standing.SUBMITTED):
            logger.info(f"Row {number} of {len(rows)}: {row.key} is being trained elsewhere")
        if state.standing not in OPEN:
            continue
        logger.info(f"Row {number} of {len(rows)}: {row.key} with {row.spec_name}")
        outcome = _run_row(state, data_dir, retries, launch)
        outcomes.append(outcome)
        if outcome.exit_code in STOP_CODES:
            break
    return outcomes


def _run_row(state: RowState, data_dir: Path, retries: int, launch: Launch) -> Outcome:
    row, code = state.row, 1
    for attempt in range(1, retries + 2):
        if attempt == 1 and state.standing is Standing.STOPPED and state.run is not None:
            arguments = ["run", f"train@{state.run.path}", "--data-dir", str(data_dir)]
        else:
            arguments = [*row.command, "--data-dir", str(data_dir)]
        code = launch(arguments)
        if code == 0 or code in STOP_CODES:
            return Outcome(row, code, attempt)
        logger.warning(f"{row.key} ended with exit code {code} in attempt {attempt} of {retries + 1}")
    return Outcome(row, code, retries + 1)
