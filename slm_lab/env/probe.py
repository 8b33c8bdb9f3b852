"""Tiny envs with known answers, each testing one ability of an agent."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from slm_lab.env.gym_types import GymSpace, Info
from slm_lab.lib.array import Array


class ProbeEnv(gym.Env[Array, Array]):
    """Base: one-number observations, two actions, episodes of fixed length."""

    length = 1

    def __init__(self, action_space: GymSpace | None = None) -> None:
        self.observation_space: gym.Space[Array] = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space: GymSpace = action_space or spaces.Discrete(2)
        self.t = 0

    def obs(self) -> Array:
        """The current observation."""
        return np.zeros(1, np.float32)

    def reward(self, action: Array) -> float:
        """The reward of an action."""
        return 1.0

    def begin(self) -> None:
        """Sample what an episode needs."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.obs(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        reward = self.reward(action)
        self.t += 1
        return self.obs(), reward, self.t >= self.length, False, {}


class ConstantReward(ProbeEnv):
    """One step, reward 1: the value is 1."""


class ObsReward(ProbeEnv):
    """One step, the reward is the observation (-1 or 1): the value is the observation."""

    def begin(self) -> None:
        self.sign = float(self.np_random.choice((-1.0, 1.0)))

    def obs(self) -> Array:
        return np.array([self.sign], np.float32)

    def reward(self, action: Array) -> float:
        return self.sign


class TwoStep(ProbeEnv):
    """Two steps, reward 1 at the end: the values are gamma and 1."""

    length = 2

    def obs(self) -> Array:
        return np.array([float(self.t)], np.float32)

    def reward(self, action: Array) -> float:
        return float(self.t == 1)


class ActionReward(ProbeEnv):
    """One step, action 1 earns 1 and action 0 earns -1: always take action 1."""

    def reward(self, action: Array) -> float:
        return 1.0 if action == 1 else -1.0


class ObsAction(ObsReward):
    """One step, the action must match the sign of the observation."""

    def reward(self, action: Array) -> float:
        return 1.0 if (action == 1) == (self.sign > 0) else -1.0


class Memory(ObsAction):
    """The first observation tells which action is right three steps later, when it is hidden."""

    length = 4

    def obs(self) -> Array:
        return np.array([self.sign if self.t == 0 else 0.0], np.float32)

    def reward(self, action: Array) -> float:
        return super().reward(action) if self.t == self.length - 1 else 0.0


class ContinuousTarget(ProbeEnv):
    """One step, a continuous action must hit half the observation; bounds are unequal on purpose."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(np.array([-1.0], np.float32), np.array([3.0], np.float32)))

    def begin(self) -> None:
        self.target = float(self.np_random.uniform(-1.0, 1.0))

    def obs(self) -> Array:
        return np.array([self.target], np.float32)

    def reward(self, action: Array) -> float:
        return -float((action[0] - 0.5 * self.target) ** 2)


class MultiAction(ProbeEnv):
    """Two sub-actions with 2 and 3 choices; the right pair is (1, 2)."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiDiscrete([2, 3]))

    def reward(self, action: Array) -> float:
        return float(action[0] == 1) + float(action[1] == 2) - 1.0


class BinaryAction(ProbeEnv):
    """Three switches; the right setting is (1, 0, 1)."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiBinary(3))

    def reward(self, action: Array) -> float:
        return float(np.mean(np.asarray(action) == (1, 0, 1)))


class DiscreteObs(ProbeEnv):
    """The observation is one of three numbers; action 1 is right only for number 2."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(3)  # type: ignore[assignment]

    def begin(self) -> None:
        self.number = int(self.np_random.integers(3))

    def obs(self) -> Array:
        return self.number  # type: ignore[return-value]

    def reward(self, action: Array) -> float:
        return 1.0 if (action == 1) == (self.number == 2) else -1.0


