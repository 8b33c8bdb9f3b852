"""PQN (Gallici et al. 2025): Q-learning on fresh steps of parallel envs, without a replay and without a target net.

Layer normalisation in the net (`layer_norm`) is what keeps it stable.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Carry, Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.critic import calc_next_value
from slm_lab.agent.algorithm.dqn import pick_value, require_choices
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.algorithm.returns import calc_explained_var, calc_gae
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.learn.sweep import Sweep
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import QNet
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.device import download, upload
from slm_lab.spec.pqn import PQNSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


class Minibatch(NamedTuple):
    """Samples of one gradient step, tensors (B, ...)."""

    obs: Tensor
    action: Tensor
    ret: Tensor


class PQN(OnPolicy[PQNSpec]):
    """Several epochs of minibatches on each batch, towards its lambda returns."""

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm", "explained_var")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.family = require_choices(context.family, self.config.name)
        seen = for_acting(spec.net, context.parts)
        self.net = QNet(seen, context.obs_shape, self.family.param_size, context.parts)
        learner = self.add_learner("net", self.net, spec.net)
        self.loss = MEAN_LOSSES[spec.net.loss_spec.name]
        self.step = context.build_step(self.calc_loss, learner, samples=[])
        self.sweep = Sweep(self.step, self.config.minibatch_size)
        self.explore_by(build_policy(self.family, self.config))

    def _explore(self, obs: Tensor, carry: Carry, noise: Any) -> tuple[Tensor, Carry, Report]:
        q, next_carry = self.net.step(obs, carry)
        return self.policy.choose(q, noise), next_carry, {"value": q.amax(-1)}

    def _value(self, obs: Tensor, carry: Carry) -> Tensor:
        """max_a Q(s, a) (B,), in evaluation mode as while acting."""
        return self.net(obs).amax(-1)

    def train(self, rollout: Rollout) -> Metrics:
        config, generator = self.config, self.context.train_generator
        value, next_value = download(rollout.extra["value"], calc_next_value(rollout, self._value))
        # R_t = r_t + gamma ((1 - lam) V(s_t+1) + lam R_t+1) with V = max_a Q: V plus the GAE of V
        ends = (rollout.terminated, rollout.done)
        ret = value + calc_gae(rollout.reward, value, next_value, *ends, config.gamma, config.lam)
        ret_there = upload(ret.flatten(), self.context.device)
        batch = Minibatch(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), ret_there)

        self.net.train()
        reports: list[Report] = []
        draws = range(config.training_epoch)
        orders = torch.stack([torch.randperm(ret.numel(), generator=generator, device=generator.device) for _ in draws])
        for report in self.sweep(batch, orders):
            reports.append(report)
            self.opt_step += 1
        self.net.eval()
        return {
            **self.gather(reports),
            "explore_var": calc_schedule(config.explore_var_spec or 0.0, self.frame),
            "explained_var": calc_explained_var(value, ret),
        }

    def calc_loss(self, batch: Minibatch) -> Loss:
        """Loss of one minibatch."""
        q = pick_value(self.net(batch.obs), self.family.to_index(batch.action))
        return Loss(self.loss(q, batch.ret), {"q": q, "td_error": (q - batch.ret).abs()})
