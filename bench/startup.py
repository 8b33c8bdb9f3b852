"""How soon the lab is there, and how much memory it takes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.job import ENVIRONMENT, Job, run_module
from bench.measure import QUICK_RESULTS, RESULTS, describe_machine, run_once
from slm_lab.lib.io import write_json

FIRST_STEPS = {"lab": "bench.first_step", "sb3": "bench.peers.sb3_first_step"}
MEMORY_SECONDS = 10.0


def time_first_step(contender: str, core: int) -> float:
    """Seconds from the start of a process to its first step of 4 CartPoles, imports included."""
    start = time.time()
    return float(run_module(FIRST_STEPS[contender], {}, {core})["at"]) - start


def time_help(core: int) -> float:
    """Seconds of `slm-lab --help`."""
    command = [str(Path(sys.executable).with_name("slm-lab")), "--help"]
    start = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        env={**os.environ, **ENVIRONMENT},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return time.perf_counter() - start


def measure_startup(repeat: int, quick: bool, core: int) -> None:
    """All figures of starting, by turns."""
    seconds: dict[str, list[float]] = {"lab": [], "sb3": [], "help": []}
    # files of a first start are read from disk, not from memory
    for contender in FIRST_STEPS:
        time_first_step(contender, core)
    time_help(core)
    for _ in range(repeat):
        for contender in FIRST_STEPS:
            seconds[contender].append(time_first_step(contender, core))
        seconds["help"].append(time_help(core))
    memory = {
        contender: run_once(Job("ppo_cartpole", contender, 1.0 if quick else MEMORY_SECONDS, quick), core).peak_mb
        for contender in ("lab", "sb3")
    }
    print("\nStart-up")
    for name, values in seconds.items():
        print(f"  {name:<10} {min(values):.2f} s at best, {max(values):.2f} s at worst")
    for name, value in memory.items():
        print(f"  {name:<10} {value:,.0f} MB of memory in a PPO CartPole session")
    write_json(
        (QUICK_RESULTS if quick else RESULTS) / "startup.json",
        {"quick": quick, **describe_machine(), "seconds": seconds, "peak_mb": memory},
    )