class TimeLimit(ProbeEnv):
    """Reward 1 forever, ended only by a time limit: the value is 1/(1-gamma) if the limit does not count as the end."""

    length = 10

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info


class Image(ProbeEnv):
    """A small image that is dark or bright; action 1 is right for bright."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1, 12, 12), np.uint8)

    def begin(self) -> None:
        self.bright = bool(self.np_random.integers(2))

    def obs(self) -> Array:
        return np.full((1, 12, 12), 255 if self.bright else 0, np.uint8)

    def reward(self, action: Array) -> float:
        return 1.0 if (action == 1) == self.bright else -1.0


class Masked(ProbeEnv):
    """Two steps, four actions; two are allowed at random, the larger of them is right, and a forbidden one costs 10.

    Observations do not tell which are allowed, so only an agent that follows the mask solves it.
    """

    length = 2

    def __init__(self, action_space: GymSpace | None = None) -> None:
        super().__init__(action_space or spaces.Discrete(4))

    def begin(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Sample what is allowed next."""
        self.allowed = np.zeros(4, np.int8)
        self.allowed[self.np_random.choice(4, 2, replace=False)] = 1

    def mask(self) -> Any:
        """The mask of the next action."""
        return self.allowed

    def is_allowed(self, action: Array) -> bool:
        """Whether an action may be taken."""
        return bool(self.allowed[int(action)])

    def reward(self, action: Array) -> float:
        return 1.0 if int(action) == np.flatnonzero(self.allowed)[-1] else 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, "action_mask": self.mask()}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        if not self.is_allowed(action):
            return self.obs(), -10.0, True, False, {"is_forbidden": True}
        obs, reward, terminated, truncated, info = super().step(action)
        self.draw()
        return obs, reward, terminated, truncated, {**info, "is_forbidden": False, "action_mask": self.mask()}


class MaskedMulti(Masked):
    """The same with two sub-actions of 3 and 4 choices, each with a mask of its own; the largest pair is right."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiDiscrete([3, 4]))

    def draw(self) -> None:
        self.parts = tuple(np.zeros(count, np.int8) for count in (3, 4))
        for part in self.parts:
            part[self.np_random.choice(len(part), 2, replace=False)] = 1

    def mask(self) -> Any:
        return self.parts

    def is_allowed(self, action: Array) -> bool:
        return all(part[int(one)] for part, one in zip(self.parts, action, strict=True))

    def reward(self, action: Array) -> float:
        best = [np.flatnonzero(part)[-1] for part in self.parts]
        return float(np.mean(np.asarray(action) == best))


class HybridAction(ObsReward):
    """A choice, a number and switches: the choice must match the sign of the observation, the number be half of it."""

    def __init__(self) -> None:
        parts = {"amount": spaces.Box(-2, 2, (1,), np.float32), "pick": spaces.Discrete(3, start=-1)}
        super().__init__(spaces.Dict({"deep": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict(parts)])}))

    def reward(self, action: Any) -> float:
        switches, parts = action["deep"]
        miss = (float(parts["amount"][0]) - 0.5 * self.sign) ** 2
        return float(parts["pick"] == self.sign) + 0.5 * float(switches[0] == 1 and switches[1] == 0) - miss


class CartPoleHidden(CartPoleEnv):
    """CartPole without velocities: the agent must infer them from two observations."""

    # position of the cart, angle of the pole
    SEEN = (0, 2)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        space = self.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[[*self.SEEN]], space.high[[*self.SEEN]])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[[*self.SEEN]], info

    def step(self, action: int | Array) -> tuple[Array, float, bool, bool, Info]:
        obs, *rest = super().step(action)
        return obs[[*self.SEEN]], *rest


class Lock(ProbeEnv):
    """A corridor behind a combination lock: one of two actions leads on, the other back to its start.

    The reward is at the end alone, which random play reaches once in 2^12 episodes; the right actions are fixed.
    """

    length = 14
    depth = 12
    right = (0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (self.depth + 1,), np.float32)

    def begin(self) -> None:
        self.place = 0

    def obs(self) -> Array:
        return np.eye(self.depth + 1, dtype=np.float32)[self.place]

    def reward(self, action: Array) -> float:
        if self.place == self.depth:
            return 0.0
        self.place = self.place + 1 if int(action) == self.right[self.place] else 0
        return float(self.place == self.depth)


class GoalProbe(gym.Env[Any, Any]):
    """Base: a goal to reach that changes with every episode; -1 for each step that does not reach it."""

    length: int
    size: int

    def __init__(self) -> None:
        box = spaces.Box(-1, 1, (self.size,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.state: Array = np.zeros(self.size, np.float32)

    def draw(self) -> Array:
        """A state at random."""
        return self.np_random.uniform(-1, 1, self.size).astype(np.float32)

    def move(self, action: Any) -> None:
        """Change the state."""
        raise NotImplementedError

    def is_reached(self, achieved: Array, desired: Array) -> Array:
        """Whether goals (..., size) are reached (...)."""
        raise NotImplementedError

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Rewards (...) of reaching goals where others were wanted."""
        return np.where(self.is_reached(achieved_goal, desired_goal), 0.0, -1.0)

    def obs(self) -> dict[str, Array]:
        """The current observation."""
        return {
            "observation": self.state.copy(),
            "achieved_goal": self.state.copy(),
            "desired_goal": self.goal.copy(),
        }

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Array], Info]:
        super().reset(seed=seed)
        self.t = 0
        self.state, self.goal = self.draw(), self.draw()
        return self.obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, Info]:
        self.move(action)
        self.t += 1
        is_reached = bool(self.is_reached(self.state, self.goal))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self.obs(), reward, self.ends(is_reached), self.t >= self.length, {"is_success": is_reached}

    def ends(self, is_reached: bool) -> bool:
        """Whether the task ends here."""
        return False


