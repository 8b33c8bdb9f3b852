"""The uniform replay, filled with numbers that say where they come from.

Vector observations of env `e` at row `t` are 10 t + e and their successor 10 t + e + 0.5: never equal to the next row,
so that a successor cannot be mistaken for one. Images are random bytes, held against a list of whole stacks.
"""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import ReplaySpec
from test.agent.conftest import build_step, number_step, through_file

CPU = torch.device("cpu")
GAMMA = 0.5
STACK = 3
# how each row ends, one letter per env
Letters = list[str]


def build(num_envs: int, obs_shape: tuple[int, ...] = (1,), frame_stack: int = 1, carry: int = 0, **kwargs) -> Replay:
    spec = ReplaySpec(**({"batch_size": 64, "max_size": 4 * num_envs} | kwargs))
    dtype = torch.uint8 if frame_stack > 1 else torch.float32
    rest = (CPU, torch.Generator().manual_seed(0), frame_stack, carry)
    return Replay(spec, Setting(num_envs, obs_shape, dtype, (), torch.int64, GAMMA, *rest))


def feed(memory: Replay, rows: Letters) -> None:
    for letters in rows:
        memory.add(number_step(memory.head, letters))


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, Letters]:
    """Envs, rows of the ring, and steps: fewer and more than the ring holds."""
    num_envs = draw(st.integers(1, 3))
    row = st.lists(st.sampled_from("....TCB"), min_size=num_envs, max_size=num_envs).map("".join)
    return num_envs, draw(st.integers(1, 8)), draw(st.lists(row, min_size=1, max_size=25))


class Film:
    """Stacks of random frames of N envs; the naive store beside it keeps every stack and successor whole."""

    def __init__(self, num_envs: int, seed: int, skip: float = 0.0, end: float = 0.25) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.skip, self.end = num_envs, skip, end
        self.obs = self._frames(num_envs, STACK)
        self.kept: list[Transition] = []

    def _frames(self, *shape: int) -> Any:
        # few values, so that frames are sometimes equal by chance
        return self.rng.integers(0, 3, (*shape, 1, 2), dtype=np.uint8)

    def step(self) -> Transition:
        rng, obs = self.rng, self.obs
        next_obs = np.concatenate([obs[:, 1:], self._frames(self.num_envs, 1)], 1)
        skipped = rng.random(self.num_envs) < self.skip
        next_obs[skipped] = self._frames(int(skipped.sum()), STACK)
        ended, by_clock = rng.random(self.num_envs) < self.end, rng.random(self.num_envs) < 0.5
        # a new episode starts with any frames, neither zeros nor repeats; an env may also jump in mid-episode
        is_new = ended | (rng.random(self.num_envs) < self.skip / 2)
        self.obs = np.where(is_new[:, None, None, None], self._frames(self.num_envs, STACK), next_obs)
        ends = "".join(np.where(ended, np.where(by_clock, "C", "T"), "."))
        step = build_step(obs, ends, reward=rng.normal(size=self.num_envs), next_obs=next_obs)
        self.kept.append(step)
        return step


# --- one step


