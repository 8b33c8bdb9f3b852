"""Implicit Q-learning (Kostrikov et al. 2021): the value of the best recorded actions, never of any others."""

import math

import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Context
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.algorithm.offline import Offline
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.model import OutputNet, QEnsemble
from slm_lab.lib.errors import SpecError
from slm_lab.spec.offline import IQLSpec
from slm_lab.spec.schema import AgentSpec


def calc_expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """L(u) = |tau - 1(u < 0)| u^2 (eq. 5), one per sample: above 0.5, negative errors count less than positive ones."""
    return torch.where(error < 0, 1 - expectile, expectile) * error.square()


class IQL(Offline[IQLSpec]):
    """V is an expectile of Q over the recorded actions; the policy clones actions by how far Q exceeds V."""

    metric_names: tuple[str, ...] = ("loss", "policy_loss", "val_loss", "q", "value", "adv", "td_error", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        family = context.family
        if not context.is_gaussian:
            raise SpecError("agent.algorithm.name: IQL needs continuous actions; use BC")
        self.build_actor()
        critic_spec, size = spec.critic, math.prod(family.action_shape)
        critic = QEnsemble(critic_spec, context.obs_shape, size, is_discrete=False, parts=context.parts)
        self.critic = self.add_learner("critic", critic, critic_spec, has_target=True)
        self.value = self.add_learner(
            "value", OutputNet(critic_spec, context.obs_shape, 1, parts=context.parts), critic_spec
        )
        self.loss = ELEMENT_LOSSES[critic_spec.loss_spec.name]
        learners = (self.actor, self.critic, self.value)
        self.step = context.build_step(self.calc_loss, *learners, frozen=self.critic.targets, samples=[])

    def train(self, batch: Batch) -> list[Report]:
        report = self.step(batch)
        self.opt_step += 1
        for target in self.targets:
            target.follow()
        return [report]

    def calc_loss(self, batch: Batch) -> Loss:
        """The sum of the losses of V (eq. 5), Q (eq. 6) and the policy (eq. 7), which share no weights."""
        config, nets = self.config, (self.net, self.critic.net, self.value.net)
        with torch.no_grad():
            target = batch.reward + batch.discount * self.value.net(batch.next_obs).squeeze(-1)
            target_q = self.critic.target_net(batch.obs, batch.action).amin(0)
        # layers such as BatchNorm and Dropout learn from what is trained on alone
        for net in nets:
            net.train()
        param, value = self.net(batch.obs), self.value.net(batch.obs).squeeze(-1)
        q = self.critic.net(batch.obs, batch.action)
        for net in nets:
            net.eval()
        error = target_q - value
        val_loss = calc_expectile_loss(error, config.expectile).mean()
        critic_loss = self.loss(q, target.expand_as(q)).mean(-1).sum()
        adv = error.detach()
        unit = adv.square().mean().sqrt().clamp(min=1e-6) if config.normalize_advantages == "rms" else 1.0
        weight = (config.beta * adv / unit).exp().clamp(max=config.max_weight)
        policy_loss = -(weight * self.family.log_prob(param, self.family.from_env(batch.action))).mean()
        low = q.detach().amin(0)
        report = {"q": low, "value": value.detach(), "adv": adv, "td_error": (low - target).abs()}
        parts = {"policy_loss": policy_loss.detach(), "val_loss": val_loss.detach()}
        return Loss(val_loss + critic_loss + policy_loss, {**report, **parts})
