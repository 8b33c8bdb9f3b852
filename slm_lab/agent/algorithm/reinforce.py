"""REINFORCE (Williams 1992): the policy gradient with Monte-Carlo returns."""

import torch
from torch import Tensor

from slm_lab.agent.action.policy import build_policy
from slm_lab.agent.algorithm.base import Context, Metrics, OnPolicy
from slm_lab.agent.algorithm.loss import calc_policy_loss
from slm_lab.agent.algorithm.returns import calc_return
from slm_lab.agent.algorithm.sequence import Sequences, join, view_rollout
from slm_lab.agent.learn.gradient import Loss
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import PolicyNet
from slm_lab.lib.device import upload
from slm_lab.spec.algorithm import ReinforceSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import AgentSpec


def scale_return(ret: Tensor, center: bool) -> Tensor:
    """Returns divided by their std, minus their mean if centred; a single one is kept."""
    if len(ret) == 1:
        return ret
    scaled = ret - ret.mean() if center else ret
    std = ret.std(correction=0)
    # equal returns have no spread to divide by
    return scaled / torch.where(std > 1e-8, std, 1.0)


class Reinforce(OnPolicy[ReinforceSpec]):
    """One gradient step per batch on the returns that followed each action."""

    metric_names = ("loss", "policy_loss", "entropy", "entropy_coef", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        net, size = spec.actor, context.family.param_size
        self.net = PolicyNet(net, context.obs_shape, size, context.is_gaussian, context.parts)
        learner = self.add_learner("actor", self.net, net)
        self.step = context.build_step(self.calc_loss, learner, samples=[])
        self.explore_by(build_policy(context.family, self.config))

    def train(self, rollout: Rollout) -> Metrics:
        # there is no critic, so what follows a time limit or the batch counts as 0
        nothing = torch.zeros_like(rollout.reward)
        ret = calc_return(rollout.reward, nothing, rollout.terminated, rollout.done, self.config.gamma)
        adv = upload(scale_return(ret.flatten(), self.config.center_return), self.context.device)
        entropy_coef = calc_schedule(self.config.entropy_coef_spec, self.frame)
        obs, action = view_rollout(rollout, self.net.seq_len), rollout.action.flatten(0, 1)
        self.net.train()
        report = self.step(obs, action, adv, entropy_coef)
        self.net.eval()
        self.opt_step += 1
        return {**self.gather([report]), "entropy_coef": entropy_coef}

    def calc_loss(self, obs: Tensor | Sequences, action: Tensor, adv: Tensor, entropy_coef: float | Tensor) -> Loss:
        """Loss of a batch."""
        if isinstance(obs, Tensor):
            param = self.net(obs)
        else:
            param = join(self.net.unroll(obs.obs, obs.carry, obs.reset)[0], *obs.shape)
        entropy = self.context.family.entropy(param)
        log_prob = self.context.family.log_prob(param, action)
        policy_loss = calc_policy_loss(log_prob, adv)
        loss = self.config.policy_loss_coef * policy_loss - entropy_coef * entropy.mean()
        return Loss(loss, {"log_prob": log_prob, "entropy": entropy, "policy_loss": policy_loss})
