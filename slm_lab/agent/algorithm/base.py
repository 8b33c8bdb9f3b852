"""The contract of an algorithm, and what it is built from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.action.distribution import ActionFamily
from slm_lab.agent.action.policy import ActionPolicy
from slm_lab.agent.learn.functional import NetFunction
from slm_lab.agent.learn.gradient import ADVICE, CalcLoss, GradientStep, Guard, Report
from slm_lab.agent.learn.learner import Learner, Weights
from slm_lab.agent.learn.optim import FlatOptimizer
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.env.layout import ObsPart
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.schema import AgentSpec

Array = np.ndarray[Any, Any]
Carry = Tensor | None
Metrics = dict[str, float]
Config = TypeVar("Config", bound=AlgorithmSpec)


class Act(NamedTuple):
    """What to do in N envs, and what training needs of it."""

    # as the env takes it, and as the policy sampled it, e.g. before it is squashed into its bounds
    action: Tensor
    sample: Tensor
    # as the policy saw it
    obs: Tensor
    # the next hidden state
    carry: Carry
    # what was computed on the way, such as values
    extra: dict[str, Tensor]


@dataclass(frozen=True)
class Context:
    """What an algorithm is built from: shapes, device, random generators, and the way to normalised observations."""

    obs_shape: tuple[int, ...]
    # observations as the env gives them, as the nets see them, and the way from the one to the other
    raw_dtype: torch.dtype
    obs_dtype: torch.dtype
    encode: Callable[[Tensor], Tensor]
    frame_stack: int
    # which numbers of an observation belong to which key
    parts: tuple[ObsPart, ...]
    family: ActionFamily
    num_envs: int
    device: torch.device
    act_generator: torch.Generator
    train_generator: torch.Generator
    guard: Guard
    # whether acting and updates are compiled
    is_compiled: bool = False

    @property
    def is_gaussian(self) -> bool:
        """Whether the policy has a std."""
        return self.family.name in ("Normal", "TanhNormal")

    def build_step(self, calc_loss: CalcLoss, *learners: Learner, frozen: Iterable[Weights] = ()) -> GradientStep:
        """A gradient step on a loss of some nets; frozen nets are used by the loss, not updated."""
        return GradientStep(calc_loss, learners, list(frozen), self.is_compiled, self.guard)

    def build_function(self, function: Callable[..., Any], *nets: nn.Module) -> Callable[..., Any]:
        """A function of nets without gradient, compiled where updates are."""
        return NetFunction(function, nets) if self.is_compiled else function

    def build_setting(self, gamma: float, carry_size: int = 0) -> Setting:
        """What a replay of raw observations must know."""
        return Setting(
            self.num_envs,
            self.obs_shape,
            self.raw_dtype,
            self.family.action_shape,
            self.family.action_dtype,
            gamma,
            self.device,
            self.train_generator,
            self.frame_stack,
            carry_size,
        )


class Algorithm(ABC, Generic[Config]):
    """Acts, remembers and learns; never touches the env, the time or a file."""

    # what `update` reports, in the order of the table's columns; docs/METRICS.md explains each
    metric_names: tuple[str, ...] = ()
    # whether its memory keeps observations as the env gave them, since their normaliser moves on
    stores_raw_obs = False
    # the net that acts, how it explores, and `_explore` as `Context.build_function` made it
    net: Any
    policy: ActionPolicy
    explore: Callable[..., tuple[Tensor, Carry, Report]]

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        self.spec = spec
        self.context = context
        self.config = cast(Config, spec.algorithm)
        self.opt_step = 0
        self.frame = 0
        self.modules: dict[str, nn.Module] = {}
        self.learners: dict[str, Learner[Any]] = {}
        # memories too large to be saved whole each time; their rows are saved apart
        self.replays: dict[str, Replay] = {}
        # the batch of the last update, for algorithms that learn from each batch once
        self.rollout: Rollout | None = None

    @classmethod
    def for_actions(cls, family: ActionFamily) -> type["Algorithm[Any]"]:
        """The class for an env's actions, where an algorithm has several."""
        return cls

    # --- acting

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        """Choose actions; without `explore` the deterministic policy."""
        with torch.inference_mode():
            if not explore:
                param, next_carry = self.net.step(obs, carry)
                return self.build_act(self.context.family.mode(param), obs, next_carry)
            noise = self.policy.noise(len(obs), self.frame, self.context.act_generator)
            action, next_carry, extra = self.explore(obs, carry, noise)
            return self.build_act(action, obs, next_carry, extra if carry is None else {**extra, "carry": carry})

    def build_act(self, sample: Tensor, obs: Tensor, carry: Carry, extra: Report | None = None) -> Act:
        """An act of sampled actions."""
        return Act(self.context.family.to_env(sample), sample, obs, carry, extra or {})

    def _explore(self, obs: Tensor, carry: Carry, noise: tuple[Tensor, ...]) -> tuple[Tensor, Carry, Report]:
        """Actions made of random numbers, the next hidden state, and what training needs of the policy as it is now."""
        param, next_carry = self.net.step(obs, carry)
        return self.policy.choose(param, noise), next_carry, {}

    def init_carry(self, num_envs: int) -> Carry:
        """Hidden state at the start of episodes; None for nets without one."""
        carry: Carry = self.net.init_carry(num_envs)
        return carry

    # --- learning

    @abstractmethod
    def observe(self, step: Transition) -> None:
        """Remember one step of all envs."""

    @abstractmethod
    def update(self, frame: int) -> Metrics | None:
        """Train if training is due; None otherwise."""

    @property
    def optimizers(self) -> dict[str, FlatOptimizer]:
        """Optimisers by role."""
        return {name: learner.optimizer for name, learner in self.learners.items()}

    @property
    def lr(self) -> float:
        """Mean learning rate over the optimisers."""
        rates = [optimizer.lr.value for optimizer in self.optimizers.values()]
        return sum(rates) / len(rates) if rates else math.nan

    def _set_lr(self, frame: int) -> None:
        """Learning rates of an update."""
        for learner in self.learners.values():
            learner.optimizer.set_frame(frame)

    def gather(self, reports: Sequence[Report]) -> Metrics:
        """Metrics of one update from the reports of its gradient steps."""
        return gather_metrics(self.metric_names, reports, self.frame)

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Everything resuming needs."""
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "opt_step": self.opt_step,
            "frame": self.frame,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""
        self.load_weights(state["modules"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.opt_step = int(state["opt_step"])
        self.frame = int(state["frame"])

    def load_weights(self, modules: dict[str, Any]) -> None:
        """Take the weights of the nets alone."""
        for name, module in self.modules.items():
            module.load_state_dict(modules[name])


@torch.no_grad()
def gather_metrics(names: Iterable[str], reports: Sequence[Report], frame: int) -> Metrics:
    """Means of named parts over the gradient steps of one update; floats leave the device here, once."""
    known = [name for name in names if name in reports[0]]
    parts = [report[name] for report in reports for name in known]
    table = torch.stack([part.mean() if part.dim() else part for part in parts]).view(len(reports), len(known))
    metrics = dict(zip(known, table.mean(0).tolist(), strict=True))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DivergenceError(f"{name} became {value} in the training at frame {frame}; {ADVICE}")
    return metrics
