"""Seconds until a score is reached: the lab and its peers, each with the settings it ships for the task."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.job import run_module
from bench.measure import RESULTS, check_versions, describe_machine
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import prepare
from slm_lab.lib.io import create_run_folder, write_json
from slm_lab.lib.log import setup_console
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec

# the score is the mean raw return of this many training episodes
NUM_EPISODE = 20


@dataclass(frozen=True)
class Task:
    """A score to reach, and what each contender is set to."""

    title: str
    env: str
    score: float
    # a shipped spec of the lab
    spec: str
    # of RL Zoo's tuned values: class, number of envs, arguments
    zoo: tuple[str, int, dict[str, Any]]
    max_frame: int
    # whether the zoo normalises observations and rewards
    is_normalized: bool = False


TASKS = {
    "cartpole": Task(
        "PPO, CartPole 475",
        "CartPole-v1",
        475.0,
        "ppo_cartpole",
        (
            "PPO",
            8,
            {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "learning_rate": 1e-3},
        ),
        300_000,
    ),
    "pendulum": Task(
        "SAC, Pendulum -200",
        "Pendulum-v1",
        -200.0,
        "sac_pendulum_arc",
        ("SAC", 1, {"learning_rate": 1e-3}),
        60_000,
    ),
    "lunar": Task(
        "PPO, LunarLander 200",
        "LunarLander-v3",
        200.0,
        "ppo_lunar_arc",
        (
            "PPO",
            16,
            {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
        ),
        1_500_000,
    ),
    "hopper": Task(
        "PPO, Hopper 2,000",
        "Hopper-v5",
        2000.0,
        "ppo_hopper_1m",
        (
            "PPO",
            1,
            {
                "n_steps": 512,
                "batch_size": 32,
                "gae_lambda": 0.99,
                "gamma": 0.999,
                "n_epochs": 5,
                "learning_rate": 9.80828e-5,
                "ent_coef": 0.00229519,
                "vf_coef": 0.835671,
                "max_grad_norm": 0.7,
                "policy_kwargs": {
                    "activation_fn": "relu",
                    "log_std_init": -2.0,
                    "ortho_init": False,
                    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
                },
            },
        ),
        1_000_000,
        is_normalized=True,
    ),
}
MODULES = {"lab": "bench.to_score", "sb3": "bench.peers.to_score", "sbx": "bench.peers.to_score"}


@dataclass(frozen=True)
class Reached:
    """When a training reached its score; without one it is where it ended."""

    seconds: float
    frames: int
    score: float
    is_reached: bool


def train_lab(task: Task, seed: int) -> Reached:
    """A session of the lab, compiling and evaluations included."""
    setup_console("ERROR")
    settings = {
        "env.max_frame": task.max_frame,
        "meta.max_session": 1,
        "meta.seed": seed,
        "meta.device": "cpu",
        "meta.final_eval": 0,
    }
    begin = time.perf_counter()
    spec, _ = prepare(load_spec(task.spec, task.spec, settings).spec)

    def calc_score() -> float:
        recent = [total_reward for total_reward, *_ in session.tracker.recent][-NUM_EPISODE:]
        return sum(recent) / NUM_EPISODE if len(recent) == NUM_EPISODE else float("-inf")

    with tempfile.TemporaryDirectory() as data:
        folder = RunFolder(create_run_folder(Path(data), spec.name), spec.name)
        session = Session(spec, folder, should_stop=lambda: calc_score() >= task.score)
        session.run()
    score = calc_score()
    return Reached(time.perf_counter() - begin, session.frame, score, score >= task.score)


def main() -> None:
    """`uv run --project bench python -m bench.to_score`: by turns, one seed after the other."""
    parser = argparse.ArgumentParser(prog="bench.to_score", description=__doc__)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="only this task; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (default 3)")
    args = parser.parse_args()
    check_versions()
    core = max(os.sched_getaffinity(0))
    for name in args.task or TASKS:
        facts = describe_machine()
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in MODULES}
        for seed in range(args.seeds):
            for contender, module in MODULES.items():
                answer = run_module(module, {"task": name, "contender": contender, "seed": seed}, {core})
                runs[contender].append(answer)
                print(f"{name} seed {seed} {contender:<4} {answer}", flush=True)
            # after each seed, so that a stop does not lose hours of training
            write_json(RESULTS / f"to_score_{name}.json", {**facts, "runs": runs})


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith("job.json"):
        job = json.loads(Path(sys.argv[1]).read_text())
        Path(sys.argv[2]).write_text(json.dumps(asdict(train_lab(TASKS[job["task"]], job["seed"]))))
    else:
        main()
