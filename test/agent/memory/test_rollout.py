"""On-policy memories, filled with numbers that say where they come from.

In every test the observation of env `e` at step `t` is 10 t + e, and its successor 10 t + e + 0.5: never equal to the
next row, so that a cut observation cannot be mistaken for one.
"""

import io
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.memory.batch import Rollout, Transition
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.memory.rollout import OnPolicyBatchReplay, OnPolicyMemory, OnPolicyReplay
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import MemorySpec

CPU = torch.device("cpu")
Array = np.ndarray[Any, Any]


class Feeder:
    """Feeds steps; one letter per env: `.` goes on, `T` terminated, `C` cut by the clock, `B` both."""

    def __init__(self, num_envs: int) -> None:
        self.t = 0
        self.num_envs = num_envs

    def feed(self, memory: OnPolicyMemory, *steps: str) -> bool:
        """Returns whether training is due afterwards."""
        for step in steps:
            letters = np.array(list(step))
            obs = 10.0 * self.t + np.arange(self.num_envs)
            memory.add(
                Transition(
                    torch.tensor(obs, dtype=torch.float32)[:, None],
                    torch.tensor(obs, dtype=torch.int64),
                    obs,
                    np.isin(letters, ["T", "B"]),
                    np.isin(letters, ["C", "B"]),
                    torch.tensor(obs + 0.5, dtype=torch.float32)[:, None],
                    {"value": torch.tensor(-obs, dtype=torch.float32)},
                )
            )
            self.t += 1
        return memory.is_ready


def rows(rollout: Rollout) -> list[list[float]]:
    """Observations (T, N), after checking that every field comes from the same step."""
    obs = rollout.obs.squeeze(-1)
    assert torch.equal(rollout.reward, obs)
    assert torch.equal(rollout.action, obs.long())
    assert torch.equal(rollout.extra["value"], -obs)
    return obs.tolist()


def cuts(rollout: Rollout) -> dict[int, float]:
    """Flat row index -> successor."""
    index = rollout.cut_index.tolist()
    assert len(set(index)) == len(index)
    assert rollout.cut_obs.shape == (len(index), *rollout.obs.shape[2:])
    return dict(zip(index, rollout.cut_obs.flatten().tolist(), strict=True))


