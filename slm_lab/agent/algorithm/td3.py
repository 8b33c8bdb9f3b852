"""TD3 (Fujimoto et al. 2018): a deterministic policy, twin critics, smoothed targets, and a delayed policy.

With one critic, no noise on targets and no delay it is DDPG (Lillicrap et al. 2016).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import SquashedNormal
from slm_lab.agent.algorithm.base import Context, OffPolicy
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.algorithm.offline import Offline
from slm_lab.agent.learn.gradient import Loss, Report, move_report
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.head import build_head
from slm_lab.agent.net.model import OutputNet, QEnsemble
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.data import State
from slm_lab.spec.net import TARGET_KEYS
from slm_lab.spec.offline import TD3BCSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec
from slm_lab.spec.td3 import TD3Spec
from slm_lab.spec.types import ScheduleSpec


class Deterministic(SquashedNormal):
    """Actions are the tanh of the net's output (B, A)."""

    def mode(self, param: Tensor) -> Tensor:
        return param.tanh()


@dataclass(frozen=True)
class NoisyAction:
    """The action of the policy plus Gaussian noise."""

    family: Deterministic
    std: float | ScheduleSpec

    def noise(self, num: int, generator: torch.Generator, frame: int) -> Tensor:
        """Gaussian noise of the scheduled std."""
        return calc_schedule(self.std, frame) * self.family.noise(num, generator)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """Actions within their bounds."""
        return (self.family.mode(param) + noise).clamp(-1, 1)


class TD3(OffPolicy[TD3Spec]):
    """Twin delayed deep deterministic policy gradient."""

    metric_names = ("loss", "policy_loss", "q", "td_error", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        config, shape, parts = self.config, context.obs_shape, context.parts
        size = math.prod(context.family.action_shape)
        self.family = Deterministic(size)
        actor_spec, critic_spec = spec.actor, spec.critic
        self.head = build_head(config.critic, ELEMENT_LOSSES[critic_spec.loss_spec.name])
        self.net = OutputNet(for_acting(actor_spec, parts), shape, size, parts=parts)
        # if critics have a net of their own, its target keys also hold for the actor's target
        keys = critic_spec.model_dump(include=TARGET_KEYS)
        self.actor = self.add_learner("actor", self.net, actor_spec.model_copy(update=keys), has_target=True)
        critics = QEnsemble(critic_spec, shape, size, False, parts, config.num_critic, self.head.size)
        self.critic = self.add_learner("critic", critics, critic_spec, has_target=True)
        self.critic_step = context.build_step(
            self.calc_critic_loss, self.critic, frozen=self.targets, samples=["td_error"]
        )
        self.actor_step = context.build_step(self.calc_actor_loss, self.actor, frozen=[self.critic], samples=[])
        self.explore_by(NoisyAction(self.family, config.action_noise))
        # metrics of the last actor update, reported again while only the critics train
        self.actor_report: Report = {}

    def train(self, batch: Batch) -> list[Report]:
        report = self.critic_step(batch, self.family.noise(len(batch.reward), self.context.train_generator))
        self.memory.update_priority(batch.slot, report["td_error"])
        self.opt_step += 1
        if self.opt_step % self.config.policy_delay == 0 or not self.actor_report:
            self.actor_report = {"policy_loss": self.actor_step(batch.obs, batch.action)["policy_loss"]}
            for target in self.targets:
                target.follow()
        return [{**report, **self.actor_report}]

    def calc_critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """Loss of the critics against the target policy's next action, which noise smooths (eq. 14)."""
        config, head = self.config, self.head
        with torch.no_grad():
            smoothing = (config.target_noise * noise).clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (self.actor.target_net(batch.next_obs).tanh() + smoothing).clamp(-1, 1)
            next_out = head.reduce(self.critic.target_net(batch.next_obs, next_action), config.q_reduction)
            ret = head.backup(batch.reward, batch.discount, next_out)
        self.critic.net.train()
        out = self.critic.net(batch.obs, batch.action)
        self.critic.net.eval()
        loss = (batch.weight * head.loss(out, ret)).mean(-1).sum()
        low, target = head.value(out).detach().amin(0), head.target_value(ret)
        return Loss(loss, {"target": target, "q": low, "td_error": (low - target).abs()})

    def calc_actor_loss(self, obs: Tensor, taken: Tensor) -> Loss:
        """Minus the first critic's value of the policy's action: the deterministic policy gradient (eq. 15)."""
        self.net.train()
        action = self.net(obs).tanh()
        self.net.eval()
        policy_loss = self.weigh(self.head.value(self.critic.net.critics[0](obs, action)), action, taken)
        return Loss(policy_loss, {"policy_loss": policy_loss})

    def weigh(self, value: Tensor, action: Tensor, taken: Tensor) -> Tensor:
        """The actor's loss from the values of its actions; `taken` are the actions in the batch."""
        return -value.mean()

    def state_dict(self) -> State:
        return {**super().state_dict(), "actor_report": self.actor_report}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.actor_report = move_report(state["actor_report"], self.context.device)


class TD3BC(TD3, Offline[Any]):
    """TD3+BC (Fujimoto and Gu 2021): TD3 on recorded steps, with a policy that stays near the recorded actions."""

    config: TD3BCSpec

    def weigh(self, value: Tensor, action: Tensor, taken: Tensor) -> Tensor:
        """Minus the normalised values, plus the squared distance to the recorded actions (eq. 3 and 5)."""
        scale = self.config.alpha / value.detach().abs().mean().clamp(min=1e-6)
        return -(scale * value).mean() + (action - taken).square().mean()
