"""Learning from recorded steps: what its algorithms share, and behaviour cloning."""

from typing import TypeVar

import torch
from torch import Tensor

from slm_lab.agent.action.distribution import Normal
from slm_lab.agent.algorithm.base import Algorithm, Context, OffPolicy
from slm_lab.agent.learn.gradient import Loss, Report
from slm_lab.agent.memory.batch import Batch, Transition
from slm_lab.agent.memory.dataset import Dataset
from slm_lab.agent.net.model import PolicyNet
from slm_lab.env.normalize import ObsEncoder
from slm_lab.lib.due import Due
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.offline import BCSpec, OfflineSpec
from slm_lab.spec.schema import AgentSpec

OfflineConfig = TypeVar("OfflineConfig", bound=OfflineSpec)
# actions at the bounds themselves would be infinite before tanh
MAX_TANH = 1 - 1e-6


class Offline(OffPolicy[OfflineConfig]):
    """Learns from a file in place of a replay; the env is for evaluation alone."""

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        Algorithm.__init__(self, spec, context)
        family, memory = context.family, spec.memory
        if not isinstance(memory, ReplaySpec):
            raise SpecError(f"agent.memory.name: {self.config.name} draws batches as a Replay does; use Replay")
        self.replays = {}
        self.train_due = Due(1)
        if context.only_acts:
            # the file may be on another machine
            return
        self.memory = Dataset(  # type: ignore[assignment]  # of what a replay does, it samples
            self.config.data,
            context.obs_shape,
            family.action_shape,
            family.action_dtype,
            self.config.gamma,
            memory.batch_size,
            context.device,
            context.train_generator,
        )
        encoder = context.encode
        if isinstance(encoder, ObsEncoder) and encoder.stats is not None:
            # of all there will ever be
            encoder.stats.update(self.memory.obs.numpy())  # type: ignore[attr-defined]

    def observe(self, step: Transition) -> None:
        """Nothing is learned from what the env does."""

    def build_actor(self) -> None:
        """The net that acts."""
        context, actor = self.context, self.spec.actor
        size = context.family.param_size
        self.net = PolicyNet(actor, context.obs_shape, size, context.is_gaussian, context.parts)
        self.actor = self.add_learner("actor", self.net, actor)
        self.policy = context.family
        self.explore = context.build_function(self._explore, self.net)

    def to_sample(self, action: Tensor) -> Tensor:
        """Recorded actions as the policy would have sampled them."""
        if self.family.name != "TanhNormal" or not isinstance(self.family, Normal):
            return action
        return action.clamp(-MAX_TANH, MAX_TANH).atanh()


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
        """-log pi(a|s), and how far the most likely action is off: its distance, or the share of other choices."""
        param = self.net(obs)
        log_prob, entropy = self.family.log_prob_entropy(param, self.to_sample(action))
        with torch.no_grad():
            mode = self.family.to_env(self.family.mode(param.detach()))
            is_off = (mode - action).abs() if action.is_floating_point() else (mode != action).float()
        error = is_off.flatten(1).mean(-1) if is_off.dim() > 1 else is_off
        return Loss(-log_prob.mean(), {"entropy": entropy, "action_error": error})