def through_file(state: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


# --- a fixed number of steps


def test_batch_keeps_the_order_of_steps_and_envs() -> None:
    memory, feeder = OnPolicyBatchReplay(3, CPU, 2), Feeder(3)
    assert not feeder.feed(memory, "...")
    assert feeder.feed(memory, "...")
    rollout = memory.sample()
    # (T, N): time first; flattening gives t*N + n
    assert rows(rollout) == [[0, 1, 2], [10, 11, 12]]
    assert rollout.obs.flatten(0, 1).flatten().tolist() == [0, 1, 2, 10, 11, 12]


def test_batch_is_cut_at_its_edge() -> None:
    memory, feeder = OnPolicyBatchReplay(2, CPU, 3), Feeder(2)
    feeder.feed(memory, "..", "..", "..")
    # rows 4 and 5 are (t=2, env 0) and (t=2, env 1)
    assert cuts(memory.sample()) == {4: 20.5, 5: 21.5}


def test_batch_is_cut_at_truncations_but_not_at_terminations() -> None:
    memory, feeder = OnPolicyBatchReplay(2, CPU, 4), Feeder(2)
    feeder.feed(memory, "C.", ".T", "B.", ".C")
    rollout = memory.sample()
    # (0, 0) truncated: row 0; (1, 1) terminated: none; (2, 0) both, so terminated: none;
    # (3, 0) is the edge: row 6; (3, 1) truncated in the last row: row 7, once
    assert cuts(rollout) == {0: 0.5, 6: 30.5, 7: 31.5}
    assert rollout.terminated.int().tolist() == [[0, 0], [0, 1], [1, 0], [0, 0]]
    assert rollout.truncated.int().tolist() == [[1, 0], [0, 0], [1, 0], [0, 1]]
    assert rollout.done.int().tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_batch_whose_last_row_terminated_has_no_cuts() -> None:
    memory, feeder = OnPolicyBatchReplay(2, CPU, 2), Feeder(2)
    feeder.feed(memory, "..", "TB")
    rollout = memory.sample()
    assert cuts(rollout) == {}
    assert rollout.cut_obs.shape == (0, 1)


def test_batches_follow_one_another() -> None:
    memory, feeder = OnPolicyBatchReplay(2, CPU, 2), Feeder(2)
    for batch in range(5):
        is_cut = batch % 2 == 0
        assert feeder.feed(memory, "C." if is_cut else "..", "..")
        rollout = memory.sample()
        start = 20 * batch
        assert rows(rollout) == [[start, start + 1], [start + 10, start + 11]]
        # cuts of an earlier batch must not come back
        edge = {2: start + 10.5, 3: start + 11.5}
        assert cuts(rollout) == ({0: start + 0.5} | edge if is_cut else edge)
        assert not memory.is_ready


def test_fields_keep_their_dtype_and_shape() -> None:
    """Trap 10: the reference stored float16."""
    memory = OnPolicyBatchReplay(2, CPU, 1)
    image = torch.full((2, 1, 3, 3), 200, dtype=torch.uint8)
    no = np.zeros(2, bool)
    action = torch.tensor([[1, 2], [3, 4]])
    memory.add(
        Transition(image, action, np.array([1.25, -3e5]), no, no, image + 1, {"log_prob": torch.tensor([0.1, 0.2])})
    )
    rollout = memory.sample()
    assert rollout.obs.shape == (1, 2, 1, 3, 3)
    assert rollout.obs.dtype == rollout.cut_obs.dtype == torch.uint8
    assert rollout.cut_obs.unique().tolist() == [201]
    assert torch.equal(rollout.action[0], action)
    assert rollout.action.dtype == torch.int64
    assert rollout.reward.dtype == torch.float32
    assert rollout.reward.tolist() == [[1.25, -3e5]]
    assert rollout.terminated.dtype == rollout.truncated.dtype == torch.bool
    assert list(rollout.extra) == ["log_prob"]


def test_what_is_stored_does_not_change_with_the_caller() -> None:
    """Cut observations are kept beyond the step; a view of the env's array would be overwritten."""
    memory = OnPolicyBatchReplay(1, CPU, 2)
    obs, next_obs = torch.zeros(1, 1), torch.full((1, 1), 5.0)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    memory.add(Transition(obs, torch.zeros(1), np.zeros(1), no, yes, next_obs, {}))
    obs.fill_(99)
    next_obs.fill_(99)
    memory.add(Transition(torch.ones(1, 1), torch.zeros(1), np.zeros(1), yes, no, torch.ones(1, 1), {}))
    rollout = memory.sample()
    assert rollout.obs.flatten().tolist() == [0, 1]
    assert cuts(rollout) == {0: 5.0}


@pytest.mark.parametrize("filled", [0, 1, 2, 3])
def test_batch_continues_from_a_half_filled_state(filled: int) -> None:
    steps = ["C.", ".T", "C.", "..", ".C", "..", "T.", ".."]
    memory, feeder = OnPolicyBatchReplay(2, CPU, 4), Feeder(2)
    feeder.feed(memory, *steps[:4])
    memory.sample()
    feeder.feed(memory, *steps[4 : 4 + filled])
    state = through_file(memory.state_dict())

    fresh, fresh_feeder = OnPolicyBatchReplay(2, CPU, 4), Feeder(2)
    fresh.load_state_dict(state)
    fresh_feeder.t = feeder.t
    for one, feed in ((memory, feeder), (fresh, fresh_feeder)):
        assert not one.is_ready
        feed.feed(one, *steps[4 + filled :])
    expected, rollout = memory.sample(), fresh.sample()
    assert rows(rollout) == rows(expected) == [[40, 41], [50, 51], [60, 61], [70, 71]]
    assert cuts(rollout) == cuts(expected) == {1: 41.5, 6: 70.5, 7: 71.5}


def test_a_saved_state_does_not_move_with_the_memory() -> None:
    memory, feeder = OnPolicyBatchReplay(1, CPU, 2), Feeder(1)
    feeder.feed(memory, "C")
    state = memory.state_dict()
    feeder.feed(memory, ".")
    memory.sample()
    feeder.feed(memory, ".", ".")
    fresh = OnPolicyBatchReplay(1, CPU, 2)
    fresh.load_state_dict(state)
    feeder.t = 1
    feeder.feed(fresh, "T")
    rollout = fresh.sample()
    assert rows(rollout) == [[0], [10]]
    assert cuts(rollout) == {0: 0.5}


# --- whole episodes


def test_episodes_come_whole_and_partial_ones_stay() -> None:
    """W5: with several envs the reference never trained."""
    memory, feeder = OnPolicyReplay(2, CPU, 2), Feeder(2)
    assert not feeder.feed(memory, "..", "T.", "..")
    assert feeder.feed(memory, "C.")
    rollout = memory.sample()
    # both episodes are env 0's: steps 0-1 and 2-3; env 1 has not ended
    assert rows(rollout) == [[0], [10], [20], [30]]
    assert rollout.terminated.flatten().int().tolist() == [0, 1, 0, 0]
    assert rollout.done.flatten().int().tolist() == [0, 1, 0, 1]
    assert cuts(rollout) == {3: 30.5}

    assert not feeder.feed(memory, ".T")
    assert feeder.feed(memory, "C.")
    rollout = memory.sample()
    # env 1's episode began at step 0, before the first batch; env 0's at step 4
    assert rows(rollout) == [[1], [11], [21], [31], [41], [40], [50]]
    assert cuts(rollout) == {6: 50.5}
    assert rollout.done.flatten().int().tolist() == [0, 0, 0, 0, 1, 0, 1]


def test_episodes_that_end_together_all_come() -> None:
    memory, feeder = OnPolicyReplay(3, CPU, 2), Feeder(3)
    feeder.feed(memory, "...", "TCB")
    rollout = memory.sample()
    # three although two were asked for: none is left over for a later, older policy
    assert rows(rollout) == [[0], [10], [1], [11], [2], [12]]
    assert cuts(rollout) == {3: 11.5}
    assert rollout.obs.shape == (6, 1, 1)


def test_single_env() -> None:
    memory, feeder = OnPolicyReplay(1, CPU, 1), Feeder(1)
    for first in range(0, 30, 3):
        feeder.feed(memory, ".", ".", "T")
        assert rows(memory.sample()) == [[10 * first], [10 * first + 10], [10 * first + 20]]
        # nothing is kept of what has been used
        assert memory.buffer.size == 0


class EpisodeOracle:
    """The obvious way: a list of steps for each env, moved to the finished ones when it ends."""

    def __init__(self, num_envs: int) -> None:
        self.open: list[list[float]] = [[] for _ in range(num_envs)]
        self.closed: list[tuple[list[float], str]] = []

    def add(self, t: int, step: str) -> None:
        for env, letter in enumerate(step):
            self.open[env].append(10.0 * t + env)
            if letter != ".":
                self.closed.append((self.open[env], letter))
                self.open[env] = []

    def sample(self) -> tuple[list[list[float]], dict[int, float]]:
        obs: list[list[float]] = []
        cut: dict[int, float] = {}
        for episode, letter in self.closed:
            obs += [[value] for value in episode]
            if letter == "C":
                cut[len(obs) - 1] = episode[-1] + 0.5
        self.closed = []
        return obs, cut


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_many_updates_in_a_row(seed: int) -> None:
    """Also through a file every so often, always with episodes under way."""
    rng = np.random.default_rng(seed)
    num_envs, frequency = 3, 4
    memory, feeder, oracle = OnPolicyReplay(num_envs, CPU, frequency), Feeder(num_envs), EpisodeOracle(num_envs)
    num_sample = 0
    for t in range(300):
        step = "".join(rng.choice(list("." * 14 + "TTCB"), num_envs))
        feeder.feed(memory, step)
        oracle.add(t, step)
        assert memory.is_ready == (len(oracle.closed) >= frequency)
        if t % 13 == 0:
            state = through_file(memory.state_dict())
            memory = OnPolicyReplay(num_envs, CPU, frequency)
            memory.load_state_dict(state)
        if memory.is_ready:
            rollout = memory.sample()
            obs, cut = oracle.sample()
            assert rows(rollout) == obs
            assert cuts(rollout) == cut
            num_sample += 1
    assert num_sample > 20


def test_buffer_grows_under_a_long_episode() -> None:
    """Env 0 plays on for 1500 steps, more than the first capacity, while env 1 ends every ten."""
    memory, feeder = OnPolicyReplay(2, CPU, 50), Feeder(2)
    num_sample = 0
    for t in range(1500):
        feeder.feed(memory, ".T" if t % 10 == 9 else "..")
        if memory.is_ready:
            rollout = memory.sample()
            first = 500 * num_sample
            assert rows(rollout) == [[10.0 * row + 1] for row in range(first, first + 500)]
            num_sample += 1
    assert num_sample == 3
    state = through_file(memory.state_dict())
    memory = OnPolicyReplay(2, CPU, 1)
    memory.load_state_dict(state)
    feeder.feed(memory, "C.")
    rollout = memory.sample()
    assert rows(rollout) == [[10.0 * row] for row in range(1501)]
    assert cuts(rollout) == {1500: 15000.5}
    # env 1's one open step is all that is left
    assert memory.buffer.size == 1


def test_empty_memories_continue() -> None:
    for kind in (OnPolicyReplay, OnPolicyBatchReplay):
        fresh = kind(1, CPU, 1)
        fresh.load_state_dict(through_file(kind(1, CPU, 1).state_dict()))
        feeder = Feeder(1)
        feeder.feed(fresh, "T")
        assert rows(fresh.sample()) == [[0]]


# --- choosing


def test_build_by_name() -> None:
    assert isinstance(build_on_policy(MemorySpec(name="OnPolicyReplay"), 2, CPU, 3), OnPolicyReplay)
    memory = build_on_policy(MemorySpec(name="OnPolicyBatchReplay"), 2, CPU, 3)
    assert isinstance(memory, OnPolicyBatchReplay)
    assert memory.frequency == 3
    with pytest.raises(SpecError, match="Replay is not on-policy"):
        build_on_policy(MemorySpec(name="Replay"), 2, CPU, 3)
