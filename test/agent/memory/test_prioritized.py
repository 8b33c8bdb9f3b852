"""The sum tree against plain sums, and the prioritized replay against numbers worked by hand.

Observations of env `e` at row `t` are 10 t + e and their successor 10 t + e + 0.5.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory.prioritized import PrioritizedReplay, SumTree
from slm_lab.agent.memory.replay import Setting
from slm_lab.lib.errors import DivergenceError
from slm_lab.spec.memory import PrioritizedReplaySpec
from test.agent.conftest import number_step, through_file

CPU = torch.device("cpu")
GAMMA = 0.5
STACK = 3


def build(num_envs: int, frame_stack: int = 1, **kwargs) -> PrioritizedReplay:
    spec = PrioritizedReplaySpec(**({"batch_size": 64, "max_size": 4 * num_envs, "epsilon": 1e-9} | kwargs))
    shape, dtype = ((STACK, 1, 1), torch.uint8) if frame_stack > 1 else ((1,), torch.float32)
    generator = torch.Generator().manual_seed(0)
    setting = Setting(num_envs, shape, dtype, (), torch.int64, GAMMA, CPU, generator, frame_stack)
    return PrioritizedReplay(spec, setting)


def feed(memory: PrioritizedReplay, num_row: int) -> None:
    """Episodes that never end; frames count up from 0, so a stack says which row it is of."""
    for _ in range(num_row):
        step = number_step(memory.head, "." * memory.num_envs)
        if memory.ring.fields.get("frame") is not None:
            stack = memory.head + torch.arange(STACK, dtype=torch.uint8).reshape(1, STACK, 1, 1)
            stack = stack.repeat(memory.num_envs, 1, 1, 1)
            step = step._replace(obs=stack, next_obs=stack + 1)
        memory.add(step)


def leaves(memory: PrioritizedReplay) -> list[float]:
    """Of all positions, once the tree is in step with the rows."""
    memory.state_dict()
    return memory.tree.leaf(np.arange(memory.ring.num_position)).tolist()


def set_priority(memory: PrioritizedReplay, priority: list[float]) -> None:
    memory.update_priority(torch.arange(len(priority)), torch.tensor(priority, dtype=torch.float64))


# --- the tree

priorities = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=40)


@settings(deadline=None)
@given(priorities, st.lists(st.tuples(st.integers(0, 39), st.floats(0, 1e6)), max_size=30))
def test_total_is_the_sum_of_leaves_after_any_writes(first: list[float], writes: list[tuple[int, float]]) -> None:
    tree, plain = SumTree(len(first)), np.array(first)
    tree.set_range(0, len(first), plain)
    batch = [(index % len(first), value) for index, value in writes]
    # the same index may come twice; the last one stays
    tree.set(np.array([i for i, _ in batch], np.int64), np.array([v for _, v in batch]))
    for index, value in batch:
        plain[index] = value
    assert tree.leaf(np.arange(len(first))).tolist() == plain.tolist()
    assert tree.total == pytest.approx(plain.sum())
    # the way it was written does not matter, to the bit
    again = SumTree(len(first))
    for index, value in enumerate(plain):
        again.set(np.array([index]), np.array([value]))
    assert np.array_equal(again.node, tree.node)
    middle = len(first) // 2
    again.set_range(0, middle, 7.0)
    again.set_range(0, middle, plain[:middle])
    assert np.array_equal(again.node, tree.node)


@settings(deadline=None)
@given(priorities, st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_find_never_gives_a_zero_leaf(values: list[float], share: list[float]) -> None:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    if not any(values):
        with pytest.raises(ValueError, match="no leaf has any priority"):
            tree.find(np.zeros(1))
        return
    total = tree.total
    # the total itself, just below and beyond it: what rounding can make of the last segment
    edge = [0.0, total, np.nextafter(total, 0), total * (1 + 1e-9)]
    found = tree.find(np.concatenate([np.array(share) * total, edge]))
    assert found.max() < len(values)
    assert (tree.leaf(found) > 0).all()


def test_find_at_boundaries() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 0.0, 4.0]))
    # [0, 1) is leaf 0, [1, 3) leaf 2, [3, 7) leaf 4; a leaf owns its left edge
    mass = np.array([0.0, 0.999, 1.0, 2.999, 3.0, 6.999, 7.0])
    assert tree.find(mass).tolist() == [0, 0, 2, 2, 4, 4, 4]
    assert tree.find(mass[::-1].copy()).tolist() == [4, 4, 4, 2, 2, 0, 0]


# --- drawing


def test_draw_frequency_follows_priority() -> None:
    memory = build(1, alpha=0.5, batch_size=6000)
    feed(memory, 4)
    # square roots 1, 0.5, 1.5, 3 of 6; stratified, so that at most two segments per leaf are undecided
    set_priority(memory, [1.0, 0.25, 2.25, 9.0])
    count = np.bincount(memory.sample(0).slot, minlength=4)
    assert np.abs(count - [1000, 500, 1500, 3000]).max() <= 2


def test_one_draw_per_segment() -> None:
    memory = build(1, alpha=1.0, batch_size=8, max_size=8)
    feed(memory, 8)
    # equal priorities and as many segments as leaves: each exactly once, in order
    for _ in range(20):
        assert memory.sample(0).slot.tolist() == list(range(8))


def test_weights_by_hand() -> None:
    memory = build(1, alpha=1.0, beta=0.5)
    feed(memory, 4)
    set_priority(memory, [1.0, 2.0, 1.0, 4.0])
    batch = memory.sample(0)
    # P = 1/8, 1/4, 1/8, 1/2; 4 P = 0.5, 1, 0.5, 2; to the power -0.5, over the largest: sqrt(0.5 / (4 P))
    expected = {0: 1.0, 1: 0.5**0.5, 2: 1.0, 3: 0.5}
    assert set(batch.slot.tolist()) == set(expected)
    for slot, weight in zip(batch.slot.tolist(), batch.weight.tolist(), strict=True):
        assert weight == pytest.approx(expected[slot])
    assert batch.weight.dtype == torch.float32


def test_beta_follows_its_schedule() -> None:
    schedule = {"name": "linear_decay", "start_val": 0.0, "end_val": 1.0, "start_step": 0, "end_step": 100}
    memory = build(1, alpha=1.0, beta=schedule)
    feed(memory, 2)
    set_priority(memory, [1.0, 4.0])
    # the rarer has weight 1, the other (1/4)^beta
    for frame, smallest in ((0, 1.0), (50, 0.5), (100, 0.25), (900, 0.25)):
        assert memory.sample(frame).weight.min().item() == pytest.approx(smallest)


def test_alpha_zero_is_uniform() -> None:
    memory = build(1, alpha=0.0, beta=1.0)
    feed(memory, 4)
    set_priority(memory, [1.0, 2.0, 100.0, 0.0])
    assert leaves(memory) == [1.0] * 4
    assert memory.sample(0).weight.tolist() == [1.0] * 64


# --- priorities


def test_new_transitions_enter_at_the_largest_priority_so_far() -> None:
    memory = build(2, alpha=0.5, max_size=8)
    feed(memory, 1)
    assert leaves(memory) == [1, 1, 0, 0, 0, 0, 0, 0]
    # the sign of an error does not count
    set_priority(memory, [-16.0, 0.25])
    feed(memory, 1)
    assert leaves(memory) == pytest.approx([4, 0.5, 4, 4, 0, 0, 0, 0])
    # the largest stays, though nothing has it any more
    set_priority(memory, [0.25] * 4)
    feed(memory, 3)
    # row 4 is in the slot of row 0
    assert leaves(memory) == pytest.approx([4, 4, 0.5, 0.5, 4, 4, 4, 4])


def test_epsilon_keeps_errors_of_zero_alive() -> None:
    memory = build(1, alpha=0.5, epsilon=0.01)
    feed(memory, 2)
    set_priority(memory, [0.0, 0.24])
    assert leaves(memory)[:2] == pytest.approx([0.1, 0.5])


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_an_error_that_is_not_finite_stops_the_run(error: float) -> None:
    memory = build(1)
    feed(memory, 2)
    with pytest.raises(DivergenceError, match="TD error"):
        set_priority(memory, [1.0, error])
    assert leaves(memory)[:2] == [1.0, 1.0]


@pytest.mark.parametrize("every", [1, 2, 7, 100])
def test_rows_that_cannot_be_rebuilt_have_no_priority(every: int) -> None:
    """Stacks of three frames in a ring of 5 rows: the oldest two cannot be drawn."""
    memory = build(2, STACK, max_size=10)
    for row in range(23):
        feed(memory, 1)
        if row % every == 0:
            memory.sample(0)
    # rows 18 to 22 are held, in slots 3, 4, 0, 1, 2; 20 to 22 can be drawn
    assert leaves(memory) == [1] * 6 + [0] * 4
    batch = memory.sample(0)
    # the newest frame of row t is t + 2
    assert set(batch.obs[:, -1].flatten().tolist()) == {22, 23, 24}
    assert torch.equal(batch.next_obs, batch.obs + 1)
    # a row that left between draw and update stays out
    feed(memory, 1)
    memory.update_priority(batch.slot, torch.full((64,), 5.0))
    assert leaves(memory)[:2] == [0, 0]


def test_forced_newest_have_the_weight_of_their_own_probability() -> None:
    memory = build(1, alpha=1.0, beta=1.0, use_cer=True, batch_size=3, max_size=3)
    feed(memory, 2)
    memory.sample(0)
    set_priority(memory, [6.0, 1.0])
    feed(memory, 1)
    batch = memory.sample(0)
    # priorities 6, 1, 6; the segments of 13 / 3 start at 0 and 4.3, the third is replaced by the newest
    assert batch.slot[-1] == 2
    expected = np.array([6.0, 1.0, 6.0])[batch.slot]
    assert batch.weight.tolist() == pytest.approx((expected.min() / expected).tolist())


def test_n_step_works_as_in_the_uniform_replay() -> None:
    memory = build(1, num_step_returns=2)
    feed(memory, 3)
    batch = memory.sample(0)
    found = {
        int(o): (r, n, d) for o, r, n, d in zip(batch.obs, *(x.flatten().tolist() for x in batch[2:5]), strict=True)
    }
    # 0 + 10/2, 10 + 20/2, and the newest alone
    assert found == {0: (5, 10.5, 0.25), 10: (20, 20.5, 0.25), 20: (20, 20.5, 0.5)}


# --- continuing


@pytest.mark.parametrize("frame_stack", [1, STACK])
@pytest.mark.parametrize("num_row", [0, 5, 13])
def test_continues_exactly(num_row: int, frame_stack: int) -> None:
    def train(memory: PrioritizedReplay) -> list[Any]:
        feed(memory, 1)
        batch = memory.sample(0)
        memory.update_priority(batch.slot, batch.action % 7 + batch.weight)
        return [batch.slot.tolist(), batch.weight.tolist(), batch.obs.tolist(), batch.next_obs.tolist()]

    memory, other = (build(2, frame_stack, max_size=10, batch_size=8) for _ in range(2))
    for _ in range(num_row):
        train(memory)
    # rows that are not yet in the tree
    feed(memory, 2)
    state, rows = through_file([memory.state_dict(), memory.rows(memory.held_first, memory.head)])
    assert len(state["leaf"]) == memory.size
    feed(other, 9)
    other.load_state_dict(state)
    other.load_rows(memory.held_first, rows)
    other.generator.set_state(memory.generator.get_state())
    assert np.array_equal(other.tree.node, memory.tree.node)
    for _ in range(10):
        assert train(memory) == train(other)