class BitFlip(GoalProbe):
    """Ten switches (-1 or 1), one of which each action flips, until they are as wanted (Andrychowicz et al. 2017)."""

    length = size = 10

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(self.size)

    def draw(self) -> Array:
        return self.np_random.choice(np.array((-1, 1), np.float32), self.size)

    def move(self, action: Any) -> None:
        self.state[int(action)] *= -1

    def is_reached(self, achieved: Array, desired: Array) -> Array:
        return np.all(achieved == desired, -1)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Whether reaching goals (...) where others were wanted ends the task."""
        return self.is_reached(achieved_goal, desired_goal)

    def ends(self, is_reached: bool) -> bool:
        return is_reached


class Reach(GoalProbe):
    """A point in four dimensions that must come within 0.2 of another, by steps of at most 0.2 along each axis."""

    length = 20
    size = 4

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (self.size,), np.float32)

    def move(self, action: Any) -> None:
        self.state = np.clip(self.state + 0.2 * np.asarray(action, np.float32), -1, 1)

    def is_reached(self, achieved: Array, desired: Array) -> Array:
        return np.linalg.norm(achieved - desired, axis=-1) < 0.2


_PROBES = (
    *(ConstantReward, ObsReward, TwoStep, ActionReward, ObsAction, Memory, ContinuousTarget),
    *(MultiAction, BinaryAction, DiscreteObs, TimeLimit, Image, Lock, Masked, MaskedMulti, HybridAction),
    *(BitFlip, Reach),
)
PROBES: dict[str, type[ProbeEnv | GoalProbe]] = {f"probe/{probe.__name__}-v0": probe for probe in _PROBES}


def register() -> None:
    """Register the probes with gymnasium."""
    for name, entry_point in PROBES.items():
        if name not in gym.registry:
            gym.register(name, entry_point=lambda probe=entry_point, **_: probe())
    if "probe/CartPoleHidden-v0" not in gym.registry:
        gym.register("probe/CartPoleHidden-v0", entry_point=CartPoleHidden, max_episode_steps=500)
