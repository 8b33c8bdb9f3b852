"""REINFORCE (Williams 1992): the policy gradient with Monte-Carlo returns."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.policy import ActionPolicy
from slm_lab.agent.algorithm.returns import calc_return
from slm_lab.agent.algorithm.sequence import Stretches, join, view_rollout
from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.model import PolicyNet
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.agent.schedule import calc_schedule
from slm_lab.spec.algorithm import ReinforceSpec
from slm_lab.spec.schema import AgentSpec


def calc_policy_loss(log_prob: Tensor, adv: Tensor) -> Tensor:
    """-E[log pi(a|s) A]; its gradient is the policy gradient."""
    return -(log_prob * adv).mean()


def scale_return(ret: Tensor, center: bool) -> Tensor:
    """Returns in units of their std, around their mean if centred; a single one as it is."""
    if len(ret) == 1:
        return ret
    scaled = ret - ret.mean() if center else ret
    std = ret.std(correction=0)
    # equal returns have no spread to be measured in
    return scaled / torch.where(std > 1e-8, std, 1.0)


class Reinforce(Algorithm):
    """One gradient step per batch on the returns that followed each action."""

    metric_names = ("loss", "policy_loss", "entropy", "entropy_coef", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        assert isinstance(spec.algorithm, ReinforceSpec)
        self.config = spec.algorithm
        net = spec.net.for_role("actor")
        self.net = PolicyNet(net, context.obs_shape, context.family.param_size, context.is_gaussian, context.parts)
        self.net.to(context.device).eval()
        self.modules = {"actor": self.net}
        self.optimizers = {"actor": FlatOptimizer(FlatParams(self.net.parameters()), net)}
        self.step = context.build_step(self.calc_loss, self.net, self.optimizers.values())
        self.policy = ActionPolicy(context.family, self.config.action_policy, self.config.explore_var_spec)
        self.explore = context.build_function(self._explore, self.net)
        self.memory = build_on_policy(spec.memory, context.num_envs, context.device, self.config.training_frequency)

    @torch.inference_mode()
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if not explore:
            param, next_carry = self.net.step(obs, carry)
            return Act(self.context.family.mode(param), next_carry, {})
        chance = self.policy.chance(len(obs), self.frame, self.context.act_generator)
        action, next_carry = self.explore(obs, carry, chance)
        return Act(action, next_carry, {} if carry is None else {"carry": carry})

    def _explore(self, obs: Tensor, carry: Carry, chance: tuple[Tensor, ...]) -> tuple[Tensor, Carry]:
        """Actions, and the hidden state to go on with."""
        param, next_carry = self.net.step(obs, carry)
        return self.policy.choose(param, chance), next_carry

    def init_carry(self, num_envs: int) -> Carry:
        return self.net.init_carry(num_envs)

    def observe(self, step: Transition) -> None:
        self.memory.add(step)

    def _evaluate(self, obs: Tensor | Stretches) -> Tensor:
        """Distribution parameters (T*N, P) of a batch."""
        if isinstance(obs, Tensor):
            return self.net(obs)
        param, _ = self.net.unroll(obs.obs, obs.carry, obs.reset)
        return join(param, *obs.shape)

    def calc_loss(
        self, obs: Tensor | Stretches, action: Tensor, adv: Tensor, entropy_coef: float | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of a batch, its part without the entropy, and the entropy."""
        param = self._evaluate(obs)
        entropy = self.context.family.entropy(param).mean()
        log_prob = self.context.family.log_prob(param, action)
        self.context.trace("log_prob", log_prob)
        policy_loss = calc_policy_loss(log_prob, adv)
        return self.config.policy_loss_coef * policy_loss - entropy_coef * entropy, policy_loss, entropy

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        rollout = self.rollout = self.memory.sample()
        reward = rollout.reward.cpu().numpy()
        # without a critic nothing stands for what follows a cut
        ret = calc_return(
            reward,
            np.zeros_like(reward),
            rollout.terminated.cpu().numpy(),
            rollout.done.cpu().numpy(),
            self.config.gamma,
        )
        adv = scale_return(torch.from_numpy(ret).to(self.context.device).flatten(), self.config.center_return)
        self.optimizers["actor"].set_frame(frame)
        entropy_coef = calc_schedule(self.config.entropy_coef_spec, frame)

        self.net.train()
        obs = view_rollout(rollout, self.net.seq_len)
        loss, policy_loss, entropy, grad_norm = self.step(obs, rollout.action.flatten(0, 1), adv, entropy_coef)
        self.net.eval()
        self.opt_step += 1
        row = {
            "loss": loss,
            "policy_loss": policy_loss,
            "entropy": entropy,
            "grad_norm": grad_norm,
        }
        return {**gather_metrics([row], frame), "entropy_coef": entropy_coef}

    def memory_state(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_memory_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)
