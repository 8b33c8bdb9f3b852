"""The report of one run or several: its content as plain data, written as a page that opens offline."""

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import numpy as np

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.io import dump_yaml, write_text
from slm_lab.lib.unit import format_seconds
from slm_lab.results.curve import list_metrics, read_curves
from slm_lab.results.doctor import Symptom, describe_health, find_symptoms
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import MA_WINDOW, METRICS, MIN_INTERVAL, Spread, calc_spread
from slm_lab.results.page import NOTHING, format_interval, format_number, render_page, to_number
from slm_lab.results.report_chart import build_graph
from slm_lab.results.run import Run, ScoreKind, find_common_kind
from slm_lab.results.table import Table
from slm_lab.spec.loading import flatten_spec

# mappings that a spec without keys for one role may have or not
ROLES = ("net.actor", "net.critic")
MEANINGS = {
    "frame": "env steps of the longest session",
    "total_reward_ma": "mean of the last 100 rows, each of them of 100 episodes",
    "strength": "how much better than random play, over the whole run",
    "max_strength": "the best moment",
    "final_strength": "the end; far below the best: the agent got worse",
    "sample_efficiency": "mean strength in which early frames weigh more",
    "training_efficiency": "the same with gradient steps for frames",
    "stability": "1: the curve never falls",
    "consistency": "1: all sessions have the same curve",
}


def write_report(
    runs: Sequence[Run],
    path: Path,
    comparison: ReadOnlyDocument | None = None,
    problems: Sequence[str] = (),
    symptoms: Sequence[Sequence[Symptom]] | None = None,
) -> None:
    """Write the page; `comparison` is that of `compare_runs`, `problems` are runs that could not be read."""
    write_text(path, render_page(build_report(runs, path.parent, comparison, problems, symptoms)))


def build_report(
    runs: Sequence[Run],
    folder: Path,
    comparison: ReadOnlyDocument | None = None,
    problems: Sequence[str] = (),
    symptoms: Sequence[Sequence[Symptom]] | None = None,
) -> Document:
    """The content of the page, as plain data; links to files are relative to `folder`."""
    names = name_runs(runs)
    labels = dict.fromkeys(run.label for run in runs)
    envs = dict.fromkeys(run.env_name for run in runs)
    kind = find_common_kind(runs)
    graph = build_graph(runs, names, f"{', '.join(labels)} on {', '.join(envs)}")
    found = symptoms if symptoms is not None else [find_symptoms(run) for run in runs]
    return graph | {
        "problems": list(problems),
        "runs": [
            look | _build_run(run, folder, kind) | {"doctor": _build_doctor(run, seen)}
            for run, look, seen in zip(runs, graph["runs"], found, strict=True)
        ],
        "comparison": comparison,
        "spec_diff": build_spec_diff(runs, names) if len(runs) > 1 else None,
    }


