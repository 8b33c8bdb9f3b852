"""A row of the page: faults of one kind, what must follow from them, and the file that keeps what did."""

import json
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slm_lab.lib.io import write_json
from slm_lab.lib.runtime import git_sha, machine_facts, package_versions

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# of a look at the programme itself, which is not kept
QUICK_RESULTS = RESULTS / "quick"


@dataclass(frozen=True)
class Verdict:
    """One fault and whether what followed is what is promised."""

    name: str
    is_passed: bool
    note: str = ""


@dataclass(frozen=True)
class Batch:
    """Faults that are planted one after the other; a row that was interrupted continues with the next batch."""

    name: str
    # how many faults it must plant at least
    count: int
    run: Callable[[Path], Iterator[Verdict]]


@dataclass(frozen=True)
class Row:
    """Faults of one kind."""

    name: str
    fault: str
    passes: str
    # the batches in full, or a few of them for a look
    plan: Callable[[bool], Sequence[Batch]]
    # what cannot be told from the figures
    note: str = ""
    # verdicts with this word in their name are told on the page, not only counted
    told: str | None = None

    def count(self, quick: bool) -> int:
        """How many faults there are to plant."""
        return sum(batch.count for batch in self.plan(quick))


def result_file(row: Row, folder: Path) -> Path:
    """Where a row's verdicts are kept."""
    return folder / f"{row.name}.json"


def read_result(row: Row, folder: Path) -> dict[str, Any] | None:
    """A row's verdicts; None before its first batch has ended."""
    path = result_file(row, folder)
    return json.loads(path.read_text()) if path.exists() else None


def describe_machine() -> dict[str, Any]:
    """What the verdicts depend on beside the code."""
    return {"machine": machine_facts(), "versions": package_versions(), "commit": git_sha(ROOT)}


def run_row(row: Row, folder: Path, quick: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Plant the faults that are not in the row's file yet; the file grows with each batch."""
    batches = row.plan(quick)
    total = row.count(quick)
    result = read_result(row, folder)
    facts = describe_machine()
    if result is None or is_stale(result, row, quick, facts):
        result = {"row": row.name, "is_quick": quick, **facts, "seconds": 0.0, "batches": {}}
    progress = Progress(row.name, total, sum(len(found) for found in result["batches"].values()), tell)
    for batch in batches:
        if batch.name in result["batches"]:
            continue
        began = time.monotonic()
        found = run_batch(batch, progress)
        result["batches"][batch.name] = [asdict(verdict) for verdict in found]
        result["seconds"] += time.monotonic() - began
        result["is_whole"] = len(result["batches"]) == len(batches)
        result["load"] = round(os.getloadavg()[0], 2)
        result["run_at"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        write_json(result_file(row, folder), result)
    return result


def is_stale(result: dict[str, Any], row: Row, quick: bool, facts: dict[str, Any]) -> bool:
    """Whether a row starts from scratch: it is whole, or what it has was found with other code or planned otherwise."""
    known = {batch.name for batch in row.plan(quick)}
    return result.get("is_whole", False) or result["commit"] != facts["commit"] or not set(result["batches"]) <= known


def run_batch(batch: Batch, progress: "Progress") -> list[Verdict]:
    """All verdicts of a batch; whatever breaks it is one more that failed."""
    folder = Path(tempfile.mkdtemp(prefix="slm_lab_faults_"))
    found: list[Verdict] = []
    try:
        for verdict in batch.run(folder):
            found.append(verdict)
            progress.add(verdict, batch.name)
        if len(found) < batch.count:
            raise RuntimeError(f"only {len(found)} of {batch.count} faults were planted")
    except Exception as error:
        verdict = Verdict("the batch itself", False, f"{type(error).__name__}: {error}")
        progress.tell(traceback.format_exc())
        found.append(verdict)
        progress.add(verdict, batch.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


class Progress:
    """Tells how far a row is, every few seconds, and each failure at once."""

    def __init__(self, name: str, total: int, done: int, tell: Callable[[str], None]) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.tell = tell
        self.num_failed = 0
        self.num_new = 0
        self.began = self.told = time.monotonic()

    def add(self, verdict: Verdict, batch: str) -> None:
        """Count one verdict."""
        self.done += 1
        self.num_new += 1
        self.num_failed += not verdict.is_passed
        if not verdict.is_passed:
            self.tell(f"{self.name}: FAILED {batch}, {verdict.name}: {verdict.note}")
        now = time.monotonic()
        if now - self.told > 5 or self.done == self.total:
            self.told = now
            left = max(0, self.total - self.done) * (now - self.began) / self.num_new
            self.tell(f"{self.name}: {self.done}/{self.total}, {self.num_failed} failed, {left:.0f} s left")


def count_passed(result: dict[str, Any]) -> tuple[int, int]:
    """How many faults ended as promised, and how many were planted."""
    verdicts = [verdict for found in result["batches"].values() for verdict in found]
    return sum(verdict["is_passed"] for verdict in verdicts), len(verdicts)


def list_failures(result: dict[str, Any]) -> list[str]:
    """What did not end as promised."""
    return [
        f"{name}, {verdict['name']}: {verdict['note']}"
        for name, found in result["batches"].items()
        for verdict in found
        if not verdict["is_passed"]
    ]
