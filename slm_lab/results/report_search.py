"""The report of a search: its trials, the importance of keys, the best trial's curve, and the next command.

Everything is read from the files of the search, so the page can be written later, also for a pulled search.
"""

import csv
import io
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import read_text, write_text
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import METRICS
from slm_lab.results.page import NOTHING, format_number, render_page
from slm_lab.results.report import build_report, list_imports
from slm_lab.results.run import Run, look_up, read_run
from slm_lab.results.search_axis import SearchedKey, read_axis
from slm_lab.spec.reader import read_document
from slm_lab.spec.search_space import dimensions

STATES = {"done": "done", "stopped": "stopped early", "running": "not done", "failed": "failed"}
# columns of the table of trials before the searched keys, and the first one after them
BEFORE = ("trial", "state", "frame", "num_session")
AFTER = ("score", *METRICS)
NOTE = (
    "The score of a trial that is done is that of its sessions at their end; of one that was stopped early it is the "
    "mean return of the last 100 episodes at the frame where it was stopped. The best trial was chosen by its score, "
    "so that only new seeds tell how good it is."
)


def write_search_report(path: Path, page: Path) -> None:
    """Write the page of a search."""
    write_text(page, render_page(build_search_report(path, page.parent)))


def build_search_report(path: Path, folder: Path) -> Document:
    """The content of a search's page: the search, then the page of its best trial."""
    files = RunFolder(path, find_name(path))
    rows = _read_trials(files.experiment_table_file)
    document = read_document(files.spec_file).get(files.name) if files.spec_file.exists() else None
    spec = document if isinstance(document, Mapping) else {}
    found = read_document(files.search_file) if files.search_file.exists() else {}
    best = found.get("best_trial")
    runs: list[Run] = []
    problems = []
    if isinstance(best, int):
        try:
            runs = [read_run(path, best)]
        except RunFolderError as error:
            problems.append(str(error))
    else:
        problems.append("no trial is done, so there is no best one")
    data = build_report(runs, folder, problems=problems)
    keys = _find_keys(rows, spec, found.get("importance"))
    agent, env = (look_up(spec, part, "name") or f"unknown {part}" for part in ("agent", "env"))
    data["title"] = f"Search: {agent} on {env}"
    for run in data["runs"]:
        # they are for a single run
        run["commands"] = []
    data["search"] = {
        "name": path.resolve().name,
        "best": best,
        "facts": _build_facts(rows, best),
        "note": NOTE,
        "trials": _build_table(rows, keys),
        "importance": [[key.path, key.importance] for key in keys if key.importance is not None],
        "parallel": _build_parallel(rows, keys, best),
        "commands": _build_commands(files, spec, runs),
    }
    return data


def find_name(path: Path) -> str:
    """The name of the searched spec."""
    for ending in ("_search.json", "_study.log"):
        for file in sorted((path / "info").glob(f"*{ending}")):
            return file.name.removesuffix(ending)
    raise RunFolderError(f"{path} is not a search: it has no info/*_search.json")


def _read_trials(path: Path) -> list[dict[str, str]]:
    """The rows of the table of trials, best first."""
    try:
        rows = [dict(row) for row in csv.DictReader(io.StringIO(read_text(path), newline=""))]
    except FileNotFoundError:
        raise RunFolderError(
            f"{path.parent} has no {path.name}: the search has not ended; resume it with "
            f"`slm-lab run search@{path.parent}`"
        ) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None
    # a short row has None in its last columns
    return [row for row in rows if (row.get("trial") or "").isdecimal()]


def _find_keys(rows: Sequence[Mapping[str, str]], spec: ReadOnlyDocument, importance: Any) -> list[SearchedKey]:
    """The searched keys: the columns between those of every trial and the scores."""
    searched = spec.get("search")
    spaces = {}
    for key, _ in dimensions(dict(searched)) if searched else ():
        path, _, space = key.rpartition("__")
        spaces[path] = space
    shares = importance if isinstance(importance, Mapping) else {}
    columns = [name for name in (rows[0] if rows else ()) if name and name not in BEFORE]
    end = next((index for index, name in enumerate(columns) if name in AFTER), 0)
    keys = []
    for name in columns[:end]:
        values = [_read_value(row[name]) for row in rows if row.get(name)]
        is_choice = spaces.get(name) == "choice" or not all(_is_number(value) for value in values)
        is_log = "log" in spaces.get(name, "") and not is_choice and all(value > 0 for value in values)
        share = shares.get(name)
        keys.append(SearchedKey(name, is_choice, is_log, float(share) if _is_number(share) else None))
    return sorted(keys, key=lambda key: -(key.importance or 0))


