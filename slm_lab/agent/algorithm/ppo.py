"""Proximal policy optimisation (Schulman et al. 2017): several epochs on each batch, within a clipped ratio."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Carry, Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.critic import TargetScale, build_actor_critic, calc_next_value
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES, standardize, symlog
from slm_lab.agent.algorithm.returns import calc_explained_var, calc_gae
from slm_lab.agent.algorithm.sequence import calc_reset, rows_of_sequences
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.learn.sweep import Sweep
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.norm import differs_in_training
from slm_lab.lib.data import State
from slm_lab.lib.device import download, to_widest, upload
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import PPOSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec

# exp of more than this overflows float32 before the clip can act
MAX_LOG_RATIO = 20.0
# weight of the past in the running percentiles of the advantages
PERCENTILE_DECAY = 0.99


class Minibatch(NamedTuple):
    """Samples of one gradient step, tensors (B, ...).

    Recurrent nets learn from sequences: their rows are in order of time, the first rows of all sequences first.
    """

    obs: Tensor
    action: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    adv: Tensor
    ret: Tensor
    carry: Tensor | None = None
    reset: Tensor | None = None


def calc_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, adv: Tensor, clip_eps: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate loss (eq. 7, negated) and the log of the ratio r(theta)."""
    log_ratio = (log_prob - old_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_eps, 1 + clip_eps)  # type: ignore[arg-type]  # two floats or two tensors
    return -torch.min(ratio * adv, clipped * adv).mean(), log_ratio.detach()


def calc_kl(log_ratio: Tensor) -> Tensor:
    """E[r - 1 - log r], an estimate of KL(old || new) that is never negative."""
    # in float32 the difference of small steps cancels
    x = to_widest(log_ratio)
    return (x.expm1() - x).mean()


def calc_clip_frac(log_ratio: Tensor, clip_eps: float) -> Tensor:
    """Share of samples whose ratio is outside the clip range."""
    return ((log_ratio.exp() - 1).abs() > clip_eps).float().mean()


def calc_clipped_val_loss(
    loss: Callable[..., Tensor], value: Tensor, old_value: Tensor, ret: Tensor, clip_eps: float | Tensor
) -> Tensor:
    """Value loss that does not reward moving further than clip_eps from the old value; `loss` is one per sample."""
    near = old_value + (value - old_value).clamp(-clip_eps, clip_eps)  # type: ignore[arg-type]  # as above
    return torch.max(loss(value, ret), loss(near, ret)).mean()


