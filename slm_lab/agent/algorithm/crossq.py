"""CrossQ (Bhatt et al. 2024): soft actor-critic without target nets, held together by batch normalisation."""

import torch
from torch import Tensor

from slm_lab.agent.algorithm.dqn import calc_q_target
from slm_lab.agent.algorithm.sac import SoftActorCritic, calc_soft_value
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.target import Target
from slm_lab.spec.net import NetSpec


class CrossQ(SoftActorCritic):
    """The critics see (s, a) and (s', a') in one batch, so that their statistics are those of both."""

    def _build_target(self, spec: NetSpec) -> Target | None:
        return None

    def calc_critic_loss(self, batch: Batch, alpha: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            policy = self._soft_policy(batch.next_obs, noise)
        obs = torch.cat([batch.obs, batch.next_obs])
        # one pass in training mode: normalised apart, s' would be valued by a net that does not exist
        self.critic.train()
        if policy.action is None:
            both = self.critic(obs)
        else:
            both = self.critic(obs, torch.cat([batch.action, policy.action]))
        self.critic.eval()
        q, next_q = both.chunk(2, 1)
        value = calc_soft_value(next_q.detach(), policy, alpha, self.config.q_reduction)
        ret = calc_q_target(batch.reward, batch.discount, value)
        return self._compare(self._taken_value(q, batch.action), ret, batch.weight)
