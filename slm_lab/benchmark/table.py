"""The page of results, docs/BENCHMARKS.md: written from the matrix and the results, never by hand."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slm_lab.benchmark.curves import RETURN, find_reach, load_curves, pick_column
from slm_lab.benchmark.matrix import GPU_PHASES, Row, load_matrix, slug
from slm_lab.benchmark.plan import estimate, measure_fps
from slm_lab.benchmark.result import Result, is_stale, load_notes, load_results
from slm_lab.benchmark.state import RowState, Standing
from slm_lab.lib.io import write_text
from slm_lab.results.baseline import find_shipped_random_return
from slm_lab.results.table import Table

PAGE = "BENCHMARKS.md"
PLOTS = Path("plots") / "benchmark"
PHASES = {
    "classic": "Classic control",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "atari": "Atari",
    "playground": "MuJoCo Playground",
    "further": "Further envs",
    "short": "Short budgets",
}
# a row that has come this share of the way from random play to the target counts as close
CLOSE = 0.8
BELOW = "**below**"
HEAD = """# Benchmarks

Scores of shipped specs beside those of the published SLM-Lab, with intervals, learning curves and the runs themselves.
`slm-lab bench table` writes this page from [results.json](benchmark/results.json);
[BENCHMARKING.md](BENCHMARKING.md) has the rules.

- **Score** is `total_reward_ma` from the run's `trial_metrics`: the mean return over the last 100 rows of a session's
  table (a row is the mean of the last 100 episodes of the exploring policy), averaged over sessions. Its 95 % interval
  follows, a bootstrap over sessions that stays within their scores.
- **At end** is the mean return of the trained, deterministic policy.
- **Reference** is the published SLM-Lab's score for the same settings. A row is above or below it if its whole
  interval is, otherwise within. The lab's own rows show another library's score instead, without a verdict: it is one
  run of a deterministic policy in other settings.

Curves show the mean return of the last 100 episodes, averaged over sessions, with the 95 % interval of the mean.
Results that kept no other curve show `total_reward_ma`, once its window of 100 rows is full.
"""
REACH = """## Frames to the reference

The frame at which the exploring policy reaches the reference and stays there to the end, by the mean over sessions of
the last 100 episodes; "not" if it does not end there. "At most" marks results that kept only `total_reward_ma`, which
lags. At end: the deterministic policy.
"""
SHORT = """### Short budgets

The same specs with fewer frames than the settings above, to see how soon they reach the published score. Pong has specs
for one CPU core; its reference is PPO's after 10,000,000 frames. These runs do not count as rows of the benchmark.
"""
COMPARED = """### Beside SAC

