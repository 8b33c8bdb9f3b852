"""Stable-Baselines3 and SBX with RL Zoo's values, until a score is reached."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import flax.linen
import sbx
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bench.to_score import NUM_EPISODE, TASKS, Reached, Task

CLASSES = {
    ("sb3", "PPO"): stable_baselines3.PPO,
    ("sb3", "SAC"): stable_baselines3.SAC,
    ("sbx", "PPO"): sbx.PPO,
    ("sbx", "SAC"): sbx.SAC,
}
RELU = {"sb3": torch.nn.ReLU, "sbx": flax.linen.relu}


class StopAtScore(BaseCallback):
    """Ends a training when its last episodes are good enough."""

    def __init__(self, score: float) -> None:
        super().__init__()
        self.wanted = score

    @property
    def score(self) -> float:
        """Mean return of the last episodes."""
        recent = list(self.model.ep_info_buffer or [])[-NUM_EPISODE:]
        return sum(episode["r"] for episode in recent) / NUM_EPISODE if len(recent) == NUM_EPISODE else float("-inf")

    def _on_step(self) -> bool:
        return self.score < self.wanted


def train(task: Task, contender: str, seed: int) -> Reached:
    """A training with the zoo's values."""
    name, num_envs, arguments = task.zoo[0], task.zoo[1], dict(task.zoo[2])
    begin = time.perf_counter()
    env: VecEnv = make_vec_env(task.env, num_envs, seed=seed)
    if task.is_normalized:
        env = VecNormalize(env, gamma=arguments["gamma"])
    policy = dict(arguments.pop("policy_kwargs", {}))
    if policy.get("activation_fn") == "relu":
        policy["activation_fn"] = RELU[contender]
    stop = StopAtScore(task.score)
    model = CLASSES[contender, name]("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=policy, **arguments)
    model.learn(task.max_frame, stop)
    return Reached(time.perf_counter() - begin, model.num_timesteps, stop.score, stop.score >= task.score)


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(asdict(train(TASKS[job["task"]], job["contender"], job["seed"]))))
