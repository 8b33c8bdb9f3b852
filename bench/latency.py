"""Seconds of one call of a trained agent, beside Stable-Baselines3: `uv run --project bench python -m bench.latency`.

Both have the same nets, untrained, and get the same observations; calls of both alternate.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
import torch
from gymnasium import spaces

from bench.measure import QUICK_RESULTS, RESULTS, describe_machine
from slm_lab.agent.agent import Agent
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.facts_document import dump_space, read_facts
from slm_lab.lib.array import Array
from slm_lab.lib.io import write_json
from slm_lab.spec.loading import parse_spec

BATCHES = (1, 64, 1024)
ROLLOUT = {"name": "OnPolicyBatchReplay"}
REPLAY = {"name": "Replay", "batch_size": 64, "max_size": 1000}
NATURE = {
    "type": "ConvNet",
    "conv_hid_layers": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    "fc_hid_layers": [512],
    "hid_layers_activation": "relu",
    "normalize": True,
    "shared": True,
}


@dataclass(frozen=True)
class Row:
    """The same net in both libraries."""

    title: str
    observation: spaces.Box
    action: Any
    algorithm: dict[str, Any]
    memory: dict[str, Any]
    net: dict[str, Any]
    peer: Callable[[gym.Env[Any, Any]], Any]


def _mlp(width: int, activation: str) -> dict[str, Any]:
    return {"type": "MLPNet", "hid_layers": [width, width], "hid_layers_activation": activation}


ROWS = {
    "ppo_vector": Row(
        "PPO, 4 numbers, 2 x 64 tanh, 2 choices",
        spaces.Box(-np.inf, np.inf, (4,), np.float32),
        spaces.Discrete(2),
        {"name": "PPO", "time_horizon": 8, "minibatch_size": 8},
        ROLLOUT,
        _mlp(64, "tanh"),
        lambda env: sb3.PPO("MlpPolicy", env, device="cpu"),
    ),
    "sac_vector": Row(
        "SAC, 11 numbers, 2 x 256 relu, 3 numbers",
        spaces.Box(-np.inf, np.inf, (11,), np.float32),
        spaces.Box(-1, 1, (3,), np.float32),
        {"name": "SoftActorCritic"},
        REPLAY,
        _mlp(256, "relu"),
        lambda env: sb3.SAC("MlpPolicy", env, device="cpu", buffer_size=10),
    ),
    "ppo_image": Row(
        "PPO, 4 x 84 x 84 images, Nature CNN, 6 choices",
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        spaces.Discrete(6),
        {"name": "PPO", "time_horizon": 8, "minibatch_size": 8},
        ROLLOUT,
        NATURE,
        lambda env: sb3.PPO("CnnPolicy", env, device="cpu", n_steps=8, batch_size=8),
    ),
}


class Spaces(gym.Env[Any, Any]):
    """Spaces alone, which is all that building an agent needs."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action


def build_lab(row: Row) -> TrainedAgent:
    """An untrained agent of the lab."""
    raw = {
        "name": "latency",
        "agent": {"algorithm": row.algorithm, "memory": row.memory, "net": row.net},
        "env": {"name": "none", "max_frame": 1_000_000},
        "meta": {"device": "cpu", "compile": False},
    }
    facts: dict[str, Any] = {"observation": dump_space(row.observation), "action": dump_space(row.action)}
    facts |= {"dtype": str(row.observation.dtype), "frame_stack": 1, "action_mask": None}
    spec = parse_spec(raw)[0]
    return TrainedAgent(Agent(spec, read_facts(facts), 1, (0, 0), torch.device("cpu"), only_acts=True), spec)


def sample(space: spaces.Box, num: int) -> Array:
    """Observations (N, ...); a single one without its first dimension."""
    rng = np.random.default_rng(0)
    shape = (num, *space.shape)
    batch: Array = (
        rng.integers(256, size=shape).astype(np.uint8) if space.dtype == np.uint8 else rng.normal(size=shape)
    ).astype(space.dtype)
    return batch[0] if num == 1 else batch


def time_calls(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of the processor per call, so that what else runs on the core does not count."""
    call()
    num, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        call()
        num += 1
    return spent / num


def measure(row: Row, batch: int, repeat: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of both, by turns."""
    trained, peer, obs = build_lab(row), row.peer(Spaces(row.observation, row.action)), sample(row.observation, batch)
    calls: dict[str, Callable[[], Any]] = {
        "lab": lambda: trained.act(obs),
        "sb3": lambda: peer.predict(obs, deterministic=True),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            times[name].append(time_calls(call, seconds))
    return times


def main() -> None:
    """Measure every row, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.latency")
    parser.add_argument("--quick", action="store_true", help="a smoke test, kept apart")
    parser.add_argument("--core", type=int, help="the core to measure on (default the last one)")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if args.core is None else args.core})
    torch.set_num_threads(1)
    repeat, seconds = (1, 0.1) if args.quick else (5, 0.2)
    results: dict[str, Any] = {"quick": args.quick, "load": os.getloadavg()[0], **describe_machine(), "seconds": {}}
    print("| agent | batch | the lab | SB3 | ratio |\n|---|---|---|---|---|")
    for name, row in ROWS.items():
        for batch in BATCHES:
            times = measure(row, batch, repeat, seconds)
            results["seconds"][f"{name} {batch}"] = times
            # the fastest of the turns: others share the machine
            lab, peer = (min(times[key]) * 1e6 for key in ("lab", "sb3"))
            ratio = statistics.median(b / a for a, b in zip(times["lab"], times["sb3"], strict=True))
            print(f"| {row.title} | {batch:,} | {lab:,.0f} µs | {peer:,.0f} µs | {ratio:.1f} |", flush=True)
    results["load_after"] = os.getloadavg()[0]
    write_json((QUICK_RESULTS if args.quick else RESULTS) / "latency.json", results)


if __name__ == "__main__":
    main()
