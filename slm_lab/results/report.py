"""A run, or several, as one page that opens offline; needs no torch.

What is computed is computed here, as plain data. The page draws it: `report_page/` has its HTML, CSS and JavaScript.
"""

import base64
import hashlib
import html
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np

from slm_lab.lib.io import dump_yaml, write_text
from slm_lab.lib.unit import format_seconds
from slm_lab.results.curve import (
    BOOKKEEPING,
    average_curves,
    describe_constants,
    find_constant,
    find_limits,
    pick_points,
    read_curve,
)
from slm_lab.results.doctor import conclude, diagnose
from slm_lab.results.folder import SPEC_SUFFIX
from slm_lab.results.metrics import MA_WINDOW, METRICS, MIN_INTERVAL, Spread, calc_spread
from slm_lab.results.palette import COLORS, DASHES, find_looks
from slm_lab.results.run import Run, ScoreKind, find_common_kind
from slm_lab.results.table import Array, Table
from slm_lab.spec.loading import flatten_spec

PAGE = Path(__file__).with_name("report_page")
# points of a curve: in a chart as wide as the page, and in one of many beside each other
NUM_POINT = 1000
NUM_POINT_SMALL = 300
NOTHING = "–"
RETURNS = {"raw": "total_reward", "ma": "total_reward_ma"}
TITLE = f"Total reward while training, mean of the last {MA_WINDOW} episodes"
MA_TITLE = f"total_reward_ma while training, mean of the last {MA_WINDOW} rows, each the mean of {MA_WINDOW} episodes"
# what the scores of runs side by side are
SCORES = {
    "final": "return of the deterministic policy at the end",
    "eval": "return of the deterministic policy when it was last evaluated",
    "train": f"mean return of the last {MA_WINDOW} episodes of training",
}
MEANINGS = {
    "frame": "env steps of the longest session",
    "total_reward_ma": "mean of the last 100 checkpoints, each of them of 100 episodes",
    "strength": "how much better than random play, over the whole run",
    "max_strength": "the best moment",
    "final_strength": "the end; far below the best means it was lost again",
    "sample_efficiency": "mean strength in which early frames weigh more",
    "training_efficiency": "the same with gradient steps for frames",
    "stability": "1: the curve never falls",
    "consistency": "1: all sessions have the same curve",
}


@dataclass(frozen=True)
class Verdict:
    """A run compared with another, in words."""

    difference: str = NOTHING
    improvement: str = NOTHING
    text: str = ""


def write_report(
    runs: Sequence[Run], path: Path, verdicts: Sequence[Verdict] = (), problems: Sequence[str] = ()
) -> None:
    """Write the page; `verdicts` are of `compare_runs`, `problems` what else could not be read."""
    write_text(path, render_page(build_report(runs, path.parent, verdicts, problems)))


def build_report(
    runs: Sequence[Run], folder: Path, verdicts: Sequence[Verdict] = (), problems: Sequence[str] = ()
) -> dict[str, Any]:
    """All that the page shows, as plain data; links to files are relative to `folder`."""
    names = name_runs(runs)
    envs = list(dict.fromkeys(run.env_name for run in runs))
    labels = list(dict.fromkeys(run.label for run in runs))
    kind = find_common_kind(runs)
    looks = find_looks([run.label for run in runs])
    return {
        "title": f"{', '.join(labels)} on {', '.join(envs)}",
        "problems": list(problems),
        "colors": [_variable(name) for name in COLORS],
        "dashes": [svg for _, _, svg in DASHES],
        "runs": [
            _build_run(run, name, folder, kind) | {"color": _variable(look.name), "dash": look.dashes[2]}
            for run, name, look in zip(runs, names, looks, strict=True)
        ],
        "envs": [_build_env(runs, env) for env in envs],
        "comparison": _build_comparison(runs, names, verdicts) if len(runs) > 1 else None,
        "spec_diff": build_spec_diff(runs, names) if len(runs) > 1 else None,
    }