def name_runs(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or their paths if names are not unique."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _build_run(run: Run, folder: Path, kind: ScoreKind) -> Document:
    scores = run.get_scores(kind)
    spread = calc_spread([score for score in scores.values() if math.isfinite(score)] or [math.nan])
    return {
        "title": f"{run.label} on {run.env_name}",
        "problems": [*run.problems, *find_problems(run)],
        "facts": _build_facts(run, spread),
        "score": {
            "mean": to_number(spread.mean),
            "low": to_number(spread.low),
            "high": to_number(spread.high),
            "values": [[session, to_number(value)] for session, value in scores.items()],
        },
        "sessions": _build_sessions(run, scores),
        "metrics": _build_metrics(run),
        "phases": _build_phases(run),
        "videos": _find_videos(run, folder),
        "commands": build_commands(run),
        "spec": dump_yaml({run.name: run.spec}) if run.spec else "",
        "machine": _build_machine(run.provenance),
    }


def find_problems(run: Run) -> list[str]:
    """Notes on a run for the reader, a line each."""
    problems = list(run.score_notes)
    if run.failed:
        problems.append(f"failed and not in the score: session {', '.join(map(str, run.failed))}")
    if run.metrics is None:
        problems.append("no trial_metrics.json: the run has not ended, or was killed; the score is of the rows so far")
    elif run.metrics.is_complete is False:
        problems.append("not every session is done: the score is of the rows so far")
    if not run.provenance:
        problems.append("no provenance.json: machine and versions are unknown")
    ends = {session: _last(table, "frame") for session, table in run.counted_tables.items()}
    if len(set(ends.values())) > 1:
        listed = ", ".join(f"{format_number(end)} in session {session}" for session, end in ends.items())
        problems.append(f"sessions of unequal length, so the mean goes up to the shortest: frame {listed}")
    if not any(math.isfinite(score) for score in run.scores):
        problems.append("no episode has ended, so there is no score; train longer, or set env.max_t")
    tables = run.tables.values()
    empty = [column for column in list_metrics(tables) if not read_curves(tables, column)]
    if empty:
        problems.append(f"no value in column {', '.join(empty)}")
    return problems


def _build_facts(run: Run, spread: Spread) -> list[list[str]]:
    """The numbers at the top: name, value, explanation."""
    asked = (run.metrics.num_session if run.metrics is not None else None) or len(run.tables)
    count = sum(math.isfinite(value) for value in spread.values)
    facts = [["Score", format_number(spread.mean), run.score_meaning]]
    if count >= MIN_INTERVAL:
        facts.append(["95 % interval", format_interval(spread.low, spread.high), "of the mean"])
        facts.append(["IQM", format_number(spread.iqm), "interquartile mean"])
    if run.score_kind != "train":
        training = [score for score in run.get_scores("train").values() if math.isfinite(score)]
        if training:
            facts.append(["While training", format_number(np.mean(training)), f"last {MA_WINDOW} episodes, exploring"])
    if (solved := run.solved) is not None:
        where, _, rest = solved.removeprefix("at ").partition(" (")
        facts.append(["Solved", where, f"mean return {rest.removesuffix(')')}"])
    facts.append(["Sessions", f"{count} of {asked}", "with a score"])
    facts.append(["Frames", format_number(find_furthest(run, "frame")), "env steps"])
    wall = find_furthest(run, "wall_t")
    if math.isfinite(wall):
        facts.append(["Time", format_seconds(wall), "longest session"])
    return facts


def _build_doctor(run: Run, symptoms: Sequence[Symptom]) -> Document:
    """The symptoms of a run, or a line if it has none."""
    return {
        "symptoms": [asdict(symptom) | {"keys": symptom.keys} for symptom in symptoms],
        "conclusion": "" if symptoms else describe_health(run),
    }


def _build_sessions(run: Run, scores: Mapping[int, float]) -> Document:
    rows = []
    for session, table in run.tables.items():
        is_done = session in run.session_metrics and run.session_metrics[session].is_done
        state = "failed" if session in run.failed else "done" if is_done else "not done"
        row = [str(session), state, format_number(scores.get(session))]
        row += [format_number(_last(table, column)) for column in ("total_reward", "frame", "epi", "opt_step", "fps")]
        rows.append(row)
    heads = ["session", "state", "score", f"last {MA_WINDOW} episodes"]
    return {"head": [*heads, "frames", "episodes", "gradient steps", "frames per second"], "rows": rows}


def _build_metrics(run: Run) -> Document | None:
    """The saved metrics: over all sessions, and for each."""
    if run.metrics is None or run.metrics.scalar is None:
        return None
    means = run.metrics.scalar.model_dump()
    sessions = [session.model_dump() for session in run.metrics.sessions or ()]
    index = run.metrics.session_index or ()
    numbers = index if len(index) == len(sessions) else range(len(sessions))
    rows = []
    for name in ("frame", *METRICS, "consistency"):
        cells = [format_number(session[name]) if name in session else "" for session in sessions]
        rows.append([name, format_number(means[name]), *cells, MEANINGS[name]])
    return {"head": ["metric", "all", *(f"session {number}" for number in numbers), "meaning"], "rows": rows}


def _build_phases(run: Run) -> Document | None:
    """Time by phase: over all sessions, and for each."""
    parts = {f"session {session}": file.phases for session, file in run.session_metrics.items() if file.phases}
    parts = {label: phases for label, phases in parts.items() if sum(phases.values()) > 0}
    names = list(dict.fromkeys(name for phases in parts.values() for name in phases))
    if not names:
        return None
    if len(parts) > 1:
        total = {name: sum(phases.get(name, 0.0) for phases in parts.values()) for name in names}
        parts = {"all": total, **parts}
    rows = []
    for label, phases in parts.items():
        seconds = sum(phases.values())
        shares = [to_number(phases.get(name, 0.0) / seconds) for name in names]
        rows.append({"label": label, "time": format_seconds(seconds), "shares": shares})
    return {"names": names, "rows": rows}


def _find_videos(run: Run, folder: Path) -> list[dict[str, str]]:
    """Links to videos, the newest last; they are relative, so the folders must be moved together."""
    prefix = f"{run.name}_t{run.trial}_"
    found = []
    for file in (run.path / "video").glob("*.mp4"):
        frame = file.stem.rpartition("_f")[2]
        if file.name.startswith(prefix) and frame.isdigit():
            link = quote(os.path.relpath(file.resolve(), folder.resolve()).replace(os.sep, "/"))
            found.append((int(frame), {"label": f"frame {format_number(int(frame))}", "link": link}))
    return [video for _, video in sorted(found, key=lambda pair: pair[0])]


def build_commands(run: Run) -> list[list[str]]:
    """The next commands for a run: a label, and the command."""
    extra = list_imports(run.provenance)
    commands = []
    spec_file = RunFolder(run.path, run.name).spec_file
    if spec_file.exists():
        commands.append(["Repeat", shlex.join(["slm-lab", "run", str(spec_file), run.name, "train", *extra])])
    if (run.path / "model").is_dir():
        commands.append(["Continue", shlex.join(["slm-lab", "run", f"train@{run.path}", *extra])])
        commands.append(["Replay", shlex.join(["slm-lab", "run", f"enjoy@{run.path}", *extra])])
    commands.append(["Report", shlex.join(["slm-lab", "report", str(run.path)])])
    return commands


def list_imports(provenance: ReadOnlyDocument) -> list[str]:
    """The options that import the modules of a run."""
    imports = provenance.get("imports")
    return [word for name in imports for word in ("--import", str(name))] if isinstance(imports, list) else []


def _build_machine(provenance: ReadOnlyDocument) -> list[list[str]]:
    """Machine and versions of a run, name and value."""
    rows = []
    command = provenance.get("command")
    if isinstance(command, list):
        rows.append(["command", shlex.join(map(str, command))])
    if provenance.get("git_sha"):
        rows.append(["commit", str(provenance["git_sha"])])
    for part in ("machine", "versions"):
        facts = provenance.get(part)
        if isinstance(facts, Mapping):
            rows += [[str(name), str(value)] for name, value in facts.items()]
    return rows


def build_spec_diff(runs: Sequence[Run], names: Sequence[str]) -> Document:
    """The keys in which the specs differ, with the value in each; what a search would try changes no run."""
    flat = [flatten_spec(run.spec) for run in runs]
    flat = [{key: spec[key] for key in spec if spec[key] != {} or not key.endswith(ROLES)} for spec in flat]
    keys = [key for key in dict.fromkeys(key for spec in flat for key in spec) if key.partition(".")[0] != "search"]
    rows = []
    for key in keys:
        values = [json.dumps(spec[key], ensure_ascii=False) if key in spec else NOTHING for spec in flat]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return {"head": ["key", *names], "rows": rows}


def _last(table: Table, column: str) -> float:
    """The last known value of a column; NaN if there is none."""
    values = np.asarray(table.get(column, ()), float)
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else math.nan


def find_furthest(run: Run, column: str) -> float:
    """The largest last value of all sessions."""
    values = [_last(table, column) for table in run.tables.values()]
    return max((value for value in values if math.isfinite(value)), default=math.nan)
