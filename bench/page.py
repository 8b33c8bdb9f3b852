"""Writes docs/SPEED.md from the files of results: figures come from there, words from page.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from bench.job import ROOT
from bench.plot import plot_rows, plot_scaling
from bench.rows import ROWS
from bench.scaling import SCALINGS
from bench.summary import Summary, calc_mean, find_disturbed, summarize
from bench.to_score import MODULES, TASKS
from slm_lab.lib.io import write_text

TEMPLATE = Path(__file__).with_name("page.md")
CONTENDERS = ("lab", "lab-plain", "lab-bf16", "sb3", "sbx", "tianshou", "torchrl", "limit")
MISSING = "missing: not measured yet"
NONE = ""
QUICK_WARNING = "> Smoke test: smaller batches, a few seconds. These figures mean nothing.\n\n"


def read_results(folder: Path) -> dict[str, Any]:
    """Every file of results by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def build_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table: the first column is text, the others are figures."""
    rule = ["---", *("--:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def build_speed_table(results: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Frames per second of everyone, and how near the lab is to the limit."""
    lines = []
    for row in ROWS:
        if row.name not in results:
            lines.append([row.title, MISSING, *(NONE for _ in range(len(shown) + 1))])
            continue
        summary = summarize(results[row.name])
        cells = [f"{summary[name].fps:,.0f}" if name in summary else NONE for name in shown]
        lab, limit = summary["lab"], summary["limit"]
        parts = (lab.fps / limit.fps, limit.update_seconds / lab.update_seconds)
        lines.append([row.title, *cells, *(f"{part:.0%}" for part in parts)])
    return build_table(["frames per second", *shown, "lab / limit", "matmul share of update"], lines)


def build_ratio_table(results: Mapping[str, Any], shown: Sequence[str]) -> str:
    """How many times faster the lab is than each peer."""
    peers = [name for name in shown if name not in ("lab", "limit")]
    lines = []
    for row in ROWS:
        if row.name in results:
            summary = summarize(results[row.name])
            lines.append([row.name, *(str(summary[name].ratio) if name in summary else NONE for name in peers)])
    return build_table(["lab / other [95 % interval]", *peers], lines)


