"""On-policy memories: a fixed number of steps, or whole episodes."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Array, Rollout, Transition
from slm_lab.agent.memory.rows import RowWriter


class StepBuffer:
    """Preallocated tensors (capacity, N, ...) that grow when needed; one slice write per field and step."""

    def __init__(self, num_envs: int, device: torch.device, capacity: int) -> None:
        self.num_envs = num_envs
        self.device = device
        self.capacity = capacity
        self.fields: dict[str, Tensor] = {}
        self.writer = RowWriter({})
        self.size = 0

    def add(self, row: dict[str, Tensor | Array]) -> None:
        """Write one step of all envs."""
        if not self.fields:
            tensors = {name: torch.as_tensor(value) for name, value in row.items()}
            self._set_fields({name: self._zeros(value.shape, value.dtype) for name, value in tensors.items()})
        if self.size == self.capacity:
            self.capacity *= 2
            self._set_fields({name: torch.cat([field, torch.zeros_like(field)]) for name, field in self.fields.items()})
        self.writer.write(self.size, row)
        self.size += 1

    def _zeros(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.zeros((self.capacity, *shape), dtype=dtype, device=self.device)

    def _set_fields(self, fields: dict[str, Tensor]) -> None:
        self.fields = fields
        self.writer = RowWriter(fields)

    def drop(self, count: int) -> None:
        """Forget the oldest rows."""
        if count == 0:
            return
        for field in self.fields.values():
            field[: self.size - count] = field[count : self.size].clone()
        self.size -= count

    def state_dict(self) -> dict[str, Any]:
        """The rows written so far."""
        return {name: field[: self.size].clone() for name, field in self.fields.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved rows."""
        self.size = 0
        rows = len(next(iter(state.values()))) if state else 0
        while self.capacity < rows:
            self.capacity *= 2
        self._set_fields({name: self._zeros(saved.shape[1:], saved.dtype) for name, saved in state.items()})
        for name, saved in state.items():
            self.fields[name][:rows] = saved
        self.size = rows


class Successor(NamedTuple):
    """What followed a step that is not the next row: one observation, or one of each env, and the hidden state then."""

    obs: Tensor
    carry: Tensor | None

    def of(self, env: int) -> "Successor":
        """That of one env."""
        return Successor(self.obs[env], None if self.carry is None else self.carry[env])

    def clone(self) -> "Successor":
        """A copy that no later step overwrites."""
        return Successor(self.obs.clone(), None if self.carry is None else self.carry.clone())


