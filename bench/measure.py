"""Runs the contenders of a row in turn, and keeps what they measured."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bench.job import ROOT, Job, Measured, run_module
from bench.rows import Row, build_spec
from slm_lab.lib.io import write_json
from slm_lab.lib.runtime import MEMORY_VARIABLES, git_sha, machine_facts, package_versions
from slm_lab.spec.loading import dump_spec

RESULTS = Path(__file__).parent / "results"
# of smoke measurements, which are not kept
QUICK_RESULTS = RESULTS / "quick"
MODULES = {
    "lab": "bench.lab",
    "lab-plain": "bench.lab",
    "lab-bf16": "bench.lab",
    "limit": "bench.limit",
    "sb3": "bench.peers.sb3",
    "sbx": "bench.peers.sbx",
    "tianshou": "bench.peers.tianshou",
    "torchrl": "bench.peers.torchrl",
}
PEERS = {"sb3": "stable-baselines3", "sbx": "sbx-rl", "tianshou": "tianshou", "torchrl": "torchrl"}


def read_pins() -> dict[str, str]:
    """The exact versions that bench/pyproject.toml asks for."""
    document = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())
    pins = (name.split("==") for name in document["project"]["dependencies"] if "==" in name)
    return dict(pins)


def check_versions() -> None:
    """Refuse to measure anything but the pinned versions."""
    pins = read_pins()
    # a build is part of torch's version, e.g. 2.13.0+cpu
    found = {name: metadata.version(name).split("+")[0] for name in pins}
    wrong = [f"{name} {found[name]}, not {pin}" for name, pin in pins.items() if found[name] != pin]
    if wrong:
        raise SystemExit(f"not the pinned versions: {'; '.join(wrong)}; run `uv sync --project bench`")


def describe_machine() -> dict[str, Any]:
    """What the figures depend on beside the code."""
    versions = {**package_versions(), **{name: metadata.version(name) for name in read_pins()}}
    return {
        "machine": machine_facts(),
        "versions": versions,
        "torch_build": torch.__version__,
        "commit": git_sha(ROOT),
        # work of others before the first measurement; 1.0 is one core
        "load": round(os.getloadavg()[0], 2),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def list_contenders(row: Row, peers: Sequence[str] | None) -> list[str]:
    """Who runs a row, the lab first; `peers` None means all that can."""
    wanted = [peer for peer in row.peers if peers is None or peer in peers]
    return [*row.variants, *wanted, "limit"]


def run_once(job: Job, core: int) -> Measured:
    """One measurement in a fresh process on one core."""
    # sessions of the lab are started with these
    variables = MEMORY_VARIABLES if job.contender.startswith("lab") else {}
    return Measured(**run_module(MODULES[job.contender], asdict(job), {core}, variables))


def measure_row(
    row: Row, peers: Sequence[str] | None, repeat: int, seconds: float, quick: bool, core: int
) -> Iterator[tuple[str, int, Measured]]:
    """All contenders of a row, one after the other, as often as asked; the file of results grows with each round."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in list_contenders(row, peers)}
    facts = describe_machine()
    for index in range(repeat):
        for contender in runs:
            measured = run_once(Job(row.name, contender, seconds, quick), core)
            runs[contender].append(asdict(measured))
            yield contender, index, measured
        # whole rounds only, so that all contenders have the same repetitions
        write_json(
            (QUICK_RESULTS if quick else RESULTS) / f"{row.name}.json",
            {
                "row": row.name,
                "title": row.title,
                "quick": quick,
                "seconds": seconds,
                **facts,
                "spec": dump_spec(build_spec(row, quick)),
                "notes": {peer: note for peer, note in row.peers.items() if peer in runs},
                "differences": find_differences(runs),
                "runs": runs,
            },
        )


def find_differences(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Where a contender's counted work is not the lab's: gradient steps per frame and trained parameters."""
    found: dict[str, list[str]] = {}
    ours = runs["lab"][0]
    for contender, repetitions in runs.items():
        if contender.startswith("lab") or not repetitions:
            continue
        theirs = repetitions[0]
        steps, our_steps = (run["opt_steps"] / run["frames"] for run in (theirs, ours))
        if abs(steps / our_steps - 1) > 0.02:
            found.setdefault(contender, []).append(f"{steps:.4g} gradient steps per frame, the lab {our_steps:.4g}")
        if contender != "limit" and theirs["num_param"] != ours["num_param"]:
            found.setdefault(contender, []).append(
                f"{theirs['num_param']:,} trained parameters, the lab {ours['num_param']:,}"
            )
    return found