def _read_value(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _read_score(row: Mapping[str, str]) -> float:
    # searches of an older version have no column for it
    value = _read_value(row.get("score", row.get("total_reward_ma")))
    return float(value) if _is_number(value) else math.nan


def _build_facts(rows: Sequence[Mapping[str, str]], best: Any) -> list[list[str]]:
    states = [row.get("state") for row in rows]
    score = next((_read_score(row) for row in rows if row["trial"] == str(best)), math.nan)
    counts = [[_read_value(row.get(name)) for name in ("frame", "num_session")] for row in rows]
    frames = sum(frame * count for frame, count in counts if _is_number(frame) and _is_number(count))
    facts = [["Best score", format_number(score), f"trial {best}" if isinstance(best, int) else "no trial is done"]]
    facts += [["Trials", str(len(rows)), "in all"], ["Done", str(states.count("done")), "to the last frame"]]
    facts += [["Stopped early", str(states.count("stopped")), "for better ones"]]
    facts += [["Failed", str(states.count("failed")), "see the table"]] if "failed" in states else []
    return [*facts, ["Frames", format_number(frames), "of all sessions"]]


def _build_table(rows: Sequence[Mapping[str, str]], keys: Sequence[SearchedKey]) -> Document:
    has_errors = any(row.get("error") for row in rows)
    head = ["trial", "state", "score", "frames", "sessions", *(key.name for key in keys)]
    cells = []
    for row in rows:
        shown = [_show(row, key) for key in keys]
        state = STATES.get(row.get("state", ""), NOTHING)
        frames = format_number(_read_value(row.get("frame")))
        line = [row["trial"], state, format_number(_read_score(row)), frames, row.get("num_session") or NOTHING, *shown]
        cells.append([*line, *([row.get("error") or ""] if has_errors else [])])
    return {"head": [*head, *(["error"] if has_errors else [])], "rows": cells}


def _show(row: Mapping[str, str], key: SearchedKey) -> str:
    value = _read_value(row.get(key.path))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe(row: Mapping[str, str], keys: Sequence[SearchedKey]) -> str:
    """The score and the values of a trial, a line each."""
    values = [f"{key.name} {_show(row, key)}" for key in keys]
    return "\n".join([f"trial {row['trial']}: {format_number(_read_score(row))}", *values])


def _build_parallel(rows: Sequence[Mapping[str, str]], keys: Sequence[SearchedKey], best: Any) -> Document | None:
    """A line per trial across the searched keys to its score, as numbers from 0 to 1."""
    known = [row for row in rows if math.isfinite(_read_score(row)) and all(row.get(key.path) for key in keys)]
    if len(known) < 2 or not keys:
        return None
    axes = [read_axis(key, [_read_value(row[key.path]) for row in known]) for key in keys]
    axes.append(read_axis(SearchedKey("score", False, False), [_read_score(row) for row in known]))
    names = [*(key.name for key in keys), "score"]
    lines = [
        {
            "trial": row["trial"],
            "is_done": row.get("state") == "done",
            "is_best": row["trial"] == str(best),
            "places": [round(float(axis.place[index]), 4) for axis in axes],
            "text": _describe(row, keys),
        }
        for index, row in enumerate(known)
    ]
    shown = [
        {
            "name": name,
            "ticks": [[round(float(tick), 4), label] for tick, label in zip(axis.ticks, axis.labels, strict=True)],
        }
        for name, axis in zip(names, axes, strict=True)
    ]
    return {"axes": shown, "lines": lines}


def _build_commands(files: RunFolder, spec: ReadOnlyDocument, runs: Sequence[Run]) -> list[list[str]]:
    """The next commands."""
    imports = list_imports(runs[0].provenance) if runs else []
    commands: list[tuple[str, list[str]]] = []
    if files.best_spec_file.exists():
        seed = look_up(spec, "meta", "seed")
        fresh = str(seed + 1 if isinstance(seed, int) else 1)
        commands.append(("Validate", ["slm-lab", "run", str(files.best_spec_file), "train", "--seed", fresh, *imports]))
    if runs and any((files.path / "model").glob(f"*_t{runs[0].trial}_*")):
        commands.append(("Replay", ["slm-lab", "run", f"enjoy@{files.path}", *imports]))
    commands.append(("Continue", ["slm-lab", "run", f"search@{files.path}", *imports]))
    commands.append(("Report", ["slm-lab", "report", str(files.path)]))
    return [[name, shlex.join(words)] for name, words in commands]
