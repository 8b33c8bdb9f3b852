"""When Stable-Baselines3 has made its first env step: a process that does no more."""

import json
import sys
import time
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Stop(BaseCallback):
    """Ends training after one step."""

    at = 0.0

    def _on_step(self) -> bool:
        self.at = time.time()
        return False


def main() -> None:
    """Make envs and model, stop after one step."""
    stop = Stop()
    PPO("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=256, batch_size=128, device="cpu").learn(1000, stop)
    Path(sys.argv[2]).write_text(json.dumps({"at": stop.at}))


if __name__ == "__main__":
    main()