@settings(deadline=None, max_examples=60)
@given(histories())
def test_draws_only_what_is_held_with_fields_of_one_step(history: tuple[int, int, Letters]) -> None:
    num_envs, capacity, rows = history
    memory = build(num_envs, max_size=capacity * num_envs)
    feed(memory, rows)
    batch = memory.sample(0)
    obs = batch.obs[:, 0]
    oldest = max(0, len(rows) - capacity)
    t, env = (obs // 10).long(), (obs % 10).long()
    assert t.min() >= oldest
    assert t.max() < len(rows) == memory.head
    assert env.max() < num_envs
    assert memory.size == min(len(rows), capacity) * num_envs
    assert torch.equal(batch.reward, obs)
    assert torch.equal(batch.action, obs.long())
    # the true successor, also at the ring's edge, at ends of episodes and of the newest row
    assert torch.equal(batch.next_obs[:, 0], obs + 0.5)
    terminated = torch.tensor([rows[i][e] in "TB" for i, e in zip(t, env, strict=True)])
    assert torch.equal(batch.discount, torch.where(terminated, 0.0, GAMMA))
    assert batch.slot.tolist() == ((t % capacity) * num_envs + env).tolist()
    assert torch.equal(batch.weight, torch.ones(64))


def test_rows_round_up_and_wrap() -> None:
    # 5 transitions of 2 envs: 3 rows, so 6 transitions
    memory = build(2, max_size=5)
    feed(memory, [".."] * 4)
    assert (memory.head, memory.held_first, memory.first, memory.num_row, memory.size) == (4, 1, 1, 3, 6)
    # obs 4, successor 4, action 8, reward 4, terminated, truncated and reset 1 each
    assert memory.row_bytes == 2 * 23
    assert memory.num_bytes == 3 * 46
    # row 3 took the slot of row 0
    assert set(memory.sample(0).slot.tolist()) == set(range(6))


def test_draw_is_uniform() -> None:
    memory = build(2, max_size=10, batch_size=10_000)
    feed(memory, [".."] * 13)
    # 10 transitions, 1000 each, with a standard deviation of 30
    assert np.abs(np.bincount(memory.sample(0).slot, minlength=10) - 1000).max() < 150


def test_dtypes_are_kept_and_stored_values_are_copies() -> None:
    """Trap 10: the reference stored float16."""
    spec = ReplaySpec(batch_size=4, max_size=4)
    for dtype, value in ((torch.float64, 1 / 3), (torch.uint8, 200), (torch.int64, 2**40)):
        memory = Replay(spec, Setting(1, (2, 3), dtype, (2,), torch.float32, 0.9, CPU, torch.Generator()))
        obs = torch.full((1, 2, 3), value, dtype=dtype)
        action = torch.tensor([[0.1, 0.2]])
        memory.add(build_step(obs, ".", action=action))
        obs.zero_()
        action.zero_()
        batch = memory.sample(0)
        assert batch.obs.dtype == batch.next_obs.dtype == dtype
        assert batch.obs.shape == (4, 2, 3)
        assert torch.equal(batch.obs, torch.full((4, 2, 3), value, dtype=dtype))
        assert torch.equal(batch.next_obs, batch.obs)
        assert torch.equal(batch.action, torch.tensor([[0.1, 0.2]] * 4))
        assert batch.reward.dtype == batch.discount.dtype == batch.weight.dtype == torch.float32


# --- several steps


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(2, 5))
def test_n_step_against_brute_force(history: tuple[int, int, Letters], num_step: int) -> None:
    num_envs, capacity, rows = history
    memory = build(num_envs, max_size=capacity * num_envs, num_step_returns=num_step)
    feed(memory, rows)
    batch = memory.sample(0)
    for obs, reward, next_obs, discount in zip(batch.obs, batch.reward, batch.next_obs, batch.discount, strict=True):
        t, env = divmod(int(obs), 10)
        ret, power = 0.0, 1.0
        for row in range(t, min(t + num_step, len(rows))):
            ret += power * (10 * row + env)
            power *= GAMMA
            if rows[row][env] != ".":
                break
        assert reward.item() == pytest.approx(ret)
        assert next_obs.item() == 10 * row + env + 0.5
        assert discount.item() == (0.0 if rows[row][env] in "TB" else power)


@settings(deadline=None, max_examples=60)
@given(histories(), st.sampled_from([1, 2, 5]))
def test_what_is_compiled_takes_the_same_steps(history: tuple[int, int, Letters], num_step: int) -> None:
    num_envs, capacity, rows = history
    memory = build(num_envs, max_size=capacity * num_envs, num_step_returns=num_step)
    feed(memory, rows)
    position = memory._draw()
    fused = memory._take_steps(memory.ring.flat, (position, torch.tensor(memory.head)))
    torch.testing.assert_close(fused, memory._collect(position))


def test_cer_puts_what_is_new_at_the_tail() -> None:
    memory = build(2, max_size=200, batch_size=5, use_cer=True)
    feed(memory, [".."] * 90)
    # 180 are new, the newest five fit: rows 87 (env 1), 88 and 89
    assert memory.sample(0).obs.flatten().tolist() == [871, 880, 881, 890, 891]
    feed(memory, [".."])
    assert memory.sample(0).obs.flatten().tolist()[3:] == [900, 901]
    # nothing is new: all five are drawn; of 182 none is of the newest row under this seed
    assert max(memory.sample(0).obs.flatten().tolist()) < 900
    # across the edge of the ring: row 100 is in slot 0
    feed(memory, [".."] * 10)
    assert memory.sample(0).slot.tolist() == [197, 198, 199, 0, 1]


# --- frames kept once


