"""Advantage actor-critic, A2C (Mnih et al. 2016), with GAE, n-step or full returns."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from slm_lab.agent.algorithm.base import Act, Algorithm, Array, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.algorithm.policy import ActionPolicy
from slm_lab.agent.algorithm.reinforce import calc_policy_loss
from slm_lab.agent.algorithm.returns import calc_gae, calc_nstep_return, calc_return
from slm_lab.agent.algorithm.sequence import Stretches, join, view_rollout
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.model import ActorCriticNet
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.agent.schedule import calc_schedule
from slm_lab.env.normalize import RunningStats
from slm_lab.spec.algorithm import ActorCriticSpec, PPOSpec
from slm_lab.spec.schema import AgentSpec


def standardize(adv: Tensor) -> Tensor:
    """Advantages with mean 0 and std 1; a single one, which would be 0, as it is."""
    # one operation instead of five
    return layer_norm(adv, adv.shape, eps=1e-16) if len(adv) > 1 else adv


def calc_explained_var(value: Array, ret: Array) -> float:
    """Share of the variance of the returns that the values predict: 1 is perfect, 0 is no better than their mean."""
    var = ret.var()
    return float(1 - (ret - value).var() / var) if var > 0 else 0.0


class ActorCritic(Algorithm):
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
    config: ActorCriticSpec | PPOSpec

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.config = self._config(spec)
        self.net = ActorCriticNet(
            spec.net, context.obs_shape, context.family.param_size, context.is_gaussian, context.parts
        )
        self.net.to(context.device).eval()
        self.modules = {"net": self.net}
        if spec.net.shared:
            self.optimizers = {"net": FlatOptimizer(FlatParams(self.net.parameters()), spec.net)}
        else:
            self.optimizers = {
                "actor": FlatOptimizer(FlatParams(self.net.actor.parameters()), spec.net.for_role("actor")),
                "critic": FlatOptimizer(FlatParams(self.net.critic.parameters()), spec.net.for_role("critic")),
            }
        self.value_loss = MEAN_LOSSES[spec.net.for_role("critic").loss_spec.name]
        self.step = context.build_step(self.calc_loss, self.net, self.optimizers.values())
        self.policy = ActionPolicy(context.family, self.config.action_policy, self.config.explore_var_spec)
        self.explore = context.build_function(self._explore, self.net)
        self.ret_stats = RunningStats(())
        self.memory = build_on_policy(spec.memory, context.num_envs, context.device, self._frequency())

    def _config(self, spec: AgentSpec) -> ActorCriticSpec | PPOSpec:
        assert isinstance(spec.algorithm, ActorCriticSpec)
        return spec.algorithm

    def _frequency(self) -> int:
        assert isinstance(self.config, ActorCriticSpec)
        return self.config.training_frequency

    @torch.inference_mode()
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if not explore:
            param, next_carry = self.net.step_actor(obs, carry)
            return Act(self.context.family.mode(param), next_carry, {})
        chance = self.policy.chance(len(obs), self.frame, self.context.act_generator)
        action, next_carry, extra = self.explore(obs, carry, chance)
        return Act(action, next_carry, extra if carry is None else {**extra, "carry": carry})

    def _explore(
        self, obs: Tensor, carry: Carry, chance: tuple[Tensor, ...]
    ) -> tuple[Tensor, Carry, dict[str, Tensor]]:
        """Actions, the hidden state to go on with, and what training will need of the policy as it is now."""
        param, value, next_carry = self.net.step(obs, carry)
        return self.policy.choose(param, chance), next_carry, {"value": value}

    def init_carry(self, num_envs: int) -> Carry:
        return self.net.init_carry(num_envs)

    def observe(self, step: Transition) -> None:
        self.memory.add(step)

    @torch.inference_mode()
    def _next_value(self, rollout: Rollout) -> Tensor:
        """V of every true successor: the next row's value, computed afresh only where an episode or the batch ends."""
        value = rollout.extra["value"]
        next_value = torch.zeros_like(value)
        next_value[:-1] = value[1:]
        if len(rollout.cut_index):
            next_value.view(-1)[rollout.cut_index] = self.net.value(rollout.cut_obs, rollout.cut_carry)
        return next_value

    def _calc_adv_ret(self, rollout: Rollout) -> tuple[Array, Array]:
        """Advantages and value targets (T, N)."""
        assert isinstance(self.config, ActorCriticSpec)
        reward, value = rollout.reward.cpu().numpy(), rollout.extra["value"].cpu().numpy()
        next_value = self._next_value(rollout).cpu().numpy()
        terminated, done = rollout.terminated.cpu().numpy(), rollout.done.cpu().numpy()
        gamma = self.config.gamma
        if self.config.lam is not None:
            adv = calc_gae(reward, value, next_value, terminated, done, gamma, self.config.lam)
            return adv, adv + value
        if self.config.num_step_returns is not None:
            ret = calc_nstep_return(reward, next_value, terminated, done, gamma, self.config.num_step_returns)
        else:
            ret = calc_return(reward, next_value, terminated, done, gamma)
        return ret - value, ret

    def _ret_scale(self, ret: Array) -> float:
        """1 / running std of the value targets (at least 1), or 1 when they are not normalised."""
        if not self.config.normalize_v_targets:
            return 1.0
        self.ret_stats.update(ret.reshape(-1).astype(np.float64))
        return 1 / max(float(np.sqrt(self.ret_stats.var)), 1.0)

    def _evaluate(self, obs: Tensor | Stretches) -> tuple[Tensor, Tensor]:
        """Distribution parameters (T*N, P) and values (T*N,) of a batch."""
        if isinstance(obs, Tensor):
            return self.net(obs)
        param, value = self.net.unroll(obs.obs, obs.carry, obs.reset)
        return join(param, *obs.shape), join(value, *obs.shape)

    def _to_tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.context.device).flatten()

    def calc_loss(
        self,
        obs: Tensor | Stretches,
        action: Tensor,
        adv: Tensor,
        ret: Tensor,
        entropy_coef: float | Tensor,
        ret_scale: float | Tensor,
    ) -> tuple[Any, ...]:
        """Loss of a batch, and what to report of it."""
        config = self.config
        assert isinstance(config, ActorCriticSpec)
        param, value = self._evaluate(obs)
        log_prob, entropies = self.context.family.log_prob_entropy(param, action)
        self.context.trace("value", value)
        self.context.trace("log_prob", log_prob)
        self.context.trace("entropy", entropies)
        entropy = entropies.mean()
        if config.normalize_advantages == "standardize":
            adv = standardize(adv)
        policy_loss = calc_policy_loss(log_prob, adv)
        val_loss = self.value_loss(value * ret_scale, ret * ret_scale)
        loss = config.policy_loss_coef * policy_loss + config.val_loss_coef * val_loss - entropy_coef * entropy
        return loss, {"loss": loss, "policy_loss": policy_loss, "val_loss": val_loss, "entropy": entropy}

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        config = self.config
        assert isinstance(config, ActorCriticSpec)
        rollout = self.rollout = self.memory.sample()
        adv, ret = self._calc_adv_ret(rollout)
        ret_scale = self._ret_scale(ret)
        for optimizer in self.optimizers.values():
            optimizer.set_frame(frame)
        entropy_coef = calc_schedule(config.entropy_coef_spec, frame)

        self.net.train()
        _, row, grad_norm = self.step(
            view_rollout(rollout, self.net.seq_len),
            rollout.action.flatten(0, 1),
            self._to_tensor(adv),
            self._to_tensor(ret),
            entropy_coef,
            ret_scale,
        )
        self.net.eval()
        self.opt_step += 1
        return {
            **gather_metrics([{**row, "grad_norm": grad_norm}], frame),
            "entropy_coef": entropy_coef,
            "explained_var": calc_explained_var(rollout.extra["value"].cpu().numpy(), ret),
        }

    def memory_state(self) -> dict[str, Any]:
        return {"rollout": self.memory.state_dict(), "ret_stats": self.ret_stats.state_dict()}

    def load_memory_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["rollout"])
        self.ret_stats.load_state_dict(state["ret_stats"])
