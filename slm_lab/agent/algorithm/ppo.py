"""Proximal policy optimisation (Schulman et al. 2017): several epochs on each batch, within a clipped ratio."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor_critic import ActorCritic, calc_explained_var, standardize
from slm_lab.agent.algorithm.base import Array, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.loss import symlog
from slm_lab.agent.algorithm.returns import calc_gae
from slm_lab.agent.algorithm.sequence import calc_reset, rows_of_stretches
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.norm import differs_in_training
from slm_lab.agent.schedule import calc_schedule
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import PPOSpec
from slm_lab.spec.schema import AgentSpec

# exp of more than this overflows float32 before the clip can act
MAX_LOG_RATIO = 20.0
# weight of the past in the running percentiles of the advantages
PERCENTILE_DECAY = 0.99


class Minibatch(NamedTuple):
    """Samples of one gradient step, tensors (B, ...).

    Those of recurrent nets are the rows of stretches, the first rows of all stretches first.
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
    x = log_ratio.double()
    return (x.expm1() - x).mean()


def calc_clip_frac(log_ratio: Tensor, clip_eps: float) -> Tensor:
    """Share of samples whose ratio is outside the clip range."""
    return ((log_ratio.exp() - 1).abs() > clip_eps).float().mean()


def calc_clipped_val_loss(value: Tensor, old_value: Tensor, ret: Tensor, clip_eps: float | Tensor) -> Tensor:
    """Value loss that does not reward moving further than clip_eps from the old value."""
    near = old_value + (value - old_value).clamp(-clip_eps, clip_eps)  # type: ignore[arg-type]  # as above
    return 0.5 * torch.max((value - ret).square(), (near - ret).square()).mean()


