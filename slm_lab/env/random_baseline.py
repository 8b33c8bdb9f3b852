"""Random-policy baselines: the mean return of uniformly random play, the zero of the `strength` metric."""

import argparse
import functools
import json
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import gymnasium as gym
import numpy as np
from loguru import logger

from slm_lab.env.build import make_random_env
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import VecEnv
from slm_lab.env.watch import close_envs
from slm_lab.env.worker import Worker, send_answer
from slm_lab.lib.errors import EnvError, LabError, WorkerError
from slm_lab.lib.io import cache_folder, write_text
from slm_lab.lib.runtime import import_modules

gym.register_envs(ale_py)

SHIPPED_PATH = Path(__file__).with_name("random_baseline.json")
CACHE_FILE = "random_baseline.json"
NUM_EPISODE = 100
# A baseline that is not shipped is measured within these limits: no episode starts after these steps or seconds, and
# one that has not ended much later is given up.
MAX_STEP = 100_000
MAX_SECONDS = 30.0
GIVE_UP_SECONDS = 60.0

# CarRacing-v3 is left out: it draws every frame, and 100 episodes take about half an hour.
ENV_FAMILIES: dict[str, tuple[str, ...]] = {
    "classic": ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    "box2d": ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3"),
    "mujoco": tuple(
        f"{task}-v5"
        for task in [
            "Ant",
            "HalfCheetah",
            "Hopper",
            "Humanoid",
            "HumanoidStandup",
            "InvertedDoublePendulum",
            "InvertedPendulum",
            "Pusher",
            "Reacher",
            "Swimmer",
            "Walker2d",
        ]
    ),
    "atari": tuple(
        f"ALE/{game}-v5"
        for game in [
            "AirRaid",
            "Alien",
            "Amidar",
            "Assault",
            "Asterix",
            "Asteroids",
            "Atlantis",
            "BankHeist",
            "BattleZone",
            "BeamRider",
            "Berzerk",
            "Bowling",
            "Boxing",
            "Breakout",
            "Carnival",
            "Centipede",
            "ChopperCommand",
            "CrazyClimber",
            "Defender",
            "DemonAttack",
            "DoubleDunk",
            "Enduro",
            "FishingDerby",
            "Freeway",
            "Frostbite",
            "Gopher",
            "Gravitar",
            "Hero",
            "IceHockey",
            "Jamesbond",
            "JourneyEscape",
            "Kangaroo",
            "Krull",
            "KungFuMaster",
            "MsPacman",
            "NameThisGame",
            "Phoenix",
            "Pong",
            "Pooyan",
            "Qbert",
            "Riverraid",
            "RoadRunner",
            "Robotank",
            "Seaquest",
            "Skiing",
            "Solaris",
            "SpaceInvaders",
            "StarGunner",
            "Surround",
            "Tennis",
            "TimePilot",
            "Tutankham",
            "UpNDown",
            "VideoPinball",
            "WizardOfWor",
            "YarsRevenge",
            "Zaxxon",
        ]
    ),
}

# Long games get fewer than 100 episodes so that the whole list is measured in reasonable time. The budget is in steps,
# not seconds, so that every machine measures the same episodes; it is above the 27,000 steps a game can last.
ATARI_MAX_STEP = 75_000


class RandomBaseline(NamedTuple):
    """Mean and standard deviation of the random policy's returns, and the number of episodes behind them."""

    mean: float
    std: float
    num_episode: int


def _run_episode(env: gym.Env[Any, Any], seed: int, max_step: int) -> tuple[float, int, bool]:
    """Play one random episode; return its return, its length, and whether it ended within max_step."""
    env.reset(seed=seed)
    total = 0.0
    for step in range(1, max_step + 1):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        # a reward of shape (1,) counts, as in training
        total += float(np.asarray(reward).item())
        if terminated or truncated:
            return total, step, True
    return total, max_step, False


