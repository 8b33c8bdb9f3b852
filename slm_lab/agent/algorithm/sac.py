"""Soft actor-critic (Haarnoja et al. 2018), and its form for discrete actions (Christodoulou 2019)."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.action.distribution import ActionFamily, Categorical, count_allowed
from slm_lab.agent.algorithm.base import Algorithm, Context, OffPolicy
from slm_lab.agent.algorithm.dqn import pick_value
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES, symlogged
from slm_lab.agent.learn.gradient import CalcLoss, Loss, Report, move_report
from slm_lab.agent.learn.learner import Weights
from slm_lab.agent.memory.batch import Batch
from slm_lab.agent.net.head import build_head
from slm_lab.agent.net.model import PolicyNet, QEnsemble
from slm_lab.lib.data import State
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import SoftActorCriticSpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.schema import AgentSpec

# default target entropy of a discrete policy, as a fraction of the largest
AUTO_ENTROPY_RATIO = 0.6


def calc_soft_sum(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = E_a[Q(s, a) - alpha log pi(a|s)] (eq. 3) as an exact sum over discrete actions (B, A)."""
    return (log_prob.exp() * (q - alpha * log_prob)).sum(-1)


class Alpha(nn.Module):
    """Weight of the entropy: fixed, or learned so that the entropy stays at a target (eq. 18)."""

    def __init__(self, config: SoftActorCriticSpec) -> None:
        super().__init__()
        self.config = config
        self.is_learned = config.fixed_alpha is None
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(config.alpha_init)))

    def value(self, frame: int) -> Tensor:
        """Alpha as a number without gradient."""
        config = self.config
        if config.fixed_alpha is None:
            return self.log_alpha.detach().exp().squeeze()
        rest = max(0.0, 1 - frame / config.alpha_anneal_frames) if config.alpha_anneal_frames else 1.0
        return torch.full((), config.fixed_alpha * rest, device=self.log_alpha.device)

    def calc_loss(self, entropy: Tensor, target_entropy: float | Tensor) -> Tensor | float:
        """Raises alpha while the entropy is below its target, lowers it while it is above."""
        return (self.log_alpha * (entropy.detach() - target_entropy)).sum() if self.is_learned else 0.0

    @torch.no_grad()
    def clamp(self) -> None:
        """Keep a learned alpha within its bounds."""
        if self.is_learned:
            self.log_alpha.clamp_(self.config.log_alpha_min, self.config.log_alpha_max)


