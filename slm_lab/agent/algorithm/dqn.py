"""Q-learning with a net and a replay: vanilla, DQN (Mnih et al. 2015) and double DQN (van Hasselt et al. 2016)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics, gather_metrics
from slm_lab.agent.algorithm.loss import ELEMENT_LOSSES
from slm_lab.agent.algorithm.policy import ActionPolicy, Categorical
from slm_lab.agent.memory.batch import Batch, SequenceBatch, Transition
from slm_lab.agent.net.flat import FlatParams
from slm_lab.agent.net.optim import FlatOptimizer
from slm_lab.agent.net.parts import for_acting
from slm_lab.agent.net.target import Target
from slm_lab.agent.net.value import QNet
from slm_lab.lib.due import Due
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import DoubleDQNSpec, DQNSpec, VanillaDQNSpec
from slm_lab.spec.net import RecurrentNetSpec
from slm_lab.spec.schema import AgentSpec


def calc_q_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """r + gamma V(s'); the discount is 0 where the task ended."""
    return reward + discount * next_value


def pick_value(q: Tensor, index: Tensor) -> Tensor:
    """Q of one action per row (B,)."""
    return q.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def calc_max_value(next_q: Tensor) -> Tensor:
    """max_a Q(s', a): one net both picks and values the action."""
    return next_q.amax(-1)


def calc_double_value(next_q_online: Tensor, next_q_target: Tensor) -> Tensor:
    """Q_target(s', argmax_a Q_online(s', a)): what one net overrates the other need not."""
    return pick_value(next_q_target, next_q_online.argmax(-1))


def require_choices(family: Any, name: str) -> Categorical:
    """The family of a discrete action space; anything else is the wrong env for the algorithm."""
    if not isinstance(family, Categorical):
        raise SpecError(
            f"agent.algorithm.name: {name} values each of a number of actions, but this env's are continuous; "
            "use SoftActorCritic, CrossQ or PPO"
        )
    return family


class QLearning(Algorithm):
    """Trains Q on batches of past steps; what stands for the value of a successor is left open."""

    metric_names = ("loss", "explore_var", "q", "td_error", "grad_norm")
    stores_raw_obs = True
    has_joint_actions = True

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        config = spec.algorithm
        assert isinstance(config, (VanillaDQNSpec, DQNSpec, DoubleDQNSpec))
        self.config = config
        self.family = require_choices(context.family, config.name)
        self.net = QNet(
            for_acting(spec.net, context.parts), context.obs_shape, self.family.param_size, context.parts
        ).to(context.device)
        self.net.eval()
        self.modules = {"net": self.net}
        self.flat = FlatParams(self.net.parameters())
        self.optimizer = FlatOptimizer(self.flat, spec.net)
        self.optimizers = {"net": self.optimizer}
        self.target = self._build_target(spec)
        if self.target is not None:
            self.modules["target_net"] = self.target.module
        self.loss = ELEMENT_LOSSES[spec.net.loss_spec.name]
        frozen = {} if self.target is None else {self.target.module: self.target.flat}
        self.step = context.build_step(self._calc_any_loss, self.net, [self.optimizer], frozen)
        self.policy = ActionPolicy(self.family, config.action_policy, config.explore_var_spec)
        self.explore = context.build_function(self._explore, self.net)
        self.burn_in = spec.net.burn_in if isinstance(spec.net, RecurrentNetSpec) else 0
        self.memory = context.build_replay(spec.memory, config.gamma, self.net.state_size)
        if self.net.state_size and not self.memory.can_hold_sequence(self.burn_in + self.net.seq_len):
            raise SpecError(
                f"agent.memory.max_size: {self.memory.spec.max_size} holds no stretch of burn_in + seq_len = "
                f"{self.burn_in + self.net.seq_len} steps once it is full; raise it"
            )
        self.replays = {"memory": self.memory}
        self.train_due = Due(config.training_frequency)

    def _build_target(self, spec: AgentSpec) -> Target | None:
        return Target(self.net, self.flat, spec.net)

    @abstractmethod
    def _next_value(self, online: Callable[[], Tensor], target: Callable[[], Tensor]) -> Tensor:
        """What stands for the value of successors, given ways to their values by the net and by its target."""

    def init_carry(self, num_envs: int) -> Carry:
        return self.net.init_carry(num_envs)

    @torch.inference_mode()
    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        if not explore:
            q, next_carry = self.net.step(obs, carry)
            return Act(self.family.mode(q), next_carry, {})
        chance = self.policy.chance(len(obs), self.frame, self.context.act_generator)
        action, next_carry = self.explore(obs, carry, chance)
        return Act(action, next_carry, {} if carry is None else {"carry": carry})

    def _explore(self, obs: Tensor, carry: Carry, chance: tuple[Tensor, ...]) -> tuple[Tensor, Carry]:
        """Actions, and the hidden state to go on with."""
        q, next_carry = self.net.step(obs, carry)
        return self.policy.choose(q, chance), next_carry

    def observe(self, step: Transition) -> None:
        self.memory.add(step)

    def calc_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted loss, TD errors and values (B,) of a batch."""
        with torch.no_grad():
            next_value = self._next_value(
                online=lambda: self.net(batch.next_obs), target=lambda: self._target_net(batch.next_obs)
            )
            self.context.trace("next_value", next_value)
            ret = calc_q_target(batch.reward, batch.discount, next_value)
            self.context.trace("target", ret)
        # layers such as BatchNorm and Dropout learn from what is trained on alone
        self.net.train()
        q = pick_value(self.net(batch.obs), self.family.to_index(batch.action))
        self.net.eval()
        self.context.trace("q", q)
        return (batch.weight * self.loss(q, ret)).mean(), (q - ret).detach(), q.detach()

    def _calc_any_loss(self, batch: Batch | SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        return self.calc_loss(batch) if isinstance(batch, Batch) else self.calc_sequence_loss(batch)

    def calc_sequence_loss(self, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, TD errors and values (L, B) of stretches, after a burn-in that only warms the hidden state.

        As in R2D2 (Kapturowski et al. 2019): the state stored with the first row is stale, a few steps refresh it.
        """
        start = self.burn_in
        carry = batch.carry
        if start:
            with torch.no_grad():
                _, carry = self.net.unroll(batch.obs[:start], carry, batch.reset[:start])
        self.net.train()
        every_q, _ = self.net.unroll(batch.obs[start:], carry, batch.reset[start:])
        self.net.eval()
        with torch.no_grad():
            next_value = self._next_value(
                online=lambda: every_q[1:],
                target=lambda: self._target_net.unroll(batch.obs, batch.carry, batch.reset)[0][start + 1 :],
            )
            self.context.trace("next_value", next_value)
            ret = calc_q_target(batch.reward[start:], batch.discount[start:], next_value)
            self.context.trace("target", ret)
        q = pick_value(every_q[:-1], self.family.to_index(batch.action[start:]))
        mask = batch.mask[start:]
        loss = (mask * self.loss(q, ret)).sum() / mask.sum().clamp(min=1)
        return loss, (mask * (q - ret)).detach(), q.detach()

    @property
    def _target_net(self) -> QNet:
        """The net of the targets: the slow one, or the net itself where there is none."""
        return self.net if self.target is None else cast(QNet, self.target.module)

    def _sample(self, frame: int) -> Batch | SequenceBatch:
        """What to learn from, as the nets see it: single transitions, or stretches for a recurrent net."""
        if not self.net.state_size:
            return self.context.encode_batch(self.memory.sample(frame))
        stretches = self.memory.sample_sequence(self.burn_in + self.net.seq_len)
        return stretches._replace(obs=self.context.encode(stretches.obs))

    @property
    def _is_due(self) -> bool:
        return self.frame > self.config.training_start_step and (
            not self.net.state_size or self.memory.can_sample_sequence(self.burn_in + self.net.seq_len)
        )

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        if self.target is not None:
            # asked at every step, trained or not, so that a continued run replaces at the same frames
            self.target.replace_if_due(frame)
        if not self.train_due(frame) or not self._is_due:
            return None
        self.optimizer.set_frame(frame)
        rows: list[dict[str, Tensor]] = []
        for _ in range(self.config.training_iter):
            batch = self._sample(frame)
            for _ in range(self.config.training_batch_iter):
                loss, error, q, grad_norm = self.step(batch)
                self.opt_step += 1
                if self.target is not None:
                    self.target.follow()
                rows.append({"loss": loss, "q": q.mean(), "td_error": error.abs().mean(), "grad_norm": grad_norm})
            if isinstance(batch, Batch):
                self.memory.update_priority(batch.slot, error)
        return {**gather_metrics(rows, frame), "explore_var": self.policy.calc_explore_var(frame)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.train_due.skip_to(self.frame)
        if self.target is not None:
            self.target.skip_to(self.frame)

    def memory_state(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_memory_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


class VanillaDQN(QLearning):
    """The net that learns also gives its own targets."""

    def _build_target(self, spec: AgentSpec) -> Target | None:
        return None

    def _next_value(self, online: Callable[[], Tensor], target: Callable[[], Tensor]) -> Tensor:
        return calc_max_value(online())


class DQN(QLearning):
    """A slower net picks and values the next action."""

    def _next_value(self, online: Callable[[], Tensor], target: Callable[[], Tensor]) -> Tensor:
        return calc_max_value(target())


class DoubleDQN(QLearning):
    """The net picks the next action, the slower one values it."""

    def _next_value(self, online: Callable[[], Tensor], target: Callable[[], Tensor]) -> Tensor:
        return calc_double_value(online(), target())
