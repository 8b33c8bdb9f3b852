"""How speed changes with envs, width, sessions and the size of a replay."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.job import Job, run_module
from bench.measure import QUICK_RESULTS, RESULTS, describe_machine, run_once
from slm_lab.lib.io import write_json

# frames of a rollout, whatever the number of envs
ROLLOUT = 1024
TRIAL_FRAMES, QUICK_TRIAL_FRAMES = 100_000, 4096


@dataclass(frozen=True)
class Setting:
    """How a measurement is to be done."""

    seconds: float
    quick: bool
    core: int


# values by the name of their curve, at one point
Measure = Callable[[int, Setting], dict[str, float]]


@dataclass(frozen=True)
class Scaling:
    """One curve: what grows, and what is measured."""

    title: str
    label: str
    unit: str
    points: tuple[int, ...]
    measure: Measure


def _fps(row: str, overrides: dict[str, Any], setting: Setting) -> dict[str, float]:
    jobs = (Job(row, name, setting.seconds, setting.quick, overrides) for name in ("lab", "limit"))
    return {job.contender: run_once(job, setting.core).fps for job in jobs}


def measure_num_envs(num_envs: int, setting: Setting) -> dict[str, float]:
    """Frames per second of PPO with rollouts of the same size."""
    overrides = {"env.num_envs": num_envs, "agent.algorithm.time_horizon": ROLLOUT // num_envs}
    return _fps("ppo_cartpole", overrides, setting)


def measure_width(width: int, setting: Setting) -> dict[str, float]:
    """Frames per second of SAC with two hidden layers of a width."""
    return _fps("sac_pendulum", {"agent.net.hid_layers": [width, width]}, setting)


def measure_sessions(sessions: int, setting: Setting) -> dict[str, float]:
    """Frames per second of all sessions of a trial together, start and end included."""
    frames = QUICK_TRIAL_FRAMES if setting.quick else TRIAL_FRAMES
    result = run_module("bench.trial", {"sessions": sessions, "frames": frames}, os.sched_getaffinity(0))
    return {"lab": result["frames"] / result["seconds"]}


def measure_replay(size: int, setting: Setting) -> dict[str, float]:
    """Microseconds to sample a batch of the DQN row."""
    return {"lab": float(run_module("bench.replay", {"size": size}, {setting.core})["microseconds"])}


SCALINGS = {
    "num_envs": Scaling(
        "PPO CartPole, rollouts of 1024 frames", "envs", "frames per second", (1, 4, 16, 64, 256), measure_num_envs
    ),
    "width": Scaling("SAC Pendulum", "width of the hidden layers", "frames per second", (64, 256, 1024), measure_width),
    "sessions": Scaling(
        "PPO CartPole, a trial on all cores, start-up included",
        "sessions",
        "frames per second, all sessions",
        (1, 2, 3, 4),
        measure_sessions,
    ),
    "replay": Scaling(
        "DQN CartPole, a batch of 128 with 5-step returns",
        "transitions in the replay",
        "microseconds per sampled batch",
        (10_000, 100_000, 1_000_000),
        measure_replay,
    ),
}


def measure_scaling(name: str, repeat: int, seconds: float, quick: bool, core: int) -> None:
    """Measure one curve, its points by turns, and keep it."""
    scaling, setting = SCALINGS[name], Setting(seconds, quick, core)
    print(f"\n{scaling.title}: {scaling.unit} by {scaling.label}", flush=True)
    points: list[dict[str, Any]] = [{"x": x, "values": {}} for x in scaling.points]
    facts = describe_machine()
    for _ in range(repeat):
        for point in points:
            measured = scaling.measure(point["x"], setting)
            for curve, value in measured.items():
                point["values"].setdefault(curve, []).append(value)
            values = "  ".join(f"{curve} {value:,.0f}" for curve, value in measured.items())
            print(f"  {point['x']:>9,} {values}", flush=True)
        write_json(
            (QUICK_RESULTS if quick else RESULTS) / f"scaling_{name}.json",
            {"scaling": name, "title": scaling.title, "label": scaling.label, "unit": scaling.unit, "quick": quick}
            | facts
            | {"points": points},
        )
