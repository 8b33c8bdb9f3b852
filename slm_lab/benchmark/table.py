"""The page of results, docs/BENCHMARKS.md: written from the matrix and the results, never by hand."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from slm_lab.benchmark.matrix import Row, load_matrix, slug
from slm_lab.benchmark.result import Result, is_stale, load_notes, load_results
from slm_lab.lib.io import write_text
from slm_lab.results.baseline import find_shipped_random_return

PAGE = "BENCHMARKS.md"
PLOTS = Path("plots") / "benchmark"
PHASES = {
    "classic": "Classic control",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "atari": "Atari",
    "playground": "MuJoCo Playground",
}
# share of the way from random play to the target from which a row counts as close
CLOSE = 0.8
HEAD = """# Benchmarks

Scores of committed specs, written by `slm-lab bench table` from
[results.json](benchmark/results.json); [BENCHMARKING.md](BENCHMARKING.md) has the rules.

A **score** is `total_reward_ma` as the run's `trial_metrics` has it: the mean return over the last 100 rows of the
session's table (a row is the mean of the last 100 episodes, played by the exploring policy), averaged over sessions.
Behind it stands the 95 % interval: a bootstrap over sessions, which stays within what they scored. **At end** is the
mean return of the trained, deterministic policy. **Reference** is the score that the published SLM-Lab reports for the
same settings; a row is above or below it if its whole interval is, and else within.

Curves are means over sessions with the 95 % interval of the mean. Results that kept no other curve show
`total_reward_ma`, from where its 100 rows are full.
"""


def status(score: float, target: float | None, random_return: float | None) -> str:
    """Solved, close or below the target; nothing where there is no target."""
    if target is None:
        return ""
    if score >= target:
        return "solved"
    if random_return is None or random_return >= target:
        return "below"
    return "close" if (score - random_return) / (target - random_return) >= CLOSE else "below"


def judge(result: Result, reference: float) -> str:
    """How a score stands to the reference, which is one number without an interval."""
    if result.low > reference:
        return "above"
    return "within" if result.high >= reference else "**below**"


def plot_file(env: str) -> Path:
    """The figure of an env, inside the docs."""
    return PLOTS / f"{slug(env)}.png"


def write_table(docs: Path, active: Sequence[str] = ()) -> Path:
    """Write the page and return its path."""
    path = docs / PAGE
    write_text(path, build_page(docs, load_matrix(), load_results(docs), active))
    return path


def build_page(docs: Path, rows: Sequence[Row], results: Mapping[str, Result], active: Sequence[str]) -> str:
    """The whole page."""
    notes = load_notes(docs)
    parts = [HEAD, _progress(rows, results)]
    if active:
        parts.append("## Running now\n\n" + "\n".join(f"- {text}" for text in active) + "\n")
    for phase, title in PHASES.items():
        chosen = [row for row in rows if row.phase == phase]
        if chosen:
            parts.append(f"## {title}\n")
            parts += _phase(docs, chosen, results, notes)
    return "\n".join(parts)


def _progress(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    lines = [
        "## Progress",
        "",
        "| phase | rows with a result | target reached | reference: above, within, below |",
        "|---|--:|--:|--:|",
    ]
    for phase, title in PHASES.items():
        chosen = [row for row in rows if row.phase == phase]
        done = [(row, results[row.key]) for row in chosen if row.key in results]
        reached = sum(row.target is not None and result.score >= row.target for row, result in done)
        asked = sum(row.target is not None for row, _ in done)
        stands = Counter(judge(result, row.reference) for row, result in done)
        reached_text = f"{reached} of {asked}" if asked else ""
        stands_text = ", ".join(str(stands[word]) for word in ("above", "within", "**below**")) if done else ""
        lines.append(f"| {title} | {len(done)} of {len(chosen)} | {reached_text} | {stands_text} |")
    return "\n".join([*lines, ""])


def _phase(docs: Path, rows: Sequence[Row], results: Mapping[str, Result], notes: Mapping[str, str]) -> list[str]:
    envs = list(dict.fromkeys(row.env for row in rows))
    begun = [env for env in envs if any(row.env == env and row.key in results for row in rows)]
    parts = [_env(docs, env, [row for row in rows if row.env == env], results, notes) for env in begun]
    waiting = [row for row in rows if row.env not in begun]
    if waiting:
        parts.append(_waiting(waiting, len(begun) > 0))
    return parts


def _env(docs: Path, env: str, rows: Sequence[Row], results: Mapping[str, Result], notes: Mapping[str, str]) -> str:
    targets = {row.target for row in rows if row.target is not None}
    lines = [f"### {env}", ""]
    lines += [f"**Settings**: {text}\n" for text in dict.fromkeys(row.settings for row in rows)]
    lines += [f"**Target**: {target:,g}\n" for target in sorted(targets)]
    lines += [
        "| algorithm | status | score [95 % interval] | at end | reference | against it | spec | run |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    lines += [_line(row, results.get(row.key)) for row in rows]
    done = [(row, results[row.key]) for row in rows if row.key in results]
    lines += ["", "Every session: " + "; ".join(f"{row.algorithm} {_values(result)}" for row, result in done) + "."]
    lines += ["", *(f"- **{row.algorithm}**: {notes[row.key]}" for row in rows if row.key in notes)]
    picture = plot_file(env)
    if (docs / picture).exists():
        lines += ["", f"![Learning curves in {env}]({picture.as_posix()})"]
    return "\n".join([*lines, ""])


def _line(row: Row, result: Result | None) -> str:
    spec = f"[{row.spec_name}](../{row.spec_file})"
    if result is None:
        return f"| {row.algorithm} | missing |  |  | {_number(row.reference)} |  | {spec} |  |"
    stands = status(result.score, row.target, find_shipped_random_return(row.env))
    if is_stale(result, row):
        stands = f"{stands}, spec changed since".lstrip(", ")
    end = "" if result.final_eval is None else _number(result.final_eval)
    run = result.run if result.url is None else f"[{result.run}]({result.url})"
    score = f"{_number(result.score)} [{_number(result.low)}, {_number(result.high)}]"
    return (
        f"| {row.algorithm} | {stands} | {score} | {end} | {_number(row.reference)} | "
        f"{judge(result, row.reference)} | {spec} | {run} |"
    )


def _waiting(rows: Sequence[Row], has_others: bool) -> str:
    """Envs without a result, in one table: what the reference has for them."""
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    lines = ["### Waiting\n"] if has_others else []
    lines += ["No row here has a result yet. These are the references, each with a link to its spec.\n"]
    lines += [f"**Settings**: {text}\n" for text in dict.fromkeys(row.settings for row in rows)]
    lines += [f"| env | target | {' | '.join(algorithms)} |", f"|---|--:|{'--:|' * len(algorithms)}"]
    for env in dict.fromkeys(row.env for row in rows):
        mine = {row.algorithm: row for row in rows if row.env == env}
        targets = [row.target for row in mine.values() if row.target is not None]
        cells = [_reference(mine[name]) if name in mine else "" for name in algorithms]
        lines.append(f"| {env} | {f'{targets[0]:,g}' if targets else ''} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _reference(row: Row) -> str:
    return f"[{_number(row.reference)}](../{row.spec_file} '{row.spec_name}')"


def _values(result: Result) -> str:
    return ", ".join(_number(value) for value in result.values)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.2f}"
