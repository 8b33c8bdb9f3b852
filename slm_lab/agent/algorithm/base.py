"""The interface of an algorithm, what it is built from, and the bases of on-policy and off-policy algorithms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from slm_lab.agent.action.distribution import ActionFamily
from slm_lab.agent.action.mask import ActionMask
from slm_lab.agent.action.policy import Policy
from slm_lab.agent.action.sde import StateNoise
from slm_lab.agent.algorithm.curiosity import RND_METRICS, Curiosity
from slm_lab.agent.learn.functional import NetFunction
from slm_lab.agent.learn.gradient import ADVICE, MEAN, CalcLoss, GradientStep, Guard, Report
from slm_lab.agent.learn.learner import Learner, Net, Target, Weights
from slm_lab.agent.learn.optim import FlatOptimizer
from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.build import build_on_policy, build_replay
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.agent.memory.rollout import RolloutSetting
from slm_lab.agent.net.model import OutputNet
from slm_lab.env.goal import Goal
from slm_lab.env.layout import ObsPart
from slm_lab.lib.data import State
from slm_lab.lib.due import Due
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.algorithm import AlgorithmSpec, OffPolicySpec, OnPolicySpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.schema import AgentSpec

Carry = Tensor | None
Metrics = dict[str, float]
Config = TypeVar("Config", bound=AlgorithmSpec)
RolloutConfig = TypeVar("RolloutConfig", bound=OnPolicySpec)
ReplayConfig = TypeVar("ReplayConfig", bound=OffPolicySpec)


class Act(NamedTuple):
    """Actions for N envs, and what training needs to know about them."""

    # in the range that envs of the lab take, and as the policy sampled them, e.g. before tanh
    action: Tensor
    sample: Tensor
    # encoded, as the policy saw them
    obs: Tensor
    # the next hidden state
    carry: Carry
    # numbers that training needs, such as values and log probabilities
    extra: dict[str, Tensor]


@dataclass(frozen=True)
class Context:
    """What an algorithm is built from: shapes, device, random generators, and what normalises what it samples."""

    obs_shape: tuple[int, ...]
    # types of raw and of encoded observations, and what encodes them
    raw_dtype: torch.dtype
    obs_dtype: torch.dtype
    encode: Callable[[Tensor], Tensor]
    # rewards of a replay as it learns from them
    finish_reward: Callable[[Tensor], Tensor]
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
    # reads the allowed actions from observations; policies and action values are limited to them
    mask: ActionMask | None = None
    # the env's goals, for a memory that relabels them
    goal: Goal | None = None
    # whether it plays without learning: no memory is built and no data is read
    only_acts: bool = False

    @property
    def is_gaussian(self) -> bool:
        """Whether the policy has a std."""
        return self.family.name in ("Normal", "TanhNormal")

    def build_step(
        self,
        calc_loss: CalcLoss,
        *learners: Learner,
        frozen: Iterable[Weights] = (),
        samples: Sequence[str] | None = None,
    ) -> GradientStep:
        """A gradient step on a loss of some nets; frozen nets are used by the loss, not updated.

        `samples` names the entries of the loss's report that are needed for each sample. Of the others a compiled step
        returns the mean only, which is less to copy; None keeps all of them.
        """
        return GradientStep(calc_loss, learners, list(frozen), self.is_compiled, self.guard, samples)

    def draw_random(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Uniformly random actions, of those allowed, for observations (N, ...)."""
        return self.family.random(len(obs), generator) if self.mask is None else self.mask.random(obs, generator)

    def build_function(self, function: Callable[..., Any], *nets: nn.Module) -> Callable[..., Any]:
        """A function of nets without gradient, compiled if updates are."""
        return NetFunction(function, nets) if self.is_compiled else function

    def build_setting(self, gamma: float, carry_size: int = 0) -> Setting:
        """The setting of a replay of raw observations."""
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
            self.is_compiled,
            self.goal,
        )