def render_page(data: Mapping[str, Any]) -> str:
    """The page with the data in it; it holds no text of a spec, a name or a log outside its JSON and its title."""
    script, style = ((PAGE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    style += _write_colors()
    # "<" is what could end the block early; the rest is ASCII
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template((PAGE / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(str(data["title"])),
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        data=text,
    )


def _variable(name: str) -> str:
    """What the page calls a colour."""
    return f"var(--color-{name})"


def _write_colors() -> str:
    """The colours as variables of the style: on white, on dark, and on paper."""
    light, dark = (";".join(f"--color-{name}:{pair[i]}" for name, pair in COLORS.items()) for i in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root{{{dark}}} }}\n"


def _hash(text: str) -> str:
    """What the page's policy knows a script or style by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def name_runs(runs: Sequence[Run]) -> list[str]:
    """The folders' names, or their paths where names are not enough to tell them apart."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _build_run(run: Run, name: str, folder: Path, kind: ScoreKind) -> dict[str, Any]:
    scores = run.get_scores(kind)
    spread = calc_spread([score for score in scores.values() if math.isfinite(score)] or [math.nan])
    return {
        "name": name,
        "title": f"{run.label} on {run.env_name}",
        "env": run.env_name,
        "problems": [*run.problems, *find_problems(run)],
        "facts": _build_facts(run, spread),
        "score": {
            "mean": _number(spread.mean),
            "low": _number(spread.low),
            "high": _number(spread.high),
            "values": [[session, _number(value)] for session, value in scores.items()],
        },
        "doctor": _build_doctor(run),
        "sessions": _build_sessions(run, scores),
        "metrics": _build_metrics(run),
        "phases": _build_phases(run),
        "videos": _find_videos(run, folder),
        "commands": build_commands(run),
        "spec": dump_yaml({run.name: run.spec}) if run.spec else "",
        "machine": _build_machine(run.provenance),
    }


def find_problems(run: Run) -> list[str]:
    """What a reader should know about a run that was read, a line each."""
    problems = list(run.score_notes)
    failed = run.metrics.get("failed")
    if isinstance(failed, list) and failed:
        problems.append(f"failed and not in the score: session {', '.join(map(str, failed))}")
    if not run.metrics:
        problems.append("no trial_metrics.json: the run has not ended, or was killed; the score is of the rows so far")
    elif run.metrics.get("is_complete") is False:
        problems.append("not every session is done: the score is of the rows so far")
    if not run.provenance:
        problems.append("no provenance.json: machine and versions are unknown")
    ends = {session: _last(table, "frame") for session, table in run.counted_tables.items()}
    if len(set(ends.values())) > 1:
        told = ", ".join(f"{format_number(end)} in session {session}" for session, end in ends.items())
        problems.append(f"sessions of unequal length, so the mean goes up to the shortest: frame {told}")
    if not any(math.isfinite(score) for score in run.scores):
        problems.append("no episode has ended, so there is no score; train longer, or set env.max_t")
    columns = dict.fromkeys(column for table in run.tables.values() for column in table)
    empty = [
        column
        for column in columns
        if column not in BOOKKEEPING and not any(read_curve(table, column)[0].size for table in run.tables.values())
    ]
    if empty:
        problems.append(f"no value in column {', '.join(empty)}")
    return problems


def _build_facts(run: Run, spread: Spread) -> list[list[str]]:
    """The numbers at the top: name, value, what to know about it."""
    asked = run.metrics.get("num_session")
    asked = asked if isinstance(asked, int) else len(run.tables)
    count = sum(math.isfinite(value) for value in spread.values)
    facts = [["Score", format_number(spread.mean), run.score_meaning]]
    if count >= MIN_INTERVAL:
        facts.append(["95 % interval", _format_interval(spread.low, spread.high), "of the mean"])
        facts.append(["IQM", format_number(spread.iqm), "interquartile mean"])
    if run.score_kind != "train":
        training = [score for score in run.get_scores("train").values() if math.isfinite(score)]
        if training:
            facts.append(["While training", format_number(np.mean(training)), f"last {MA_WINDOW} episodes, exploring"])
    facts.append(["Sessions", f"{count} of {asked}", "with a score"])
    facts.append(["Frames", format_number(_furthest(run, "frame")), "env steps"])
    wall = _furthest(run, "wall_t")
    if math.isfinite(wall):
        facts.append(["Time", format_seconds(wall), "longest session"])
    return facts


def _build_doctor(run: Run) -> dict[str, Any]:
    """What stands out in the tables, and a line for where nothing does."""
    findings = diagnose(run)
    return {"findings": [asdict(finding) for finding in findings], "conclusion": "" if findings else conclude(run)}


def _build_sessions(run: Run, scores: Mapping[int, float]) -> dict[str, Any]:
    failed = run.metrics.get("failed")
    failed = failed if isinstance(failed, list) else []
    rows = []
    for session, table in run.tables.items():
        is_done = run.session_metrics.get(session, {}).get("is_done")
        state = "failed" if session in failed else "done" if is_done is True else "not done"
        row = [str(session), state, format_number(scores.get(session))]
        row += [format_number(_last(table, column)) for column in ("total_reward", "frame", "epi", "opt_step", "fps")]
        rows.append(row)
    heads = ["session", "state", "score", f"last {MA_WINDOW} episodes"]
    return {"head": [*heads, "frames", "episodes", "gradient steps", "frames per second"], "rows": rows}


def _build_metrics(run: Run) -> dict[str, Any] | None:
    """The lab's metrics as they were written at the end: over all sessions, and for each."""
    scalar, sessions, index = (run.metrics.get(key) for key in ("scalar", "sessions", "session_index"))
    if not isinstance(scalar, Mapping):
        return None
    parts = [part for part in sessions if isinstance(part, Mapping)] if isinstance(sessions, list) else []
    numbers = index if isinstance(index, list) and len(index) == len(parts) else list(range(len(parts)))
    rows = []
    for name in ("frame", *METRICS, "consistency"):
        cells = [format_number(part.get(name)) if name in part else "" for part in parts]
        rows.append([name, format_number(scalar.get(name)), *cells, MEANINGS[name]])
    heads = [f"session {number}" for number in numbers]
    return {"head": ["metric", "all", *heads, "meaning"], "rows": rows}


def _build_phases(run: Run) -> dict[str, Any] | None:
    """How the time was spent: over all sessions, and for each."""
    parts: dict[str, dict[str, float]] = {}
    for session, metrics in run.session_metrics.items():
        phases = metrics.get("phases")
        if isinstance(phases, Mapping):
            known = {str(name): float(value) for name, value in phases.items() if _number(value) is not None}
            if sum(known.values()) > 0:
                parts[f"session {session}"] = known
    names = list(dict.fromkeys(name for phases in parts.values() for name in phases))
    if not names:
        return None
    if len(parts) > 1:
        total = {name: sum(phases.get(name, 0.0) for phases in parts.values()) for name in names}
        parts = {"all": total, **parts}
    rows = []
    for label, phases in parts.items():
        seconds = sum(phases.values())
        shares = [_number(phases.get(name, 0.0) / seconds) for name in names]
        rows.append({"label": label, "time": format_seconds(seconds), "shares": shares})
    return {"names": names, "rows": rows}


def _find_videos(run: Run, folder: Path) -> list[dict[str, str]]:
    """Recorded episodes, the newest last, by links that hold as long as the folders stay beside each other."""
    prefix = f"{run.name}_t{run.trial}_"
    found = []
    for file in (run.path / "video").glob("*.mp4"):
        frame = file.stem.rpartition("_f")[2]
        if file.name.startswith(prefix) and frame.isdigit():
            link = quote(os.path.relpath(file.resolve(), folder.resolve()).replace(os.sep, "/"))
            found.append((int(frame), {"label": f"frame {format_number(int(frame))}", "link": link}))
    return [video for _, video in sorted(found, key=lambda pair: pair[0])]


def build_commands(run: Run) -> list[list[str]]:
    """What to type to go on with a run: a name for it, and the line."""
    extra = list_imports(run.provenance)
    commands = []
    spec_file = run.path / f"{run.name}{SPEC_SUFFIX}"
    if spec_file.exists():
        commands.append(["Repeat", shlex.join(["slm-lab", "run", str(spec_file), run.name, "train", *extra])])
    if (run.path / "model").is_dir():
        commands.append(["Continue", shlex.join(["slm-lab", "run", f"train@{run.path}", *extra])])
        commands.append(["Replay", shlex.join(["slm-lab", "run", f"enjoy@{run.path}", *extra])])
    commands.append(["Report", shlex.join(["slm-lab", "report", str(run.path)])])
    return commands


def list_imports(provenance: Mapping[str, Any]) -> list[str]:
    """The options that load the modules a run was made with."""
    imports = provenance.get("imports")
    return [word for name in imports for word in ("--import", str(name))] if isinstance(imports, list) else []


def _build_machine(provenance: Mapping[str, Any]) -> list[list[str]]:
    """Where a run happened, name and value."""
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


def _build_env(runs: Sequence[Run], env: str) -> dict[str, Any]:
    """The curves of all runs in one env: returns first, then the columns of the algorithms that change."""
    here = {index: run for index, run in enumerate(runs) if run.env_name == env}
    charts = []
    tables = {index: run.tables for index, run in here.items()}
    returns = {name: _build_curves(here, tables, column, NUM_POINT) for name, column in RETURNS.items()}
    if returns["raw"]:
        evals = _build_curves(here, {index: run.evaluations for index, run in here.items()}, "total_reward", NUM_POINT)
        # of several sessions the mean, so that dots do not hide curves
        means = {curve["run"]: curve for curve in evals}
        titles = {"title": TITLE, "ma_title": MA_TITLE}
        charts.append({"name": "train", **titles, "is_small": False, **returns, "evals": list(means.values())})
    columns = dict.fromkeys(column for run in here.values() for table in run.tables.values() for column in table)
    constants = {}
    # The learning rate is a setting, the others are results.
    for column in sorted((name for name in columns if name not in BOOKKEEPING), key=lambda name: name == "lr"):
        curves = [read_curve(table, column) for run in here.values() for table in run.tables.values()]
        if not any(x.size for x, _ in curves):
            continue
        constant = find_constant(curves)
        if constant is not None:
            constants[column] = constant
            continue
        limits = find_limits(curves)
        raw = _build_curves(here, tables, column, NUM_POINT_SMALL)
        chart = {"name": column, "title": column, "is_small": True, "raw": raw}
        charts.append(chart | ({"limits": _rounded(np.array(astuple(limits)))} if limits is not None else {}))
    return {"name": env, "charts": charts, "constants": describe_constants(constants)}


def _build_curves(
    runs: Mapping[int, Run], tables: Mapping[int, Mapping[int, Table]], column: str, num_point: int
) -> list[dict[str, Any]]:
    """One column: a curve for every session of every run that has values, then the mean of those that count."""
    result = []
    for index, run in runs.items():
        curves = {session: read_curve(table, column) for session, table in tables[index].items()}
        curves = {session: curve for session, curve in curves.items() if curve[0].size}
        for session, (x, y) in curves.items():
            picked = pick_points(y, num_point)
            result.append({"run": index, "session": session, "x": _plain(x[picked]), "y": _plain(y[picked])})
        counted = [curve for session, curve in curves.items() if session in run.counted_tables]
        average = average_curves(counted) if len(counted) > 1 else None
        if average is not None:
            picked = pick_points(average.mean, num_point)
            mean: dict[str, Any] = {
                "run": index,
                "session": None,
                "x": _plain(average.x[picked]),
                "y": _plain(average.mean[picked]),
            }
            if average.interval is not None:
                mean["low"], mean["high"] = (_plain(edge[picked]) for edge in average.interval)
            result.append(mean)
    return result


def _build_comparison(runs: Sequence[Run], names: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    has_envs = len({run.env_name for run in runs}) > 1
    rows = []
    kind = find_common_kind(runs)
    for run, name in zip(runs, names, strict=True):
        spread = calc_spread(list(run.get_scores(kind).values()))
        row = [name, run.label, *([run.env_name] if has_envs else []), str(len(spread.values))]
        row.append(format_number(_furthest(run, "frame")))
        rows.append(
            [*row, format_number(spread.mean), _format_interval(spread.low, spread.high), format_number(spread.iqm)]
        )
    head = ["run", "algorithm", *(["env"] if has_envs else []), "sessions", "frames", "score", "95 % interval", "IQM"]
    if verdicts:
        head += ["difference", "probability of improvement"]
        for row, verdict in zip(rows, verdicts, strict=True):
            row += [verdict.difference, verdict.improvement]
    told = [f"{name}: {verdict.text}" for name, verdict in zip(names, verdicts, strict=False) if verdict.text]
    return {"head": head, "rows": rows, "verdicts": told, "score": SCORES[kind]}


def build_spec_diff(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """The keys in which the specs differ, with what each has."""
    flat = [flatten_spec(run.spec) for run in runs]
    keys = dict.fromkeys(key for spec in flat for key in spec)
    rows = []
    for key in keys:
        values = [json.dumps(spec[key], ensure_ascii=False) if key in spec else NOTHING for spec in flat]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return {"head": ["key", *names], "rows": rows}


def _plain(values: Array) -> list[float | int]:
    """Numbers as short as a chart needs them."""
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in _rounded(values)]


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


def _last(table: Table, column: str) -> float:
    """The last known value of a column, NaN if there is none."""
    values = np.asarray(table.get(column, ()), float)
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else math.nan


def _furthest(run: Run, column: str) -> float:
    """The last value of the session that has the largest."""
    values = [_last(table, column) for table in run.tables.values()]
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def format_number(value: Any) -> str:
    """A number as people read it."""
    number = _number(value)
    if number is None:
        return NOTHING
    if number.is_integer() and abs(number) < 1e15:
        return f"{number:,.0f}"
    if abs(number) >= 1e15:
        return f"{number:.4g}"
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.4g}"


def _format_interval(low: float, high: float) -> str:
    return f"[{format_number(low)}, {format_number(high)}]" if math.isfinite(low) and math.isfinite(high) else NOTHING
