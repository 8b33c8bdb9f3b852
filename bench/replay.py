"""The cost of drawing a batch from a full replay: a process that does no more."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.memory.batch import Transition
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment.build import build_session_agent

NUM_DRAW = 2000


def main() -> None:
    """Fill the replay of the DQN row to the brim, then draw."""
    torch.set_num_threads(1)
    size = int(json.loads(Path(sys.argv[1]).read_text())["size"])
    spec = build_spec(ROW_BY_NAME["dqn_cartpole"], overrides={"agent.memory.max_size": size})
    env = build_vec_env(build_settings(spec.env, (0,)))
    algorithm = build_session_agent(spec, env, 0).algorithm
    env.close()
    assert isinstance(algorithm, DQN)
    memory, num_envs = algorithm.memory, spec.env.num_envs
    obs = torch.randn(num_envs, *env.facts.obs_space.shape)
    flags = torch.zeros(num_envs, dtype=torch.bool)
    row = Transition(
        obs=obs,
        action=torch.zeros(num_envs, dtype=torch.int64),
        reward=torch.ones(num_envs),
        terminated=flags,
        truncated=flags,
        next_obs=obs,
        extra={},
    )
    for _ in range(size // num_envs):
        memory.add(row)
    times = []
    for _ in range(NUM_DRAW):
        start = time.perf_counter()
        memory.sample(0)
        times.append(time.perf_counter() - start)
    Path(sys.argv[2]).write_text(json.dumps({"microseconds": float(np.median(times)) * 1e6}))


if __name__ == "__main__":
    main()
