"""Random network distillation (Burda et al. 2018): a bonus for observations that are unlike those seen before."""

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.learn.functional import NetFunction
from slm_lab.agent.learn.gradient import GradientStep, Guard, Loss, Report
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.net.model import OutputNet
from slm_lab.agent.net.parts import Parts
from slm_lab.env.normalize import RewardScaler, RunningStats
from slm_lab.lib.data import State
from slm_lab.lib.device import upload
from slm_lab.spec.algorithm import RNDSpec
from slm_lab.spec.net import (
    ConvNetSpec,
    DictNetSpec,
    MLPBodySpec,
    NetSpec,
    TorchArcNetSpec,
)

RND_METRICS = ("rnd_bonus", "rnd_loss")
# of a rollout: what each step led to, as the nets see it
SUCCESSOR = "successor"
# whitened observations are clipped here, as in the paper
MAX_OBS = 5.0
EPS = 1e-8


def without_division(net: NetSpec) -> NetSpec:
    """The same net for whitened images, which are not to be divided by 255."""
    if isinstance(net, DictNetSpec):
        encoders = {
            name: one if isinstance(one, MLPBodySpec) else one.model_copy(update={"normalize": False})
            for name, one in net.encoders.items()
        }
        return net.model_copy(update={"encoders": encoders})
    if isinstance(net, (ConvNetSpec, TorchArcNetSpec)):
        return net.model_copy(update={"normalize": False})
    return net


class Curiosity:
    """A net that learns to predict a random one, and its errors as bonuses.

    It predicts well what it has seen often. Errors are divided by the running std of their discounted sum and added to
    the rewards. As in the paper that sum runs on across episodes; unlike there, bonus and reward share one value
    function, so values of both end with the task.
    """

    def __init__(
        self,
        config: RNDSpec,
        net: NetSpec,
        obs_shape: tuple[int, ...],
        parts: Parts,
        num_envs: int,
        device: torch.device,
        generator: torch.Generator,
        guard: Guard,
        is_compiled: bool,
    ) -> None:
        self.config = config
        self.generator = generator
        # actors start with small outputs, and may bound them; features to predict must differ from the start
        net = without_division(net).model_copy(update={"init_std": None, "out_layer_activation": None})
        nets = [OutputNet(net, obs_shape, config.feature_size, parts=parts) for _ in range(2)]
        self.random, self.learner = (Learner(each, net, device) for each in nets)
        self.stats = RunningStats(obs_shape)
        self.scaler = RewardScaler(num_envs, config.gamma, 1.0, normalize=True, clip=None)
        self.step = GradientStep(self.calc_loss, (self.learner,), [self.random], is_compiled, guard, [])
        modules = [self.learner.net, self.random.net]
        self.calc_error = NetFunction(self._calc_error, modules) if is_compiled else self._calc_error
        self.bonus_sum, self.bonus_count = 0.0, 0

    def whiten(self, obs: Tensor) -> Tensor:
        """Observations with mean 0 and std 1 over all that were seen, clipped."""
        moments = (self.stats.mean, self.stats.var)
        mean, var = (upload(torch.as_tensor(part, dtype=torch.float32), obs.device) for part in moments)
        return ((obs.float() - mean) / torch.sqrt(var + EPS)).clamp(-MAX_OBS, MAX_OBS)

    def _calc_error(self, obs: Tensor) -> Tensor:
        """Squared distance of the prediction (B,)."""
        return (self.learner.net(obs) - self.random.net(obs)).square().mean(-1)

    def calc_loss(self, obs: Tensor) -> Loss:
        """The mean error of a batch."""
        error = self._calc_error(obs)
        return Loss(error.mean(), {"error": error})

    def add_bonus(self, step: Transition, next_obs: Tensor) -> Transition:
        """A step with its rewards raised, and with `next_obs`, which is as the nets see it."""
        self.stats.update(next_obs.numpy(force=True))
        with torch.inference_mode():
            error = self.calc_error(self.whiten(next_obs))
        never = np.zeros(len(error), bool)  # the sum of errors does not end with an episode
        bonus = self.scaler(error.numpy(force=True).astype(np.float64), never)
        self.bonus_sum += float(bonus.mean())
        self.bonus_count += 1
        reward = step.reward + self.config.coef * torch.as_tensor(bonus, dtype=torch.float32)
        return step._replace(reward=reward, extra={**step.extra, SUCCESSOR: next_obs})

    def take_bonus(self) -> float:
        """The mean bonus since the last call."""
        bonus = self.bonus_sum / max(1, self.bonus_count)
        self.bonus_sum, self.bonus_count = 0.0, 0
        return bonus

    def train(self, rollout: Rollout, frame: int) -> list[Report]:
        """One pass over the observations that earned a bonus, the last ones of episodes included."""
        self.learner.optimizer.set_frame(frame)
        obs = rollout.extra[SUCCESSOR].flatten(0, 1)
        size = min(self.config.batch_size, len(obs))
        order = torch.randperm(len(obs), generator=self.generator, device=obs.device)
        self.learner.net.train()
        # what does not fill a batch is left out: a smaller one would be compiled again, for its shape
        reports = [self.step(self.whiten(obs[order[at : at + size]])) for at in range(0, len(obs) - size + 1, size)]
        self.learner.net.eval()
        # the loss and the gradient norm in the table are the algorithm's own
        return [{"rnd_loss": report["loss"]} for report in reports]

    def state_dict(self) -> State:
        """Nets, optimiser and statistics."""
        return {
            "nets": [learner.net.state_dict() for learner in (self.random, self.learner)],
            "optimizer": self.learner.optimizer.state_dict(),
            "stats": self.stats.state_dict(),
            "scaler": self.scaler.state_dict(),
            "bonus": [self.bonus_sum, self.bonus_count],
        }

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state."""
        for learner, saved in zip((self.random, self.learner), state["nets"], strict=True):
            learner.net.load_state_dict(saved)
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.stats.load_state_dict(state["stats"])
        self.scaler.load_state_dict(state["scaler"])
        self.bonus_sum, self.bonus_count = float(state["bonus"][0]), int(state["bonus"][1])