class RolloutMemory:
    """What both on-policy memories share: rows of steps, and the successors that are not the next row."""

    def __init__(self, num_envs: int, device: torch.device, capacity: int) -> None:
        self.num_envs = num_envs
        self.device = device
        self.buffer = StepBuffer(num_envs, device, capacity)
        # (row, env) -> true successor of a truncated episode
        self.cuts: dict[tuple[int, int], Successor] = {}
        self.last: Successor | None = None

    def add(self, step: Transition) -> None:
        """Store one step of all envs."""
        self.last = Successor(step.next_obs, step.next_carry)
        if step.truncated.any():
            for env in np.flatnonzero(step.truncated & ~step.terminated):
                self.cuts[self.buffer.size, int(env)] = self.last.of(int(env)).clone()
        self.buffer.add(
            {
                "obs": step.obs,
                "action": step.action,
                "reward": step.reward.astype(np.float32),
                "terminated": step.terminated,
                "truncated": step.truncated,
                **step.extra,
            }
        )

    def state_dict(self) -> dict[str, Any]:
        """Rows, cuts and the last successor."""
        return {
            "rows": self.buffer.state_dict(),
            "cut_key": torch.tensor(list(self.cuts), dtype=torch.int64).reshape(-1, 2),
            "cut_obs": torch.stack([successor.obs for successor in self.cuts.values()]) if self.cuts else None,
            "cut_carry": _stack_carry(list(self.cuts.values())),
            "last_next_obs": self.last.obs if self.last else None,
            "last_next_carry": self.last.carry if self.last else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a half-filled rollout."""
        self.buffer.load_state_dict(state["rows"])
        keys = state["cut_key"].tolist()
        cuts = self._load_successor(state["cut_obs"], state["cut_carry"])
        self.cuts = {} if cuts is None else {(row, env): cuts.of(index) for index, (row, env) in enumerate(keys)}
        self.last = self._load_successor(state["last_next_obs"], state["last_next_carry"])

    def _load_successor(self, obs: Tensor | None, carry: Tensor | None) -> Successor | None:
        if obs is None:
            return None
        return Successor(obs.to(self.device), None if carry is None else carry.to(self.device))

    def _build(self, fields: dict[str, Tensor], cut_index: list[int], successors: list[Successor]) -> Rollout:
        core = ("obs", "action", "reward", "terminated", "truncated")
        obs = fields["obs"]
        return Rollout(
            **{name: fields[name] for name in core},
            extra={name: value for name, value in fields.items() if name not in core},
            cut_index=torch.tensor(cut_index, dtype=torch.int64, device=self.device),
            cut_obs=torch.stack([cut.obs for cut in successors]) if successors else obs.new_zeros((0, *obs.shape[2:])),
            cut_carry=_stack_carry(successors),
        )


def _stack_carry(successors: list[Successor]) -> Tensor | None:
    """Hidden states (K, S); None where there are none."""
    carries = [successor.carry for successor in successors if successor.carry is not None]
    return torch.stack(carries) if carries else None


class OnPolicyBatchReplay(RolloutMemory):
    """A batch of a fixed number of steps of all envs."""

    def __init__(self, num_envs: int, device: torch.device, frequency: int) -> None:
        super().__init__(num_envs, device, frequency)
        self.frequency = frequency

    @property
    def is_ready(self) -> bool:
        """Whether training is due."""
        return self.buffer.size >= self.frequency

    def sample(self) -> Rollout:
        """The batch; the memory is empty afterwards. Valid until the next step is added."""
        size = self.buffer.size
        fields = {name: field[:size] for name, field in self.buffer.fields.items()}
        assert self.last is not None
        cuts = dict(self.cuts)
        done = (fields["terminated"][-1] | fields["truncated"][-1]).tolist()
        for env in range(self.num_envs):
            if not done[env]:
                cuts[size - 1, env] = self.last.of(env)
        index = [row * self.num_envs + env for row, env in cuts]
        self.buffer.size = 0
        self.cuts.clear()
        return self._build(fields, index, list(cuts.values()))


class OnPolicyReplay(RolloutMemory):
    """Whole episodes of any of the envs; an episode under way stays until it has ended."""

    def __init__(self, num_envs: int, device: torch.device, frequency: int) -> None:
        super().__init__(num_envs, device, 1024)
        self.frequency = frequency
        self.began = [0] * num_envs
        # (env, first row, row after the last)
        self.episodes: list[tuple[int, int, int]] = []

    def add(self, step: Transition) -> None:
        super().add(step)
        for env in np.flatnonzero(step.terminated | step.truncated):
            self.episodes.append((int(env), self.began[env], self.buffer.size))
            self.began[env] = self.buffer.size

    @property
    def is_ready(self) -> bool:
        """Whether enough episodes have ended."""
        return len(self.episodes) >= self.frequency

    def sample(self) -> Rollout:
        """All finished episodes, one after the other, as a rollout with N = 1."""
        row, env, index, successors = [], [], [], []
        length = 0
        for which, begin, end in self.episodes:
            row.append(torch.arange(begin, end))
            env.append(torch.full((end - begin,), which))
            length += end - begin
            if (end - 1, which) in self.cuts:
                index.append(length - 1)
                successors.append(self.cuts.pop((end - 1, which)))
        rows, envs = torch.cat(row).to(self.device), torch.cat(env).to(self.device)
        fields = {name: field[rows, envs].unsqueeze(1) for name, field in self.buffer.fields.items()}
        self._forget()
        return self._build(fields, index, successors)

    def _forget(self) -> None:
        """Drop rows that no episode under way needs."""
        self.episodes.clear()
        oldest = min(self.began)
        self.buffer.drop(oldest)
        self.began = [begin - oldest for begin in self.began]
        self.cuts = {(row - oldest, env): cut for (row, env), cut in self.cuts.items() if row >= oldest}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "began": list(self.began), "episodes": [list(e) for e in self.episodes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.began = list(state["began"])
        self.episodes = [(env, begin, end) for env, begin, end in state["episodes"]]


OnPolicyMemory = OnPolicyBatchReplay | OnPolicyReplay
