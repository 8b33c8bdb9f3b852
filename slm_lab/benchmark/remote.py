"""Train rows with dstack, so many at a time; what was submitted is kept in a file, so that one can leave and return."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.result import Result
from slm_lab.benchmark.state import Standing, find_states
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_json
from slm_lab.remote.task import NAME_LENGTH, TaskRequest, make_run_name

# how long between two looks at what runs
POLL_SECONDS = 60.0
GPU_PHASES = ("atari", "playground")
FAILED = ("failed", "terminated")


@dataclass(frozen=True)
class RemoteRun:
    """A row that was submitted."""

    name: str
    attempt: int
    # dstack's word for it, or "given up"
    status: str

    @property
    def is_active(self) -> bool:
        return self.status not in ("done", "given up", *FAILED)


@dataclass(frozen=True)
class Cloud:
    """What is asked of the outside."""

    submit: Callable[[TaskRequest], object]
    # the status of a run by its name; None if there is none
    find_status: Callable[[str], str | None]
    # brings home the finished runs of a spec
    fetch: Callable[[str], object]
    sleep: Callable[[float], None] = time.sleep


def remote_file(data_dir: Path) -> Path:
    """Where it is kept what was submitted."""
    return data_dir / "bench_remote.json"


def load_remote(data_dir: Path) -> dict[str, RemoteRun]:
    """What was submitted, by the key of its row."""
    path = remote_file(data_dir)
    try:
        return {key: RemoteRun(**entry) for key, entry in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); see `dstack ps`, then delete it") from None


def run_remote(
    rows: Sequence[Row], results: dict[str, Result], data_dir: Path, max_parallel: int, retries: int, cloud: Cloud
) -> dict[str, RemoteRun]:
    """Submit what is missing and wait for it; returns what became of each row that was submitted."""
    runs = load_remote(data_dir)
    open_rows = {
        state.row.key: state.row
        for state in find_states(rows, results, data_dir)
        if state.standing not in (Standing.DONE, Standing.READY, Standing.RUNNING)
    }
    # what was given up before is what the user wants tried again now
    runs = {key: run for key, run in runs.items() if run.status != "given up" or key not in open_rows}
    while True:
        for key, run in list(runs.items()):
            if key in open_rows and run.is_active:
                runs[key] = _look(open_rows[key], run, retries, cloud)
                _save(data_dir, runs)
        active = sum(run.is_active for run in runs.values())
        for key, row in open_rows.items():
            if active >= max_parallel:
                break
            before = runs.get(key)
            if before is None or before.status in FAILED:
                runs[key] = _name_run(row, before)
                # noted first, so that no run is ever paid for and forgotten
                _save(data_dir, runs)
                _submit(row, runs[key].name, cloud)
                active += runs[key].is_active
        mine = {key: run for key, run in runs.items() if key in open_rows}
        if not any(run.is_active for run in mine.values()):
            return mine
        waiting = len(open_rows) - len(mine)
        logger.info(f"{active} row(s) run remotely, {waiting} wait; Ctrl-C leaves them running")
        cloud.sleep(POLL_SECONDS)


def _look(row: Row, run: RemoteRun, retries: int, cloud: Cloud) -> RemoteRun:
    """How a run is now; a run that ended well is brought home."""
    status = cloud.find_status(run.name)
    if status is None:
        # noted, but killed before it was sent
        return replace(run, status="failed", attempt=run.attempt - 1)
    if status == "done":
        logger.info(f"{row.key} is done")
        cloud.fetch(row.load_spec().name)
    if status in FAILED:
        is_last = run.attempt > retries
        logger.warning(f"{row.key} {status} in attempt {run.attempt}: dstack logs {run.name}")
        return replace(run, status="given up" if is_last else status)
    return replace(run, status=status)


def _name_run(row: Row, before: RemoteRun | None) -> RemoteRun:
    attempt = 1 if before is None else before.attempt + 1
    end = "" if attempt == 1 else f"-{attempt}"
    name = make_run_name(row.load_spec().name)[: NAME_LENGTH - len(end)] + end
    return RemoteRun(name, attempt, "submitted")


def _submit(row: Row, name: str, cloud: Cloud) -> None:
    changes = tuple(f"{key}={value}" for key, value in row.changes.items())
    gpu = row.phase in GPU_PHASES
    cloud.submit(TaskRequest(row.spec_file, row.spec_name, "train", changes, run_name=name, gpu=gpu))
    logger.info(f"Submitted {row.key} as {name}")


def _save(data_dir: Path, runs: dict[str, RemoteRun]) -> None:
    write_json(remote_file(data_dir), {key: asdict(run) for key, run in runs.items()})
