"""Soft actor-critic (Haarnoja et al. 2018), and its form for discrete actions (Christodoulou 2019)."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.dqn import calc_q_target, pick_value
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES, symlog
from slm_lab.agent.algorithm.policy import Categorical, SquashedNormal
from slm_lab.agent.memory.batch import Batch, Transition
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.model import PolicyNet
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.agent.net.target import Target
from slm_lab.agent.net.value import TwinQNet
from slm_lab.lib.due import Due
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import QReduction, SoftActorCriticSpec
from slm_lab.spec.net import MLPNetSpec, NetSpec
from slm_lab.spec.schema import AgentSpec

# share of the largest entropy that a discrete policy is held at, unless told otherwise
AUTO_ENTROPY_RATIO = 0.6
# weight of the past in the running mean of the entropy
ENTROPY_DECAY = 0.99


class Soft(NamedTuple):
    """The policy at some observations: what values need, for continuous or discrete actions.

    Continuous: one drawn action (B, A) and its log density (B,). Discrete: no action, the log probabilities (B, A).
    """

    action: Tensor | None
    log_prob: Tensor


def calc_soft_value(q: Tensor, policy: Soft, alpha: Tensor, reduction: QReduction = "min") -> Tensor:
    """V(s) = E_a[min Q(s, a) - alpha log pi(a|s)] (eq. 3): one sample of it, or its exact sum over choices.

    With "mean" both critics count alike (double average Q-learning, Zhou et al. 2022).
    """
    soft = (q.amin(0) if reduction == "min" else q.mean(0)) - alpha * policy.log_prob
    return soft if policy.action is not None else (policy.log_prob.exp() * soft).sum(-1)


def calc_entropy(policy: Soft) -> Tensor:
    """-E log pi over the batch: an estimate from one sample each, or exact."""
    if policy.action is not None:
        return -policy.log_prob.mean()
    return -(policy.log_prob.exp() * policy.log_prob).sum(-1).mean()


class Alpha(nn.Module):
    """Weight of the entropy: fixed, or learned so that the entropy stays at a target (eq. 18)."""

    def __init__(self, config: SoftActorCriticSpec, net: NetSpec, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.log_alpha = nn.Parameter(torch.zeros(1, device=device))
        self.optimizer: FlatOptimizer | None = None
        if config.fixed_alpha is None:
            # log alpha has one dimension, so it does not decay
            optim = net.optim_spec.model_copy(update={"lr": config.alpha_lr or net.optim_spec.lr})
            own = net.model_copy(update={"optim_spec": optim, "clip_grad_val": None})
            self.optimizer = FlatOptimizer(FlatParams([self.log_alpha]), own)

    def value(self, frame: int) -> Tensor:
        """Alpha as a number without gradient."""
        config = self.config
        if config.fixed_alpha is None:
            return self.log_alpha.detach().exp().squeeze()
        rest = max(0.0, 1 - frame / config.alpha_anneal_frames) if config.alpha_anneal_frames else 1.0
        return torch.tensor(config.fixed_alpha * rest, device=self.log_alpha.device)

    def calc_loss(self, entropy: Tensor, target_entropy: float | Tensor) -> Tensor | float:
        """Raises alpha where the entropy is below its target, lowers it where it is above."""
        if self.optimizer is None:
            return 0.0
        return (self.log_alpha * (entropy.detach() - target_entropy)).sum()

    @torch.no_grad()
    def clamp(self) -> None:
        """Keep it within its bounds."""
        if self.optimizer is not None:
            self.log_alpha.clamp_(self.config.log_alpha_min, self.config.log_alpha_max)


class SoftActorCritic(Algorithm):
    """Learns twin critics of the soft value, a policy that follows them, and the weight of its entropy."""

    metric_names: tuple[str, ...] = ("loss", "policy_loss", "entropy", "alpha", "q", "td_error", "grad_norm")
    stores_raw_obs = True
    has_joint_actions = True
    has_squashed_actions = True

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        config = spec.algorithm
        assert isinstance(config, SoftActorCriticSpec)
        self.config = config
        family = context.family
        self.is_discrete = isinstance(family, Categorical)
        if config.entropy_anneal is not None and not self.is_discrete:
            raise SpecError("agent.algorithm.entropy_anneal: for discrete actions; give target_entropy instead")
        if config.entropy_penalty_coef and not self.is_discrete:
            raise SpecError("agent.algorithm.entropy_penalty_coef: for discrete actions; remove it")
        actor_spec, critic_spec = spec.net.for_role("actor"), self._critic_spec(spec)
        self.actor = PolicyNet(actor_spec, context.obs_shape, family.param_size, context.is_gaussian, context.parts)
        size = family.param_size if self.is_discrete else math.prod(family.action_shape)
        self.critic = TwinQNet(critic_spec, context.obs_shape, size, self.is_discrete, context.parts)
        for net in (self.actor, self.critic):
            net.to(context.device).eval()
        self.actor_flat = FlatParams(self.actor.parameters())
        self.critic_flat = FlatParams(self.critic.parameters())
        self.alpha = Alpha(config, actor_spec, context.device)
        self.modules = {"actor": self.actor, "critic": self.critic, "alpha": self.alpha}
        self.target = self._build_target(critic_spec)
        if self.target is not None:
            self.modules["target_critic"] = self.target.module
        self.optimizers = {
            "actor": FlatOptimizer(self.actor_flat, actor_spec),
            "critic": FlatOptimizer(self.critic_flat, critic_spec),
        }
        if self.alpha.optimizer is not None:
            self.optimizers["alpha"] = self.alpha.optimizer
        self.loss = ELEMENT_LOSSES[critic_spec.loss_spec.name]
        self.memory = context.build_replay(spec.memory, config.gamma)
        self.replays = {"memory": self.memory}
        self.train_due = Due(config.training_frequency)
        frozen: dict[nn.Module, FlatParams] = {self.actor: self.actor_flat}
        if self.target is not None:
            frozen[self.target.module] = self.target.flat
        self.critic_step = context.build_step(self.calc_critic_loss, self.critic, [self.optimizers["critic"]], frozen)
        self.policy_step = context.build_step(
            self.calc_follower_loss,
            nn.ModuleList([self.actor, self.alpha]),
            [optimizer for role, optimizer in self.optimizers.items() if role != "critic"],
            {self.critic: self.critic_flat},
        )
        self.explore = context.build_function(self._explore, self.actor)
        # running mean of the entropy of a policy that is held near it; NaN before the first
        self.mean_entropy = torch.full((), math.nan, device=context.device) if config.entropy_penalty_coef else None
        self.policy_row: dict[str, Tensor] = {}

    def _critic_spec(self, spec: AgentSpec) -> NetSpec:
        net = spec.critic_net or spec.net.for_role("critic")
        if not self.config.spectral_norm:
            return net
        if not isinstance(net, MLPNetSpec):
            raise SpecError(f"agent.algorithm.spectral_norm: needs critics of type MLPNet, got {net.type}")
        return net.model_copy(update={"spectral_norm": True})

    def _build_target(self, spec: NetSpec) -> Target | None:
        return Target(self.critic, self.critic_flat, spec)

    # --- acting

    @torch.inference_mode()
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        family, generator = self.context.family, self.context.act_generator
        if explore and self.frame < self.config.training_start_step:
            return Act(family.random(len(obs), generator), carry, {})
        if explore:
            return Act(self.explore(obs, family.noise(len(obs), generator)), carry, {})
        return Act(family.mode(self.actor(obs)), carry, {})

    def _explore(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self.context.family.choose(self.actor(obs), noise)

    def observe(self, step: Transition) -> None:
        self.memory.add(step)

    # --- learning

    def _draw_noise(self, num: int) -> Tensor | None:
        """Standard normal numbers that make actions of the policy's parameters; none for discrete actions."""
        family = self.context.family
        if not isinstance(family, SquashedNormal):
            return None
        noise = torch.empty(num, *family.action_shape, device=self.context.device)
        return noise.normal_(generator=self.context.train_generator)

    def _soft_policy(self, obs: Tensor, noise: Tensor | None) -> Soft:
        param = self.actor(obs)
        if noise is None:
            policy = Soft(None, param.log_softmax(-1))
        else:
            assert isinstance(self.context.family, SquashedNormal)
            policy = Soft(*self.context.family.draw(param, noise))
        self.context.trace("log_prob", policy.log_prob)
        return policy

    def _values(self, net: nn.Module, obs: Tensor, action: Tensor | None) -> Tensor:
        return net(obs) if action is None else net(obs, action)

    def _target_entropy(self, frame: int) -> float:
        config, family = self.config, self.context.family
        if config.target_entropy != "auto":
            return config.target_entropy
        if not self.is_discrete:
            return -float(math.prod(family.action_shape))
        ratio = AUTO_ENTROPY_RATIO
        if (anneal := config.entropy_anneal) is not None:
            progress = min(1.0, frame / anneal.frames)
            ratio = anneal.start_ratio + (anneal.end_ratio - anneal.start_ratio) * progress
        return ratio * math.log(family.param_size)

    def _taken_value(self, q: Tensor, action: Tensor) -> Tensor:
        """Values (2, B) of the actions of a batch, from those of every discrete action where they are discrete."""
        if not isinstance(self.context.family, Categorical):
            return q
        index = self.context.family.to_index(action)
        return pick_value(q, index.expand(2, -1))

    def calc_critic_loss(self, batch: Batch, alpha: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of both critics (eq. 5), TD errors and values (B,)."""
        assert self.target is not None
        with torch.no_grad():
            policy = self._soft_policy(batch.next_obs, noise)
            next_q = self._values(self.target.module, batch.next_obs, policy.action)
            ret = calc_q_target(
                batch.reward, batch.discount, calc_soft_value(next_q, policy, alpha, self.config.q_reduction)
            )
        self.critic.train()
        q = self._taken_value(self._critic_values(batch.obs, batch.action), batch.action)
        self.critic.eval()
        return self._compare(q, ret, batch.weight)

    def _critic_values(self, obs: Tensor, action: Tensor) -> Tensor:
        return self._values(self.critic, obs, None if self.is_discrete else action)

    def _compare(self, q: Tensor, ret: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.context.trace("target", ret)
        self.context.trace("q", q)
        low = q.detach().amin(0)
        error = low - ret
        if self.config.symlog:
            q, ret = symlog(q), symlog(ret)
        # half of each critic's loss, as in the paper
        loss = 0.5 * (weight * self.loss(q, ret.expand_as(q))).mean(-1).sum()
        return loss, error, low

    def calc_policy_loss(
        self, obs: Tensor, alpha: Tensor, noise: Tensor | None, mean_entropy: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """-E V(s) under the policy as it is now (eq. 7), and its entropy."""
        self.actor.train()
        policy = self._soft_policy(obs, noise)
        self.actor.eval()
        q = self._values(self.critic, obs, policy.action)
        entropy = calc_entropy(policy)
        value = calc_soft_value(q, policy, alpha, self.config.q_reduction)
        return -value.mean() + self._entropy_penalty(entropy, mean_entropy), entropy

    def calc_follower_loss(
        self,
        obs: Tensor,
        alpha: Tensor,
        noise: Tensor | None,
        target_entropy: float | Tensor,
        mean_entropy: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of the policy and of alpha, which share no weight, in one; the policy's alone, and its entropy."""
        policy_loss, entropy = self.calc_policy_loss(obs, alpha, noise, mean_entropy)
        return policy_loss + self.alpha.calc_loss(entropy, target_entropy), policy_loss.detach(), entropy.detach()

    def _entropy_penalty(self, entropy: Tensor, mean: Tensor | None) -> Tensor | float:
        """Half the squared change of a discrete policy's entropy against its running mean, once there is one."""
        if mean is None:
            return 0.0
        mean = torch.where(mean.isnan(), entropy.detach(), mean)
        return self.config.entropy_penalty_coef * 0.5 * (mean - entropy).square()

    def _update_critic(self, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
        loss, error, q, grad_norm = self.critic_step(batch, alpha, self._draw_noise(len(batch.reward)))
        self.memory.update_priority(batch.slot, error)
        return {"loss": loss, "q": q.mean(), "td_error": error.abs().mean(), "grad_norm": grad_norm}

    def _update_policy(self, batch: Batch, alpha: Tensor, frame: int) -> dict[str, Tensor]:
        noise, mean = self._draw_noise(len(batch.reward)), self.mean_entropy
        _, policy_loss, entropy, _ = self.policy_step(batch.obs, alpha, noise, self._target_entropy(frame), mean)
        self.alpha.clamp()
        if mean is not None:
            mean.copy_(torch.where(mean.isnan(), entropy, torch.lerp(entropy, mean, ENTROPY_DECAY)))
        return {"policy_loss": policy_loss, "entropy": entropy}

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if self.target is not None:
            self.target.replace_if_due(frame)
        if not self.train_due(frame) or frame <= self.config.training_start_step:
            return None
        for optimizer in self.optimizers.values():
            optimizer.set_frame(frame)
        rows: list[dict[str, Tensor]] = []
        for _ in range(self.config.training_iter):
            batch = self.context.encode_batch(self.memory.sample(frame))
            alpha = self.alpha.value(frame)
            row = self._update_critic(batch, alpha)
            self.opt_step += 1
            if self.opt_step % self.config.policy_delay == 0 or not self.policy_row:
                self.policy_row = self._update_policy(batch, alpha, frame)
                if self.target is not None:
                    self.target.follow()
            rows.append({**row, **self.policy_row, "alpha": alpha})
        return gather_metrics(rows, frame)

    # --- state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.train_due.skip_to(self.frame)
        if self.target is not None:
            self.target.skip_to(self.frame)

    def memory_state(self) -> dict[str, Any]:
        return {
            "replay": self.memory.state_dict(),
            "mean_entropy": self.mean_entropy,
            "policy_row": self.policy_row,
        }

    def load_memory_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["replay"])
        if self.mean_entropy is not None:
            self.mean_entropy.copy_(state["mean_entropy"])
        self.policy_row = {name: value.to(self.context.device) for name, value in state["policy_row"].items()}
