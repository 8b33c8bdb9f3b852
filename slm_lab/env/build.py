"""Chooses the backend that steps a session's envs, by the spec or by measuring."""

import importlib
from dataclasses import replace
from types import ModuleType
from typing import Any

from loguru import logger

from slm_lab.env.ale import AleVecEnv
from slm_lab.env.array import ArrayVecEnv, has_array_form
from slm_lab.env.atari import AtariOptions
from slm_lab.env.gym_types import GymEnv
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, is_atari, is_playground, make_env
from slm_lab.env.render import RenderMode
from slm_lab.env.vec_env import VecEnv
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.lib.errors import EnvError, EnvFaultError, WorkerError

# A round trip to worker processes costs about this much, so what takes less is not worth measuring.
_MESSAGE_SECONDS = 0.0002
_MEASURE_SECONDS = 0.1
# Arrays are tried with at most this many envs, since making more takes time; what is faster here is so with more.
_MAX_ARRAY_TRIAL = 64


def build_vec_env(settings: EnvSettings, num_workers: int | None = 0, render_mode: RenderMode | None = None) -> VecEnv:
    """The envs of a session; `num_workers` None measures what is fastest."""
    backend = settings.backend
    if is_playground(settings.name):
        return _build_playground(settings, num_workers, render_mode)
    if backend == "ale" and not is_atari(settings.name):
        raise EnvError(f"env.backend: ale is for ALE/ games, not for '{settings.name}'; use auto")
    is_plain = render_mode is None and not num_workers and not settings.needs_gymnasium
    if is_atari(settings.name) and backend in ("auto", "ale") and is_plain:
        if not AtariOptions.parse(settings.kwargs, settings.max_t).needs_emulator:
            return AleVecEnv(settings)
        if backend == "ale":
            raise EnvError("env.kwargs: the ale backend has no mode and difficulty; use env.backend gymnasium")
    if backend in ("array", "envpool"):
        if render_mode is None:
            return ArrayVecEnv(settings) if backend == "array" else _import_pool().EnvPoolVecEnv(settings)
        logger.info(f"Env backend gymnasium, not {backend}, for rendering")
    if render_mode is not None:
        return LocalVecEnv(settings, render_mode)
    if num_workers is None:
        return _build_fastest(settings)
    return WorkerVecEnv(settings, num_workers) if num_workers else LocalVecEnv(settings)


def _build_fastest(settings: EnvSettings) -> VecEnv:
    num_workers = 0
    if settings.backend == "auto" and has_array_form(settings):
        is_array, reason = choose_array(settings)
        if is_array:
            logger.info(f"Env backend array: {reason}")
            return ArrayVecEnv(settings)
    else:
        num_workers, reason = choose_workers(settings)
    logger.info(f"Env backend gymnasium, {f'{num_workers} workers' if num_workers else 'in process'}: {reason}")
    return WorkerVecEnv(settings, num_workers) if num_workers else LocalVecEnv(settings)


def _import_pool() -> Any:
    """The module of the EnvPool backend, whose package is optional."""
    try:
        return importlib.import_module("slm_lab.env.pool")
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise EnvError("env.backend: envpool is not installed; install it with `uv sync --group envpool`") from None


def make_single_env(settings: EnvSettings) -> GymEnv:
    """One env of any family, for inspection."""
    if is_playground(settings.name):
        if settings.wrappers:
            raise EnvError(f"env.wrappers: '{settings.name}' takes no wrappers; leave it out")
        env: GymEnv = load_playground(settings.name).PlaygroundEnv(settings)
        return env
    return make_env(settings)


def make_random_env(settings: EnvSettings) -> GymEnv | VecEnv:
    """The env for random play: a single one, or the whole batch if nothing smaller is compiled."""
    return build_vec_env(settings) if is_playground(settings.name) else make_env(settings)


def load_playground(name: str) -> ModuleType:
    """The backend of MuJoCo Playground, whose packages are optional and slow to import."""
    try:
        return importlib.import_module("slm_lab.env.playground")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("slm_lab"):
            raise
        raise EnvError(
            f"env.name: '{name}' needs the package '{error.name}', which is not installed; install it with: "
            "uv sync --group playground"
        ) from None


def _build_playground(settings: EnvSettings, num_workers: int | None, render_mode: RenderMode | None) -> VecEnv:
    if settings.backend != "auto":
        raise EnvError(f"env.backend: '{settings.name}' has its own backend; use auto, not {settings.backend}")
    if num_workers:
        raise EnvError(f"env.num_workers: '{settings.name}' is simulated as one batch, not by workers; leave it out")
    if render_mode is not None:
        raise EnvError(f"env.name: '{settings.name}' cannot be rendered; leave out --render and --video")
    env: VecEnv = load_playground(settings.name).PlaygroundVecEnv(settings)
    return env


def choose_workers(settings: EnvSettings) -> tuple[int, str]:
    """The fastest number of worker processes, 0 for none, and the reason."""
    count = min(settings.num_cores, settings.num_envs)
    if settings.num_cores == 1:
        return 0, "one core for this session"
    if count == 1:
        return 0, "one env"
    try:
        local = _measure(LocalVecEnv(settings))
    except EnvFaultError:
        # the session will fail too, with a better message
        return 0, "an env failed while it was timed"
    if local < 2 * _MESSAGE_SECONDS:
        return 0, f"a step of {settings.num_envs} envs takes {local * 1e3:.2f} ms, less than messages to workers would"
    try:
        remote = _measure(WorkerVecEnv(settings, count))
    except (EnvError, WorkerError) as error:
        # for example an env that only this process has registered; training works without workers
        return 0, f"workers cannot step these envs: {str(error).splitlines()[-1]}"
    reason = (
        f"a step of {settings.num_envs} envs takes {local * 1e3:.2f} ms in process, {remote * 1e3:.2f} ms in workers"
    )
    # a small gain is not worth the processes
    return (count if remote < 0.9 * local else 0), reason


def choose_array(settings: EnvSettings) -> tuple[bool, str]:
    """Whether stepping envs as arrays is faster than one by one, and the reason."""
    if settings.num_envs == 1:
        return False, "one env"
    few = replace(settings, num_envs=min(settings.num_envs, _MAX_ARRAY_TRIAL))
    seconds = _MEASURE_SECONDS / 2
    local, array = _measure(LocalVecEnv(few), seconds), _measure(ArrayVecEnv(few), seconds)
    reason = f"a step of {few.num_envs} envs takes {local * 1e3:.3f} ms one by one, {array * 1e3:.3f} ms as arrays"
    return array < local, reason


def _measure(env: VecEnv, seconds: float = _MEASURE_SECONDS) -> float:
    try:
        return env.measure(seconds)
    finally:
        env.close()
