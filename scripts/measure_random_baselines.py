"""Measure the shipped random baselines again, or those of envs given by id: `measure_random_baselines.py [ENV ...]`."""

import sys
from typing import Any

import ale_py
import gymnasium as gym

from slm_lab.env.random_baseline import measure_random_baseline, write_baselines
from slm_lab.results.baseline import SHIPPED_PATH, RandomBaseline, read_baselines

# Long games get fewer than 100 episodes so that the whole list is measured in reasonable time. The budget is in steps,
# not seconds, so that every machine measures the same episodes; it is above the 27,000 steps a game can last.
ATARI_MAX_STEP = 75_000


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """An env the fastest way that leaves its rewards unchanged."""
    # RAM observations spare Atari the drawing of frames that random play never looks at.
    kwargs: dict[str, Any] = {"obs_type": "ram"} if env_id.startswith("ALE/") else {}
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def main(env_ids: list[str]) -> None:
    """Measure each env and write it at once, so that an interrupted run loses no more than one."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env_ids = env_ids or list(read_baselines(SHIPPED_PATH))
    for count, env_id in enumerate(env_ids, start=1):
        limit = {"max_step": ATARI_MAX_STEP} if env_id.startswith("ALE/") else {}
        mean, std, num_episode = measure_random_baseline(lambda env_id=env_id: make_env(env_id), **limit)  # type: ignore[misc]
        baseline = RandomBaseline(round(mean, 4), round(std, 4), num_episode)
        write_baselines(SHIPPED_PATH, read_baselines(SHIPPED_PATH) | {env_id: baseline})
        print(
            f"[{count}/{len(env_ids)}] {env_id}: {baseline.mean} ± {baseline.std}, {num_episode} episodes", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
