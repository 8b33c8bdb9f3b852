"""Uniformly random actions: a baseline, and a check of everything around the algorithm."""

from torch import Tensor

from slm_lab.agent.algorithm.base import Act, Algorithm, Array, Carry, Metrics


class Random(Algorithm):
    """Learns nothing."""

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        return Act(self.context.family.random(len(obs), self.context.act_generator), carry, {})

    def observe(
        self, obs: Tensor, act: Act, reward: Array, terminated: Array, truncated: Array, next_obs: Tensor
    ) -> None:
        pass

    def update(self, frame: int) -> Metrics | None:
        return None
