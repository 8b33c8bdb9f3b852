"""Exploration: how actions are sampled while training.

A family of distributions is a policy itself, the default; the others wrap one.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.types import ScheduleSpec


class Policy(Protocol):
    """Samples actions in two steps: random numbers, then actions from them and a net's output."""

    def noise(self, num: int, generator: torch.Generator, frame: int) -> Any:
        """Random numbers for the actions of `num` envs at a frame; every env has its own."""

    def choose(self, param: Tensor, noise: Any) -> Tensor:
        """Actions for the parameters of N envs; draws nothing."""


@dataclass(frozen=True)
class RandomPolicy:
    """Uniformly random actions."""

    family: ActionFamily

    def noise(self, num: int, generator: torch.Generator, frame: int) -> Tensor:
        """The actions themselves."""
        return self.family.random(num, generator)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """The actions, whatever the net says."""
        return noise


@dataclass(frozen=True)
class EpsilonGreedy:
    """The most likely action, or with a scheduled probability a random one."""

    family: ActionFamily
    epsilon: float | ScheduleSpec

    def noise(self, num: int, generator: torch.Generator, frame: int) -> tuple[Tensor, Tensor]:
        """Which envs explore, and the random actions."""
        explores = torch.rand(num, generator=generator, device=generator.device) < calc_schedule(self.epsilon, frame)
        return explores.view(num, *[1] * len(self.family.action_shape)), self.family.random(num, generator)

    def choose(self, param: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        """Random actions where an env explores, the most likely ones elsewhere."""
        explores, action = noise
        return torch.where(explores, action, self.family.mode(param))


class MaskedRandom(RandomPolicy):
    """Uniformly random allowed actions; the net's output says which are allowed."""

    def noise(self, num: int, generator: torch.Generator, frame: int) -> Tensor:
        """Random numbers of the family."""
        return self.family.uniform_noise(num, generator)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """Each allowed action with equal probability."""
        return self.family.choose_uniform(param, noise)


class MaskedEpsilonGreedy(EpsilonGreedy):
    """The most likely action, or with a scheduled probability a random one of those allowed."""

    def noise(self, num: int, generator: torch.Generator, frame: int) -> tuple[Tensor, Tensor]:
        """Which envs explore, and random numbers of the family."""
        explores = torch.rand(num, generator=generator, device=generator.device) < calc_schedule(self.epsilon, frame)
        return explores.view(num, *[1] * len(self.family.action_shape)), self.family.uniform_noise(num, generator)

    def choose(self, param: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        """Random actions where an env explores, the most likely ones elsewhere."""
        explores, draw = noise
        return super().choose(param, (explores, self.family.choose_uniform(param, draw)))


@dataclass(frozen=True)
class Boltzmann:
    """Samples at a scheduled temperature."""

    family: ActionFamily
    temperature: float | ScheduleSpec

    def noise(self, num: int, generator: torch.Generator, frame: int) -> tuple[Tensor, Tensor]:
        """The family's random numbers, and the temperature."""
        tau = max(calc_schedule(self.temperature, frame), 1e-8)
        return self.family.noise(num, generator), torch.full((), tau, device=generator.device)

    def choose(self, param: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        """Actions of the tempered distribution."""
        draw, tau = noise
        return self.family.choose(self.family.with_temperature(param, tau), draw)


def build_policy(family: ActionFamily, config: AlgorithmSpec) -> Policy:
    """The policy that `action_policy` names."""
    explore_var = config.explore_var_spec or 0.0
    match config.action_policy:
        case "random":
            return (MaskedRandom if family.is_masked else RandomPolicy)(family)
        case "epsilon_greedy":
            return (MaskedEpsilonGreedy if family.is_masked else EpsilonGreedy)(family, explore_var)
        case "boltzmann":
            return Boltzmann(family, explore_var)
        case _:
            return family
