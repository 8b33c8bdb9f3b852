"""Offline algorithms: their base, which learns from recorded steps, and behaviour cloning."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Carry, Context, OffPolicy
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch, Transition
from slm_lab.agent.memory.dataset import Dataset
from slm_lab.agent.net.model import PolicyNet
from slm_lab.env.normalize import ObsEncoder
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.offline import BCSpec, OfflineSpec
from slm_lab.spec.schema import AgentSpec

OfflineConfig = TypeVar("OfflineConfig", bound=OfflineSpec)
# recorded observations converted to double precision at a time
CHUNK_ROWS = 65_536


class Offline(OffPolicy[OfflineConfig]):
    """Learns from recorded steps instead of a replay; the env is used for evaluation only."""

    def build_memory(self, carry_size: int) -> Any:
        """The recorded steps: a replay that is only sampled from."""
        context, memory = self.context, self.spec.memory
        assert isinstance(memory, ReplaySpec), memory  # the spec is checked
        data = Dataset(
            self.config.data,
            context.obs_shape,
            context.family.action_shape,
            context.family.action_dtype,
            self.config.gamma,
            memory.batch_size,
            context.device,
            context.train_generator,
            self.config.needs,
        )
        encoder = context.encode
        if isinstance(encoder, ObsEncoder) and encoder.stats is not None:
            # over the whole dataset; in double precision, since millions of rows are summed
            for rows in data.obs.split(CHUNK_ROWS):
                encoder.stats.update(rows.double().numpy())
        return data

    def observe(self, step: Transition) -> None:
        """Nothing: steps of the env are not learned from."""

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        """Nothing, as above."""

    def build_actor(self) -> None:
        """The net that acts."""
        context, actor = self.context, self.spec.actor
        size = context.family.param_size
        self.net = PolicyNet(actor, context.obs_shape, size, context.is_gaussian, context.parts)
        self.actor = self.add_learner("actor", self.net, actor)
        self.explore_by(context.family)


class BC(Offline[BCSpec]):
    """Behaviour cloning: maximises the likelihood of the recorded actions."""

    metric_names: tuple[str, ...] = ("loss", "entropy", "action_error", "grad_norm")

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        self.build_actor()
        self.step = context.build_step(self.calc_loss, self.actor, samples=[])

    def train(self, batch: Batch) -> list[Report]:
        self.net.train()
        report = self.step(batch.obs, batch.action)
        self.net.eval()
        self.opt_step += 1
        return [report]

    def calc_loss(self, obs: Tensor, action: Tensor) -> Loss:
        """-log pi(a|s); `action_error` is the distance of the most likely action, or how often it is another choice."""
        param = self.net(obs)
        log_prob, entropy = self.family.log_prob_entropy(param, self.family.from_env(action))
        with torch.no_grad():
            mode = self.family.to_env(self.family.mode(param.detach()))
            is_off = (mode - action).abs() if action.is_floating_point() else (mode != action).float()
        error = is_off.flatten(1).mean(-1) if is_off.dim() > 1 else is_off
        return Loss(-log_prob.mean(), {"entropy": entropy, "action_error": error})
