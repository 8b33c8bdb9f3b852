"""The pictures of the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from bench.summary import Summary, calc_mean

mpl.use("Agg")

STYLES = {
    "lab": ("#1f5fbf", "o"),
    "lab-plain": ("#8fb8f0", "o"),
    "lab-bf16": ("#8fb8f0", "x"),
    "sb3": ("#d0662b", "s"),
    "sbx": ("#c39a1e", "D"),
    "tianshou": ("#3f9a5c", "^"),
    "torchrl": ("#8a5bb5", "v"),
    "limit": ("#555555", "|"),
}
DPI = 110


def plot_rows(rows: Sequence[tuple[str, Mapping[str, Summary]]], path: Path) -> None:
    """Every contender's speed as a part of the limit, a line per row."""
    figure, axes = plt.subplots(figsize=(7.5, 1.6 + 0.42 * len(rows)), layout="constrained")
    seen: set[str] = set()
    for height, (_, summary) in enumerate(reversed(rows)):
        for contender, item in summary.items():
            if contender == "limit":
                continue
            color, marker = STYLES[contender]
            label = None if contender in seen else contender
            axes.plot(100 * item.fps / summary["limit"].fps, height, marker, color=color, label=label, markersize=7)
            seen.add(contender)
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("log")
    axes.set_xlim(right=max(110, axes.get_xlim()[1]))
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick >= axes.get_xlim()[0]]
    axes.set_xticks(ticks, [f"{tick} %" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.axvline(100, color=STYLES["limit"][0], linewidth=1)
    axes.set_xlabel("speed as a part of the limit: matrix products and env steps alone (log scale)")
    axes.grid(axis="both", alpha=0.25)
    handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    named = [name for name in STYLES if name in handles]
    figure.legend([handles[name] for name in named], named, loc="outside upper center", ncols=4, frameon=False)
    save(figure, path)


def plot_scaling(curves: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A small panel per curve."""
    figure, panels = plt.subplots(1, len(curves), figsize=(3.2 * len(curves), 2.8), layout="constrained", squeeze=False)
    for axes, curve in zip(panels[0], curves, strict=True):
        x = [point["x"] for point in curve["points"]]
        for name in curve["points"][0]["values"]:
            y = [calc_mean(point["values"][name]) for point in curve["points"]]
            color, _ = STYLES[name]
            line = ":" if name == "limit" else "-"
            axes.plot(x, y, marker="o", markersize=4, color=color, linestyle=line, label=name)
        axes.set_xscale("log", base=2)
        values = [value for point in curve["points"] for one in point["values"].values() for value in one]
        if max(values) > 5 * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            # a small change must not look like a large one
            axes.set_ylim(0, 1.2 * max(values))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xticks(x, [f"{value:,}" if value < 10_000 else f"1e{len(str(value)) - 1}" for value in x])
        axes.set_xticks([], minor=True)
        axes.set_title(curve["title"].split(",")[0], fontsize=9)
        axes.set_xlabel(curve["label"], fontsize=9)
        axes.set_ylabel(curve["unit"], fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        if len(curve["points"][0]["values"]) > 1:
            axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
