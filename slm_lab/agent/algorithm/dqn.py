"""Q-learning with a net and a replay: vanilla, DQN (Mnih et al. 2015) and double DQN (van Hasselt et al. 2016)."""

from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import Categorical
from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Context, Metrics, OffPolicy
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch, SequenceBatch
from slm_lab.agent.net.model import QNet
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import QLearningSpec
from slm_lab.spec.net import RecurrentNetSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


def calc_q_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """r + gamma V(s'); the discount is 0 where the task ended."""
    return reward + discount * next_value


def pick_value(q: Tensor, index: Tensor) -> Tensor:
    """Q of one action per row (B,)."""
    return q.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def calc_max_value(next_q: Tensor) -> Tensor:
    """max_a Q(s', a): one net both picks and values the action."""
    return next_q.amax(-1)


def calc_double_value(next_q_online: Tensor, next_q_target: Tensor) -> Tensor:
    """Q_target(s', argmax_a Q_online(s', a)): what one net overrates the other need not."""
    return pick_value(next_q_target, next_q_online.argmax(-1))


def require_choices(family: Any, name: str) -> Categorical:
    """The family of a discrete action space; anything else is the wrong env for the algorithm."""
    if not isinstance(family, Categorical):
        raise SpecError(
            f"agent.algorithm.name: {name} values each of a number of actions, but this env's are continuous; "
            "use SoftActorCritic, CrossQ or PPO"
        )
    return family


class DQN(OffPolicy[QLearningSpec]):
    """Learns Q from past steps.

    The targets come from a slow copy of the net (DQN), from that copy at the actions the net itself picks (double DQN),
    or from the net itself (vanilla); the config says which.
    """

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        self.family = require_choices(context.family, spec.algorithm.name)
        net = QNet(for_acting(spec.net, context.parts), context.obs_shape, self.family.param_size, context.parts)
        super().__init__(spec, context, net.state_size)
        self.net = net
        self.learner = self.add_learner("net", net, spec.net, self.config.has_target)
        self.target_net = self.learner.target_net
        self.loss = ELEMENT_LOSSES[spec.net.loss_spec.name]
        calc_loss = self.calc_sequence_loss if net.state_size else self.calc_loss
        self.step = context.build_step(calc_loss, self.learner, frozen=self.learner.targets, samples=["td_error"])
        self.policy = build_policy(self.family, self.config)
        self.explore = context.build_function(self._explore, net)
        self.burn_in = spec.net.burn_in if isinstance(spec.net, RecurrentNetSpec) else 0
        # steps of a sequence, for recurrent nets
        self.seq_len = self.burn_in + net.seq_len
        if net.state_size and not self.memory.can_hold_sequence(self.seq_len):
            raise SpecError(
                f"agent.memory.max_size: {self.memory.spec.max_size} holds no sequence of burn_in + seq_len = "
                f"{self.seq_len} steps once it is full; raise it"
            )

    def update(self, frame: int) -> Metrics | None:
        metrics = super().update(frame)
        return metrics and {**metrics, "explore_var": calc_schedule(self.config.explore_var_spec or 0.0, frame)}

    @property
    def is_ready(self) -> bool:
        return super().is_ready and (not self.net.state_size or self.memory.can_sample_sequence(self.seq_len))

    def sample(self) -> Batch | SequenceBatch:
        if not self.net.state_size:
            return super().sample()
        batch = self.memory.sample_sequence(self.seq_len)
        return batch._replace(obs=self.context.encode(batch.obs))

    def train(self, batch: Batch | SequenceBatch) -> list[Report]:
        reports = []
        for _ in range(self.config.training_batch_iter):
            reports.append(self.step(batch))
            self.opt_step += 1
            for target in self.learner.targets:
                target.follow()
        if isinstance(batch, Batch):
            self.memory.update_priority(batch.slot, reports[-1]["td_error"])
        return reports

    def calc_loss(self, batch: Batch) -> Loss:
        """Weighted loss of a batch."""
        with torch.no_grad():
            if self.config.is_double:
                next_value = calc_double_value(self.net(batch.next_obs), self.target_net(batch.next_obs))
            else:
                next_value = calc_max_value(self.target_net(batch.next_obs))
            ret = calc_q_target(batch.reward, batch.discount, next_value)
        # layers such as BatchNorm and Dropout learn from what is trained on alone
        self.net.train()
        q = pick_value(self.net(batch.obs), self.family.to_index(batch.action))
        self.net.eval()
        loss = (batch.weight * self.loss(q, ret)).mean()
        return Loss(loss, {"next_value": next_value, "target": ret, "q": q, "td_error": (q - ret).abs()})

    def calc_sequence_loss(self, batch: SequenceBatch) -> Loss:
        """Loss of sequences, after a burn-in that only warms the hidden state.

        As in R2D2 (Kapturowski et al. 2019): the state stored with the first row is stale, a few steps refresh it.
        """
        start = self.burn_in
        carry = batch.carry
        if start:
            with torch.no_grad():
                _, carry = self.net.unroll(batch.obs[:start], carry, batch.reset[:start])
        self.net.train()
        every_q, _ = self.net.unroll(batch.obs[start:], carry, batch.reset[start:])
        self.net.eval()
        with torch.no_grad():
            if self.config.has_target:
                target_q = self.target_net.unroll(batch.obs, batch.carry, batch.reset)[0][start + 1 :]
            else:
                target_q = every_q[1:]
            next_value = calc_double_value(every_q[1:], target_q) if self.config.is_double else calc_max_value(target_q)
            ret = calc_q_target(batch.reward[start:], batch.discount[start:], next_value)
        q = pick_value(every_q[:-1], self.family.to_index(batch.action[start:]))
        mask = batch.mask[start:]
        loss = (mask * self.loss(q, ret)).sum() / mask.sum().clamp(min=1)
        return Loss(loss, {"next_value": next_value, "target": ret, "q": q, "td_error": (mask * (q - ret)).abs()})
