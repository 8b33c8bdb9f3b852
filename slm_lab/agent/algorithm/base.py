"""The contract of an algorithm, and what it is given."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.algorithm.policy import ActionFamily
from slm_lab.agent.memory.batch import Batch, Rollout, Transition
from slm_lab.agent.memory.build import build_replay
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.functional import NetFunction
from slm_lab.agent.net.gradient import ADVICE, CalcLoss, GradientStep, Guard
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.env.layout import ObsPart
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.memory import MemorySpec
from slm_lab.spec.schema import AgentSpec

Array = np.ndarray[Any, Any]
Carry = Tensor | None
Metrics = dict[str, float]


class Act(NamedTuple):
    """Actions (N, ...), the hidden state to go on with, and what was computed on the way and will be needed again."""

    action: Tensor
    carry: Carry
    extra: dict[str, Tensor]


class Trace:
    """What a loss computes on the way, by name and in order, while the cause of a fault is looked for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensor]] | None = None

    def __call__(self, name: str, tensor: Tensor) -> None:
        """Keep a tensor, if anyone looks."""
        if self.seen is not None:
            self.seen.append((name, tensor.detach()))


@dataclass(frozen=True)
class Context:
    """The outside of an algorithm: shapes, device and random generators."""

    obs_shape: tuple[int, ...]
    # observations as the env gives them, as the nets see them, and the way from the one to the other
    raw_dtype: torch.dtype
    obs_dtype: torch.dtype
    encode: Callable[[Tensor], Tensor]
    frame_stack: int
    # what the numbers of an observation are
    parts: tuple[ObsPart, ...]
    family: ActionFamily
    num_envs: int
    device: torch.device
    act_generator: torch.Generator
    train_generator: torch.Generator
    # whether what is computed again and again is compiled
    is_compiled: bool = False
    trace: Trace = field(default_factory=Trace)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guard", Guard(self.device))

    @property
    def is_gaussian(self) -> bool:
        """Whether the policy has a std."""
        return self.family.name in ("Normal", "TanhNormal")

    def build_step(
        self,
        calc_loss: CalcLoss,
        net: nn.Module,
        optimizers: Iterable[FlatOptimizer],
        frozen: Mapping[nn.Module, FlatParams] | None = None,
    ) -> GradientStep:
        """A gradient step on a loss of a net, and of nets that it goes through without teaching them."""
        return GradientStep(calc_loss, net, list(optimizers), frozen, self.is_compiled, self.guard)

    def build_function(self, function: Callable[..., Any], *nets: nn.Module) -> NetFunction:
        """A function of nets that teaches them nothing."""
        return NetFunction(function, nets, self.is_compiled)

    def build_replay(self, spec: MemorySpec, gamma: float, carry_size: int = 0) -> Replay:
        """A replay of raw observations."""
        setting = Setting(
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
        return build_replay(spec, setting)

    def encode_batch(self, batch: Batch) -> Batch:
        """A batch of a replay as the nets see it."""
        return batch._replace(obs=self.encode(batch.obs), next_obs=self.encode(batch.next_obs))


class Algorithm(ABC):
    """Acts, remembers and learns; never touches the env, the clock or a file."""

    # what `update` reports, in the order of the table's columns; docs/METRICS.md explains each
    metric_names: tuple[str, ...] = ()
    # a replay keeps observations as the env gave them, since their normaliser moves on
    stores_raw_obs = False
    # values of actions need one number for every combination of several choices
    has_joint_actions = False
    # steps by which the last row of a rollout is older than the training
    row_delay = 0
    # whether continuous actions are kept within their bounds by the policy itself
    has_squashed_actions = False

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        self.spec = spec
        self.context = context
        self.opt_step = 0
        self.frame = 0
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, FlatOptimizer] = {}
        # memories too large to be saved whole each time; their rows are saved apart
        self.replays: dict[str, Replay] = {}
        # what the last training was made of, for algorithms that learn from each batch once
        self.rollout: Rollout | None = None

    @abstractmethod
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        """Choose actions; without `explore` the deterministic policy."""

    @abstractmethod
    def observe(self, step: Transition) -> None:
        """Remember one step of all envs."""

    @abstractmethod
    def update(self, frame: int) -> Metrics | None:
        """Train if training is due; None otherwise."""

    def init_carry(self, num_envs: int) -> Carry:
        """Hidden state at the start of episodes; None for nets without one."""
        return None

    @property
    def lr(self) -> float:
        """Mean learning rate over the optimisers."""
        rates = [optimizer.lr.value for optimizer in self.optimizers.values()]
        return sum(rates) / len(rates) if rates else float("nan")

    def memory_state(self) -> dict[str, Any]:
        """State of the memory."""
        return {}

    def load_memory_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (not every algorithm has a memory)
        """Continue with a saved memory."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "memory": self.memory_state(),
            "opt_step": self.opt_step,
            "frame": self.frame,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.load_weights(state["modules"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.load_memory_state(state["memory"])
        self.opt_step = int(state["opt_step"])
        self.frame = int(state["frame"])

    def load_weights(self, modules: dict[str, Any]) -> None:
        """Take the weights of the nets alone."""
        for name, module in self.modules.items():
            module.load_state_dict(modules[name])


@torch.no_grad()
def gather_metrics(rows: list[dict[str, Tensor]], frame: int) -> Metrics:
    """Means over the gradient steps of one training; floats leave the device here, once."""
    names = list(rows[0])
    table = torch.stack([row[name] for row in rows for name in names]).view(len(rows), len(names))
    metrics = dict(zip(names, table.mean(0).tolist(), strict=True))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DivergenceError(f"{name} became {value} in the training at frame {frame}; {ADVICE}")
    return metrics
