"""Train rows with dstack, a few at a time; a file records submitted runs, so the command can be restarted."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.benchmark.matrix import GPU_PHASES, Row
from slm_lab.benchmark.plan import OPEN
from slm_lab.benchmark.result import Result
from slm_lab.benchmark.state import Standing, find_states
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_json
from slm_lab.remote.submit import ENDED
from slm_lab.remote.task import TaskRequest, make_run_name

# between two polls of the runs
POLL_SECONDS = 60.0
# give up after this many failed polls in a row; the runs continue anyway
MAX_FAILED_POLLS = 10


@dataclass(frozen=True)
class RemoteRun:
    """A row that was submitted."""

    name: str
    attempt: int
    # as dstack calls it
    status: str

    @property
    def is_active(self) -> bool:
        return self.status not in ENDED


@dataclass(frozen=True)
class Cloud:
    """The calls that leave this machine."""

    submit: Callable[[TaskRequest], object]
    # the status of a run by its name; None if there is none
    find_status: Callable[[str], str | None]
    # downloads the newest run of a spec
    fetch: Callable[[str], object]
    sleep: Callable[[float], None] = time.sleep


def remote_file(data_dir: Path) -> Path:
    """The file with the submitted runs."""
    return data_dir / "bench" / "remote.json"


def load_remote(data_dir: Path) -> dict[str, RemoteRun]:
    """The submitted runs, by the key of their row."""
    path = remote_file(data_dir)
    try:
        return {key: RemoteRun(**entry) for key, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); see `dstack ps`, then delete it") from None


def find_submitted(data_dir: Path) -> list[str]:
    """Keys of the rows that run on other machines, as last seen."""
    return [key for key, run in load_remote(data_dir).items() if run.is_active]


def name_row(row: Row) -> str:
    """The name of a row's run at dstack; a short row shares the spec of others."""
    return make_run_name(row.load_spec().name + (f"-{row.max_frame // 1000}k" if row.is_short else ""))


class RemoteRuns:
    """Submits missing rows and waits for them."""

    def __init__(self, data_dir: Path, cloud: Cloud, request: TaskRequest) -> None:
        self.data_dir = data_dir
        self.cloud = cloud
        # volume, prices and limits of every run
        self.request = request
        self.runs = load_remote(data_dir)
        self.tries: Counter[str] = Counter()
        self.num_failed_poll = 0

    def run(
        self, rows: Sequence[Row], results: Mapping[str, Result], max_parallel: int, retries: int
    ) -> dict[str, RemoteRun]:
        """Train each row without a result and return the outcomes; failed ones are retried under a new name."""
        states = find_states(rows, results, self.data_dir)
        waiting = {state.row.key: state.row for state in states if state.standing in OPEN}
        chosen = list(waiting)
        while True:
            self._poll()
            for key in [key for key in waiting if self._is_over(waiting[key], retries)]:
                del waiting[key]
            for key, row in waiting.items():
                if sum(run.is_active for run in self.runs.values()) >= max_parallel:
                    break
                if key not in self.runs or not self.runs[key].is_active:
                    self._submit(row)
            if not waiting:
                return {key: self.runs[key] for key in chosen}
            active = sum(run.is_active for run in self.runs.values())
            logger.info(f"{active} row(s) are training remotely, {len(waiting)} unfinished; Ctrl-C leaves them running")
            self.cloud.sleep(POLL_SECONDS)

    def _poll(self) -> None:
        """Update the status of every active run, including those of other rows, which count too."""
        for key, run in list(self.runs.items()):
            if not run.is_active:
                continue
            try:
                status = self.cloud.find_status(run.name)
            except LabError as error:
                self.num_failed_poll += 1
                if self.num_failed_poll > MAX_FAILED_POLLS:
                    raise
                logger.warning(f"No status of {run.name}: {error}")
                continue
            self.num_failed_poll = 0
            if status is None:
                # recorded, but never submitted
                del self.runs[key]
            else:
                self.runs[key] = replace(run, status=status)
                if status != run.status:
                    logger.info(f"{key}: {status} ({run.name})")
            self._save()

    def _is_over(self, row: Row, retries: int) -> bool:
        """Whether this command is finished with a row; downloads a successful run."""
        run = self.runs.get(row.key)
        if run is None or run.is_active:
            return False
        tries = self.tries[row.key]
        if run.status == "done":
            self.cloud.fetch(row.load_spec().name)
            (state,) = find_states([row], {}, self.data_dir)
            if state.standing is Standing.REFUSED and tries <= retries:
                logger.warning(f"{row.key}: {run.name} cannot be taken in: {'; '.join(state.obstacles)}")
                self.runs[row.key] = replace(run, status="failed")
                return False
            if state.standing is not Standing.READY:
                logger.warning(f"{row.key}: {run.name} is done, but there is no run to take in: slm-lab bench status")
            return True
        if run.status == "terminated" and tries:
            # stopped by someone, or by its limits: the same command resumes it
            logger.warning(f"{row.key}: {run.name} was stopped before its end; dstack logs {run.name}")
            return True
        if run.status == "failed" and tries:
            logger.warning(f"{row.key}: {run.name} failed; dstack logs {run.name}")
        return tries > retries

    def _submit(self, row: Row) -> None:
        before = self.runs.get(row.key)
        attempt = 1 if before is None else before.attempt + (before.status == "failed")
        base = name_row(row)
        run = RemoteRun(base if attempt == 1 else make_run_name(f"{base}-{attempt}"), attempt, "submitted")
        # recorded first, so that no run is paid for and forgotten
        self.runs[row.key] = run
        self.tries[row.key] += 1
        self._save()
        changes = tuple(f"{key}={value}" for key, value in row.changes.items())
        self.cloud.submit(
            replace(
                self.request,
                spec_file=row.spec_file,
                spec_name=row.spec_name,
                changes=changes,
                run_name=run.name,
                gpu=row.phase in GPU_PHASES,
            )
        )
        logger.info(f"Submitted {row.key} as {run.name}")

    def _save(self) -> None:
        write_json(remote_file(self.data_dir), {key: asdict(run) for key, run in self.runs.items()})
