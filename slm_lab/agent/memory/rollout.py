"""On-policy memories: a fixed number of steps, or whole episodes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.lib.data import State
from slm_lab.lib.device import upload
from slm_lab.spec.memory import MemorySpec

Row = dict[str, Tensor]
# fields of every row; the policy adds others, such as values
CORE = ("obs", "action", "reward", "terminated", "truncated")
# values of the env stay on the host
HOST = ("reward", "terminated", "truncated")


@dataclass(frozen=True)
class RolloutSetting:
    """The facts that an on-policy memory needs about the agent."""

    num_envs: int
    device: torch.device
    # steps or episodes after which it is ready
    frequency: int
    # encodes raw observations as the nets see them
    encode: Callable[[Tensor], Tensor]
    # whether a batch is ready only when the action after its last row is known
    waits: bool = False


class Successor(NamedTuple):
    """The successor of a step if that is not the next row, and its hidden state."""

    obs: Tensor
    carry: Tensor | None


class RolloutMemory(ABC):
    """The base of on-policy memories: rows of steps, and the successors that are not the next row."""

    # typical number of steps of all envs in the memory, to estimate its size
    typical_size: int

    def __init__(self, spec: MemorySpec, setting: RolloutSetting) -> None:
        self.setting = setting
        self.num_envs = setting.num_envs
        self.device = setting.device
        self.frequency = setting.frequency
        self.encode = setting.encode
        self.rows: list[Row] = []
        # (row, env) -> true successor of a truncated episode
        self.cuts: dict[tuple[int, int], Successor] = {}
        self.last: Transition | None = None

    def add(self, step: Transition) -> None:
        """Store one step of all envs."""
        # numpy views of small arrays are three times as fast as tensors, and counting as `any`
        truncated = step.truncated.numpy()
        if np.count_nonzero(truncated):
            for env in np.flatnonzero(truncated & ~step.terminated.numpy()).tolist():
                carry = None if step.next_carry is None else step.next_carry[env]
                self.cuts[len(self.rows), env] = Successor(self.encode(step.next_obs[env : env + 1])[0], carry)
        row = {"obs": step.obs, "action": step.action, "reward": step.reward}
        self.rows.append({**row, "terminated": step.terminated, "truncated": step.truncated, **step.extra})
        self.last = step

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether training is due."""

    @abstractmethod
    def sample(self) -> Rollout:
        """Remove the steps to train on from the memory, and return them."""

    def break_off(self, obs: Tensor, carry: Tensor | None) -> None:
        """Truncate the current episodes at the observations (N, ...) after the last row."""
        if not self.rows:
            return
        last = self.rows[-1]
        is_cut = ~(last["terminated"] | last["truncated"])
        self.rows[-1] = {**last, "truncated": last["truncated"] | is_cut}
        for env in is_cut.nonzero().flatten().tolist():
            self.cuts[len(self.rows) - 1, env] = Successor(obs[env], None if carry is None else carry[env])

    def _stack(self, rows: list[Row]) -> Row:
        return {name: torch.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}

    def _build(self, fields: Row, cut_index: list[int], cuts: list[Successor]) -> Rollout:
        obs = fields["obs"]
        return Rollout(
            **{name: fields[name] for name in CORE},
            extra={name: value for name, value in fields.items() if name not in CORE},
            cut_index=upload(torch.tensor(cut_index, dtype=torch.int64), self.device),
            cut_obs=torch.stack([cut.obs for cut in cuts]) if cuts else obs.new_zeros((0, *obs.shape[2:])),
            cut_carry=_stack_carry(cuts),
        )

    def _forget(self, count: int) -> None:
        """Drop the oldest rows."""
        del self.rows[:count]
        self.cuts = {(row - count, env): cut for (row, env), cut in self.cuts.items() if row >= count}

    def state_dict(self) -> State:
        """Rows and cuts; the last successor is not needed, since the next step replaces it."""
        cuts = list(self.cuts.values())
        return {
            "rows": self._stack(self.rows),
            "cut_key": torch.tensor(list(self.cuts), dtype=torch.int64).reshape(-1, 2),
            "cut_obs": torch.stack([cut.obs for cut in cuts]) if cuts else None,
            "cut_carry": _stack_carry(cuts),
        }

    def load_state_dict(self, state: State) -> None:
        """Resume a half-filled rollout."""
        fields = {name: field if name in HOST else field.to(self.device) for name, field in state["rows"].items()}
        num_row = len(fields["obs"]) if fields else 0
        self.rows = [{name: field[index] for name, field in fields.items()} for index in range(num_row)]
        self.cuts = {}
        for index, (row, env) in enumerate(state["cut_key"].tolist()):
            carry = state["cut_carry"]
            carry = None if carry is None else carry[index].to(self.device)
            self.cuts[row, env] = Successor(state["cut_obs"][index].to(self.device), carry)