Algorithms that the published SLM-Lab lacks, with the frames of SAC and one update per frame, as SAC has.
"""


def status(score: float, target: float | None, random_return: float | None) -> str:
    """Solved, close or below the target; empty without a target."""
    if target is None:
        return ""
    if score >= target:
        return "solved"
    if random_return is None or random_return >= target:
        return "below"
    return "close" if (score - random_return) / (target - random_return) >= CLOSE else "below"


def judge(result: Result, reference: float | None) -> str:
    """A score compared with the reference, which is one number; empty without that, or without an interval."""
    if reference is None or result.low is None or result.high is None:
        return ""
    if result.low > reference:
        return "above"
    return "within" if result.high >= reference else BELOW


def plot_file(group: str) -> Path:
    """The figure of a group of rows, inside the docs."""
    return PLOTS / f"{slug(group)}.png"


def write_table(docs: Path) -> Path:
    """Write the page and return its path."""
    path = docs / PAGE
    write_text(path, build_page(docs, load_matrix(), load_results(docs)))
    return path


def build_page(docs: Path, rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    """The whole page."""
    notes = load_notes(docs)
    parts = [HEAD, _summary(rows, results), _progress(rows, results), *_reach(docs, rows, results, notes)]
    for phase, title in PHASES.items():
        chosen = [row for row in rows if row.phase == phase and not row.is_short]
        if chosen:
            parts.append(f"## {title}\n")
            parts += _phase(docs, chosen, results, notes)
    return "\n".join(parts)


def _summary(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    """Envs by algorithms: the score, the reference, and the comparison; rows of our own in a second table."""
    published = [row for row in rows if row.phase not in ("further", "short")]
    own = [row for row in rows if row.phase == "further"]
    lines = [
        "## Summary",
        "",
        *_tally(published, results),
        "",
        "A cell has the score, its 95 % interval, and the reference with the verdict. The highest score of an env is",
        "bold; - marks a row without a result.",
        "",
        *_score_table(published, results),
    ]
    if any(row.key in results for row in own):
        lines += ["The lab's own rows, which have no reference:", "", *_score_table(own, results)]
    return "\n".join(lines)


def _tally(rows: Sequence[Row], results: Mapping[str, Result]) -> list[str]:
    """How the rows with a reference stand."""
    done = [row for row in rows if row.key in results]
    stands = Counter(judge(results[row.key], row.reference) for row in done)
    return [
        f"{len(done)} of the {len(rows)} rows of the published SLM-Lab have a result. The whole interval of "
        f"{stands['above']} is above the",
        f"reference, that of {stands[BELOW]} below; {stands['within']} contain it.",
    ]


def _score_table(rows: Sequence[Row], results: Mapping[str, Result]) -> list[str]:
    envs = list(dict.fromkeys(row.env for row in rows if row.key in results))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows if row.env in envs))
    lines = [f"| env | {' | '.join(algorithms)} |", f"|---|{'---|' * len(algorithms)}"]
    for env in envs:
        mine = {row.algorithm: row for row in rows if row.env == env}
        scores = [results[row.key].score for row in mine.values() if row.key in results]
        best = max(scores) if len(scores) > 1 else None
        cells = [_cell(mine[name], results.get(mine[name].key), best) if name in mine else "" for name in algorithms]
        lines.append(f"| {env} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(row: Row, result: Result | None, best: float | None) -> str:
    reference = "" if row.reference is None else _number(row.reference)
    if result is None:
        return "<br>".join(filter(None, ("-", reference)))
    score = f"**{_number(result.score)}**" if result.score == best else _number(result.score)
    verdict = f"{reference} {judge(result, row.reference)}".strip()
    return "<br>".join(filter(None, (score, _interval(result, _short), verdict)))


def _progress(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    lines = [
        "## Progress",
        "",
        "The core-hours of missing rows are estimated from the speed of results, roughly if nothing similar was",
        "measured; Atari and Playground need a GPU. `slm-lab bench plan` lists the missing rows, and",
        "`slm-lab bench run --local --idle --filter PHASE` trains them, the cheapest first.",
        "",
        "| phase | rows with a result | target reached | reference: above, within, below | missing, core-hours |",
        "|---|--:|--:|--:|--:|",
    ]
    words = ("above", "within", BELOW)
    speeds = measure_fps([RowState(row, Standing.DONE, results.get(row.key), None) for row in rows], {})
    for phase, title in PHASES.items():
        chosen = [row for row in rows if row.phase == phase]
        done = [(row, results[row.key]) for row in chosen if row.key in results]
        reached = sum(row.target is not None and result.score >= row.target for row, result in done)
        asked = sum(row.target is not None for row, _ in done)
        # with fewer frames the score says little about the reference; the next table shows when it is reached
        stands = Counter(judge(result, row.reference) for row, result in done if not row.is_short)
        reached_text = f"{reached} of {asked}" if asked else ""
        stands_text = ", ".join(str(stands[word]) for word in words) if any(map(stands.get, words)) else ""
        hours = sum(estimate(row, speeds, 1).core_seconds for row in chosen if row.key not in results) / 3600
        left = f"{hours:,.0f}" if len(done) < len(chosen) and phase not in GPU_PHASES else ""
        lines.append(
            f"| {title} (`{phase}`) | {len(done)} of {len(chosen)} | {reached_text} | {stands_text} | {left} |"
        )
    return "\n".join([*lines, ""])


def _reach(docs: Path, rows: Sequence[Row], results: Mapping[str, Result], notes: Mapping[str, str]) -> list[str]:
    """When rows reach the reference: one table for its settings, one for fewer frames."""
    done = [row for row in rows if row.key in results and row.reference is not None]
    full = [row for row in done if not row.is_short]
    short = [row for row in done if row.is_short]
    # groups that compare algorithms without a reference with others
    compared = {row.group for row in rows if row.is_short and row.reference is None and row.key in results}
    parts = [REACH, "### At the published settings\n", _reach_table(docs, full, results)]
    if short:
        parts += [SHORT, _reach_table(docs, short, results), *_notes(short, notes)]
        parts += [_figure(docs, group) for group in dict.fromkeys(row.group for row in short) if group not in compared]
        parts.append("")
    if compared:
        chosen = [row for row in rows if row.group in compared and row.key in results]
        parts += [COMPARED, _compared_table(docs, chosen, results)]
        parts += _notes([row for row in chosen if row.reference is None], notes)
        parts += [_figure(docs, group) for group in dict.fromkeys(row.group for row in chosen)] + [""]
    return parts


def _notes(rows: Sequence[Row], notes: Mapping[str, str]) -> list[str]:
    return [f"- **{row.key}**: {notes[row.key]}" for row in rows if row.key in notes]


def _compared_table(docs: Path, rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    lines = [
        "| env | frames | algorithm | last 100 episodes | at end | sessions at end | spec |",
        "|---|--:|---|--:|--:|---|---|",
    ]
    for row in rows:
        result = results[row.key]
        sessions = load_curves(docs, row.group).get(result.run, {})
        lines.append(
            f"| {row.env} | {row.max_frame:,} | {row.algorithm} | {_end_cells(result, sessions)} "
            f"| [{row.spec_name}](../{row.spec_file}) |"
        )
    return "\n".join([*lines, ""])


def _end_cells(result: Result, sessions: Mapping[int, Table]) -> str:
    """Cells: the mean return of the last 100 episodes, and the deterministic policy's returns at the end."""
    column = pick_column(sessions.values())
    last = sum(float(table[column][-1]) for table in sessions.values()) / len(sessions) if sessions else math.nan
    end = "" if result.final_eval is None else _number(result.final_eval)
    return f"{_number(last)} | {end} | {', '.join(map(_number, result.final_values))}"


