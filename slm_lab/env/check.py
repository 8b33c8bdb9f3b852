"""Check an env with random steps, and report problems for training."""

import sysconfig
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymEnv, GymSpace
from slm_lab.env.layout import (
    RESET_VALUES,
    STEP_VALUES,
    FlatObservation,
    MisfitError,
    calc_parts,
    find_misfit,
    in_one_line,
    read_reward,
    read_truth,
    read_values,
    show_parts,
)
from slm_lab.env.mask import MASK, count_choices, read_mask, sample_by_info
from slm_lab.env.vec_env import ActionMap
from slm_lab.env.watch import close_envs
from slm_lab.lib.errors import EnvError, LabError
from slm_lab.lib.secret import redact

# where installed packages and Python's own modules are
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LAB = str(Path(__file__).parents[1])

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class CheckItem:
    """The result of one check."""

    level: Level
    text: str


def check_env(
    env: GymEnv,
    num_step: int = 1000,
    seed: int = 0,
    make_fresh: Callable[[], GymEnv] | None = None,
) -> list[CheckItem]:
    """Check an env; at most one item of each kind."""
    items = [
        CheckItem("ok", f"observations: {_describe(env.observation_space)}"),
        *_name_parts(env),
        CheckItem("ok", f"actions: {_describe(env.action_space)}"),
    ]
    try:
        ActionMap(env.action_space)
    except EnvError as error:
        return [*items, CheckItem("wrong", str(error))]
    items += [*_check_bounds(env.action_space), *_check_mask(env, seed)]
    wrong, lengths, speed = _walk(env, num_step, seed)
    items += [CheckItem("wrong", text) for text in wrong.values()]
    if not wrong:
        items += [CheckItem("ok", f"{num_step:,} random steps: finite, of the right shape and type")]
        items.append(_check_end(lengths, num_step))
        try:
            items.append(_check_repeat(env, seed, min(num_step, 200), make_fresh))
        except MisfitError as error:
            return [*items, CheckItem("wrong", f"an episode played again: {error}")]
        items.append(CheckItem("ok", f"about {speed:,.0f} steps per second in one process"))
    return items


def _describe(space: GymSpace) -> str:
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return in_one_line(space)
    return f"Box of shape {space.shape}, {space.dtype}, from {space.low.min():.4g} to {space.high.max():.4g}"


def _name_parts(env: GymEnv) -> list[CheckItem]:
    """The names of parts, for a net's obs_keys and encoders."""
    source = env.env.observation_space if isinstance(env, FlatObservation) else None
    if not isinstance(source, (spaces.Dict, spaces.Tuple)):
        return []
    return [CheckItem("ok", f"parts of an observation: {show_parts(calc_parts(source))}")]


def _check_bounds(space: GymSpace) -> list[CheckItem]:
    if isinstance(space, spaces.Box) and not space.is_bounded():
        return [CheckItem("note", "some actions have no bound: they keep the policy's own scale, about 2 wide")]
    return []


def _check_mask(env: GymEnv, seed: int) -> list[CheckItem]:
    try:
        info: Any = _reset(env, seed)[1]
    except MisfitError:
        return []  # reported by the steps below
    if not isinstance(info, dict) or MASK not in info:
        return []
    num_choice = sum(count_choices(env.action_space))
    if not num_choice:
        return [CheckItem("wrong", f"info has an {MASK}, which only discrete actions can have")]
    return [CheckItem("ok", f"action masks: which of {num_choice} choices are allowed")]


def _walk(env: GymEnv, num_step: int, seed: int) -> tuple[dict[str, str], list[int], float]:
    """Mistakes by kind, lengths of finished episodes, and steps per second."""
    wrong: dict[str, str] = {}
    lengths: list[int] = []
    env.action_space.seed(seed)
    try:
        obs, info = _reset(env, seed)
        wrong |= _check_obs(env, obs, "reset")
        is_masked = isinstance(info, dict) and MASK in info
        _check_step_mask(env, info, is_masked)
    except MisfitError as error:
        return {"obs": f"reset: {error}"}, [], 0.0
    length, start = 0, time.perf_counter()
    for step in range(1, num_step + 1):
        at = f"step {step}"
        try:
            result: Any = _call(env.step, sample_by_info(env.action_space, info))
            obs, reward, terminated, truncated, info = read_values(result, STEP_VALUES)
            is_terminated = read_truth("terminated", terminated)
            is_over = is_terminated | read_truth("truncated", truncated)
            _check_step_mask(env, info, is_masked, is_terminated)
        except MisfitError as error:
            wrong.setdefault("end", f"{at}: {error}")
            break
        length += 1
        # the first mistake of each kind is enough
        wrong = {**_check_obs(env, obs, at), **_check_reward(reward, step), **wrong}
        if not isinstance(info, dict):
            wrong.setdefault("info", f"{at}: info is {type(info).__name__}, a dict expected")
        if is_over:
            lengths.append(length)
            length = 0
            try:
                _, info = _reset(env, seed + step)
                _check_step_mask(env, info, is_masked)
            except MisfitError as error:
                wrong.setdefault("end", f"reset after {at}: {error}")
                break
    return wrong, lengths, num_step / (time.perf_counter() - start)


