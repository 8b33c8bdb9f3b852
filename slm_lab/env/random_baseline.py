"""Random-policy baselines: the mean return of uniformly random play, the zero of the `strength` metric."""

import json
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from loguru import logger

from slm_lab.env.build import make_random_env
from slm_lab.env.gym_types import GymEnv
from slm_lab.env.make import EnvSettings
from slm_lab.env.mask import sample_by_info
from slm_lab.env.vec_env import VecEnv
from slm_lab.env.watch import close_envs
from slm_lab.env.worker import Worker, send_answer
from slm_lab.lib.errors import EnvError, LabError, WorkerError
from slm_lab.lib.io import cache_folder, write_text
from slm_lab.lib.runtime import import_modules
from slm_lab.results.baseline import RandomBaseline, read_baselines, read_shipped_baselines

gym.register_envs(ale_py)

CACHE_FILE = "random_baseline.json"
NUM_EPISODE = 100
# Limits for measuring a baseline that is not shipped: no episode starts after these steps or seconds, and the whole
# measurement is abandoned after GIVE_UP_SECONDS.
MAX_STEP = 100_000
MAX_SECONDS = 30.0
GIVE_UP_SECONDS = 60.0


def measure_random_baseline(
    make_env: Callable[[], GymEnv | VecEnv],
    num_episode: int = NUM_EPISODE,
    seed: int = 0,
    max_step: int = 20_000_000,
    max_seconds: float = math.inf,
) -> RandomBaseline:
    """Measure the random policy; no episode starts after max_step steps in total, and none may be longer than that."""
    env = make_env()
    deadline = time.monotonic() + max_seconds
    try:
        if isinstance(env, VecEnv):
            returns = _play_batch(env, num_episode, seed, max_step, deadline)
        else:
            returns = _play_single(env, num_episode, seed, max_step, deadline)
    finally:
        if isinstance(env, VecEnv):
            env.close()
        else:
            close_envs([env], str(env))
    if not returns:
        raise RuntimeError(f"no random episode ended within {max_step} steps: give the environment a time limit")
    return RandomBaseline(float(np.mean(returns)), float(np.std(returns)), len(returns))


def _play_single(env: GymEnv, num_episode: int, seed: int, max_step: int, deadline: float) -> list[float]:
    env.action_space.seed(seed)
    returns: list[float] = []
    num_step = 0
    # an episode that begins within the budget is played to its end; dropping it would favour short episodes
    while len(returns) < num_episode and num_step < max_step and time.monotonic() < deadline:
        _, info = env.reset(seed=seed + len(returns))
        total = 0.0
        for _ in range(max_step):
            _, reward, terminated, truncated, info = env.step(sample_by_info(env.action_space, info))
            num_step += 1
            # a reward of shape (1,) is accepted, as in training
            total += float(np.asarray(reward).item())
            if terminated or truncated:
                returns.append(total)
                break
    return returns


def _play_batch(env: VecEnv, num_episode: int, seed: int, max_step: int, deadline: float) -> list[float]:
    """Rounds of one episode per env, so that short episodes do not dominate; for Box actions."""
    rng = np.random.default_rng(seed)
    shape = (env.num_envs, *env.action_map.shape)
    returns: list[float] = []
    num_step = 0
    env.reset()
    while len(returns) < num_episode and num_step < max_step and time.monotonic() < deadline:
        first = env.episode.copy()
        for _ in range(max_step):
            is_first = env.episode == first
            if not is_first.any():
                break
            step = env.step(rng.uniform(-1.0, 1.0, shape).astype(np.float32))
            num_step += env.num_envs
            finished = zip(np.flatnonzero(step.ended), env.pop_finished(), strict=True)
            returns += [value for index, value in finished if is_first[index]]
    return returns


def baseline_key(
    env_id: str, kwargs: dict[str, Any], max_t: int | None, wrappers: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Name the baseline: the env id, then wrappers and only the kwargs and time limit that differ from its own."""
    spec = gym.registry.get(env_id)
    registered = {name: _to_json(value) for name, value in spec.kwargs.items()} if spec else {}
    # These kwargs do not change the rewards of random play, so the baseline of the plain id holds. (Shipped ones of
    # Atari come from games without no-ops and FIRE at the start, which matters little.)
    ignored = {"render_mode", "obs_type", "life_loss_info"} if env_id.startswith("ALE/") else {"render_mode"}
    changed = {
        name: value for name, value in kwargs.items() if name not in ignored and _to_json(value) != registered.get(name)
    }
    key = f"{env_id}|{_to_json(changed)}" if changed else env_id
    if max_t is not None and max_t != (spec.max_episode_steps if spec else None):
        key += f"|max_t={max_t}"
    if wrappers:
        key += f"|wrappers={_to_json(wrappers)}"
    return key


def _to_json(value: object) -> str:
    """Kwargs as text; those of registered envs may be objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)


def write_baselines(path: Path, baselines: Mapping[str, RandomBaseline]) -> None:
    """Write the file atomically, sorted, one line per env."""
    lines = [f"  {json.dumps(key)}: {json.dumps(baselines[key]._asdict())}" for key in sorted(baselines)]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def get_random_baseline(
    env_key: str,
    measure: Callable[[], RandomBaseline],
    cache_dir: Path | None = None,
    may_measure: bool = True,
) -> float:
    """The mean random return: shipped, cached, or measured now and cached."""
    path = (cache_dir or cache_folder()) / CACHE_FILE
    if baseline := read_shipped_baselines().get(env_key) or read_baselines(path).get(env_key):
        return baseline.mean
    if not may_measure:
        raise EnvError(f"that of {env_key} is not known yet")
    logger.info(f"Measuring the random baseline of {env_key} over {NUM_EPISODE} episodes (only once)")
    baseline = measure()
    if all(map(math.isfinite, baseline)):
        try:
            # Read again just before the write, since measuring took long. If two processes still write at the same
            # moment, one entry is lost, and will be measured again.
            write_baselines(path, read_baselines(path) | {env_key: baseline})
        except OSError as error:
            logger.warning(f"Random baseline of {env_key} is not cached, {path} cannot be written: {error}")
    return baseline.mean


def measure_apart(settings: EnvSettings) -> RandomBaseline:
    """Measure the random policy in a separate process, to protect this one from the env."""
    worker = Worker(settings, __name__)
    try:
        if not worker.connection.poll(GIVE_UP_SECONDS):
            raise WorkerError(f"random play did not end within {GIVE_UP_SECONDS:g} s")
        baseline: RandomBaseline = worker.receive()
        return baseline
    finally:
        worker.connection.close()
        worker.close(time.monotonic())


def serve(descriptor: int) -> None:
    """The process of `measure_apart`."""
    connection = Connection(descriptor)
    settings: EnvSettings = pickle.loads(connection.recv_bytes())
    try:
        import_modules(settings.imports)
        answer: RandomBaseline | LabError = measure_random_baseline(
            lambda: make_random_env(settings), max_step=MAX_STEP, max_seconds=MAX_SECONDS
        )
    except LabError as error:
        answer = EnvError(str(error))
    except (Exception, SystemExit) as error:  # the env's own code: anything can come
        answer = EnvError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    send_answer(connection, answer)