def build_share_table(results: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Where the time goes."""

    def cell(item: Summary) -> str:
        rest = max(0.0, 1 - item.update_share - item.env_share)
        return f"{item.update_share:.0%} / {item.env_share:.0%} / {rest:.0%}"

    lines = []
    for row in ROWS:
        if row.name in results:
            summary = summarize(results[row.name])
            lines.append([row.name, *(cell(summary[name]) if name in summary else NONE for name in shown)])
    return build_table(["update / env / rest", *shown], lines)


def build_memory_table(results: Mapping[str, Any], shown: Sequence[str]) -> str:
    """The most memory that each had in use."""
    contenders = [name for name in shown if name != "limit"]
    lines = []
    for row in ROWS:
        if row.name in results:
            summary = summarize(results[row.name])
            cells = [f"{summary[name].peak_mb:,.0f}" if name in summary else NONE for name in contenders]
            lines.append([row.name, *cells])
    return build_table(["peak memory, MB", *contenders], lines)


def build_notes(results: Mapping[str, Any]) -> str:
    """What could not be set equal: what is known beforehand, and what counting found."""
    lines = []
    for row in ROWS:
        found = results.get(row.name, {}).get("differences", {})
        measured = results.get(row.name, {}).get("runs", {})
        for peer, note in row.peers.items():
            if peer not in measured:
                continue
            parts = [part for part in (note, *found.get(peer, ())) if part]
            lines.append(f"- {row.name}, {peer}: {'; '.join(parts) if parts else 'no known difference'}.")
        if row.name in results and (disturbed := find_disturbed(results[row.name])):
            lines.append(f"- {row.name}: other processes used the core while {', '.join(disturbed)} ran: too slow.")
        lines += [f"- {row.name}, limit: {'; '.join(found['limit'])}." for _ in range("limit" in found)]
    return "\n".join(lines)


def build_startup(results: Mapping[str, Any]) -> str:
    """Times of starting and memory."""
    if "startup" not in results:
        return MISSING.capitalize() + "."
    seconds, memory = results["startup"]["seconds"], results["startup"]["peak_mb"]
    return build_table(
        ["", "lab", "sb3"],
        [
            ["import to first env step, s", *(f"{calc_mean(seconds[name]):.2f}" for name in ("lab", "sb3"))],
            ["`slm-lab --help`, s", f"{calc_mean(seconds['help']):.2f}", NONE],
            ["peak memory of a PPO CartPole session, MB", *(f"{memory[name]:,.0f}" for name in ("lab", "sb3"))],
        ],
    )


def build_to_score(results: Mapping[str, Any]) -> str:
    """Seconds and frames until a score, of every seed."""

    def cell(runs: Sequence[Mapping[str, Any]]) -> str:
        return "; ".join(
            f"{run['seconds']:,.0f} s ({run['frames'] / 1000:,.0f}k)"
            if run["is_reached"]
            else f"not in {run['seconds']:,.0f} s ({run['frames'] / 1000:,.0f}k: {run['score']:,.0f})"
            for run in runs
        )

    lines = [
        [task.title, *(cell(results[f"to_score_{name}"]["runs"][contender]) for contender in MODULES)]
        for name, task in TASKS.items()
        if f"to_score_{name}" in results
    ]
    if not lines:
        return MISSING.capitalize() + "."
    return build_table(["seconds (frames), one seed after the other", *MODULES], lines)


def build_scaling(results: Mapping[str, Any]) -> str:
    """A small table per curve."""
    parts = []
    for name, scaling in SCALINGS.items():
        title = f"**{scaling.title}**: {scaling.unit} by {scaling.label}."
        result = results.get(f"scaling_{name}")
        if result is None:
            parts.append(f"{title} {MISSING.capitalize()}.")
            continue
        points = result["points"]
        header = [scaling.label, *(f"{point['x']:,}" for point in points)]
        curves = points[0]["values"]
        lines = [[curve, *(f"{calc_mean(point['values'][curve]):,.0f}" for point in points)] for curve in curves]
        parts.append(f"{title}\n\n{build_table(header, lines)}")
    return "\n\n".join(parts)


def describe_repeats(result: Mapping[str, Any]) -> str:
    """How often and how long a row was measured; empty for what is not measured by the second."""
    return f"{len(result['runs']['lab'])} x {result['seconds']:g} s, " if {"runs", "seconds"} <= result.keys() else ""


def describe_conditions(results: Mapping[str, Any]) -> str:
    """On what, when and with which versions it was measured."""
    if not results:
        return MISSING.capitalize() + "."
    seen: dict[tuple[str, str, str], list[str]] = {}
    for name, result in results.items():
        versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
        machine = f"{result['machine']['processor']}, {result['machine']['cores']} cores"
        key = (machine, str(result["commit"])[:10], f"{versions}; torch build {result['torch_build']}")
        when = f"load {result['load']}, {result['measured_at']}"
        seen.setdefault(key, []).append(f"{name} ({describe_repeats(result)}{when})")
    return "\n".join(
        f"- {', '.join(names)}: {machine}; commit {commit}; {versions}."
        for (machine, commit, versions), names in seen.items()
    )


def write_page(folder: Path, quick: bool) -> Path:
    """The page and its pictures; those of smoke measurements stay beside their results."""
    results = read_results(folder)
    docs = folder if quick else ROOT / "docs"
    names = {name for row in ROWS if row.name in results for name in results[row.name]["runs"]}
    shown = [name for name in CONTENDERS if name in names] or ["lab", "limit"]
    rows = [(row.name, summarize(results[row.name])) for row in ROWS if row.name in results]
    drawn = [(name, summary) for name, summary in rows if "limit" in summary]
    curves = [results[f"scaling_{name}"] for name in SCALINGS if f"scaling_{name}" in results]
    if drawn:
        plot_rows(drawn, docs / "plots" / "speed.png")
    if curves:
        plot_scaling(curves, docs / "plots" / "speed_scaling.png")
    page = Template(TEMPLATE.read_text()).substitute(
        warning=QUICK_WARNING if quick else "",
        speed=build_speed_table(results, shown),
        chart="![Speed as a part of the limit](plots/speed.png)\n" if drawn else "",
        ratio=build_ratio_table(results, shown),
        share=build_share_table(results, shown),
        memory=build_memory_table(results, shown),
        notes=build_notes(results),
        startup=build_startup(results),
        to_score=build_to_score(results),
        scaling=build_scaling(results),
        scaling_chart="![Scaling](plots/speed_scaling.png)\n" if curves else "",
        conditions=describe_conditions(results),
    )
    path = docs / "SPEED.md"
    write_text(path, page)
    print(f"wrote {path}")
    return path