def _reach_table(docs: Path, rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    lines = [
        "| env | algorithm | reference | reached at frame | of frames | last 100 episodes | at end | sessions at end |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        result = results[row.key]
        sessions = load_curves(docs, row.group).get(result.run)
        if sessions is None or row.reference is None:
            continue
        column = pick_column(sessions.values())
        frame = find_reach(sessions, row.reference)
        # the moving average lags
        bound = "" if column == RETURN else "at most "
        reached = "not" if frame is None else f"{bound}{frame:,.0f}"
        lines.append(
            f"| {row.env} | {row.algorithm} | {_number(row.reference)} | {reached} | {row.max_frame:,} "
            f"| {_end_cells(result, sessions)} |"
        )
    return "\n".join([*lines, ""])


def _figure(docs: Path, group: str) -> str:
    picture = plot_file(group)
    return f"\n![Learning curves in {group}]({picture.as_posix()})" if (docs / picture).exists() else ""


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
    lines += _settings(rows)
    lines += [f"**Target**: {target:,g}\n" for target in sorted(targets)]
    lines += [
        "| algorithm | status | score [95 % interval] | at end | reference | against it | spec | run |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    lines += [_line(row, results.get(row.key)) for row in rows]
    done = [(row, results[row.key]) for row in rows if row.key in results]
    lines += ["", "Every session: " + "; ".join(f"{row.algorithm} {_values(result)}" for row, result in done) + "."]
    lines += ["", *(f"- **{row.algorithm}**: {notes[row.key]}" for row in rows if row.key in notes)]
    return "\n".join([*lines, _figure(docs, env), ""])


def _line(row: Row, result: Result | None) -> str:
    spec = f"[{row.spec_name}](../{row.spec_file})"
    if result is None:
        return f"| {row.algorithm} | missing |  |  | {_reference(row)} |  | {spec} |  |"
    stands = status(result.score, row.target, find_shipped_random_return(row.env))
    if is_stale(result, row):
        stands = f"{stands}, spec changed since".lstrip(", ")
    end = "" if result.final_eval is None else _number(result.final_eval)
    run = result.run if result.url is None else f"[{result.run}]({result.url})"
    score = f"{_number(result.score)} {_interval(result)}".rstrip()
    return (
        f"| {row.algorithm} | {stands} | {score} | {end} | {_reference(row)} | "
        f"{judge(result, row.reference)} | {spec} | {run} |"
    )


def _settings(rows: Sequence[Row]) -> list[str]:
    """The settings of rows; if they differ, each with its algorithms, or with its rows if these are not enough."""
    is_by_algorithm = len({(row.algorithm, row.settings) for row in rows}) == len({row.algorithm for row in rows})
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        groups.setdefault(row.settings, {})[row.algorithm if is_by_algorithm else row.key] = None
    if len(groups) == 1:
        return [f"**Settings**: {text}\n" for text in groups]
    return [f"**Settings** of {', '.join(names)}: {text}\n" for text, names in groups.items()]


def _waiting(rows: Sequence[Row], has_others: bool) -> str:
    """Envs without a result, with their reference scores, in one table."""
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    lines = ["### Waiting\n"] if has_others else []
    lines += ["No row here has a result yet. These are the references, each with a link to its spec.\n"]
    lines += _settings(rows)
    lines += [f"| env | target | {' | '.join(algorithms)} |", f"|---|--:|{'--:|' * len(algorithms)}"]
    for env in dict.fromkeys(row.env for row in rows):
        mine = {row.algorithm: row for row in rows if row.env == env}
        targets = [row.target for row in mine.values() if row.target is not None]
        cells = [_linked(mine[name]) if name in mine else "" for name in algorithms]
        lines.append(f"| {env} | {f'{targets[0]:,g}' if targets else ''} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _linked(row: Row) -> str:
    return f"[{_reference(row) or 'none'}](../{row.spec_file} '{row.spec_name}')"


def _reference(row: Row) -> str:
    return row.peer if row.reference is None else _number(row.reference)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.2f}"


def _short(value: float) -> str:
    """A number for a narrow column: no decimals from 100 on, one from 10 on."""
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def _interval(result: Result, show: Callable[[float], str] = _number) -> str:
    """The 95 % interval; empty for a single session."""
    if result.low is None or result.high is None:
        return ""
    return f"[{show(result.low)}, {show(result.high)}]"


def _values(result: Result) -> str:
    return ", ".join(_number(value) for value in result.values)
