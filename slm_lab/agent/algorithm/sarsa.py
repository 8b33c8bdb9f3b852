"""SARSA (Rummery & Niranjan 1994): learns the values of the policy that acts, exploration included."""

import torch
from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.dqn import pick_value, require_choices
from slm_lab.agent.algorithm.loss import MEAN_LOSSES
from slm_lab.agent.learn.gradient import Loss
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import QNet
from slm_lab.agent.net.parts import for_acting
from slm_lab.lib.device import upload
from slm_lab.spec.algorithm import SarsaSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


class SARSA(OnPolicy[SarsaSpec]):
    """One gradient step per batch towards r + gamma Q(s', a'), where a' is the action taken in s'."""

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        # the last row of a batch waits for the action that follows it
        super().__init__(spec, context, waits=True)
        self.family = require_choices(context.family, self.config.name)
        net = for_acting(spec.net, context.parts)
        self.net = QNet(net, context.obs_shape, self.family.param_size, context.parts)
        learner = self.add_learner("net", self.net, spec.net)
        self.loss = MEAN_LOSSES[spec.net.loss_spec.name]
        self.step = context.build_step(self.calc_loss, learner, samples=[])
        self.explore_by(build_policy(self.family, self.config))

    def train(self, rollout: Rollout) -> Metrics:
        reward, terminated = (upload(field, self.context.device) for field in (rollout.reward, rollout.terminated))
        ret = reward + self.config.gamma * ~terminated * self._calc_next_value(rollout)
        self.net.train()
        report = self.step(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1), ret.flatten())
        self.net.eval()
        self.opt_step += 1
        return {**self.gather([report]), "explore_var": calc_schedule(self.config.explore_var_spec or 0.0, self.frame)}

    @torch.no_grad()
    def _calc_next_value(self, rollout: Rollout) -> Tensor:
        """Q of every true successor and of the action taken there (T, N)."""
        next_obs = torch.cat([rollout.obs[1:], rollout.obs[-1:]])
        next_obs.flatten(0, 1)[rollout.cut_index] = rollout.cut_obs
        q = self.net(next_obs.flatten(0, 1))
        # a batch of whole episodes has no next action: its last row ends an episode
        last = rollout.action[-1] if rollout.next_action is None else rollout.next_action
        next_action = torch.cat([rollout.action[1:], last.unsqueeze(0)]).flatten(0, 1)
        # no action followed where a time limit ended an episode: sample what the policy would have done
        cut = upload(rollout.truncated.flatten().nonzero().squeeze(-1), self.context.device)
        noise = self.policy.noise(len(cut), self.context.train_generator, self.frame)
        next_action[cut] = self.policy.choose(q[cut], noise)
        return pick_value(q, self.family.to_index(next_action)).view(rollout.reward.shape)

    def calc_loss(self, obs: Tensor, action: Tensor, ret: Tensor) -> Loss:
        """Loss of a batch."""
        q = pick_value(self.net(obs), self.family.to_index(action))
        return Loss(self.loss(q, ret), {"q": q, "td_error": (q - ret).abs()})
