"""Results that were taken in: a file beside the page, one entry per row."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slm_lab.benchmark.match import find_differences
from slm_lab.benchmark.matrix import Row, load_matrix
from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.io import write_json
from slm_lab.results.metrics import calc_spread
from slm_lab.results.run import Run, look_up

DOCS = Path("docs")
# the start time at the end of a folder's name
_STAMP = re.compile(r"_(\d{4}_\d{2}_\d{2}_\d{6})(?:_(\d+))?$")


@dataclass(frozen=True)
class Result:
    """The score of a row, and where it comes from."""

    run: str
    # link to the run; None while it is only on this machine
    url: str | None
    score: float
    # interval of the score; None with a single session
    low: float | None
    high: float | None
    values: tuple[float, ...]
    # mean return of the deterministic policy at the end; None if it was not evaluated
    final_eval: float | None
    # None if the tables do not tell
    fps: float | None
    # when the run began
    date: str
    version: str
    git_sha: str | None
    # as trained; a key that is added to the lab later has its default here, so needs no new run
    spec: ReadOnlyDocument
    # `final_eval` of each session; empty if it was not evaluated, or not kept
    final_values: tuple[float, ...] = ()


def find_start(name: str) -> tuple[str, int]:
    """When the run of a folder started, as a sort key; file times change with every copy."""
    match = _STAMP.search(name)
    return (match[1], int(match[2] or 0)) if match else ("", 0)


def build_result(run: Run, url: str | None) -> Result:
    """The saved result of a run."""
    spread = calc_spread(list(run.session_ma.values()))
    evals = run.final_evals
    sha = run.provenance.get("git_sha")
    started = find_start(run.path.name)[0]
    return Result(
        run=run.path.name,
        url=url,
        score=spread.mean,
        low=spread.low if len(spread.values) > 1 else None,
        high=spread.high if len(spread.values) > 1 else None,
        values=spread.values,
        final_eval=calc_spread(list(evals.values())).mean if evals else None,
        fps=run.fps if math.isfinite(run.fps) else None,
        date=started[:10].replace("_", "-"),
        version=str(look_up(run.provenance, "versions", "slm-lab") or "unknown"),
        git_sha=sha if isinstance(sha, str) else None,
        spec={part: run.spec[part] for part in ("agent", "env", "meta")},
        final_values=tuple(evals.values()),
    )


def is_stale(result: Result, row: Row) -> bool:
    """Whether the committed spec has changed since its result was made."""
    return bool(find_differences(result.spec, row))


def results_file(docs: Path) -> Path:
    """The file with the results."""
    return docs / "benchmark" / "results.json"


def load_results(docs: Path) -> dict[str, Result]:
    """Results by the key of their row."""
    path = results_file(docs)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            key: Result(**entry | {name: tuple(entry.get(name, ())) for name in ("values", "final_values")})
            for key, entry in data.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); restore it from git") from None


def save_results(docs: Path, results: Mapping[str, Result]) -> None:
    """Write results sorted by key, so that changes of two people merge."""
    data: Document = {key: asdict(results[key]) for key in sorted(results)}
    write_json(results_file(docs), data)


def load_notes(docs: Path) -> dict[str, str]:
    """Notes on rows, for example what was tried, by the key of the row."""
    path = docs / "benchmark" / "notes.json"
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LabError(f"{path} is not JSON: {error}") from None
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise LabError(f'{path} should hold one text per row, such as {{"Pendulum-v1 A2C": "..."}}')
    keys = [row.key for row in load_matrix()]
    for key in notes:
        if key not in keys:
            raise LabError(f"{path}: there is no row '{key}'{nearest(key, keys)}")
    return notes