class PPO(OnPolicy[PPOSpec]):
    """Actor-critic that reuses each batch for several epochs of minibatches."""

    metric_names: tuple[str, ...] = (
        "loss",
        "policy_loss",
        "val_loss",
        "entropy",
        "entropy_coef",
        "grad_norm",
        "explained_var",
        "clip_eps",
        "clip_frac",
        "kl",
    )

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.net, self.learners = build_actor_critic(spec, context)
        for layer in filter(differs_in_training, self.net.actor.modules()):
            raise SpecError(
                f"agent.net: {spec.algorithm.name} compares the probability of an action in acting and in training, "
                f"between which the actor's {type(layer).__name__} differs; remove it, or use layer_norm"
            )
        self.modules = {"net": self.net}
        self.value_loss = ELEMENT_LOSSES[spec.critic.loss_spec.name]
        self.step = context.build_step(self.calc_loss, *self.learners.values(), samples=["log_ratio"])
        self.sweep = Sweep(self.step, self.config.minibatch_size)
        self.explore_by(self.with_sde(build_policy(context.family, self.config), self.net.actor))
        self.target_scale = TargetScale(self.config.normalize_v_targets)
        # running 5th and 95th percentile of the advantages, with normalize_advantages: percentile
        self.percentile: list[float] | None = None

    def _explore(self, obs: Tensor, carry: Carry, noise: Any) -> tuple[Tensor, Carry, Report]:
        param, value, next_carry = self.net.step_both(obs, carry)
        action = self.policy.choose(param, noise)
        # pi_old is the net's distribution as it acts, before any action_policy: stored here and never recomputed
        return action, next_carry, {"value": value, "log_prob": self.context.family.log_prob(param, action)}

    def train(self, rollout: Rollout) -> Metrics:
        config, device = self.config, self.context.device
        value, next_value = download(rollout.extra["value"], calc_next_value(rollout, self.net.value))
        adv = calc_gae(rollout.reward, value, next_value, rollout.terminated, rollout.done, config.gamma, config.lam)
        ret = adv + value
        ret_scale = self.target_scale.update(ret)
        if config.normalize_advantages == "percentile":
            adv = self._scale_by_percentile(adv)
        batch = Minibatch(
            rollout.obs.flatten(0, 1),
            rollout.action.flatten(0, 1),
            rollout.extra["log_prob"].flatten(),
            rollout.extra["value"].flatten(),
            upload(adv.flatten(), device),
            upload(ret.flatten(), device),
        )
        if self.net.state_size:
            reset = upload(calc_reset(rollout.done).flatten(), device)
            batch = batch._replace(carry=rollout.extra["carry"].flatten(0, 1), reset=reset)
        clip_eps = calc_schedule(config.clip_eps_spec, self.frame)
        entropy_coef = calc_schedule(config.entropy_coef_spec, self.frame)

        self.net.train()
        reports: list[Report] = []
        # with target_kl, the KL is checked after each epoch
        num_epoch = config.training_epoch if config.target_kl is None else 1
        for _ in range(config.training_epoch // num_epoch):
            orders = torch.stack([self._draw_order(len(batch.adv)) for _ in range(num_epoch)])
            for report in self.sweep(batch, orders, clip_eps, entropy_coef, ret_scale):
                reports.append(report)
                self.opt_step += 1
            if config.target_kl is not None and float(calc_kl(reports[-1]["log_ratio"])) > config.target_kl:
                break
        self.net.eval()

        # over all samples of all epochs
        log_ratio = torch.cat([report["log_ratio"] for report in reports])
        return {
            **self.gather(reports, kl=calc_kl(log_ratio), clip_frac=calc_clip_frac(log_ratio, clip_eps)),
            "clip_eps": clip_eps,
            "entropy_coef": entropy_coef,
            "explained_var": calc_explained_var(value, ret),
        }

    def _scale_by_percentile(self, adv: Tensor) -> Tensor:
        """Advantages over the running range of their 5th to 95th percentile, never enlarged."""
        now = np.percentile(adv.numpy(), (5, 95)).tolist()
        if self.percentile is None:
            self.percentile = now
        decay = PERCENTILE_DECAY
        self.percentile = [decay * old + (1 - decay) * new for old, new in zip(self.percentile, now, strict=True)]
        return adv / max(1.0, self.percentile[1] - self.percentile[0])

    def _draw_order(self, num_sample: int) -> Tensor:
        """A new order of the samples: of single rows or, with a recurrent net, of whole sequences."""
        seq_len, generator = self.net.seq_len, self.context.train_generator
        order = torch.randperm(num_sample // (seq_len or 1), generator=generator, device=generator.device)
        if seq_len:
            order = rows_of_sequences(order, self.context.num_envs, seq_len, self.config.minibatch_size)
        return order

    def calc_loss(
        self, batch: Minibatch, clip_eps: float | Tensor, entropy_coef: float | Tensor, ret_scale: float | Tensor
    ) -> Loss:
        """Loss of one minibatch (eq. 9, negated)."""
        config = self.config
        if batch.carry is None or batch.reset is None:
            param, value = self.net(batch.obs)
        else:
            obs, reset = (field.unflatten(0, (self.net.seq_len, -1)) for field in (batch.obs, batch.reset))
            param, value = self.net.unroll(obs, batch.carry[: obs.shape[1]], reset)
            param, value = param.flatten(0, 1), value.flatten()
        log_prob, entropy = self.context.family.log_prob_entropy(param, batch.action)
        report = {"value": value, "log_prob": log_prob, "entropy": entropy}
        adv = standardize(batch.adv) if config.normalize_advantages == "standardize" else batch.adv
        policy_loss, log_ratio = calc_surrogate(log_prob, batch.old_log_prob, adv, clip_eps)
        ret, old_value = batch.ret, batch.old_value
        if config.normalize_v_targets:
            value, ret = value * ret_scale, ret * ret_scale
        if config.symlog:
            value, ret, old_value = symlog(value), symlog(ret), symlog(old_value)
        if config.clip_vloss:
            val_loss = calc_clipped_val_loss(self.value_loss, value, old_value, ret, clip_eps)
        else:
            val_loss = self.value_loss(value, ret).mean()
        loss = policy_loss + config.val_loss_coef * val_loss - entropy_coef * entropy.mean()
        return Loss(loss, {**report, "log_ratio": log_ratio, "policy_loss": policy_loss, "val_loss": val_loss})

    def state_dict(self) -> State:
        own = {"target_scale": self.target_scale.stats.state_dict(), "percentile": self.percentile}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.target_scale.stats.load_state_dict(state["target_scale"])
        self.percentile = state["percentile"]