def measure_random_baseline(
    make_env: Callable[[], gym.Env[Any, Any] | VecEnv],
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


def _play_single(env: gym.Env[Any, Any], num_episode: int, seed: int, max_step: int, deadline: float) -> list[float]:
    env.action_space.seed(seed)
    returns: list[float] = []
    num_step = 0
    # An episode begun within the budget is played to its end: dropping it would favour short episodes.
    while len(returns) < num_episode and num_step < max_step and time.monotonic() < deadline:
        total, length, ended = _run_episode(env, seed + len(returns), max_step)
        num_step += length
        if ended:
            returns.append(total)
    return returns


def _play_batch(env: VecEnv, num_episode: int, seed: int, max_step: int, deadline: float) -> list[float]:
    """Rounds of one episode of each env, so that short episodes do not crowd out long ones; for Box actions."""
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


def _json_default(value: object) -> object:
    """Turn what JSON does not know into something stable enough for a key."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return repr(value)


def _is_same(left: object, right: object) -> bool:
    """Compare two kwargs by their JSON text, which also works for arrays."""
    return json.dumps(left, sort_keys=True, default=_json_default) == json.dumps(
        right, sort_keys=True, default=_json_default
    )


def baseline_key(env_id: str, kwargs: dict[str, Any], max_t: int | None) -> str:
    """Name the baseline: the env id, then only the kwargs and time limit that differ from the registered ones."""
    spec = gym.registry.get(env_id)
    default_kwargs = spec.kwargs if spec else {}
    # What is drawn, observed or learned from leaves the random policy's rewards as they are, so the plain id's baseline
    # holds. (Shipped ones of Atari come from games without no-ops and FIRE at the start, which matters little.)
    ignored = {"render_mode", "obs_type", "life_loss_info"} if env_id.startswith("ALE/") else {"render_mode"}
    changed = {
        name: value
        for name, value in kwargs.items()
        if name not in ignored and not (name in default_kwargs and _is_same(value, default_kwargs[name]))
    }
    key = env_id
    if changed:
        key += "|" + json.dumps(changed, sort_keys=True, separators=(",", ":"), default=_json_default)
    if max_t is not None and max_t != (spec.max_episode_steps if spec else None):
        key += f"|max_t={max_t}"
    return key


def _cache_path(cache_dir: Path | None) -> Path:
    """Find the user's cache file, in the given folder or in the lab's."""
    return (cache_dir or cache_folder()) / CACHE_FILE


def _is_number(value: object) -> bool:
    """Tell whether a JSON value is a finite number (JSON's true and false are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_baselines(path: Path) -> dict[str, RandomBaseline]:
    """Read the valid baselines of a file; one that is missing, unreadable or corrupt has none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {
        key: RandomBaseline(float(entry["mean"]), float(entry["std"]), int(entry["num_episode"]))
        for key, entry in data.items()
        if isinstance(entry, dict) and all(_is_number(entry.get(field)) for field in RandomBaseline._fields)
    }


def _write_baselines(path: Path, baselines: Mapping[str, RandomBaseline]) -> None:
    """Write the file atomically, sorted, one line per env."""
    lines = [f"  {json.dumps(key)}: {json.dumps(baselines[key]._asdict())}" for key in sorted(baselines)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_text(path, text)


def _add_to_cache(path: Path, key: str, baseline: RandomBaseline) -> None:
    """Add one baseline to the cache file, keeping what other processes wrote meanwhile."""
    try:
        # Read again right before the replace, since measuring took long. Two processes may still replace at the same
        # moment; the entry lost then is only measured again another time.
        _write_baselines(path, _read_baselines(path) | {key: baseline})
    except OSError as error:
        logger.warning(f"Random baseline of {key} is not cached, {path} cannot be written: {error}")


@functools.cache
def _shipped_baselines() -> dict[str, RandomBaseline]:
    """Read the baselines shipped with the package, once."""
    return _read_baselines(SHIPPED_PATH)


def measure_apart(settings: EnvSettings) -> RandomBaseline:
    """Measure the random policy in a process of its own: whatever the env does, this one goes on."""
    worker = Worker(settings, __name__)
    try:
        if not worker.connection.poll(GIVE_UP_SECONDS):
            raise WorkerError(f"random play has not ended after {GIVE_UP_SECONDS:g} s")
        return RandomBaseline(*worker.receive())
    finally:
        worker.connection.close()
        worker.close(time.monotonic())


def serve(descriptor: int) -> None:
    """The other side of `measure_apart`."""
    connection = Connection(descriptor)
    settings: EnvSettings = pickle.loads(connection.recv_bytes())
    try:
        import_modules(settings.imports)
        measured = measure_random_baseline(
            lambda: make_random_env(settings), max_step=MAX_STEP, max_seconds=MAX_SECONDS
        )
        answer: tuple[str, Any] = ("ok", tuple(measured))
    except LabError as error:
        answer = ("user_error", str(error))
    except (Exception, SystemExit) as error:  # the env's own code: anything can come
        answer = ("user_error", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    send_answer(connection, answer)


def get_random_baseline(
    env_key: str,
    measure: Callable[[], RandomBaseline],
    cache_dir: Path | None = None,
    may_measure: bool = True,
) -> float:
    """Return the mean random return: as shipped, else from the user's cache, else measured now and cached."""
    if baseline := _shipped_baselines().get(env_key):
        return baseline.mean
    path = _cache_path(cache_dir)
    if baseline := _read_baselines(path).get(env_key):
        return baseline.mean
    if not may_measure:
        raise EnvError(f"that of {env_key} is not known yet")
    logger.info(f"Measuring the random baseline of {env_key} over {NUM_EPISODE} episodes (only once)")
    baseline = measure()
    if all(_is_number(value) for value in baseline):
        _add_to_cache(path, env_key, baseline)
    return baseline.mean


def _make_shipped_env(env_id: str) -> gym.Env[Any, Any]:
    """Make an env the fastest way that leaves its rewards unchanged."""
    # RAM observations spare Atari the drawing of frames that random play never looks at.
    kwargs: dict[str, Any] = {"obs_type": "ram"} if env_id.startswith("ALE/") else {}
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def main(argv: Sequence[str] | None = None) -> None:
    """Regenerate the shipped baselines, skipping those already there."""
    parser = argparse.ArgumentParser(prog="python -m slm_lab.env.random_baseline", description=main.__doc__)
    parser.add_argument("--family", choices=sorted(ENV_FAMILIES), help="only this family of envs (default: all)")
    parser.add_argument("--force", action="store_true", help="measure again what is already there")
    args = parser.parse_args(argv)

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    families = [args.family] if args.family else list(ENV_FAMILIES)
    known = _read_baselines(SHIPPED_PATH)
    env_ids = [env_id for family in families for env_id in ENV_FAMILIES[family] if args.force or env_id not in known]
    start = time.monotonic()
    for count, env_id in enumerate(env_ids, start=1):
        make_env = functools.partial(_make_shipped_env, env_id)
        if env_id.startswith("ALE/"):
            measured = measure_random_baseline(make_env, max_step=ATARI_MAX_STEP)
        else:
            measured = measure_random_baseline(make_env)
        baseline = RandomBaseline(round(measured.mean, 4), round(measured.std, 4), measured.num_episode)
        # Written after each env, so that an interrupted run loses no more than one.
        _write_baselines(SHIPPED_PATH, _read_baselines(SHIPPED_PATH) | {env_id: baseline})
        elapsed = time.monotonic() - start
        left = elapsed / count * (len(env_ids) - count)
        print(
            f"[{count}/{len(env_ids)}] {env_id}: {baseline.mean} ± {baseline.std} "
            f"over {baseline.num_episode} episodes, {elapsed:.0f} s elapsed, about {left:.0f} s left",
            flush=True,
        )


if __name__ == "__main__":
    main()
