"""The off-policy memory: the last transitions of all envs, drawn uniformly."""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Array, Batch, SequenceBatch, Transition
from slm_lab.agent.memory.frames import FrameStore, ObsStore, PairStore
from slm_lab.agent.memory.ring import Layout, Ring, calc_row_bytes
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import ReplaySpec


def check_fits(num_bytes: int, max_size: int, num_parallel: int = 1) -> None:
    """Refuse a replay that is larger than the machine's memory, or that of so many sessions at once."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = num_bytes * num_parallel
    if total > physical:
        many = f" in each of {num_parallel} sessions at once" if num_parallel > 1 else ""
        raise SpecError(
            f"max_size of the replay: {max_size:,} transitions{many} need {_format_bytes(total)}, the machine has "
            f"{_format_bytes(physical)}; at most about {max_size * physical // total:,} fit"
        )


def _format_bytes(num_bytes: float) -> str:
    if num_bytes < 1e12:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e12:,.1f} TB"


@dataclass(frozen=True)
class Setting:
    """What a replay must know of the env and the agent."""

    num_envs: int
    obs_shape: tuple[int, ...]
    obs_dtype: torch.dtype
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    gamma: float
    device: torch.device
    generator: torch.Generator
    frame_stack: int = 1
    carry_size: int = 0


class Replay:
    """A ring of rows, each one step of all N envs; all that is random comes from `generator`.

    Rows have absolute numbers: `head` is the next one's, [`held_first`, `head`) are in memory, [`first`, `head`) may
    be drawn. Observations are handed over as they were stored.
    """

    def __init__(self, spec: ReplaySpec, setting: Setting) -> None:
        num_envs, device, generator = setting.num_envs, setting.device, setting.generator
        obs_shape, obs_dtype, frame_stack = setting.obs_shape, setting.obs_dtype, setting.frame_stack
        gamma, carry_size = setting.gamma, setting.carry_size
        self.spec = spec
        self.num_envs = num_envs
        self.gamma = gamma
        self.device = device
        self.generator = generator
        capacity = math.ceil(spec.max_size / num_envs)
        is_stacked = frame_stack > 1 and obs_dtype == torch.uint8 and obs_shape[0] == frame_stack
        if is_stacked and capacity < frame_stack:
            raise SpecError(
                f"agent.memory.max_size: {spec.max_size:,} is too small for stacks of {frame_stack} frames of "
                f"{num_envs} envs; use at least {frame_stack * num_envs:,}"
            )
        layout: Layout = {
            "action": (setting.action_shape, setting.action_dtype),
            "reward": ((), torch.float32),
            "terminated": ((), torch.bool),
            "truncated": ((), torch.bool),
            # whether an episode starts here: the row before it may be overwritten
            "reset": ((), torch.bool),
            **({"carry": ((carry_size,), torch.float32)} if carry_size else {}),
            **(FrameStore.build_layout(obs_shape) if is_stacked else PairStore.build_layout(obs_shape, obs_dtype)),
        }
        self.row_bytes = calc_row_bytes(layout, num_envs)
        check_fits(self.row_bytes * capacity, spec.max_size)
        self.ring = Ring(layout, capacity, num_envs, device)
        self.store: ObsStore = FrameStore(self.ring, obs_shape) if is_stacked else PairStore(self.ring)
        self._carry_names = ["carry"] if carry_size else []
        self._gamma_power: Array = np.array([gamma**i for i in range(spec.num_step_returns + 1)], np.float32)
        self._reset: Array = np.ones(num_envs, bool)
        self._num_fresh = 0

    @property
    def head(self) -> int:
        """Rows ever written: the absolute number of the next one."""
        return self.ring.head

    @property
    def held_first(self) -> int:
        """The oldest absolute row that is still held."""
        return self.ring.held_first

    @property
    def first(self) -> int:
        """The oldest absolute row that may be drawn."""
        held_first = self.ring.held_first
        return held_first + self.store.num_lost if held_first else 0

    @property
    def num_row(self) -> int:
        """Rows that may be drawn."""
        return self.head - self.first

    @property
    def size(self) -> int:
        """Transitions that may be drawn."""
        return self.num_row * self.num_envs

    @property
    def num_bytes(self) -> int:
        """Bytes of all preallocated fields."""
        return self.row_bytes * self.ring.capacity

    def add(self, step: Transition) -> None:
        """Store one step of all envs."""
        self.ring.write(
            {
                **self.store.add(step),
                "action": step.action,
                "reward": step.reward,
                "terminated": step.terminated,
                "truncated": step.truncated,
                "reset": self._reset,
                **{name: step.extra[name] for name in self._carry_names},
            }
        )
        self._reset = step.terminated | step.truncated
        self._num_fresh += 1

    def sample(self, frame: int) -> Batch:
        """A batch with n-step returns; the walk stops where an episode or the memory ends."""
        if self.head == 0:
            raise ValueError("the replay is empty")
        position = self._draw()
        if self.spec.use_cer:
            self._put_newest(position)
        self._num_fresh = 0
        index = self._to_device(position)
        if self.spec.num_step_returns == 1:
            last, reward = index, self.ring.take("reward", index)
            discount = torch.where(self.ring.take("terminated", index), 0.0, self.gamma)
        else:
            last, reward, discount = self._walk(position)
        return Batch(
            obs=self.store.obs(index),
            action=self.ring.take("action", index),
            reward=reward,
            next_obs=self.store.next_obs(last),
            discount=discount,
            weight=self._calc_weight(position, frame),
            slot=position,
        )

    def _draw(self) -> Array:
        """Positions of the batch."""
        return self._draw_uniform(self.size)

    def _draw_uniform(self, size: int) -> Array:
        """Positions among the `size` oldest transitions that may be drawn."""
        generator = self.generator
        draw = torch.randint(size, (self.spec.batch_size,), generator=generator, device=generator.device)
        return (draw.cpu().numpy() + self.first * self.num_envs) % self.ring.num_position

    def _calc_weight(self, position: Array, frame: int) -> Tensor:
        """Importance weights."""
        return torch.ones(len(position), device=self.device)

    def _put_newest(self, position: Array) -> None:
        """Combined experience replay (Zhang & Sutton 2017): what came since the last batch replaces its tail."""
        count = min(len(position), self._num_fresh * self.num_envs, self.size)
        end = self.head * self.num_envs
        position[len(position) - count :] = np.arange(end - count, end) % self.ring.num_position

    def _walk(self, position: Array) -> tuple[Tensor, Tensor, Tensor]:
        """Up to n steps ahead: position of the last, discounted sum of rewards, discount of what follows."""
        # on the host: these few small arrays cost less there than as tensors
        ring, shape = self.ring, (len(position), self.spec.num_step_returns)
        ahead = np.arange(shape[1])
        path = (position[:, None] + ahead * self.num_envs) % ring.num_position
        index = self._to_device(path.reshape(-1))
        names = ("reward", "terminated", "truncated")
        reward, terminated, truncated = (ring.take(name, index).cpu().numpy().reshape(shape) for name in names)
        # a step counts if its row is written and no step before it ended the episode
        num_later = (self.head - 1 - position // self.num_envs) % ring.capacity
        counts = ahead <= num_later[:, None]
        counts[:, 1:] &= ~np.logical_or.accumulate(terminated | truncated, axis=1)[:, :-1]
        ret = np.where(counts, reward, np.float32(0)) @ self._gamma_power[:-1]
        num_step = counts.sum(1)
        last = np.arange(shape[0]), num_step - 1
        discount = np.where(terminated[last], np.float32(0), self._gamma_power[num_step])
        return self._to_device(path[last]), self._to_device(ret), self._to_device(discount)

    def _to_device(self, value: Array) -> Tensor:
        return torch.from_numpy(value).to(self.device)

    def can_hold_sequence(self, length: int) -> bool:
        """Whether a stretch of this length can be drawn when the memory is full."""
        return self.ring.capacity - self.store.num_lost >= length

    def can_sample_sequence(self, length: int) -> bool:
        """Whether any stretch of this length is held."""
        return self.num_row >= length

    def sample_sequence(self, length: int) -> SequenceBatch:
        """Sequences of `length` steps, their starts drawn uniformly; rewards are per step."""
        if not self.can_sample_sequence(length):
            raise ValueError(f"no stretch of {length} rows can be drawn from {self.num_row}")
        ring, shape = self.ring, (length, self.spec.batch_size)
        start = self._draw_uniform((self.num_row - length + 1) * self.num_envs)
        steps = np.arange(length)[:, None] * self.num_envs
        path = self._to_device((start + steps) % ring.num_position)
        index = path.view(-1)
        terminated = ring.take("terminated", index).view(shape)
        truncated = ring.take("truncated", index).view(shape)
        reset = ring.take("reset", index).view(shape)
        carry = [ring.take(name, path[0]) for name in self._carry_names]
        mask = torch.where(truncated & ~terminated, 0.0, 1.0)
        mask[-1] = 1.0
        return SequenceBatch(
            obs=torch.cat([self.store.obs(index).unflatten(0, shape), self.store.next_obs(path[-1]).unsqueeze(0)]),
            action=ring.take("action", index).unflatten(0, shape),
            reward=ring.take("reward", index).view(shape),
            discount=torch.where(terminated, 0.0, self.gamma),
            mask=mask,
            # the last row is the true successor of the step before it, whatever ended there
            reset=torch.cat([reset, torch.zeros_like(reset[-1:])]),
            carry=carry[0] if carry else torch.zeros((shape[1], 0), device=self.device),
        )

    def update_priority(self, slot: Array, error: Tensor) -> None:
        """Nothing: every transition is as likely as any other."""

    def rows(self, start: int, end: int) -> dict[str, Tensor]:
        """Copies of the absolute rows [start, end), which never change once written."""
        return self.ring.rows(start, end) | self.store.rows(start, end)

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        """Write saved rows back, oldest first (some may be overwritten since), before or after `load_state_dict`."""
        self.ring.load_rows(start, rows)
        self.store.load_rows(start, rows)

    def state_dict(self) -> dict[str, Any]:
        """All but the rows [`held_first`, `head`)."""
        return {
            "head": self.head,
            "num_fresh": self._num_fresh,
            "reset": torch.from_numpy(self._reset.copy()),
            "store": self.store.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, together with the rows."""
        self.ring.head = int(state["head"])
        self._num_fresh = int(state["num_fresh"])
        self._reset = np.ones(self.num_envs, bool)
        self._reset[:] = state["reset"].numpy()
        self.store.load_state_dict(state["store"])
