"""SARSA (Rummery & Niranjan 1994): learns the values of the policy that acts, exploration included."""

from typing import Any

import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.dqn import calc_q_target, pick_value, require_choices
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.algorithm.policy import ActionPolicy
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.agent.net.parts import for_acting
from slm_lab.agent.net.value import QNet
from slm_lab.spec.algorithm import SarsaSpec
from slm_lab.spec.schema import AgentSpec


class SARSA(Algorithm):
    """One gradient step per batch towards r + gamma Q(s', a'), a' being the action really taken in s'."""

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm")
    has_joint_actions = True
    # a row waits for the action that follows it
    row_delay = 1

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        config = spec.algorithm
        assert isinstance(config, SarsaSpec)
        self.config = config
        self.family = require_choices(context.family, config.name)
        self.net = QNet(
            for_acting(spec.net, context.parts), context.obs_shape, self.family.param_size, context.parts
        ).to(context.device)
        self.net.eval()
        self.modules = {"net": self.net}
        self.optimizer = FlatOptimizer(FlatParams(self.net.parameters()), spec.net)
        self.optimizers = {"net": self.optimizer}
        self.loss = MEAN_LOSSES[spec.net.loss_spec.name]
        self.step = context.build_step(self.calc_loss, self.net, [self.optimizer])
        self.policy = ActionPolicy(self.family, config.action_policy, config.explore_var_spec)
        self.explore = context.build_function(self._explore, self.net)
        self.memory = build_on_policy(spec.memory, context.num_envs, context.device, config.training_frequency)
        # the last step of each env waits here until the action after it is known
        self.pending: Transition | None = None

    @torch.inference_mode()
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if not explore:
            return Act(self.family.mode(self.net(obs)), carry, {})
        chance = self.policy.chance(len(obs), self.frame, self.context.act_generator)
        return Act(self.explore(obs, chance), carry, {})

    def _explore(self, obs: Tensor, chance: tuple[Tensor, ...]) -> Tensor:
        return self.policy.choose(self.net(obs), chance)

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

    @torch.no_grad()
    def _next_value(self, rollout: Rollout) -> Tensor:
        """Q of every true successor and of the action taken there (T, N)."""
        next_obs = torch.cat([rollout.obs[1:], rollout.obs[-1:]])
        next_obs.flatten(0, 1)[rollout.cut_index] = rollout.cut_obs
        q = self.net(next_obs.flatten(0, 1))
        next_action = rollout.extra["next_action"].flatten(0, 1).clone()
        # where the clock cut an episode no action followed: one is drawn as the policy would have
        cut = rollout.truncated.flatten()
        chance = self.policy.chance(len(q[cut]), self.frame, self.context.train_generator)
        next_action[cut] = self.policy.choose(q[cut], chance)
        return pick_value(q, self.family.to_index(next_action)).view(rollout.reward.shape)

    def calc_loss(self, obs: Tensor, action: Tensor, ret: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of a batch, TD errors and values (B,)."""
        q = pick_value(self.net(obs), self.family.to_index(action))
        self.context.trace("q", q)
        return self.loss(q, ret), (q - ret).detach(), q.detach()

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        rollout = self.rollout = self.memory.sample()
        discount = self.config.gamma * ~rollout.terminated
        ret = calc_q_target(rollout.reward, discount, self._next_value(rollout)).flatten()
        self.optimizer.set_frame(frame)
        self.net.train()
        loss, error, q, grad_norm = self.step(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), ret)
        self.net.eval()
        self.opt_step += 1
        row = {"loss": loss, "q": q.mean(), "td_error": error.abs().mean(), "grad_norm": grad_norm}
        return {**gather_metrics([row], frame), "explore_var": self.policy.calc_explore_var(frame)}

    def memory_state(self) -> dict[str, Any]:
        pending = None if self.pending is None else {**self.pending._asdict(), "extra": {}}
        return {"rollout": self.memory.state_dict(), "pending": pending}

    def load_memory_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["rollout"])
        pending = state["pending"]
        self.pending = None if pending is None else Transition(**pending)
