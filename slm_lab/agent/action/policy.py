"""Exploration: how actions are sampled while training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily
from slm_lab.agent.action.schedule import calc_schedule
from slm_lab.spec.types import ScheduleSpec


@dataclass(frozen=True)
class ActionPolicy:
    """A strategy of exploring, in two halves: random numbers, and the actions the net's output makes of them."""

    family: ActionFamily
    strategy: str
    # share of random actions or temperature, where the strategy has one
    explore_var: float | ScheduleSpec | None

    def calc_explore_var(self, frame: int) -> float:
        """The share or temperature at a frame."""
        return calc_schedule(0.0 if self.explore_var is None else self.explore_var, frame)

    def noise(self, num: int, frame: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random numbers for the actions of `num` envs at a frame; every env has its own."""
        family, device = self.family, generator.device
        if self.strategy == "default":
            return (family.noise(num, generator),)
        if self.strategy == "random":
            return (family.random(num, generator),)
        explore_var = self.calc_explore_var(frame)
        if self.strategy == "boltzmann":
            return family.noise(num, generator), torch.tensor(max(explore_var, 1e-8), device=device)
        explores = torch.rand(num, generator=generator, device=device) < explore_var
        return explores.view(num, *[1] * len(family.action_shape)), family.random(num, generator)

    def choose(self, param: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        """Actions for the parameters of N envs; draws nothing."""
        family = self.family
        if self.strategy == "default":
            return family.choose(param, noise[0])
        if self.strategy == "random":
            return noise[0]
        if self.strategy == "boltzmann":
            draw, tau = noise
            return family.choose(family.with_temperature(param, tau), draw)
        explores, action = noise
        return torch.where(explores, action, family.mode(param))


def draw_action(
    family: ActionFamily, param: Tensor, strategy: str, explore_var: float, generator: torch.Generator
) -> Tensor:
    """Sample actions for N envs by an exploration strategy."""
    policy = ActionPolicy(family, strategy, explore_var)
    return policy.choose(param, policy.noise(len(param), 0, generator))
