"""The figures of a row, from the file of its repetitions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.ratio import Ratio, calc_ratio

# waiting for the disk takes a little; what is missing beyond that, others ran on the core
MIN_CPU_SHARE = 0.9


@dataclass(frozen=True)
class Summary:
    """One contender of a row, over its repetitions."""

    contender: str
    fps: float
    # speed of the lab over this one
    ratio: Ratio
    # parts of the time
    env_share: float
    update_share: float
    # seconds of learning per gradient step
    update_seconds: float
    peak_mb: float


def calc_fps(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Frames per second of each repetition."""
    return [run["frames"] / run["seconds"] for run in runs]


def calc_mean(values: Sequence[float]) -> float:
    """The geometric mean, as ratios are averaged too."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def calc_share(runs: Sequence[Mapping[str, Any]], phase: str) -> float:
    """Part of the time that a phase took."""
    return float(sum(run["phases"].get(phase, 0.0) for run in runs) / sum(run["seconds"] for run in runs))


def find_disturbed(result: Mapping[str, Any]) -> list[str]:
    """Contenders that did not have their core to themselves in some repetition; their figures are too low."""
    return [
        contender
        for contender, runs in result["runs"].items()
        if any(run["cpu_seconds"] < MIN_CPU_SHARE * run["seconds"] for run in runs)
    ]


def summarize(result: Mapping[str, Any]) -> dict[str, Summary]:
    """Every contender of a row's results, in the order in which they ran."""
    lab = calc_fps(result["runs"]["lab"])
    return {
        contender: Summary(
            contender,
            calc_mean(calc_fps(runs)),
            calc_ratio(lab, calc_fps(runs)),
            calc_share(runs, "env"),
            calc_share(runs, "update"),
            sum(run["phases"].get("update", 0.0) for run in runs) / sum(run["opt_steps"] for run in runs),
            max(run["peak_mb"] for run in runs),
        )
        for contender, runs in result["runs"].items()
        if runs
    }


def format_row(result: Mapping[str, Any]) -> str:
    """A row's figures for the console."""
    lines = [f"  {'':<10} {'fps':>10}  {'lab / it [95 %]':<24} {'update':>7} {'env':>7} {'memory':>9}"]
    for item in summarize(result).values():
        ratio = "" if item.contender == "lab" else str(item.ratio)
        lines.append(
            f"  {item.contender:<10} {item.fps:>10,.0f}  {ratio:<24} {item.update_share:>7.0%} {item.env_share:>7.0%} "
            f"{item.peak_mb:>6,.0f} MB"
        )
    for contender, differences in result["differences"].items():
        lines.append(f"  {contender} does not do the same work: {'; '.join(differences)}")
    if disturbed := find_disturbed(result):
        lines.append(f"  disturbed, so too slow: {', '.join(disturbed)}")
    return "\n".join(lines)
