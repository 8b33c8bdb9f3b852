"""PQN (Gallici et al. 2025): Q-learning on fresh steps of parallel envs, without a replay and without a target net.

Layer normalisation in the net (`layer_norm`) is what keeps it stable.
"""

from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Carry, Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.critic import calc_next_value
from slm_lab.agent.algorithm.dqn import pick_value, require_choices
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.algorithm.returns import calc_explained_var, calc_gae
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import QNet
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.device import download, upload
from slm_lab.spec.pqn import PQNSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


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
        self.policy = build_policy(self.family, self.config)
        self.explore = context.build_function(self._explore, self.net)

    def _explore(self, obs: Tensor, carry: Carry, noise: Any) -> tuple[Tensor, Carry, Report]:
        q, next_carry = self.net.step(obs, carry)
        return self.policy.choose(q, noise), next_carry, {"value": q.amax(-1)}

    def _value(self, obs: Tensor, carry: Carry) -> Tensor:
        """max_a Q(s, a), which the net as it acts gives (B,)."""
        return self.net(obs).amax(-1)

    def train(self, rollout: Rollout) -> Metrics:
        config, generator = self.config, self.context.train_generator
        value, next_value = download(rollout.extra["value"], calc_next_value(rollout, self._value))
        # R_t = r_t + gamma ((1 - lam) max_a Q(s_t+1, a) + lam R_t+1), as an advantage over max_a Q(s_t, a)
        ends = (rollout.terminated, rollout.done)
        ret = value + calc_gae(rollout.reward, value, next_value, *ends, config.gamma, config.lam)
        batch = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), upload(ret.flatten(), self.context.device)

        self.net.train()
        reports: list[Report] = []
        for _ in range(config.training_epoch):
            order = torch.randperm(len(batch[0]), generator=generator, device=generator.device)
            parts = [field.index_select(0, order).split(config.minibatch_size) for field in batch]
            for minibatch in zip(*parts, strict=True):
                reports.append(self.step(*minibatch))
                self.opt_step += 1
        self.net.eval()
        return {
            **self.gather(reports),
            "explore_var": calc_schedule(config.explore_var_spec or 0.0, self.frame),
            "explained_var": calc_explained_var(value, ret),
        }

    def calc_loss(self, obs: Tensor, action: Tensor, ret: Tensor) -> Loss:
        """Loss of one minibatch."""
        q = pick_value(self.net(obs), self.family.to_index(action))
        return Loss(self.loss(q, ret), {"q": q, "td_error": (q - ret).abs()})