class Algorithm(ABC, Generic[Config]):
    """Acts, remembers and learns; never touches the env, the time or a file."""

    # what `update` reports, in the order of the table's columns; docs/METRICS.md explains each
    metric_names: tuple[str, ...] = ()
    # whether its memory keeps raw observations and rewards, because their normalisers keep changing
    stores_raw = False
    # the net that acts, how it explores, and `_explore`, compiled if updates are
    net: Any
    policy: Policy
    explore: Callable[..., tuple[Tensor, Carry, Report]]

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        self.spec = spec
        self.context = context
        self.config = cast(Config, spec.algorithm)
        # the distribution whose parameters the net gives
        self.family: Any = context.family
        self.opt_step = 0
        self.frame = 0
        self.modules: dict[str, nn.Module] = {}
        self.learners: dict[str, Learner[Any]] = {}
        self.targets: list[Target[Any]] = []
        # memories too large to be saved whole at each checkpoint; their rows are saved as they come
        self.replays: dict[str, Replay] = {}
        # the batch of the last update of on-policy algorithms, for the diagnosis of a fault
        self.rollout: Rollout | None = None
        # noise that depends on the state (gSDE), if the policy explores with it
        self.sde: StateNoise | None = None

    @classmethod
    def for_actions(cls, family: ActionFamily) -> type["Algorithm[Any]"]:
        """The class for an env's actions, if an algorithm has one for each kind."""
        return cls

    def add_learner(self, name: str, net: Net, spec: NetSpec, has_target: bool = False) -> Learner[Net]:
        """A net that is trained, saved and resumed under a name; its target, if it has one, as `target_<name>`."""
        guard = self.context.guard
        learner = Learner(net, spec, self.context.device, has_target, guard.is_ok if guard.is_deferred else None)
        self.learners[name] = learner
        self.modules[name] = net
        for target in learner.targets:
            self.modules[f"target_{name}"] = target.net
            self.targets.append(target)
        return learner

    def explore_by(self, policy: Policy) -> None:
        """How `self.net` acts while training; compiled if updates are."""
        self.policy = policy
        self.explore = self.context.build_function(self._explore, self.net)

    def with_sde(self, policy: Policy, actor: OutputNet) -> Policy:
        """The policy, or its gSDE form if the config asks for it."""
        spec, context = self.config.state_noise, self.context
        if spec is None:
            return policy
        sizes = (context.num_envs, actor.linear.in_features)
        self.sde = StateNoise(context.family, *sizes, spec.sample_frequency, context.act_generator)
        return self.sde

    # --- acting

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        """Choose actions; without `explore` the deterministic policy."""
        with torch.inference_mode():
            if not explore:
                param, next_carry = self.net.step(obs, carry)
                return self.build_act(self.family.mode(param), obs, next_carry)
            noise = self.policy.noise(len(obs), self.context.act_generator, self.frame)
            action, next_carry, extra = self.explore(obs, carry, noise)
            if self.context.only_acts and self.sde is not None:
                # elsewhere `observe` counts the steps that noise is held for; nothing is observed here
                self.sde.advance()
            return self.build_act(action, obs, next_carry, extra if carry is None else {**extra, "carry": carry})

    def build_act(self, sample: Tensor, obs: Tensor, carry: Carry, extra: Report | None = None) -> Act:
        """Sampled actions as an `Act`."""
        return Act(self.family.to_env(sample), sample, obs, carry, extra or {})

    def _explore(self, obs: Tensor, carry: Carry, noise: Any) -> tuple[Tensor, Carry, Report]:
        """Actions from given noise, the next hidden state, and what training needs to know of the current policy."""
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

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        """End the episodes under way at encoded observations (N, ...): the next step is of other ones.

        Nothing to do without a memory.
        """

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
        rates = [optimizer.lr for optimizer in self.optimizers.values()]
        return sum(rates) / len(rates) if rates else math.nan

    @torch.no_grad()
    def gather(self, reports: Sequence[Report], **whole: Tensor) -> Metrics:
        """Means of the metrics over the gradient steps of one update; `whole` are metrics of all steps together.

        The only place where metrics leave the device, in one transfer.
        """
        known = [name for name in self.metric_names if name in reports[0]]
        # compiled steps compute the means of samples themselves
        rows = [[report[mean if (mean := name + MEAN) in report else name] for name in known] for report in reports]
        if any(isinstance(part, float) for part in rows[0]):
            # steps compiled for a CPU: most numbers are on the host already
            numbers = [sum(map(_to_float, column)) / len(rows) for column in zip(*rows, strict=True)]
            numbers += map(float, whole.values())
        else:
            means = torch.stack([part.mean() if part.dim() else part for row in rows for part in row])
            if len(rows) > 1:
                means = means.view(len(rows), len(known)).mean(0)
            numbers = torch.cat([means, *(part.view(1) for part in whole.values())]).tolist()
        metrics = dict(zip([*known, *whole], numbers, strict=True))
        for name in known:
            if not math.isfinite(value := metrics[name]):
                raise DivergenceError(f"{name} became {value} in the training at frame {self.frame}; {ADVICE}")
        return metrics

    # --- state

    def state_dict(self) -> State:
        """Everything resuming needs."""
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "opt_step": self.opt_step,
            "frame": self.frame,
            **({} if self.sde is None else {"sde": self.sde.state_dict()}),
        }

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state."""
        self.load_weights(state["modules"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.opt_step = int(state["opt_step"])
        self.frame = int(state["frame"])
        if self.sde is not None:
            self.sde.load_state_dict(state["sde"])

    def estimate_growth(self, num_frame: int) -> int:
        """About how many bytes `state_dict` grows by within `num_frame` frames."""
        return sum(replay.estimate_growth(num_frame) for replay in self.replays.values())

    def load_weights(self, modules: dict[str, Any]) -> None:
        """Take the weights of the nets alone."""
        for name, module in self.modules.items():
            saved = modules[name]
            known = module.state_dict()
            if saved.keys() != known.keys() and len(saved) == len(known):
                # version 0.1 had other names for the layers of an MLP, in the same order
                saved = dict(zip(known, saved.values(), strict=True))
            module.load_state_dict(saved)


def _to_float(part: float | Tensor) -> float:
    if isinstance(part, float):
        return part
    return float(part.mean() if part.dim() else part)


class Auxiliary(Protocol):
    """An additional way to learn from the same steps, such as self-imitation."""

    def observe(self, step: Transition) -> None:
        """Remember one step of all envs."""

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        """End the episodes under way."""

    def update(self, frame: int) -> Metrics:
        """Train after the algorithm has."""

    def state_dict(self) -> State:
        """Everything resuming needs."""

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state."""


