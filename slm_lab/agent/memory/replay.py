"""The off-policy memory: the latest transitions of all envs, sampled uniformly."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.compile.engine import CompiledFunction
from slm_lab.agent.memory.batch import Batch, SequenceBatch, Transition
from slm_lab.agent.memory.frames import FrameStore
from slm_lab.agent.memory.ring import Layout, Ring, calc_row_bytes
from slm_lab.env.goal import Goal
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import count_gpus, download, upload
from slm_lab.lib.errors import SpecError
from slm_lab.lib.system import memory_bytes
from slm_lab.spec.memory import ReplaySpec

# obs, action, n-step reward, next_obs and discount of a batch
Steps = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def check_fits(num_bytes: int, max_size: int, device: torch.device, num_parallel: int = 1) -> None:
    """Refuse replays that do not fit in the memory of the machine or GPU, one in each of `num_parallel` sessions."""
    if device.type == "cuda":
        owner, physical = "GPU", torch.cuda.mem_get_info(device)[1]
        num_parallel = math.ceil(num_parallel / count_gpus())
    else:
        owner, physical = "machine", memory_bytes()
    total = num_bytes * num_parallel
    if total > physical:
        many = f" in each of {num_parallel} sessions at once" if num_parallel > 1 else ""
        raise SpecError(
            f"max_size of the replay: {max_size:,} transitions{many} need {_format_bytes(total)}, the {owner} has "
            f"{_format_bytes(physical)}; at most about {max_size * physical // total:,} fit"
        )


def _format_bytes(num_bytes: float) -> str:
    if num_bytes < 1e12:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e12:,.1f} TB"


@dataclass(frozen=True)
class Setting:
    """The facts that a replay needs about env and agent."""

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
    # whether batches are gathered by compiled code
    is_compiled: bool = False
    # the env's goals, for a replay that relabels them
    goal: Goal | None = None


class Replay:
    """A ring of rows, each one step of all N envs; all random numbers come from `generator`.

    Rows have absolute numbers: `head` is the next one, [`held_first`, `head`) are in memory, [`first`, `head`) may be
    sampled. Observations are returned as they were stored.
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
        pair = (obs_shape, obs_dtype)
        layout: Layout = {
            "action": (setting.action_shape, setting.action_dtype),
            "reward": ((), torch.float32),
            "terminated": ((), torch.bool),
            "truncated": ((), torch.bool),
            # whether an episode starts here: the row before it may be overwritten
            "reset": ((), torch.bool),
            **({"carry": ((carry_size,), torch.float32)} if carry_size else {}),
            # both ends of each transition, so that a successor is true by construction; stacks are kept as frames
            **(FrameStore.build_layout(obs_shape) if is_stacked else {"obs": pair, "next_obs": pair}),
        }
        self.row_bytes = calc_row_bytes(layout, num_envs)
        check_fits(self.row_bytes * capacity, spec.max_size, device)
        self.ring = Ring(layout, capacity, num_envs, device)
        self.frames = FrameStore(self.ring, obs_shape) if is_stacked else None
        self._carry_names = ["carry"] if carry_size else []
        self._gamma_power: Array = np.array([gamma**i for i in range(spec.num_step_returns + 1)], np.float32)
        self._weight = torch.ones(spec.batch_size, device=device)
        # images are copied faster row by row
        self._gather: CompiledFunction | None = None
        if setting.is_compiled and not is_stacked and len(obs_shape) == 1:
            self._gather = CompiledFunction(self._take_steps, self.ring.flat, writes=False, plain=self._collect)
        self._reset = torch.ones(num_envs, dtype=torch.bool)
        self._num_fresh = 0
        # rows after which the envs continued with other episodes, which saved rows do not tell
        self._breaks: list[int] = []

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
        held_first = self.ring.head - self.ring.capacity
        if held_first <= 0:
            return 0
        return held_first if self.frames is None else held_first + self.frames.num_lost

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
        row = {
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "reset": self._reset,
            **{name: step.extra[name] for name in self._carry_names},
        }
        obs = {"obs": step.obs, "next_obs": step.next_obs} if self.frames is None else self.frames.add(step)
        self.ring.write({**row, **obs})
        self._reset = step.terminated | step.truncated
        self._num_fresh += 1

    def break_off(self) -> None:
        """Truncate the current episodes: the next row belongs to new ones."""
        if self.head:
            self._breaks.append(self.head - 1)
            self._mark_breaks(self.held_first, self.head)
            self._reset.fill_(True)

    def _mark_breaks(self, start: int, end: int) -> None:
        """Mark breaks in the absolute rows [start, end) as truncations."""
        fields = self.ring.fields
        for slot in (row % self.ring.capacity for row in self._breaks if start <= row < end):
            fields["truncated"][slot] |= ~fields["terminated"][slot]

    def sample(self, frame: int) -> Batch:
        """A batch with n-step returns, of fewer steps where an episode or the memory ends."""
        if self.ring.head == 0:
            raise ValueError("the replay is empty")
        drawn = self._draw()
        if self.spec.use_cer:
            self._put_newest(drawn)
        self._num_fresh = 0
        position = drawn if self.ring.is_host else upload(drawn, self.device)
        if self._gather is None:
            return Batch(*self._collect(drawn), self._weight, position)
        fields: Steps = self._gather(position, torch.full((), self.ring.head, device=self.device))
        return Batch(*fields, self._weight, position)

    def _collect(self, drawn: Tensor, head: Tensor | None = None) -> Steps:
        """The steps at positions, with their n-step rewards and successors."""
        ring, position = self.ring, drawn if self.ring.is_host else upload(drawn, self.device)
        is_one_step = self.spec.num_step_returns == 1
        # positions are needed on the host only for n-step rewards and stacked frames; otherwise avoid the wait
        where = np.empty(0, np.int64) if is_one_step and self.frames is None else drawn.cpu().numpy()
        if is_one_step:
            last = where
            reward, terminated = ring.take(position, "reward", "terminated")
            discount = torch.where(terminated, 0.0, self.gamma)
        else:
            last, reward, discount = self._walk(where)
        if self.frames is not None:
            (action,) = ring.take(position, "action")
            return self.frames.obs(where), action, reward, self.frames.next_obs(last), discount
        obs, action = ring.take(position, "obs", "action")
        (next_obs,) = ring.take(position if is_one_step else self._to_device(last), "next_obs")
        return obs, action, reward, next_obs, discount

    def _take_steps(self, fields: dict[str, Tensor], args: Any) -> Steps:
        """The same as `_collect`, in formulas that a compiler can fuse."""
        position, head = args
        num_later = (head - 1 - position // self.num_envs) % self.ring.capacity
        counts = torch.ones_like(position, dtype=torch.bool)
        last, ret = position, torch.zeros_like(position, dtype=torch.float32)
        discount = torch.zeros_like(ret)
        for ahead, power in enumerate(self._gamma_power[:-1].tolist()):
            # a step counts if its row is written and no step before it ended the episode
            counts = counts & (num_later >= ahead)
            at = (position + ahead * self.num_envs) % self.ring.num_position
            terminated = fields["terminated"][at]
            ret = ret + torch.where(counts, fields["reward"][at] * power, 0.0)
            last = torch.where(counts, at, last)
            discount = torch.where(counts, torch.where(terminated, 0.0, power * self.gamma), discount)
            counts = counts & ~terminated & ~fields["truncated"][at]
        return fields["obs"][position], fields["action"][position], ret, fields["next_obs"][last], discount

    def _draw_uniform(self, length: int = 1) -> Tensor:
        """Random positions at which sequences of `length` rows may start."""
        generator, first = self.generator, self.first
        size = (self.ring.head - first - length + 1) * self.num_envs
        draw = torch.randint(size, (self.spec.batch_size,), generator=generator, device=generator.device)
        # before the ring overwrites rows, positions start at 0 and never wrap around
        return (draw + first * self.num_envs) % self.ring.num_position if first else draw

    def _draw(self) -> Tensor:
        """Positions of a batch, uniformly sampled."""
        return self._draw_uniform()

    def _put_newest(self, position: Tensor) -> None:
        """Combined experience replay (Zhang & Sutton 2017): transitions since the last batch replace its tail."""
        count = min(len(position), self._num_fresh * self.num_envs, self.size)
        end = self.head * self.num_envs
        newest = torch.arange(end - count, end, device=position.device) % self.ring.num_position
        position[len(position) - count :] = newest

    def _walk(self, position: Array) -> tuple[Array, Tensor, Tensor]:
        """Up to n steps ahead: the position of the last, the discounted sum of rewards, and the discount after it."""
        # on the host, which is faster for a few small arrays
        ring, shape = self.ring, (len(position), self.spec.num_step_returns)
        ahead = np.arange(shape[1])
        path = (position[:, None] + ahead * self.num_envs) % ring.num_position
        index = self._to_device(path.reshape(-1))
        names = ("reward", "terminated", "truncated")
        reward, *ends = (part.numpy().reshape(shape) for part in download(*map(Tensor.float, ring.take(index, *names))))
        terminated, truncated = (part > 0 for part in ends)
        # a step counts if its row is written and no step before it ended the episode
        num_later = (self.head - 1 - position // self.num_envs) % ring.capacity
        counts = ahead <= num_later[:, None]
        counts[:, 1:] &= ~np.logical_or.accumulate(terminated | truncated, axis=1)[:, :-1]
        ret = np.where(counts, reward, np.float32(0)) @ self._gamma_power[:-1]
        num_step = counts.sum(1)
        last = np.arange(shape[0]), num_step - 1
        discount = np.where(terminated[last], np.float32(0), self._gamma_power[num_step])
        return path[last], self._to_device(ret), self._to_device(discount)

    def _to_device(self, value: Array) -> Tensor:
        return upload(torch.from_numpy(value), self.device)

    def can_hold_sequence(self, length: int) -> bool:
        """Whether a sequence of this length can be drawn when the memory is full."""
        return self.ring.capacity - (self.frames.num_lost if self.frames else 0) >= length

    def can_sample_sequence(self, length: int) -> bool:
        """Whether any sequence of this length is held."""
        return self.num_row >= length

    def sample_sequence(self, length: int) -> SequenceBatch:
        """Sequences of `length` steps, their starts drawn uniformly; rewards are per step."""
        if not self.can_sample_sequence(length):
            raise ValueError(f"no sequence of {length} rows can be drawn from {self.num_row}")
        ring, shape = self.ring, (length, self.spec.batch_size)
        start = self._draw_uniform(length)
        steps = torch.arange(length, device=start.device)[:, None] * self.num_envs
        path = (start + steps) % ring.num_position
        index = path.view(-1)
        names = ("terminated", "truncated", "reset", "reward", "action")
        fields = ring.take(index, *names)
        terminated, truncated, reset, reward, action = (field.unflatten(0, shape) for field in fields)
        carry = ring.take(path[0], *self._carry_names)
        if self.frames is None:
            (obs,), (last,) = ring.take(index, "obs"), ring.take(path[-1], "next_obs")
        else:
            where = index.cpu().numpy()
            obs, last = self.frames.obs(where), self.frames.next_obs(where[-shape[1] :])
        mask = torch.where(truncated & ~terminated, 0.0, 1.0)
        mask[-1] = 1.0
        return SequenceBatch(
            obs=torch.cat([obs.unflatten(0, shape), last.unsqueeze(0)]),
            action=action,
            reward=reward,
            discount=torch.where(terminated, 0.0, self.gamma),
            mask=mask,
            # the last row is the true successor of the step before it, whatever ended there
            reset=torch.cat([reset, torch.zeros_like(reset[-1:])]),
            carry=carry[0] if carry else torch.zeros((shape[1], 0), device=self.device),
        )

    def update_priority(self, slot: Tensor, error: Tensor) -> None:
        """Nothing: every transition is as likely as any other."""

    def rows(self, start: int, end: int) -> dict[str, Tensor]:
        """Copies of the absolute rows [start, end), which only `break_off` changes once written."""
        return self.ring.rows(start, end) | ({} if self.frames is None else self.frames.rows(start, end))

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        """Write saved rows back, oldest first (some may be overwritten since), before or after `load_state_dict`."""
        self.ring.load_rows(start, rows)
        if self.frames is not None:
            self.frames.load_rows(start, rows)
        self._mark_breaks(start, start + len(rows["truncated"]))

    def estimate_rows(self, num_frame: int) -> int:
        """Bytes of the rows after `num_frame` frames."""
        return self.num_bytes * min(num_frame, self.spec.max_size) // self.spec.max_size

    def estimate_growth(self, num_frame: int) -> int:
        """Bytes by which `state_dict` grows in `num_frame` frames."""
        return 0

    def state_dict(self) -> State:
        """All but the rows [`held_first`, `head`)."""
        return {
            "head": self.head,
            "num_fresh": self._num_fresh,
            "reset": self._reset.clone(),
            "breaks": [row for row in self._breaks if row >= self.held_first],
            "store": {} if self.frames is None else self.frames.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Resume from a saved state; the rows are loaded separately."""
        self.ring.head = int(state["head"])
        self._num_fresh = int(state["num_fresh"])
        self._reset.copy_(state["reset"])
        # checkpoints of older versions have no breaks
        self._breaks = [int(row) for row in state.get("breaks", [])]
        self._mark_breaks(self.held_first, self.head)
        if self.frames is not None:
            self.frames.load_state_dict(state["store"])
