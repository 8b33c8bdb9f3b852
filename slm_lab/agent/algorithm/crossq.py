"""CrossQ (Bhatt et al. 2024): soft actor-critic without target nets, held together by batch normalisation."""

from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily, Categorical
from slm_lab.agent.algorithm.base import Algorithm
from slm_lab.agent.algorithm.sac import DiscreteSoftActorCritic, SoftActorCritic, SoftBase
from slm_lab.agent.memory.batch import Batch


def evaluate_jointly(self: SoftBase, batch: Batch, *actions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Values in s and in s' by the critics from one batch, so that its statistics are those of both."""
    obs = torch.cat([batch.obs, batch.next_obs])
    # one pass in training mode: normalised apart, s' would be valued by a net that does not exist
    self.critic.net.train()
    both = self.critic.net(obs, *(torch.cat(pair) for pair in actions))
    self.critic.net.eval()
    q, next_q = both.chunk(2, 1)
    return q, next_q.detach()


class CrossQ(SoftActorCritic):
    """CrossQ for continuous actions."""

    evaluate = evaluate_jointly

    @classmethod
    def for_actions(cls, family: ActionFamily) -> type[Algorithm[Any]]:
        return DiscreteCrossQ if isinstance(family, Categorical) else cls


class DiscreteCrossQ(DiscreteSoftActorCritic):
    """CrossQ for discrete actions."""

    evaluate = evaluate_jointly
