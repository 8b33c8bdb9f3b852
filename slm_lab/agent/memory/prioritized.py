"""Prioritized experience replay (Schaul et al. 2016), proportional variant."""

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Batch, Transition
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import download, has_float64
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.memory import PrioritizedReplaySpec
from slm_lab.spec.schedule import calc_schedule


class SumTree:
    """A binary tree of sums of non-negative leaves: node i is the sum of nodes 2i and 2i+1, node 1 the total.

    A node depends only on its leaves, not on the order of writes, so equal leaves make equal trees.
    """

    def __init__(self, num_leaf: int) -> None:
        self.num_level = max(num_leaf - 1, 1).bit_length()
        self.offset = 1 << self.num_level
        self.node: Array = np.zeros(2 * self.offset, np.float64)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self.node[1])

    def leaf(self, index: Array) -> Array:
        """Leaves (B,)."""
        return self.node[index + self.offset]

    def set(self, index: Array, value: Array) -> None:
        """Write leaves; the last value of equal indices counts."""
        node, index = self.node, index + self.offset
        node[index] = value
        # recompute sums instead of adding differences: repeated indices are harmless, and rounding does not accumulate
        for _ in range(self.num_level):
            left = index & -2
            index = index >> 1
            node[index] = node[left] + node[left + 1]

    def set_range(self, start: int, end: int, value: float | Array) -> None:
        """Write the leaves [start, end); cheaper than `set` for the few neighbours that a step adds."""
        if start == end:
            return
        node, low, high = self.node, start + self.offset, end - 1 + self.offset
        node[low : high + 1] = value
        for _ in range(self.num_level):
            low, high = low >> 1, high >> 1
            if low == high:
                node[low] = node[2 * low] + node[2 * low + 1]
            else:
                node[low : high + 1] = node[2 * low : 2 * high + 2 : 2] + node[2 * low + 1 : 2 * high + 2 : 2]

    def find(self, mass: Array) -> Array:
        """The leaf at each cumulative mass from the left; never a leaf that is zero."""
        if self.total <= 0:
            raise ValueError("no leaf has any priority")
        index = np.ones(len(mass), np.int64)
        for _ in range(self.num_level):
            index = index * 2
            left = self.node[index]
            # rounding may put a mass beyond the last leaf that is not zero, so never enter an empty branch
            is_right = (mass >= left) & (self.node[index + 1] > 0)
            mass = mass - left * is_right
            index += is_right
        return index - self.offset


class PrioritizedReplay(Replay):
    """Samples transition i with probability P(i) = p_i^alpha / sum_k p_k^alpha, p = |TD error| + epsilon."""

    def __init__(self, spec: PrioritizedReplaySpec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.alpha, self.epsilon, self.beta = spec.alpha, spec.epsilon, spec.beta
        self.tree = SumTree(self.ring.num_position)
        # the largest |error| + epsilon so far, the priority of new transitions
        self.max_priority = 1.0
        # positions of the last batch; `_put_newest` writes to the same memory
        self._drawn: Array = np.zeros(0, np.int64)
        # the rows whose priorities are in the tree
        self._tree_first, self._tree_head = 0, 0

    def add(self, step: Transition) -> None:
        super().add(step)
        # rows enter the tree together when it is next used, but no more than the ring has
        if self.head - self._tree_head == self.ring.capacity:
            self._sync()

    def _sync(self) -> None:
        """Add new rows to the tree with the largest priority, and remove those that can no longer be sampled."""
        self._set_rows(max(self._tree_first, self.held_first), self.first, 0.0)
        self._set_rows(max(self._tree_head, self.first), self.head, self.max_priority**self.alpha)
        self._tree_first, self._tree_head = self.first, self.head

    def _set_rows(self, start: int, end: int, value: float) -> None:
        for begin, stop in self.ring.spans(start, max(start, end)):
            self.tree.set_range(begin * self.num_envs, stop * self.num_envs, value)

    def _draw(self) -> Tensor:
        """Sample one transition from each of B segments of equal mass; on the host, where the tree is."""
        self._sync()
        generator, num = self.generator, self.spec.batch_size
        dtype = torch.float64 if has_float64(generator.device) else torch.float32
        draw = torch.rand(num, dtype=dtype, generator=generator, device=generator.device).cpu().double().numpy()
        self._drawn = self.tree.find((np.arange(num) + draw) * (self.tree.total / num))
        return torch.from_numpy(self._drawn)

    def sample(self, frame: int) -> Batch:
        """A batch with weights (size * P(i))^-beta, scaled so that the largest is 1."""
        batch = super().sample(frame)
        prob = self.tree.leaf(self._drawn) / self.tree.total
        weight = (self.size * prob) ** -calc_schedule(self.beta, frame)
        return batch._replace(weight=self._to_device((weight / weight.max()).astype(np.float32)))

    def update_priority(self, slot: Tensor, error: Tensor) -> None:
        """Set the priorities of the last batch from its TD errors (B,)."""
        place, size = self._fetch(slot, error.detach())
        priority = np.abs(size) + self.epsilon
        largest = float(priority.max())
        if not np.isfinite(largest):
            raise DivergenceError("a TD error is not finite")
        self._sync()
        # a transition that was removed from the tree since it was sampled must stay out
        index = place.astype(np.int64)
        self.tree.set(index, np.where(self.tree.leaf(index) > 0, priority**self.alpha, 0.0))
        self.max_priority = max(self.max_priority, largest)

    def _fetch(self, slot: Tensor, error: Tensor) -> tuple[Array, Array]:
        """Both on the host; in one transfer if the device has float64, which holds every index exactly."""
        if not has_float64(error.device):
            return slot.numpy(force=True), error.cpu().double().numpy()
        place, size = download(slot.double(), error.double())
        return place.numpy(), size.numpy()

    def estimate_growth(self, num_frame: int) -> int:
        # the priorities
        return 8 * min(num_frame, self.spec.max_size)

    def state_dict(self) -> State:
        self._sync()
        spans = self.ring.spans(self.first, self.head)
        leaf = np.concatenate([self.tree.leaf(np.arange(i * self.num_envs, j * self.num_envs)) for i, j in spans])
        return {**super().state_dict(), "max_priority": self.max_priority, "leaf": torch.from_numpy(leaf)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.max_priority = state["max_priority"]
        leaf, done = state["leaf"].numpy(), 0
        self.tree = SumTree(self.ring.num_position)
        for i, j in self.ring.spans(self.first, self.head):
            count = (j - i) * self.num_envs
            self.tree.set_range(i * self.num_envs, j * self.num_envs, leaf[done : done + count])
            done += count
        self._tree_first, self._tree_head = self.first, self.head
