"""Shared by actor-critics: their nets, the values of successors, and the scale of value targets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Carry, Context
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import ActorCriticNet
from slm_lab.env.normalize import RunningStats
from slm_lab.spec.schema import AgentSpec


class TargetScale:
    """1 / running std of the value targets, at most 1; always 1 if they are not normalised."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.stats = RunningStats(())

    def update(self, target: Tensor) -> float:
        """Add a batch of targets to the statistics; returns the scale."""
        if not self.is_on:
            return 1.0
        self.stats.update(target.numpy().reshape(-1).astype(np.float64))
        return 1 / max(float(np.sqrt(self.stats.var)), 1.0)


def build_actor_critic(spec: AgentSpec, context: Context) -> tuple[ActorCriticNet, dict[str, Learner[Any]]]:
    """Actor and critic with an optimiser each, or with one for both if they share a body."""
    size, is_gaussian = context.family.param_size, context.is_gaussian
    net = ActorCriticNet(spec.net, context.obs_shape, size, is_gaussian, context.parts, spec.algorithm.state_noise)
    if spec.net.shared:
        return net, {"net": Learner(net, spec.net, context.device)}
    actor = Learner(net.actor, spec.actor, context.device)
    critic = Learner(net.critic, spec.critic, context.device)
    return net.eval(), {"actor": actor, "critic": critic}


@torch.inference_mode()
def calc_next_value(rollout: Rollout, evaluate: Callable[[Tensor, Carry], Tensor]) -> Tensor:
    """V of every true successor (T, N): the next row's value, computed only where an episode or the batch ends."""
    value = rollout.extra["value"]
    next_value = torch.zeros_like(value)
    next_value[:-1] = value[1:]
    if len(rollout.cut_index):
        next_value.view(-1)[rollout.cut_index] = evaluate(rollout.cut_obs, rollout.cut_carry)
    return next_value
