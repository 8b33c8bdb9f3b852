"""Advantage actor-critic, A2C (Mnih et al. 2016), with GAE, n-step or full returns."""

from typing import Any

from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Carry, Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.critic import TargetScale, build_actor_critic, calc_next_value
from slm_lab.agent.algorithm.loss import MEAN_LOSSES, calc_policy_loss, standardize
from slm_lab.agent.algorithm.returns import calc_explained_var, calc_gae, calc_nstep_return, calc_return
from slm_lab.agent.algorithm.sequence import Sequences, join, view_rollout
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Rollout
from slm_lab.lib.data import State
from slm_lab.lib.device import download, upload
from slm_lab.spec.algorithm import ActorCriticSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


class ActorCritic(OnPolicy[ActorCriticSpec]):
    """One gradient step per batch: policy gradient with a learned baseline."""

    metric_names: tuple[str, ...] = (
        "loss",
        "policy_loss",
        "val_loss",
        "entropy",
        "entropy_coef",
        "grad_norm",
        "explained_var",
    )

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.net, self.learners = build_actor_critic(spec, context)
        self.modules = {"net": self.net}
        self.value_loss = MEAN_LOSSES[spec.critic.loss_spec.name]
        self.step = context.build_step(self.calc_loss, *self.learners.values(), samples=[])
        self.explore_by(self.with_sde(build_policy(context.family, self.config), self.net.actor))
        self.target_scale = TargetScale(self.config.normalize_v_targets)

    def _explore(self, obs: Tensor, carry: Carry, noise: Any) -> tuple[Tensor, Carry, Report]:
        param, value, next_carry = self.net.step_both(obs, carry)
        return self.policy.choose(param, noise), next_carry, {"value": value}

    def train(self, rollout: Rollout) -> Metrics:
        value, next_value = download(rollout.extra["value"], calc_next_value(rollout, self.net.value))
        adv, ret = self._calc_adv_ret(rollout, value, next_value)
        ret_scale = self.target_scale.update(ret)
        entropy_coef = calc_schedule(self.config.entropy_coef_spec, self.frame)
        obs, action = view_rollout(rollout, self.net.seq_len), rollout.action.flatten(0, 1)
        targets = (upload(target.flatten(), self.context.device) for target in (adv, ret))
        report = self.step(obs, action, *targets, entropy_coef, ret_scale)
        self.opt_step += 1
        return {
            **self.gather([report]),
            "entropy_coef": entropy_coef,
            "explained_var": calc_explained_var(value, ret),
        }

    def _calc_adv_ret(self, rollout: Rollout, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and value targets (T, N)."""
        config, reward = self.config, rollout.reward
        following = (next_value, rollout.terminated, rollout.done)
        if config.lam is not None:
            adv = calc_gae(reward, value, *following, config.gamma, config.lam)
            return adv, adv + value
        if config.num_step_returns is not None:
            ret = calc_nstep_return(reward, *following, config.gamma, config.num_step_returns)
        else:
            ret = calc_return(reward, *following, config.gamma)
        return ret - value, ret

    def calc_loss(
        self,
        obs: Tensor | Sequences,
        action: Tensor,
        adv: Tensor,
        ret: Tensor,
        entropy_coef: float | Tensor,
        ret_scale: float | Tensor,
    ) -> Loss:
        """Loss of a batch."""
        config = self.config
        # here rather than around the step: a compiled one need not switch at every call
        self.net.train()
        if isinstance(obs, Tensor):
            param, value = self.net(obs)
        else:
            param, value = (join(out, *obs.shape) for out in self.net.unroll(obs.obs, obs.carry, obs.reset))
        self.net.eval()
        log_prob, entropy = self.context.family.log_prob_entropy(param, action)
        if config.normalize_advantages == "standardize":
            adv = standardize(adv)
        policy_loss = calc_policy_loss(log_prob, adv)
        val_loss = self.value_loss(value * ret_scale, ret * ret_scale)
        loss = config.policy_loss_coef * policy_loss + config.val_loss_coef * val_loss - entropy_coef * entropy.mean()
        report = {"value": value, "log_prob": log_prob, "entropy": entropy}
        return Loss(loss, {**report, "policy_loss": policy_loss, "val_loss": val_loss})

    def state_dict(self) -> State:
        return {**super().state_dict(), "target_scale": self.target_scale.stats.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.target_scale.stats.load_state_dict(state["target_scale"])
