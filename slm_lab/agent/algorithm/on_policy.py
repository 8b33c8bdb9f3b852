"""What algorithms share that learn from what the policy does now, and then forget it."""

from abc import abstractmethod
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Algorithm, Context, Metrics
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.net.model import ActorCriticNet
from slm_lab.env.normalize import RunningStats
from slm_lab.spec.algorithm import OnPolicySpec
from slm_lab.spec.schema import AgentSpec

RolloutConfig = TypeVar("RolloutConfig", bound=OnPolicySpec)


class Auxiliary(Protocol):
    """Learns from the same steps beside an algorithm, such as self-imitation."""

    def observe(self, step: Transition) -> None:
        """Remember one step of all envs."""

    def update(self, frame: int) -> Metrics:
        """Train after the algorithm did."""

    def state_dict(self) -> dict[str, Any]:
        """Everything resuming needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""


class OnPolicy(Algorithm[RolloutConfig]):
    """Trains on each batch of steps as soon as it is full."""

    # steps by which the last row of a batch is older than its update
    row_delay = 0

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.memory = build_on_policy(spec.memory, context.num_envs, context.device, self.config.batch_frequency)
        self.auxiliary: Auxiliary | None = None

    def observe(self, step: Transition) -> None:
        self.memory.add(step)
        if self.auxiliary is not None:
            self.auxiliary.observe(step)

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        self._set_lr(frame)
        self.rollout = self.memory.sample()
        metrics = self.train(self.rollout)
        return metrics if self.auxiliary is None else {**metrics, **self.auxiliary.update(frame)}

    @abstractmethod
    def train(self, rollout: Rollout) -> Metrics:
        """Update the net on a batch."""

    def state_dict(self) -> dict[str, Any]:
        auxiliary = None if self.auxiliary is None else self.auxiliary.state_dict()
        return {**super().state_dict(), "memory": self.memory.state_dict(), "auxiliary": auxiliary}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])


class TargetScale:
    """1 / running std of the value targets, at most 1; always 1 where they are not normalised."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.stats = RunningStats(())

    def update(self, target: Tensor) -> float:
        """Take a batch of targets into the statistics; returns the scale."""
        if not self.is_on:
            return 1.0
        self.stats.update(target.cpu().numpy().reshape(-1).astype(np.float64))
        return 1 / max(float(np.sqrt(self.stats.var)), 1.0)


def build_actor_critic(spec: AgentSpec, context: Context) -> tuple[ActorCriticNet, dict[str, Learner[Any]]]:
    """Actor and critic with an optimiser each, or one for both where they share a body."""
    size, is_gaussian = context.family.param_size, context.is_gaussian
    net = ActorCriticNet(spec.net, context.obs_shape, size, is_gaussian, context.parts)
    if spec.net.shared:
        return net, {"net": Learner(net, spec.net, context.device)}
    actor = Learner(net.actor, spec.net.for_role("actor"), context.device)
    critic = Learner(net.critic, spec.net.for_role("critic"), context.device)
    return net.eval(), {"actor": actor, "critic": critic}


@torch.inference_mode()
def calc_next_value(rollout: Rollout, net: ActorCriticNet) -> Tensor:
    """V of every true successor (T, N): the next row's value, computed only where an episode or the batch ends."""
    value = rollout.extra["value"]
    next_value = torch.zeros_like(value)
    next_value[:-1] = value[1:]
    if len(rollout.cut_index):
        next_value.view(-1)[rollout.cut_index] = net.value(rollout.cut_obs, rollout.cut_carry)
    return next_value