@pytest.mark.parametrize("skip", [0.0, 0.3])
@pytest.mark.parametrize("num_step", [1, 3])
@settings(deadline=None, max_examples=25)
@given(
    num_envs=st.integers(1, 3), capacity=st.integers(STACK, 12), num_row=st.integers(1, 40), seed=st.integers(0, 999)
)
def test_frames_equal_whole_stacks(skip, num_step, num_envs, capacity, num_row, seed) -> None:
    memory = build(num_envs, (STACK, 1, 2), STACK, max_size=capacity * num_envs, num_step_returns=num_step)
    film = Film(num_envs, seed, skip)
    for _ in range(num_row):
        step = film.step()
        given = step._replace(obs=step.obs.clone(), next_obs=step.next_obs.clone())
        memory.add(given)
        # the caller may use its tensors again
        given.obs.zero_()
        given.next_obs.zero_()
    assert memory.first == (max(0, num_row - capacity) + STACK - 1 if num_row > capacity else 0)
    batch = memory.sample(0)
    for index, slot in enumerate(batch.slot.tolist()):
        row, env = slot // num_envs, slot % num_envs
        row += (num_row - 1 - row) // capacity * capacity
        assert row >= memory.first
        assert torch.equal(batch.obs[index], film.kept[row].obs[env])
        last = row
        while last < min(row + num_step, num_row) - 1 and not (
            film.kept[last].terminated[env] or film.kept[last].truncated[env]
        ):
            last += 1
        assert torch.equal(batch.next_obs[index], film.kept[last].next_obs[env])


def test_a_stack_costs_one_frame() -> None:
    memory = build(8, (4, 84, 84), 4, max_size=800)
    # a frame, its age, action 8, reward 4 and three flags: a million take 7.1 GB
    assert memory.num_bytes == 800 * (84 * 84 + 1 + 8 + 4 + 3)
    # not a stack of this many frames: kept in pairs
    assert build(1, (3, 2, 2), 4).num_bytes == 4 * (2 * 12 + 8 + 4 + 3)


def test_what_is_aside_goes_with_its_row() -> None:
    memory, film = build(2, (STACK, 1, 2), STACK, max_size=10), Film(2, 0, end=1.0)
    for _ in range(50):
        memory.add(film.step())
    rows = memory.rows(memory.held_first, memory.head)
    # each of 5 rows of 2 envs starts an episode: 2 older frames and the final one of the episode before
    assert rows["aside_key"][:, 2].tolist() == [3] * 10
    assert len(rows["aside_frame"]) == 30


# --- sequences


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(1, 5))
def test_sequences_against_brute_force(history: tuple[int, int, Letters], length: int) -> None:
    num_envs, capacity, rows = history
    memory = build(num_envs, carry=2, max_size=capacity * num_envs)
    feed(memory, rows)
    assert memory.can_sample_sequence(length) == (min(len(rows), capacity) >= length)
    if not memory.can_sample_sequence(length):
        with pytest.raises(ValueError, match=f"no sequence of {length} rows"):
            memory.sample_sequence(length)
        return
    batch = memory.sample_sequence(length)
    assert batch.obs.shape == (length + 1, 64, 1)
    for b in range(64):
        t, env = divmod(int(batch.obs[0, b]), 10)
        letters = [row[env] for row in rows[t : t + length]]
        values = [10.0 * row + env for row in range(t, t + length)]
        assert len(letters) == length
        assert batch.obs[:, b, 0].tolist() == [*values, values[-1] + 0.5]
        assert batch.reward[:, b].tolist() == batch.action[:, b].tolist() == values
        assert batch.discount[:, b].tolist() == [0.0 if letter in "TB" else GAMMA for letter in letters]
        # the last step has its true successor, the others that of another episode where theirs was cut
        assert batch.mask[:, b].tolist() == [*(0.0 if letter == "C" else 1.0 for letter in letters[:-1]), 1.0]
        is_start = t == 0 or rows[t - 1][env] != "."
        assert batch.reset[:, b].tolist() == [is_start, *(letter != "." for letter in letters[:-1]), False]
        assert batch.carry[b].tolist() == [values[0], -values[0]]


def test_sequences_of_frames_and_starts_at_both_ends() -> None:
    memory, film = build(2, (STACK, 1, 2), STACK, max_size=12), Film(2, 3)
    for _ in range(9):
        memory.add(film.step())
    batch = memory.sample_sequence(3)
    # rows 3 to 8 are held, 5 to 8 can be rebuilt: starts 5 and 6
    found = set()
    for b in range(64):
        for t in (5, 6):
            for env in (0, 1):
                whole = [film.kept[t + k].obs[env] for k in range(3)] + [film.kept[t + 2].next_obs[env]]
                if torch.equal(batch.obs[:, b], torch.stack(whole)):
                    found.add((b, t, env))
    assert {b for b, _, _ in found} == set(range(64))
    assert {(t, env) for _, t, env in found} == {(5, 0), (5, 1), (6, 0), (6, 1)}
    assert batch.carry.shape == (64, 0)