class OnPolicy(Algorithm[RolloutConfig]):
    """Trains on each batch of steps as soon as it is full."""

    def __init__(self, spec: AgentSpec, context: Context, waits: bool = False) -> None:
        super().__init__(spec, context)
        setting = RolloutSetting(context.num_envs, context.device, self.config.batch_frequency, context.encode, waits)
        if not context.only_acts:
            self.memory = build_on_policy(spec.memory, setting)
        self.auxiliary: Auxiliary | None = None
        self.curiosity = None if context.only_acts else self._build_curiosity()
        if self.curiosity is not None:
            self.metric_names = (*self.metric_names, *RND_METRICS)

    def _build_curiosity(self) -> Curiosity | None:
        context, config = self.context, self.config.rnd
        if config is None:
            return None
        return Curiosity(
            config,
            self.spec.actor,
            context.obs_shape,
            context.parts,
            context.num_envs,
            context.device,
            context.train_generator,
            context.guard,
            context.is_compiled,
        )

    def observe(self, step: Transition) -> None:
        if self.curiosity is not None:
            step = self.curiosity.add_bonus(step, self.context.encode(step.next_obs))
        self.memory.add(step)
        if self.auxiliary is not None:
            self.auxiliary.observe(step)
        if self.sde is not None:
            self.sde.advance()

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        self.memory.break_off(obs, carry)
        if self.auxiliary is not None:
            self.auxiliary.break_off(obs, carry)

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if not self.memory.is_ready:
            return None
        for learner in self.learners.values():
            learner.optimizer.set_frame(frame)
        self.rollout = self.memory.sample()
        metrics = self.train(self.rollout)
        if self.curiosity is not None:
            metrics |= {"rnd_bonus": self.curiosity.take_bonus()}
            metrics |= self.gather(self.curiosity.train(self.rollout, frame))
        return metrics if self.auxiliary is None else {**metrics, **self.auxiliary.update(frame)}

    @abstractmethod
    def train(self, rollout: Rollout) -> Metrics:
        """Update the net on a batch."""

    def state_dict(self) -> State:
        auxiliary = None if self.auxiliary is None else self.auxiliary.state_dict()
        curiosity = {} if self.curiosity is None else {"curiosity": self.curiosity.state_dict()}
        return {**super().state_dict(), "memory": self.memory.state_dict(), "auxiliary": auxiliary, **curiosity}

    def estimate_growth(self, num_frame: int) -> int:
        context = self.context
        obs = math.prod(context.obs_shape) * context.obs_dtype.itemsize
        # action, reward, ends, value and log probability
        row = obs + 8 * math.prod(context.family.action_shape) + 14
        if self.config.rnd is not None:
            row += 4 * math.prod(context.obs_shape)  # the successor, as the nets see it
        return super().estimate_growth(num_frame) + self.memory.typical_size * context.num_envs * row

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])
        if self.curiosity is not None:
            self.curiosity.load_state_dict(state["curiosity"])