def _check_step_mask(env: GymEnv, info: Any, is_masked: bool, is_terminated: bool = False) -> None:
    """Raise for a mask that training would refuse; `is_masked` is whether the first reset gave one."""
    choices = count_choices(env.action_space)
    if not is_masked or not choices:
        return
    if isinstance(info, dict) and MASK in info:
        read_mask(info[MASK], choices, is_terminated)
    elif not is_terminated:
        raise MisfitError(f"info has no '{MASK}', which earlier steps had")


def _reset(env: GymEnv, seed: int) -> tuple[Any, ...]:
    return read_values(_call(env.reset, seed=seed), RESET_VALUES)


def _call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a method of the env; an exception from its code becomes a mistake in one line."""
    try:
        return method(*args, **kwargs)
    except LabError:
        raise
    except Exception as error:
        # the env's own text may hold a token
        reason = redact((str(error).splitlines() or [""])[0])
        text = f"raises {type(error).__name__}{f': {reason}' if reason else ''}{_find_line(error)}"
        if isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in reason:
            text += "; gymnasium calls reset(self, *, seed=None, options=None)"
        raise MisfitError(text) from error


def _find_line(error: Exception) -> str:
    """The last line of the env's own code in a traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*INSTALLED, LAB)):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


def _check_reward(reward: object, step: int) -> dict[str, str]:
    try:
        is_finite = np.isfinite(read_reward(reward))
    except MisfitError as error:
        return {"reward type": f"step {step}: {error}"}
    return {} if is_finite else {"reward": f"step {step}: the reward is {reward}"}


def _check_obs(env: GymEnv, obs: object, at: str) -> dict[str, str]:
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        return {} if space.contains(obs) else {"obs": f"{at}: the observation is not in {in_one_line(space)}"}
    problem = find_misfit(obs, space.shape, space.dtype)
    if problem is not None:
        return {"obs": f"{at}: the observation {problem}"}
    array = np.asarray(obs)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = tuple(int(part) for part in np.argwhere(~np.isfinite(array))[0])
        return {"obs": f"{at}: the observation is {array[index]} at {list(index)}"}
    outside = np.argwhere((array < space.low) | (array > space.high))
    if len(outside):
        index = tuple(int(part) for part in outside[0])
        bounds = f"[{space.low[index]}, {space.high[index]}]"
        return {"bounds": f"{at}: the observation is {array[index]} at {list(index)}, outside {bounds}"}
    return {}


def _check_end(lengths: list[int], num_step: int) -> CheckItem:
    if lengths:
        return CheckItem("ok", f"{len(lengths)} episodes ended, after {np.mean(lengths):.0f} steps on average")
    return CheckItem(
        "note", f"no episode ended in {num_step:,} random steps: scores count whole episodes, so set env.max_t"
    )


def _check_repeat(env: GymEnv, seed: int, num_step: int, make_fresh: Callable[[], GymEnv] | None) -> CheckItem:
    """Whether a seed and actions repeat an episode exactly, in the same env and in a fresh one."""
    actions: list[Any] = []
    first = _record(env, seed, actions, num_step)
    step = _find_difference(first, _record(env, seed, actions))
    if step is not None:
        return CheckItem(
            "note",
            f"the same seed and actions differ from step {step} on: runs do not repeat to the bit, and a stopped "
            "run resumes statistically, not exactly (sample every random number from self.np_random)",
        )
    if make_fresh is not None:
        fresh = make_fresh()
        try:
            step = _find_difference(first, _record(fresh, seed, actions))
        finally:
            close_envs([fresh], str(fresh))
        if step is not None:
            return CheckItem(
                "note",
                f"a fresh env differs from one that has played episodes, from step {step} on: state carries over "
                "between episodes, so a stopped run resumes statistically, not exactly (set all of it in reset)",
            )
    return CheckItem("ok", "the same seed and actions give the same episode: runs repeat and resume exactly")


def _find_difference(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> int | None:
    """The first step at which two episodes differ."""
    for step, (one, two) in enumerate(zip(first, second, strict=False)):
        if not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True)):
            return step
    return None if len(first) == len(second) else min(len(first), len(second))


def _record(env: GymEnv, seed: int, actions: list[Any], num_random: int = 0) -> list[tuple[Any, ...]]:
    """The record of an episode with given actions, then with random ones, which are added to `actions`."""
    obs, info = _call(env.reset, seed=seed)
    record: list[tuple[Any, ...]] = [(np.array(obs),)]
    for index in range(len(actions) + num_random):
        if index == len(actions):
            actions.append(sample_by_info(env.action_space, info))
        obs, reward, terminated, truncated, info = _call(env.step, actions[index])
        record.append((np.array(obs), reward, terminated, truncated))
        if terminated or truncated:
            break
    return record