# --- continuing


@pytest.mark.parametrize(
    ("frame_stack", "skip", "num_row", "chunk", "rows_first"),
    [
        # the ring has 7 rows: empty, not full, just full, overwritten three times
        (1, 0.0, 0, 1, True),
        (1, 0.0, 7, 100, False),
        (1, 0.0, 23, 3, True),
        (STACK, 0.0, 1, 3, True),
        (STACK, 0.4, 4, 1, False),
        (STACK, 0.4, 7, 100, True),
        (STACK, 0.4, 23, 1, True),
        (STACK, 0.4, 23, 3, False),
        (STACK, 0.4, 23, 100, True),
    ],
)
def test_rows_and_state_continue_exactly(frame_stack, skip, num_row, chunk, rows_first) -> None:
    kwargs: dict[str, Any] = dict(max_size=14, num_step_returns=2, use_cer=True, batch_size=8)
    memory, other = (build(2, (STACK, 1, 2), frame_stack, **kwargs) for _ in range(2))
    film = Film(2, 1, skip)
    # rows are saved as they come, as a log of a long run would be: none may change later
    saved: list[tuple[int, Any]] = []
    for _ in range(num_row):
        memory.add(film.step())
        if memory.head % chunk == 0:
            saved.append((memory.head - chunk, through_file(memory.rows(memory.head - chunk, memory.head))))
    saved_head = memory.head // chunk * chunk
    start = max(saved_head, memory.held_first)
    saved.append((start, through_file(memory.rows(start, memory.head))))
    state = through_file(memory.state_dict())
    if not rows_first:
        other.load_state_dict(state)
    for begin, rows in saved:
        other.load_rows(begin, rows)
    if rows_first:
        other.load_state_dict(state)
    for _ in range(12):
        step = film.step()
        memory.add(step)
        other.add(step)
        for ours, theirs in zip(memory.sample(0)[:6], other.sample(0)[:6], strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(memory.sample_sequence(1).reset, other.sample_sequence(1).reset)


# --- mistakes


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("ends", ["..T", "CB."])
def test_a_break_ends_episodes_like_a_time_limit(ends: str, is_resumed: bool) -> None:
    """Whatever the batch: n-step returns stop there, and no sequence learns across it."""
    keys: dict[str, Any] = {"carry": 2, "max_size": 18, "num_step_returns": 3, "batch_size": 200}
    broken, cut = build(3, **keys), build(3, **keys)
    before, after = ["...", ".T.", "..."], ["...", "C..", "..."]
    feed(broken, [*before, ends])
    feed(cut, [*before, ends.replace(".", "C")])
    # in a file from before the break, which is not written again
    rows = broken.rows(0, 4)
    broken.break_off()
    if is_resumed:
        state = through_file(broken.state_dict())
        broken = build(3, **keys)
        broken.load_rows(0, rows)
        broken.load_state_dict(state)
    for memory in (broken, cut):
        feed(memory, after)
    for one, two in zip(broken.sample(0), cut.sample(0), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(broken.sample_sequence(3), cut.sample_sequence(3), strict=True):
        assert torch.equal(one, two)


def test_a_replay_that_cannot_fit_is_refused() -> None:
    with pytest.raises(
        SpecError, match=re.escape("max_size of the replay: 1,000,000,000,000 transitions need")
    ) as info:
        build(1, (100,), max_size=10**12)
    # 100 floats twice, 8, 4 and 3 bytes: 815 TB
    assert "need 815.0 TB, the machine has" in str(info.value)
    fits = int(re.findall(r"at most about ([\d,]+) fit", str(info.value))[0].replace(",", ""))
    assert 0 < fits < 10**12
    with pytest.raises(SpecError, match="too small for stacks of 3 frames of 2 envs; use at least 6"):
        build(2, (STACK, 1, 2), STACK, max_size=4)


def test_nothing_to_draw() -> None:
    memory = build(1)
    with pytest.raises(ValueError, match="empty"):
        memory.sample(0)
    feed(memory, ["."] * 6)
    with pytest.raises(ValueError, match="rows 1 to 3 are not held: 2 to 6 are"):
        memory.rows(1, 3)
    memory.update_priority(memory.sample(0).slot, torch.ones(64))
