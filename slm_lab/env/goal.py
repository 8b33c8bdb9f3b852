"""Goal envs: the position of goals in a flat observation, and the reward for any other goal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.env.gym_types import GymEnv
from slm_lab.env.layout import ObsPart, show_parts
from slm_lab.env.make import EnvFacts, build_settings, make_env
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError
from slm_lab.spec.schema import EnvSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
# random steps in which rewards with wrappers must equal those of the env itself
NUM_TRIED = 20
# achieved goals (B, G), desired goals (B, G) -> numbers (B,)
Judge = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Goal:
    """The goals of an env: their parts of an observation, the reward of a pair, and whether a pair ends the task."""

    achieved: ObsPart
    desired: ObsPart
    # scaled and clipped, as agents learn from rewards
    reward: Judge
    # None if the end of the task does not depend on the goal
    terminated: Judge | None = None


def build_goal(spec: EnvSpec, facts: EnvFacts) -> Goal:
    """The goals of a spec's env; an error if it has none."""
    parts = {part.name: part for part in facts.parts}
    if ACHIEVED not in parts or DESIRED not in parts:
        raise EnvError(
            f"env.name: HindsightReplay needs an env with the parts {ACHIEVED} and {DESIRED}, '{spec.name}' has "
            f"{show_parts(facts.parts)}; use Replay"
        )
    achieved, desired = parts[ACHIEVED], parts[DESIRED]
    if achieved.shape != desired.shape or not _is_box(facts):
        raise EnvError(f"env.name: goals of '{spec.name}' must be Boxes of one shape, not {show_parts(facts.parts)}")
    if spec.normalize_reward:
        raise EnvError("env.normalize_reward: rewards of other goals have another scale; set it to false")
    # a separate env, because those that are stepped may be in other processes
    wrapped = make_env(build_settings(spec, (0,), 1))
    env: Any = wrapped.unwrapped
    if not hasattr(env, "compute_reward"):
        raise EnvError(f"env.name: '{spec.name}' has no compute_reward, which HindsightReplay needs; use Replay")
    bounds = (-spec.clip_reward, spec.clip_reward) if isinstance(spec.clip_reward, (int, float)) else spec.clip_reward
    judge = _vectorise(env.compute_reward, desired.shape, spec.name)
    if spec.wrappers:
        _check_wrappers(wrapped, spec, achieved, desired, judge)

    def reward(reached: Array, wanted: Array) -> Array:
        value = judge(reached, wanted) * spec.reward_scale
        return np.clip(value, *bounds) if bounds else value

    terminated = None
    if hasattr(env, "compute_terminated"):
        terminated = _vectorise(env.compute_terminated, desired.shape, spec.name)
    return Goal(achieved, desired, reward, terminated)


def _check_wrappers(env: GymEnv, spec: EnvSpec, achieved: ObsPart, desired: ObsPart, judge: Judge) -> None:
    """Refuse wrappers that change rewards or goals, because `compute_reward` belongs to the env without them."""
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(NUM_TRIED):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        reached, wanted = (np.asarray(obs)[None, part.start : part.stop] for part in (achieved, desired))
        expected = float(judge(reached, wanted)[0])
        if not np.isclose(float(reward), expected):
            names = ", ".join(wrapper.name for wrapper in spec.wrappers)
            raise EnvError(
                f"env.wrappers: {names} makes the reward {float(reward):g} where compute_reward gives {expected:g}, "
                "so rewards of other goals would not fit; remove it, or use Replay"
            )
        if terminated or truncated:
            env.reset()


def _is_box(facts: EnvFacts) -> bool:
    source = facts.source_space
    return isinstance(source, spaces.Dict) and all(isinstance(source[key], spaces.Box) for key in (ACHIEVED, DESIRED))


def _vectorise(judge: Callable[[Any, Any, Any], Any], shape: tuple[int, ...], name: str) -> Judge:
    """A function for batches: one call if the env's function takes batches, else one per row; `info` is empty."""

    def at_once(reached: Array, wanted: Array) -> Array:
        return np.asarray(judge(reached.reshape(-1, *shape), wanted.reshape(-1, *shape), {}))

    def one_by_one(reached: Array, wanted: Array) -> Array:
        pairs = zip(reached.reshape(-1, *shape), wanted.reshape(-1, *shape), strict=True)
        return np.array([judge(*pair, {}) for pair in pairs])

    # try two pairs, one of them reached: a function that takes no batches returns another number of results, or fails
    wanted = np.zeros((2, int(np.prod(shape))), np.float32)
    reached = np.stack([wanted[0], wanted[0] + 1e3])
    try:
        each = one_by_one(reached, wanted).astype(float)
    except Exception as error:  # the env's own code: anything can come
        raise EnvError(
            f"env.name: compute_reward or compute_terminated of '{name}' fails without the info of a step: "
            f"{type(error).__name__}: {' '.join(str(error).split())}; use Replay"
        ) from None
    try:
        together = at_once(reached, wanted).astype(float)
    except Exception:  # as above: it takes no batches
        return one_by_one
    return at_once if together.shape == (2,) and np.allclose(together, each) else one_by_one