class OffPolicy(Algorithm[ReplayConfig]):
    """Trains on batches of past steps every few frames; targets follow their nets."""

    stores_raw = True

    def __init__(self, spec: AgentSpec, context: Context, carry_size: int = 0) -> None:
        super().__init__(spec, context)
        if not context.only_acts:
            self.memory = self.build_memory(carry_size)
        self.train_due = Due(self.config.training_frequency)

    def build_memory(self, carry_size: int) -> Replay:
        """What batches are sampled from."""
        memory = build_replay(self.spec.memory, self.context.build_setting(self.config.gamma, carry_size))
        self.replays = {"memory": memory}
        return memory

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if explore and self.config.starts_random and self.frame < self.config.training_start_step:
            return self.build_act(self.context.draw_random(obs, self.context.act_generator), obs, carry)
        return super().act(obs, carry, explore)

    def observe(self, step: Transition) -> None:
        self.memory.add(step)
        if self.sde is not None:
            self.sde.advance()

    def break_off(self, obs: Tensor, carry: Carry) -> None:
        self.memory.break_off()

    @property
    def is_ready(self) -> bool:
        """Whether the memory holds enough to learn from."""
        return self.frame > self.config.training_start_step

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        for target in self.targets:
            # at every step, not at every training: a resumed run then replaces it at the same frames
            target.replace_if_due(frame)
        if not self.train_due(frame) or not self.is_ready:
            return None
        for learner in self.learners.values():
            learner.optimizer.set_frame(frame)
        reports: list[Report] = []
        for _ in range(self.config.training_iter):
            reports += self.train(self.sample())
        return self.gather(reports)

    def sample(self) -> Any:
        """A batch as the nets see it."""
        batch, context = self.memory.sample(self.frame), self.context
        obs, next_obs = context.encode(batch.obs), context.encode(batch.next_obs)
        return batch._replace(obs=obs, reward=context.finish_reward(batch.reward), next_obs=next_obs)

    @abstractmethod
    def train(self, batch: Any) -> Sequence[Report]:
        """Update the nets on a batch; a report for each gradient step."""

    def state_dict(self) -> State:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        self.train_due.skip_to(self.frame)
        for target in self.targets:
            target.skip_to(self.frame)