class SoftBase(OffPolicy[SoftActorCriticSpec]):
    """Critics, actor and alpha, and the order of their updates; each kind of actions has its own losses below."""

    metric_names: tuple[str, ...] = ("loss", "policy_loss", "entropy", "alpha", "q", "td_error", "grad_norm")
    is_discrete: bool
    calc_critic_loss: CalcLoss
    calc_actor_alpha_loss: CalcLoss

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        family, device = context.family, context.device
        actor_spec, critic_spec = spec.actor, spec.critic
        shapes = (context.obs_shape, family.param_size, context.is_gaussian, context.parts)
        self.net = PolicyNet(actor_spec, *shapes, self.config.state_noise)
        size = family.param_size if self.is_discrete else math.prod(family.action_shape)
        element_loss = ELEMENT_LOSSES[critic_spec.loss_spec.name]
        self.head = build_head(self.config.critic, symlogged(element_loss) if self.config.symlog else element_loss)
        if self.is_discrete and self.config.critic.kind != "value":
            raise SpecError(
                f"agent.algorithm.critic.kind: {self.config.critic.kind} is for continuous actions here; "
                "use value, or DQN with this critic"
            )
        num, shape = self.config.num_critic, context.obs_shape
        critic = QEnsemble(critic_spec, shape, size, self.is_discrete, context.parts, num, self.head.size)
        self.actor = self.add_learner("actor", self.net, actor_spec)
        # CrossQ has no targets: it values s' in the same pass as s
        self.critic = self.add_learner("critic", critic, critic_spec, self.config.has_target)
        self.alpha = Alpha(self.config).to(device)
        self.modules["alpha"] = self.alpha
        if self.alpha.is_learned:
            self.add_learner("alpha", self.alpha, resolve_alpha(actor_spec, self.config.alpha_lr))
        # the value of an ensemble: the smallest, or the mean (double average Q-learning, Zhou et al. 2022)
        self.reduce = partial(torch.amin if self.config.q_reduction == "min" else torch.mean, dim=0)
        frozen: list[Weights] = [self.actor, *self.critic.targets]
        self.critic_step = context.build_step(self.calc_critic_loss, self.critic, frozen=frozen, samples=["td_error"])
        learners = [learner for learner in self.learners.values() if learner is not self.critic]
        self.actor_step = context.build_step(self.calc_actor_alpha_loss, *learners, frozen=[self.critic], samples=[])
        self.explore_by(self.with_sde(family, self.net))
        # metrics of the last actor update, reported again while only the critics train
        self.actor_report: Report = {}

    def train(self, batch: Batch) -> list[Report]:
        alpha = self.alpha.value(self.frame)
        report = self.critic_step(batch, alpha, *self.draw_noise(len(batch.reward)))
        self.memory.update_priority(batch.slot, report["td_error"])
        self.opt_step += 1
        if self.opt_step % self.config.policy_delay == 0 or not self.actor_report:
            noise = self.draw_noise(len(batch.reward))
            actor_report = self.actor_step(batch.obs, alpha, self.calc_target_entropy(), *noise)
            self.actor_report = {name: actor_report[name] for name in ("policy_loss", "entropy")}
            self.alpha.clamp()
            for target in self.critic.targets:
                target.follow()
        return [{**report, **self.actor_report, "alpha": alpha}]

    def draw_noise(self, num: int) -> tuple[Tensor, ...]:
        """Noise for the policy's actions; none for discrete ones, where expectations are exact sums."""
        return ()

    @abstractmethod
    def calc_target_entropy(self) -> float:
        """The target entropy, to which alpha steers the policy."""

    def evaluate(self, now: Sequence[Tensor], later: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Q(s, a) by the critics and Q(s', a') by their targets, of observations and continuous actions."""
        with torch.no_grad():
            next_q = self.critic.target_net(*later)
        self.critic.net.train()
        q = self.critic.net(*now)
        self.critic.net.eval()
        return q, next_q

    def calc_td_loss(self, out: Tensor, ret: Tensor, weight: Tensor, log_prob: Tensor) -> Loss:
        """Loss of the critics' predictions (C, B) or (C, B, K) against their targets (eq. 5)."""
        low, target = self.head.value(out).detach().amin(0), self.head.target_value(ret)
        report = {"log_prob": log_prob, "target": target, "q": low, "td_error": (low - target).abs()}
        # half of each critic's loss, as in the paper
        return Loss(0.5 * (weight * self.head.loss(out, ret)).mean(-1).sum(), report)

    def state_dict(self) -> State:
        return {**super().state_dict(), "actor_report": self.actor_report}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.actor_report = move_report(state["actor_report"], self.context.device)


class SoftActorCritic(SoftBase):
    """Continuous actions: expectations over the policy are estimated from one sample."""

    is_discrete = False

    @classmethod
    def for_actions(cls, family: ActionFamily) -> type[Algorithm[Any]]:
        return DiscreteSoftActorCritic if isinstance(family, Categorical) else cls

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        if self.config.entropy_anneal is not None:
            raise SpecError("agent.algorithm.entropy_anneal: for discrete actions; give target_entropy instead")

    def calc_target_entropy(self) -> float:
        if self.config.target_entropy != "auto":
            return self.config.target_entropy
        return -float(math.prod(self.context.family.action_shape))

    def draw_noise(self, num: int) -> tuple[Tensor, ...]:
        noise = torch.empty(num, *self.context.family.action_shape, device=self.context.device)
        return (noise.normal_(generator=self.context.train_generator),)

    def calc_critic_loss(self, batch: Batch, alpha: Tensor, noise: Tensor) -> Loss:
        """Loss of the critics; V(s') = E_a[Q(s', a) - alpha log pi(a|s')] (eq. 3) is estimated from one action."""
        with torch.no_grad():
            next_action, log_prob = self.family.draw(self.net(batch.next_obs), noise)
        out, next_out = self.evaluate((batch.obs, batch.action), (batch.next_obs, next_action))
        next_out = self.head.reduce(next_out, self.config.q_reduction)
        ret = self.head.backup(batch.reward, batch.discount, next_out, alpha * log_prob)
        return self.calc_td_loss(out, ret, batch.weight, log_prob)

    def calc_actor_alpha_loss(self, obs: Tensor, alpha: Tensor, target_entropy: float | Tensor, noise: Tensor) -> Loss:
        """The sum of the losses of the policy (eq. 7) and of alpha (eq. 18), which share no weights."""
        self.net.train()
        action, log_prob = self.family.draw(self.net(obs), noise)
        self.net.eval()
        value = self.head.value(self.critic.net(obs, action))
        policy_loss = -(self.reduce(value) - alpha * log_prob).mean()
        entropy = -log_prob.mean()
        loss = policy_loss + self.alpha.calc_loss(entropy, target_entropy)
        return Loss(loss, {"log_prob": log_prob, "policy_loss": policy_loss, "entropy": entropy})


class DiscreteSoftActorCritic(SoftBase):
    """Discrete actions: the nets give a number for each, so expectations over the policy are sums."""

    is_discrete = True

    def calc_target_entropy(self) -> float:
        config = self.config
        if config.target_entropy != "auto":
            return config.target_entropy
        ratio = AUTO_ENTROPY_RATIO
        if (anneal := config.entropy_anneal) is not None:
            progress = min(1.0, self.frame / anneal.frames)
            ratio = anneal.start_ratio + (anneal.end_ratio - anneal.start_ratio) * progress
        return ratio * math.log(self.context.family.param_size)

    def calc_critic_loss(self, batch: Batch, alpha: Tensor) -> Loss:
        """Loss of the critics; V(s') is the exact sum over actions."""
        with torch.no_grad():
            log_prob = self.net(batch.next_obs).log_softmax(-1)
        every_q, next_q = self.evaluate((batch.obs,), (batch.next_obs,))
        ret = batch.reward + batch.discount * calc_soft_sum(self.reduce(next_q), log_prob, alpha)
        q = pick_value(every_q, self.family.to_index(batch.action).expand(len(every_q), -1))
        return self.calc_td_loss(q, ret, batch.weight, log_prob)

    def calc_actor_alpha_loss(self, obs: Tensor, alpha: Tensor, target_entropy: float | Tensor) -> Loss:
        """The sum of the losses of the policy and of alpha, which share no weights."""
        self.net.train()
        log_prob = self.net(obs).log_softmax(-1)
        self.net.eval()
        entropy = -(log_prob.exp() * log_prob).sum(-1).mean()
        if self.family.is_masked and self.config.target_entropy == "auto":
            # the largest entropy is that of the allowed actions
            largest = count_allowed(log_prob).clamp(min=1).log().mean()
            target_entropy = target_entropy * largest / math.log(self.family.param_size)
        policy_loss = -calc_soft_sum(self.reduce(self.critic.net(obs)), log_prob, alpha).mean()
        loss = policy_loss + self.alpha.calc_loss(entropy, target_entropy)
        return Loss(loss, {"log_prob": log_prob, "policy_loss": policy_loss, "entropy": entropy})


def resolve_alpha(actor: NetSpec, lr: float | None) -> NetSpec:
    """The optimiser of alpha: the actor's; log alpha has one dimension, so it does not decay."""
    optim = actor.optim_spec.model_copy(update={"lr": lr or actor.optim_spec.lr})
    return actor.model_copy(update={"optim_spec": optim, "clip_grad_val": None})