class PPO(ActorCritic):
    """Actor-critic that reuses each batch for several epochs of minibatches."""

    metric_names = (*ActorCritic.metric_names, "clip_eps", "clip_frac", "kl")
    config: PPOSpec

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        for layer in filter(differs_in_training, self.net.actor.modules()):
            raise SpecError(
                f"agent.net: {spec.algorithm.name} compares the probability of an action in acting and in training, "
                f"between which the actor's {type(layer).__name__} differs; remove it, or use layer_norm"
            )
        # running 5th and 95th percentile of the advantages, with normalize_advantages: percentile
        self.percentile: list[float] | None = None

    def _config(self, spec: AgentSpec) -> PPOSpec:
        assert isinstance(spec.algorithm, PPOSpec)
        return spec.algorithm

    def _frequency(self) -> int:
        return self.config.time_horizon

    def _explore(
        self, obs: Tensor, carry: Carry, chance: tuple[Tensor, ...]
    ) -> tuple[Tensor, Carry, dict[str, Tensor]]:
        param, value, next_carry = self.net.step(obs, carry)
        action = self.policy.choose(param, chance)
        # pi_old is this very policy: stored now, never recomputed
        return action, next_carry, {"value": value, "log_prob": self.context.family.log_prob(param, action)}

    def _calc_adv_ret(self, rollout: Rollout) -> tuple[Array, Array]:
        value = rollout.extra["value"].cpu().numpy()
        adv = calc_gae(
            rollout.reward.cpu().numpy(),
            value,
            self._next_value(rollout).cpu().numpy(),
            rollout.terminated.cpu().numpy(),
            rollout.done.cpu().numpy(),
            self.config.gamma,
            self.config.lam,
        )
        return adv, adv + value

    def _scale_by_percentile(self, adv: Array) -> Array:
        """Advantages over the running range of their 5th to 95th percentile, never enlarged."""
        now = np.percentile(adv, (5, 95)).tolist()
        if self.percentile is None:
            self.percentile = now
        decay = PERCENTILE_DECAY
        self.percentile = [decay * old + (1 - decay) * new for old, new in zip(self.percentile, now, strict=True)]
        return adv / max(1.0, self.percentile[1] - self.percentile[0])

    def _evaluate_samples(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Distribution parameters (B, P) and values (B,)."""
        if batch.carry is None or batch.reset is None:
            return self.net(batch.obs)
        obs, reset = (field.unflatten(0, (self.net.seq_len, -1)) for field in (batch.obs, batch.reset))
        param, value = self.net.unroll(obs, batch.carry[: obs.shape[1]], reset)
        return param.flatten(0, 1), value.flatten()

    def calc_loss(  # type: ignore[override]  # of a minibatch, where actor-critic takes a whole batch
        self,
        batch: Minibatch,
        clip_eps: float | Tensor,
        entropy_coef: float | Tensor,
        ret_scale: float | Tensor,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Loss of one minibatch (eq. 9, negated), what to report of it, and the log ratios."""
        config, family = self.config, self.context.family
        param, value = self._evaluate_samples(batch)
        adv = standardize(batch.adv) if config.normalize_advantages == "standardize" else batch.adv
        log_prob, entropies = family.log_prob_entropy(param, batch.action)
        self.context.trace("value", value)
        self.context.trace("log_prob", log_prob)
        self.context.trace("entropy", entropies)
        policy_loss, log_ratio = calc_surrogate(log_prob, batch.old_log_prob, adv, clip_eps)
        entropy = entropies.mean()
        ret, old_value = batch.ret, batch.old_value
        if config.normalize_v_targets:
            value, ret = value * ret_scale, ret * ret_scale
        if config.symlog:
            value, ret, old_value = symlog(value), symlog(ret), symlog(old_value)
        if config.clip_vloss:
            val_loss = calc_clipped_val_loss(value, old_value, ret, clip_eps)
        else:
            val_loss = self.value_loss(value, ret)
        loss = policy_loss + config.val_loss_coef * val_loss - entropy_coef * entropy
        aux = {"loss": loss, "policy_loss": policy_loss, "val_loss": val_loss, "entropy": entropy}
        return loss, aux, log_ratio

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        config = self.config
        rollout = self.rollout = self.memory.sample()
        adv, ret = self._calc_adv_ret(rollout)
        ret_scale = self._ret_scale(ret)
        if config.normalize_advantages == "percentile":
            adv = self._scale_by_percentile(adv)
        batch = Minibatch(
            rollout.obs.flatten(0, 1),
            rollout.action.flatten(0, 1),
            rollout.extra["log_prob"].flatten(),
            rollout.extra["value"].flatten(),
            self._to_tensor(adv),
            self._to_tensor(ret),
        )
        if self.net.state_size:
            batch = batch._replace(carry=rollout.extra["carry"].flatten(0, 1), reset=calc_reset(rollout.done).flatten())
        for optimizer in self.optimizers.values():
            optimizer.set_frame(frame)
        clip_eps = calc_schedule(config.clip_eps_spec, frame)
        entropy_coef = calc_schedule(config.entropy_coef_spec, frame)
        explained_var = calc_explained_var(rollout.extra["value"].cpu().numpy(), ret)

        self.net.train()
        rows: list[dict[str, Tensor]] = []
        log_ratios: list[Tensor] = []
        for _ in range(config.training_epoch):
            self._epoch(batch, clip_eps, entropy_coef, ret_scale, rows, log_ratios)
            if config.target_kl is not None and float(calc_kl(log_ratios[-1])) > config.target_kl:
                break
        self.net.eval()
        # over all samples of all epochs, computed once
        log_ratio = torch.cat(log_ratios)
        return {
            **gather_metrics(rows, frame),
            "kl": float(calc_kl(log_ratio)),
            "clip_frac": float(calc_clip_frac(log_ratio, clip_eps)),
            "clip_eps": clip_eps,
            "entropy_coef": entropy_coef,
            "explained_var": explained_var,
        }

    def _epoch(
        self,
        batch: Minibatch,
        clip_eps: float,
        entropy_coef: float,
        ret_scale: float,
        rows: list[dict[str, Tensor]],
        log_ratios: list[Tensor],
    ) -> None:
        """One pass over the batch in a fresh order."""
        order = self._order(len(batch.adv))
        # one gather per field and epoch; minibatches are views of it
        fields_given = [field for field in batch if field is not None]
        shuffled = [field.index_select(0, order).split(self.config.minibatch_size) for field in fields_given]
        for fields in zip(*shuffled, strict=True):
            _, row, log_ratio, grad_norm = self.step(Minibatch(*fields), clip_eps, entropy_coef, ret_scale)
            self.opt_step += 1
            rows.append({**row, "grad_norm": grad_norm})
            log_ratios.append(log_ratio)

    def _order(self, num_sample: int) -> Tensor:
        """Rows in the order of an epoch: shuffled one by one, or as whole stretches with a recurrent net."""
        generator, seq_len = self.context.train_generator, self.net.seq_len
        if not self.net.state_size:
            return torch.randperm(num_sample, generator=generator, device=generator.device)
        order = torch.randperm(num_sample // seq_len, generator=generator, device=generator.device)
        return rows_of_stretches(order, self.context.num_envs, seq_len, self.config.minibatch_size)

    def memory_state(self) -> dict[str, Any]:
        return {**super().memory_state(), "percentile": self.percentile}

    def load_memory_state(self, state: dict[str, Any]) -> None:
        super().load_memory_state(state)
        self.percentile = state["percentile"]
