"""Q-learning with a net and a replay: vanilla, DQN (Mnih et al. 2015) and double DQN (van Hasselt et al. 2016).

`critic` of the config chooses what it learns of returns: their mean, quantiles (QR-DQN, IQN) or a histogram (C51).
"""

from typing import Any, cast

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import Categorical
from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Act, Carry, Context, Metrics, OffPolicy
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch, SequenceBatch
from slm_lab.agent.net.head import build_head
from slm_lab.agent.net.model import build_q_net
from slm_lab.agent.net.noisy import find_noisy, quiet, resample
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import QLearningSpec
from slm_lab.spec.net import RecurrentNetSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


def pick_value(q: Tensor, index: Tensor) -> Tensor:
    """Q of one action per row: (B,) of values (B, A), or (B, K) of numbers (B, A, K)."""
    if q.dim() == index.dim() + 1:
        return q.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return q.gather(-2, index[..., None, None].expand(*index.shape, 1, q.shape[-1])).squeeze(-2)


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
        config = cast(QLearningSpec, spec.algorithm)
        self.head = build_head(config.critic, ELEMENT_LOSSES[spec.net.loss_spec.name], is_summed=True)
        seen = for_acting(spec.net, context.parts)
        net = build_q_net(self.head, seen, context.obs_shape, self.family.param_size, context.parts)
        super().__init__(spec, context, net.state_size)
        self.net = net
        self.learner = self.add_learner("net", net, spec.net, self.config.has_target)
        self.target_net = self.learner.target_net
        # noisy layers of the net that acts, and of both nets
        self.noisy = find_noisy(net)
        self.all_noisy = list(dict.fromkeys([*self.noisy, *find_noisy(self.target_net)]))
        calc_loss = self.calc_sequence_loss if net.state_size else self.calc_loss
        self.step = context.build_step(calc_loss, self.learner, frozen=self.learner.targets, samples=["td_error"])
        self.explore_by(build_policy(self.family, self.config))
        self.burn_in = spec.net.burn_in if isinstance(spec.net, RecurrentNetSpec) else 0
        # steps of a sequence, for recurrent nets
        self.seq_len = self.burn_in + net.seq_len
        if net.state_size and not context.only_acts and not self.memory.can_hold_sequence(self.seq_len):
            raise SpecError(
                f"agent.memory.max_size: {self.memory.spec.max_size} holds no sequence of burn_in + seq_len = "
                f"{self.seq_len} steps once it is full; raise it"
            )

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if explore:
            resample(self.noisy, self.context.act_generator)
            return super().act(obs, carry, explore)
        with quiet(self.noisy):
            return super().act(obs, carry, explore)

    def update(self, frame: int) -> Metrics | None:
        metrics = super().update(frame)
        return metrics and {**metrics, "explore_var": calc_schedule(self.config.explore_var_spec or 0.0, frame)}

    @property
    def is_ready(self) -> bool:
        return super().is_ready and (not self.net.state_size or self.memory.can_sample_sequence(self.seq_len))

    def sample(self) -> Batch | SequenceBatch:
        if not self.net.state_size:
            return super().sample()
        batch, context = self.memory.sample_sequence(self.seq_len), self.context
        return batch._replace(obs=context.encode(batch.obs), reward=context.finish_reward(batch.reward))

    def train(self, batch: Batch | SequenceBatch) -> list[Report]:
        reports = []
        for _ in range(self.config.training_batch_iter):
            resample(self.all_noisy, self.context.train_generator)
            fractions = self.head.draw(len(batch.reward), self.context.train_generator)
            reports.append(self.step(batch, *fractions))
            self.opt_step += 1
            for target in self.learner.targets:
                target.follow()
        if isinstance(batch, Batch):
            self.memory.update_priority(batch.slot, reports[-1]["td_error"])
        return reports

    def calc_loss(self, batch: Batch, *fractions: Tensor) -> Loss:
        """Weighted loss of a batch; IQN's nets are given fractions, one set for values and one for targets."""
        head = self.head
        with torch.no_grad():
            next_out = self.target_net(batch.next_obs, *fractions[1:])
            # double DQN: the online net picks the action that the target net values
            picker = self.net(batch.next_obs) if self.config.is_double else next_out
            next_out = pick_value(next_out, self.net.to_value(picker, batch.next_obs).argmax(-1))
            ret = head.backup(batch.reward, batch.discount, next_out)
        # layers such as BatchNorm and Dropout learn from what is trained on alone
        self.net.train()
        out = pick_value(self.net(batch.obs, *fractions[:1]), self.family.to_index(batch.action))
        self.net.eval()
        loss = (batch.weight * head.loss(out, ret, *fractions[:1])).mean()
        q, target = head.value(out), head.target_value(ret)
        report = {"next_value": head.value(next_out), "target": target, "q": q, "td_error": (q - target).abs()}
        return Loss(loss, report)

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
        every_out, _ = self.net.unroll(batch.obs[start:], carry, batch.reset[start:])
        self.net.eval()
        head = self.head
        with torch.no_grad():
            if self.config.has_target:
                target_out = self.target_net.unroll(batch.obs, batch.carry, batch.reset)[0][start + 1 :]
            else:
                target_out = every_out[1:]
            picker = every_out[1:] if self.config.is_double else target_out
            next_out = pick_value(target_out, self.net.to_value(picker, batch.obs[start + 1 :]).argmax(-1))
            ret = head.backup(batch.reward[start:], batch.discount[start:], next_out)
        out = pick_value(every_out[:-1], self.family.to_index(batch.action[start:]))
        mask = batch.mask[start:]
        loss = (mask * head.loss(out, ret)).sum() / mask.sum().clamp(min=1)
        q, target = head.value(out), head.target_value(ret)
        error = (mask * (q - target)).abs()
        return Loss(loss, {"next_value": head.value(next_out), "target": target, "q": q, "td_error": error})
