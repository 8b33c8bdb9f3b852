"""SARSA (Rummery & Niranjan 1994): learns the values of the policy that acts, exploration included."""

from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.action.policy import ActionPolicy
from slm_lab.agent.algorithm.base import Context, Metrics
from slm_lab.agent.algorithm.dqn import calc_q_target, pick_value, require_choices
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.algorithm.on_policy import OnPolicy
from slm_lab.agent.learn.gradient import Loss
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.net.parts import for_acting
from slm_lab.agent.net.value import QNet
from slm_lab.spec.algorithm import SarsaSpec
from slm_lab.spec.schema import AgentSpec


class SARSA(OnPolicy[SarsaSpec]):
    """One gradient step per batch towards r + gamma Q(s', a'), a' being the action really taken in s'."""

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm")
    # a row waits for the action that follows it
    row_delay = 1

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.family = require_choices(context.family, self.config.name)
        net = for_acting(spec.net, context.parts)
        self.net = QNet(net, context.obs_shape, self.family.param_size, context.parts)
        self.learners = {"net": Learner(self.net, spec.net, context.device)}
        self.modules = {"net": self.net}
        self.loss = MEAN_LOSSES[spec.net.loss_spec.name]
        self.step = context.build_step(self.calc_loss, self.learners["net"])
        self.policy = ActionPolicy(self.family, self.config.action_policy, self.config.explore_var_spec)
        self.explore = context.build_function(self._explore, self.net)
        # the last step of each env waits here until the action after it is known
        self.pending: Transition | None = None

    def observe(self, step: Transition) -> None:
        if self.pending is not None:
            self.memory.add(self.pending._replace(extra={"next_action": step.action}))
        # the env may reuse its arrays
        self.pending = step._replace(
            obs=step.obs.clone(),
            next_obs=step.next_obs.clone(),
            reward=step.reward.copy(),
            terminated=step.terminated.copy(),
            truncated=step.truncated.copy(),
        )

    def train(self, rollout: Rollout) -> Metrics:
        discount = self.config.gamma * ~rollout.terminated
        ret = calc_q_target(rollout.reward, discount, self._calc_next_value(rollout))
        self.net.train()
        report = self.step(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), ret.flatten())
        self.net.eval()
        self.opt_step += 1
        return {**self.gather([report]), "explore_var": self.policy.calc_explore_var(self.frame)}

    @torch.no_grad()
    def _calc_next_value(self, rollout: Rollout) -> Tensor:
        """Q of every true successor and of the action taken there (T, N)."""
        next_obs = torch.cat([rollout.obs[1:], rollout.obs[-1:]])
        next_obs.flatten(0, 1)[rollout.cut_index] = rollout.cut_obs
        q = self.net(next_obs.flatten(0, 1))
        next_action = rollout.extra["next_action"].flatten(0, 1).clone()
        # where a time limit cut an episode no action followed: one is sampled as the policy would have
        cut = rollout.truncated.flatten()
        noise = self.policy.noise(len(q[cut]), self.frame, self.context.train_generator)
        next_action[cut] = self.policy.choose(q[cut], noise)
        return pick_value(q, self.family.to_index(next_action)).view(rollout.reward.shape)

    def calc_loss(self, obs: Tensor, action: Tensor, ret: Tensor) -> Loss:
        """Loss of a batch."""
        q = pick_value(self.net(obs), self.family.to_index(action))
        return Loss(self.loss(q, ret), {"q": q, "td_error": (q - ret).abs()})

    def state_dict(self) -> dict[str, Any]:
        pending = None if self.pending is None else {**self.pending._asdict(), "extra": {}}
        return {**super().state_dict(), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        pending = state["pending"]
        self.pending = None if pending is None else Transition(**pending)
