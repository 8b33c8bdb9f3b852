"""Stacks of frames in a replay, with each frame stored once."""

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.memory.ring import Layout, Ring
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import upload


class FrameStore:
    """Stacks of S frames (S, H, W), newest last, of which each row keeps the newest only.

    A row joins the one before if its stack is that row's successor and the shift of its stack by one frame; `age`
    counts the joined rows behind a row, up to S-1. A row that does not join (a new episode, or skipped frames) has
    aside, under its slot and env, its own S-1 older frames, then the frames at the end of the successor of the row
    before that no shift gives: one, or all S. All that a row ever has is there once it is written, so saved rows stay
    true; only the successor of the newest row is held apart.
    """

    def __init__(self, ring: Ring, obs_shape: tuple[int, ...]) -> None:
        self.ring = ring
        self.num_stack = obs_shape[0]
        # oldest rows of a ring that has begun to overwrite, whose stacks cannot be rebuilt
        self.num_lost = self.num_stack - 1
        self._frame_shape = obs_shape[1:]
        self._back = np.arange(1 - self.num_stack, 1) * ring.num_envs
        # the ring's field of that name by position, on the host
        self._ages: Array = ring.flat["age"].numpy() if ring.is_host else np.zeros(ring.num_position, np.uint8)
        # slot -> env -> frames
        self._aside: dict[int, dict[int, Tensor]] = {}
        # successor of the newest row, whether it is a shift, and the age of that row
        # (kept where the env's observations come from: it is compared with them at every step)
        self._latest = torch.zeros((ring.num_envs, *obs_shape), dtype=torch.uint8)
        self._is_shift: Array = np.zeros(ring.num_envs, bool)
        self._age: Array = np.zeros(ring.num_envs, np.uint8)

    @staticmethod
    def build_layout(obs_shape: tuple[int, ...]) -> Layout:
        """The ring's fields that this store needs."""
        return {"frame": (obs_shape[1:], torch.uint8), "age": ((), torch.uint8)}

    def add(self, step: Transition) -> dict[str, Tensor]:
        """The fields of the row that is about to be written at the head."""
        slot = self.ring.head % self.ring.capacity
        self._aside.pop(slot, None)
        is_joined = self._is_shift & _calc_equal(self._latest, step.obs)
        if not is_joined.all():
            self._aside[slot] = {int(env): self._break(int(env), step.obs) for env in np.flatnonzero(~is_joined)}
        self._age = np.where(is_joined, np.minimum(self._age + 1, self.num_stack - 1), 0).astype(np.uint8)
        self._ages[slot * self.ring.num_envs : (slot + 1) * self.ring.num_envs] = self._age
        self._is_shift = _calc_equal(step.next_obs[:, :-1], step.obs[:, 1:])
        self._latest.copy_(step.next_obs)
        return {"frame": step.obs[:, -1], "age": torch.from_numpy(self._age)}

    def _break(self, env: int, obs: Tensor) -> Tensor:
        """The frames to keep aside for a row that does not join the previous one."""
        frames = [obs[env, :-1]]
        if self.ring.head > 0:
            frames.append(self._latest[env, -1:] if self._is_shift[env] else self._latest[env])
        # a copy, also of a single part
        return torch.cat(frames)

    def obs(self, where: Array) -> Tensor:
        """Observations (B, S, H, W) at positions."""
        return self._build_stack(where, 0)

    def next_obs(self, where: Array) -> Tensor:
        """True successors (B, S, H, W) of positions."""
        ring = self.ring
        stack = self._build_stack(where, 1)
        follow = (where + ring.num_envs) % ring.num_position
        newest = (ring.head - 1) % ring.capacity
        # in the ring, the newest row is followed by the oldest, or by an empty one
        apart = (self._ages[follow] == 0) | (where // ring.num_envs == newest)
        for index in np.flatnonzero(apart).tolist():
            slot, env = divmod(int(where[index]), ring.num_envs)
            if slot == newest:
                stack[index] = upload(self._latest[env], ring.device)
            else:
                frames = self._aside[(slot + 1) % ring.capacity][env][self.num_stack - 1 :]
                stack[index, -len(frames) :] = upload(frames, ring.device)
        return stack

    def _build_stack(self, where: Array, ahead: int) -> Tensor:
        """The stack of each row (ahead 0), or its shift with the next row's frame (ahead 1)."""
        ring, last = self.ring, self.num_stack - 1
        source = (where[:, None] + (self._back + ahead * ring.num_envs)) % ring.num_position
        frames = ring.take(upload(torch.from_numpy(source.reshape(-1)), ring.device), "frame")[0]
        stack = frames.view(len(where), self.num_stack, *self._frame_shape)
        age = self._ages[where].astype(np.int64)
        for index in np.flatnonzero(age + ahead < last).tolist():
            slot, env = divmod(int(where[index]), ring.num_envs)
            held = int(age[index]) + ahead
            aside = self._aside[(slot - int(age[index])) % ring.capacity][env][held:last]
            stack[index, : last - held] = upload(aside, ring.device)
        return stack

    def rows(self, start: int, end: int) -> dict[str, Tensor]:
        """The frames aside, concatenated, and for each entry its row counted from `start`, its env and its length."""
        entries = [
            (row - start, env, frames)
            for row in range(start, end)
            for env, frames in self._aside.get(row % self.ring.capacity, {}).items()
        ]
        empty = torch.zeros((0, *self._frame_shape), dtype=torch.uint8)
        key = torch.tensor([(row, env, len(frames)) for row, env, frames in entries], dtype=torch.int64)
        frame = torch.cat([empty, *(frames for _, _, frames in entries)])
        return {"aside_key": key.reshape(-1, 3), "aside_frame": frame}

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        """Restore the frames aside."""
        for row, age in enumerate(rows["age"].numpy(), start):
            slot = row % self.ring.capacity
            self._aside.pop(slot, None)
            self._ages[slot * self.ring.num_envs : (slot + 1) * self.ring.num_envs] = age
        key = rows["aside_key"].tolist()
        parts = rows["aside_frame"].split([count for _, _, count in key])
        for (row, env, _), part in zip(key, parts, strict=True):
            # a copy, since a view would keep the whole tensor in memory
            self._aside.setdefault((start + row) % self.ring.capacity, {})[env] = part.clone()

    def state_dict(self) -> State:
        """The state that does not belong to any row."""
        return {
            "latest": self._latest.cpu().clone(),
            "is_shift": torch.from_numpy(self._is_shift.copy()),
            "age": torch.from_numpy(self._age.copy()),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore `state_dict`."""
        self._latest.copy_(state["latest"])
        self._is_shift = state["is_shift"].numpy().copy()
        self._age = state["age"].numpy().copy()


def _calc_equal(a: Tensor, b: Tensor) -> Array:
    """Whether each env's images are the same, (N,)."""
    # eight times as fast as torch for bytes
    return (a.numpy() == b.numpy()).reshape(len(a), -1).all(1)
