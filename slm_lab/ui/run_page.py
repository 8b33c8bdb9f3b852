"""What the page of one run, and that of several, show: the content of the report, and what only a server can add."""

import json
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from urllib.parse import urlencode

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.results.page import NOTHING
from slm_lab.results.report import build_report, build_spec_diff, name_runs
from slm_lab.results.report_chart import NUM_POINT, build_curves, build_graph
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.run import Run, look_up
from slm_lab.spec.compat import META_DROPPED
from slm_lab.spec.loading import dump_spec, flatten_spec, load_spec, name_for_env, spec_files, spec_names
from slm_lab.ui.places import Place
from slm_lab.ui.summary import find_max_frame, find_status

MAX_COMPARED = 12


def build_run_page(place: Place, run: Run, stride: int) -> Document:
    """The page of a run."""
    data = build_report([run], run.path)
    (content,) = data["runs"]
    content["videos"] = [
        {**video, "link": link_file(place.id, "video/" + video["link"].rpartition("/")[2])}
        for video in content["videos"]
    ]
    columns = {column for table in run.tables.values() for column in table}
    for symptom in content["doctor"]["symptoms"]:
        symptom["column"] = find_column(symptom["seen"], columns)
    shipped = find_shipped(run)
    status = find_status(place, run)
    if status == "running":
        # the others say that it has not ended
        content["problems"] = list(run.problems)
    return data | {
        "id": place.id,
        "status": status,
        "max_frame": find_max_frame(run),
        "trial": run.trial,
        "stride": stride,
        "columns": sorted(columns - {"frame"}),
        "moments": find_moments(run),
        "shipped": shipped,
    }


def build_charts(runs: Sequence[Run], wanted: Collection[str] | None = None) -> Document:
    """The curves of runs alone, for a page that is open; `wanted` are the columns in sight."""
    return build_graph(runs, name_runs(runs), "", wanted)


def build_column(run: Run, column: str) -> Document | None:
    """The chart of any column; None where it has no values."""
    raw = build_curves({0: run}, {0: run.tables}, column, NUM_POINT)
    return {"name": f"column {column}", "title": column, "is_small": False, "raw": raw} if raw else None


def build_comparison(places: Sequence[Place], runs: Sequence[Run]) -> Document:
    """The page of several runs side by side."""
    data = build_report(runs, runs[0].path, compare_runs(runs), symptoms=[() for _ in runs])
    for content, place, run in zip(data["runs"], places, runs, strict=True):
        content |= {"id": place.id, "name": place.id, "status": find_status(place, run)}
        for key in ("doctor", "commands", "videos", "machine", "metrics", "phases", "sessions"):
            content.pop(key, None)
    data["spec_diff"] = build_spec_diff(runs, [place.id for place in places])
    return data


def link_file(id_: str, path: str) -> str:
    """The address of a file of a run."""
    return f"/file?{urlencode({'run': id_, 'path': path})}"


def find_column(text: str, columns: set[str]) -> str:
    """The column that a finding of the doctor is about: the first one that its text names; empty for the score."""
    return next((word for word in re.findall(r"\w+", text) if word in columns and word != "frame"), "")


def find_moments(run: Run) -> Document:
    """The frames of each session of which there is a model, or a video already."""
    folder = RunFolder(run.path, run.name)
    sessions = {}
    for session in run.tables:
        kept = folder.find_kept_models(run.trial, session)
        name = re.compile(re.escape(folder.prefix(run.trial, session)) + r"_f(\d+)\.mp4")
        matches = (name.fullmatch(file.name) for file in (run.path / "video").glob("*.mp4"))
        filmed = [int(match[1]) for match in matches if match is not None]
        has_best = folder.find_model(run.trial, session, "best").exists()
        sessions[str(session)] = {"kept": sorted(kept), "filmed": sorted(filmed), "has_best": has_best}
    return sessions


@lru_cache(maxsize=1)
def _shipped_names() -> tuple[str, ...]:
    return tuple(name for file in spec_files() for name in spec_names(file))


@lru_cache(maxsize=64)
def _read_shipped(name: str, env: str) -> ReadOnlyDocument | None:
    for known in _shipped_names():
        if name not in (known, name_for_env(known, env)):
            continue
        for changes in ({}, {"env": env}, {"env.name": env}):
            try:
                spec = load_spec(known, overrides=changes).spec
            except LabError:
                continue
            return flatten_spec(dump_spec(spec)[spec.name])
    return None


def find_shipped(run: Run) -> Document | None:
    """The keys in which a run's spec differs from the shipped one of its name; None if there is none."""
    known = _read_shipped(run.name, str(look_up(run.spec, "env", "name")))
    if known is None:
        return None
    own = flatten_spec(run.spec)
    rows = []
    for key in dict.fromkeys([*known, *own]):
        if key.startswith("search") or key.removeprefix("meta.") in META_DROPPED:
            continue
        values = [json.dumps(spec[key], ensure_ascii=False) if key in spec else NOTHING for spec in (known, own)]
        if values[0] != values[1]:
            rows.append([key, *values])
    return {"head": ["key", "shipped", "this run"], "rows": rows}
