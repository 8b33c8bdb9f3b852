"""Record steps of a trained agent, for agents that learn from data."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from loguru import logger

from slm_lab.agent.agent import reset_rows
from slm_lab.agent.memory.dataset import FIELDS, MINARI, load_minari, save_steps
from slm_lab.env.vec_env import to_host
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained
from slm_lab.lib.array import Array
from slm_lab.lib.errors import LabError
from slm_lab.lib.runtime import import_modules

SUFFIX = ".safetensors"
# between lines about the progress
PROGRESS_SECONDS = 5.0
Format = Literal["safetensors", "minari"]


@dataclass(frozen=True)
class Collected:
    """The written file of steps, and the returns of the episodes that ended."""

    # as agent.algorithm.data expects it
    path: str
    num_step: int
    returns: list[float]


def collect(
    where: str,
    path: Path,
    options: Options,
    num_step: int = 50_000,
    num_envs: int = 8,
    deterministic: bool = False,
    at: int | None = None,
    format: Format = "safetensors",
) -> Collected:
    """Play with the trained agent of a run and write every step; it explores as at the end of training.

    `format` has the name of the command's option.
    """
    if format == "safetensors" and path.suffix != SUFFIX:
        raise LabError(f"{path}: the file must end in {SUFFIX}")
    minari = load_minari("--format minari") if format == "minari" else None
    import_modules(options.imports)
    agent, env, spec = load_trained(where, options.data_dir, num_envs=num_envs, at=at)
    agent.algorithm.frame = spec.env.max_frame
    num_row_per_env = -(-num_step // num_envs)
    rows: dict[str, list[Array]] = {name: [] for name in FIELDS}
    returns: list[float] = []
    last_line = time.monotonic()
    try:
        obs, carry = env.reset(), agent.init_carry(num_envs)
        for count in range(num_row_per_env):
            act = agent.act(obs, carry, explore=not deterministic)
            action = act.action.numpy(force=True)
            step = env.step(action)
            limited = env.action_map.limit(action)
            values = (to_host(obs), limited, step.reward, step.terminated, step.truncated, to_host(step.next_obs))
            for name, value in zip(FIELDS, values, strict=True):
                rows[name].append(np.array(value))
            returns += env.pop_finished()
            obs, carry = step.obs, reset_rows(act.carry, step.done)
            if time.monotonic() > last_line + PROGRESS_SECONDS:
                logger.info(f"{(count + 1) * num_envs:,} of {num_step:,} steps, {len(returns)} episodes")
                last_line = time.monotonic()
    finally:
        env.close()
    steps = {name: _by_env(np.stack(parts))[:num_step] for name, parts in rows.items()}
    facts = {
        "env": spec.env.name,
        "agent": spec.agent.name,
        "run": Path(where).name,
        "deterministic": deterministic,
        "num_episode": len(returns),
        "mean_return": float(np.mean(returns)) if returns else None,
    }
    num_row = len(steps["reward"])
    if minari is None:
        save_steps(path, steps, facts)
        return Collected(str(path), num_row, returns)
    # the last env has fewer steps if num_step is not a multiple
    lengths = [min(num_row_per_env, num_row - start) for start in range(0, num_row, num_row_per_env)]
    name = path.as_posix()
    minari.write_minari(name, steps, lengths, spec.env.name, env.facts.action_space, spec.agent.name)
    return Collected(MINARI + name, num_row, returns)


def _by_env(steps: Array) -> Array:
    """Steps (T, N, ...) as (N*T, ...), all steps of one env before those of the next."""
    return np.swapaxes(steps, 0, 1).reshape(-1, *steps.shape[2:])
