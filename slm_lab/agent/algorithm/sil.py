"""Self-imitation learning (Oh et al. 2018): actor-critic or PPO that also imitates its own better past."""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.actor_critic import ActorCritic
from slm_lab.agent.algorithm.base import Carry, Context, Metrics
from slm_lab.agent.algorithm.ppo import PPO
from slm_lab.agent.algorithm.returns import calc_return
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch, Rollout, Transition
from slm_lab.agent.memory.build import build_replay
from slm_lab.agent.memory.rollout import OnPolicyReplay, RolloutSetting
from slm_lab.lib.data import State
from slm_lab.spec.algorithm import SelfImitationSpec
from slm_lab.spec.memory import OnPolicyReplaySpec
from slm_lab.spec.schema import AgentSpec

SIL_METRICS = ("sil_policy_loss", "sil_val_loss", "sil_gain")


def calc_gain(ret: Tensor, value: Tensor) -> Tensor:
    """(R - V)+: how much better a step turned out than it is valued."""
    return (ret - value).clamp(min=0)


def calc_sil_losses(log_prob: Tensor, value: Tensor, ret: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Policy loss (eq. 2), value loss (eq. 3) and the gains (B,)."""
    gain = calc_gain(ret, value)
    policy_loss = -(weight * log_prob * gain.detach()).mean()
    val_loss = 0.5 * (weight * gain.square()).mean()
    return policy_loss, val_loss, gain.detach()


class SelfImitation:
    """Keeps the steps of finished episodes with their returns, and imitates those that beat the agent's values."""

    def __init__(self, agent: ActorCritic | PPO, config: SelfImitationSpec, context: Context) -> None:
        self.agent = agent
        self.config = config
        self.context = context
        self.gamma = agent.config.gamma
        self.episodes = OnPolicyReplay(
            OnPolicyReplaySpec(), RolloutSetting(context.num_envs, context.device, 1, context.encode)
        )
        # each step is kept as an episode of its own, whose reward is its return
        setting = context.build_setting(self.gamma)
        self.memory = build_replay(
            config.sil_memory, replace(setting, num_envs=1, obs_dtype=context.obs_dtype, frame_stack=1)
        )
        self.step = context.build_step(self.calc_loss, *agent.learners.values(), samples=["sil_gain"])

    def observe(self, step: Transition) -> None:
        """Collect the episodes under way; those that ended enter the memory."""
        self.episodes.add(step._replace(extra={}))
        if self.episodes.is_ready:
            self._keep(self.episodes.sample())

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        """End the episodes under way; what is known of them enters the memory with the next step."""
        self.episodes.break_off(obs, carry)

    def _keep(self, rollout: Rollout) -> None:
        """Store each step with the return that followed in its episode; after a time limit V replaces the rest."""
        next_value = torch.zeros_like(rollout.reward)
        if len(rollout.cut_index):
            with torch.inference_mode():
                next_value.view(-1)[rollout.cut_index.cpu()] = self.agent.net.value(rollout.cut_obs).cpu()
        ret = calc_return(rollout.reward, next_value, rollout.terminated, rollout.done, self.gamma)
        ended, ongoing = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
        for obs, action, one in zip(rollout.obs, rollout.action, ret, strict=True):
            self.memory.add(Transition(obs, action, one, ended, ongoing, obs, {}))

    def calc_loss(self, batch: Batch) -> Loss:
        """Imitation loss of past steps (eq. 1), and the gain of each (B,)."""
        param, value = self.agent.net(batch.obs)
        log_prob = self.context.family.log_prob(param, batch.action)
        policy_loss, val_loss, gain = calc_sil_losses(log_prob, value, batch.reward, batch.weight)
        loss = self.config.sil_policy_loss_coef * policy_loss + self.config.sil_val_loss_coef * val_loss
        own = dict(zip(SIL_METRICS, (policy_loss, val_loss, gain), strict=True))
        return Loss(loss, {"value": value, "log_prob": log_prob, **own})

    def update(self, frame: int) -> Metrics:
        """Imitate batches of past steps; nothing to report before the first episode has ended."""
        agent = self.agent
        reports: list[Report] = []
        if not self.memory.size:
            return {}
        for _ in range(self.config.training_iter):
            batch = self.memory.sample(frame)
            for _ in range(self.config.training_batch_iter):
                agent.net.train()
                report = self.step(batch)
                agent.net.eval()
                agent.opt_step += 1
                reports.append({name: report[name] for name in SIL_METRICS})
            self.memory.update_priority(batch.slot, report["sil_gain"])
        return agent.gather(reports)

    def state_dict(self) -> State:
        """Episodes under way and the small state of the memory; its rows are saved apart."""
        return {"episodes": self.episodes.state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state."""
        self.episodes.load_state_dict(state["episodes"])
        self.memory.load_state_dict(state["memory"])


def add_imitation(agent: ActorCritic | PPO) -> None:
    """Have an agent imitate its own good steps, unless it only acts."""
    if not agent.context.only_acts:
        imitation = SelfImitation(agent, cast(SelfImitationSpec, agent.spec.algorithm), agent.context)
        agent.auxiliary, agent.replays = imitation, {"sil": imitation.memory}


class SIL(ActorCritic):
    """Actor-critic with self-imitation."""

    metric_names = (*ActorCritic.metric_names, *SIL_METRICS)

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        add_imitation(self)


class PPOSIL(PPO):
    """PPO with self-imitation."""

    metric_names = (*PPO.metric_names, *SIL_METRICS)

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        add_imitation(self)
