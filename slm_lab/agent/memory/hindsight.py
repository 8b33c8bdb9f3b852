"""Hindsight experience replay (Andrychowicz et al. 2017): past steps are relabelled with goals that were reached."""

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Batch, Transition
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import HindsightReplaySpec


class HindsightReplay(Replay):
    """In each batch, k of k+1 transitions get a goal that their episode reached later, and the reward for that goal."""

    spec: HindsightReplaySpec

    def __init__(self, spec: HindsightReplaySpec, setting: Setting) -> None:
        if setting.goal is None:
            raise SpecError("agent.memory.name: HindsightReplay needs an env with goals; use Replay")
        super().__init__(spec, setting)
        self.goal = setting.goal
        # how many rows of a batch, from the first, are relabelled
        self.num_relabelled = spec.batch_size * spec.num_goal // (spec.num_goal + 1)
        # for each row and env, the absolute row at which its episode ends; -1 while it continues
        self._end: Array = np.full((self.ring.capacity, self.num_envs), -1, np.int64)
        # the absolute row at which each env's episode began
        self._start: Array = np.zeros(self.num_envs, np.int64)
        self._is_stale = False

    def add(self, step: Transition) -> None:
        self._sync()
        row = self.head
        super().add(step)
        self._end[row % self.ring.capacity] = -1
        self._close(row, (step.terminated | step.truncated).cpu().numpy())

    def _close(self, row: int, is_done: Array) -> None:
        """Record the end of the episodes that end at a row."""
        for env in np.flatnonzero(is_done):
            for begin, stop in self.ring.spans(max(int(self._start[env]), self.held_first), row + 1):
                self._end[begin:stop, env] = row
            self._start[env] = row + 1

    def _sync(self) -> None:
        """Find the ends of episodes again after rows were loaded."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._end[:] = -1
        # an episode whose first rows were overwritten starts at the first row that is held
        self._start[:] = self.held_first
        done = self._take_done(self.held_first, self.head)
        for index in np.flatnonzero(done.any(1)):
            self._close(self.held_first + int(index), done[index])

    def _take_done(self, start: int, end: int) -> Array:
        """Whether the episode of each env ended at the absolute rows [start, end)."""
        fields, spans = self.ring.fields, self.ring.spans(start, end)
        parts = [fields["terminated"][i:j] | fields["truncated"][i:j] for i, j in spans]
        return torch.cat(parts).cpu().numpy()

    def sample(self, frame: int) -> Batch:
        """A batch whose first rows are relabelled with goals that their episodes reached later."""
        self._sync()
        batch = super().sample(frame)
        num = self.num_relabelled
        if not num:
            return batch
        generator = self.generator
        draw = torch.rand(num, generator=generator, device=generator.device).cpu().numpy().astype(np.float64)
        goal = self._take_goals(batch.slot[:num], draw)
        achieved, desired = self.goal.achieved, self.goal.desired
        # a batch is a copy, so the replay itself does not change
        for part in (batch.obs, batch.next_obs):
            part[:num, desired.start : desired.stop] = goal
        pair = [part.cpu().numpy() for part in (batch.next_obs[:num, achieved.start : achieved.stop], goal)]
        batch.reward[:num] = self._to_device(self.goal.reward(*pair).astype(np.float32))
        if self.goal.terminated is not None:
            is_end = self._to_device(self.goal.terminated(*pair).astype(bool))
            batch.discount[:num] = torch.where(is_end, 0.0, self.gamma)
        return batch

    def _take_goals(self, position: Tensor, draw: Array) -> Tensor:
        """Goals (B, G) reached at this step or a later one of its episode, as far as the memory goes."""
        slot, env = np.divmod(position.cpu().numpy(), self.num_envs)
        row = self.head - 1 - (self.head - 1 - slot) % self.ring.capacity
        end = self._end[slot, env]
        end = np.where(end < 0, self.head - 1, end)
        if self.spec.strategy == "future":
            end = row + (draw * (end - row + 1)).astype(np.int64)
        at = (end % self.ring.capacity) * self.num_envs + env
        (reached,) = self.ring.take(self._to_device(at), "next_obs")
        return reached[:, self.goal.achieved.start : self.goal.achieved.stop]

    def break_off(self) -> None:
        super().break_off()
        self._is_stale = True

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        super().load_rows(start, rows)
        self._is_stale = True

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._is_stale = True
