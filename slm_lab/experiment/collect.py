"""Steps of a trained agent as a file that others learn from."""

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
# between lines that tell how far it is
PROGRESS_SECONDS = 5.0
Format = Literal["safetensors", "minari"]


@dataclass(frozen=True)
class Collected:
    """What was written: a file with steps, and the returns of the episodes that ended."""

    # as agent.algorithm.data takes it
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
    format: Format = "safetensors",  # as the option of the command is called
) -> Collected:
    """Play with the trained agent of a run and write every step; it explores as at the end of training."""
    if format == "safetensors" and path.suffix != SUFFIX:
        raise LabError(f"{path}: the file must end in {SUFFIX}")
    minari = load_minari("--format minari") if format == "minari" else None
    import_modules(options.imports)
    agent, env, spec = load_trained(where, options.data_dir, num_envs=num_envs, at=at)
    agent.algorithm.frame = spec.env.max_frame
    # one list per env: a file has episode after episode
    rows: dict[str, list[Array]] = {name: [] for name in FIELDS}
    returns: list[float] = []
    told = time.monotonic()
    try:
        obs, carry = env.reset(), agent.init_carry(num_envs)
        for count in range(-(-num_step // num_envs)):
            act = agent.act(obs, carry, explore=not deterministic)
            action = act.action.numpy(force=True)
            step = env.step(action)
            taken = env.action_map.limit(action)
            values = (to_host(obs), taken, step.reward, step.terminated, step.truncated, to_host(step.next_obs))
            for name, value in zip(FIELDS, values, strict=True):
                rows[name].append(np.array(value))
            returns += env.pop_finished()
            obs, carry = step.obs, reset_rows(act.carry, step.done)
            if time.monotonic() > told + PROGRESS_SECONDS:
                logger.info(f"{(count + 1) * num_envs:,} of {num_step:,} steps, {len(returns)} episodes")
                told = time.monotonic()
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
    # steps of an env are together, and the last env's may be cut short
    each = -(-num_step // num_envs)
    lengths = [min(each, num_row - start) for start in range(0, num_row, each)]
    name = path.as_posix()
    minari.write_minari(name, steps, lengths, spec.env.name, env.facts.action_space, spec.agent.name)
    return Collected(MINARI + name, num_row, returns)


def _by_env(steps: Array) -> Array:
    """Steps (T, N, ...) as one row of T*N, those of an env together."""
    return np.swapaxes(steps, 0, 1).reshape(-1, *steps.shape[2:])