def _stack_carry(cuts: list[Successor]) -> Tensor | None:
    """Hidden states (K, S); None without any."""
    carries = [cut.carry for cut in cuts if cut.carry is not None]
    return torch.stack(carries) if carries else None


class OnPolicyBatchReplay(RolloutMemory):
    """A batch of a fixed number of steps of all envs."""

    def __init__(self, spec: MemorySpec, setting: RolloutSetting) -> None:
        super().__init__(spec, setting)
        self.typical_size = setting.frequency

    @property
    def is_ready(self) -> bool:
        return len(self.rows) >= self.frequency + self.setting.waits

    def sample(self) -> Rollout:
        assert self.last is not None
        end = self.frequency
        batch, newer = self.rows[:end], self.rows[end:]
        cuts = {key: cut for key, cut in self.cuts.items() if key[0] < end}
        done = batch[-1]["terminated"] | batch[-1]["truncated"]
        # a newer row has the successor as the policy saw it
        obs = newer[0]["obs"] if newer else self.encode(self.last.next_obs)
        carry = None if newer else self.last.next_carry
        for env in (~done).nonzero().flatten().tolist():
            cuts[end - 1, env] = Successor(obs[env], None if carry is None else carry[env])
        self._forget(end)
        rollout = self._build(self._stack(batch), [row * self.num_envs + env for row, env in cuts], list(cuts.values()))
        return replace(rollout, next_action=newer[0]["action"]) if newer else rollout


class OnPolicyReplay(RolloutMemory):
    """Whole episodes of any of the envs; an unfinished episode stays until it ends."""

    typical_size = 1024

    def __init__(self, spec: MemorySpec, setting: RolloutSetting) -> None:
        super().__init__(spec, setting)
        self.began = [0] * setting.num_envs
        # (env, first row, row after the last)
        self.episodes: list[tuple[int, int, int]] = []

    def add(self, step: Transition) -> None:
        super().add(step)
        for env in np.flatnonzero(step.terminated.numpy() | step.truncated.numpy()).tolist():
            self.episodes.append((env, self.began[env], len(self.rows)))
            self.began[env] = len(self.rows)

    def break_off(self, obs: Tensor, carry: Tensor | None) -> None:
        super().break_off(obs, carry)
        for env, begin in enumerate(self.began):
            if begin < len(self.rows):
                self.episodes.append((env, begin, len(self.rows)))
        self.began = [len(self.rows)] * self.num_envs

    @property
    def is_ready(self) -> bool:
        return len(self.episodes) >= self.frequency

    def sample(self) -> Rollout:
        """All finished episodes, concatenated to a rollout with N = 1."""
        rows: list[int] = []
        envs: list[int] = []
        index, cuts = [], []
        for env, begin, end in self.episodes:
            rows += range(begin, end)
            envs += [env] * (end - begin)
            if (end - 1, env) in self.cuts:
                index.append(len(rows) - 1)
                cuts.append(self.cuts.pop((end - 1, env)))
        pick = torch.tensor(rows) * self.num_envs + torch.tensor(envs)
        fields = {
            name: field.flatten(0, 1).index_select(0, upload(pick, field.device)).unsqueeze(1)
            for name, field in self._stack(self.rows).items()
        }
        self.episodes.clear()
        oldest = min(self.began)
        self._forget(oldest)
        self.began = [begin - oldest for begin in self.began]
        return self._build(fields, index, cuts)

    def state_dict(self) -> State:
        return {**super().state_dict(), "began": list(self.began), "episodes": [list(e) for e in self.episodes]}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.began = list(state["began"])
        self.episodes = [(env, begin, end) for env, begin, end in state["episodes"]]
