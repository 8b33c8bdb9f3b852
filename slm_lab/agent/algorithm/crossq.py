"""CrossQ (Bhatt et al. 2024): soft actor-critic without target nets, stabilised by batch normalisation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily, Categorical
from slm_lab.agent.algorithm.base import Algorithm
from slm_lab.agent.algorithm.sac import DiscreteSoftActorCritic, SoftActorCritic, SoftBase


def evaluate_jointly(self: SoftBase, now: Sequence[Tensor], later: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Q(s, a) and Q(s', a') from one pass of the critics, so that batch statistics are those of both."""
    # in two passes s' would be normalised by its own statistics: by a net that is never trained
    self.critic.net.train()
    both = self.critic.net(*map(torch.cat, zip(now, later, strict=True)))
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
