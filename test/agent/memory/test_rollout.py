"""On-policy memories, filled with steps whose numbers say where they come from (`number_step`)."""

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.memory.build import build_on_policy
from slm_lab.agent.memory.rollout import RolloutMemory, RolloutSetting
from slm_lab.lib.errors import SpecError
from slm_lab.spec.memory import MemorySpec
from test.agent.conftest import build_step, number_step, through_file

CPU = torch.device("cpu")


def build(name: str, num_envs: int, frequency: int, **keys: Any) -> RolloutMemory:
    setting = RolloutSetting(num_envs, CPU, frequency, keys.pop("encode", lambda raw: raw), **keys)
    return build_on_policy(MemorySpec(name=name), setting)


def build_batch(num_envs: int, frequency: int, **keys: Any) -> RolloutMemory:
    return build("OnPolicyBatchReplay", num_envs, frequency, **keys)


def build_episodes(num_envs: int, frequency: int) -> RolloutMemory:
    return build("OnPolicyReplay", num_envs, frequency)


def feed(memory: RolloutMemory, *steps: str, start: int = 0) -> bool:
    """Returns whether training is due afterwards."""
    for t, ends in enumerate(steps, start):
        memory.add(number_step(t, ends))
    return memory.is_ready


def rows(rollout: Rollout) -> list[list[float]]:
    """Observations (T, N), after checking that every field comes from the same step."""
    obs = rollout.obs.squeeze(-1)
    assert torch.equal(rollout.reward, obs)
    assert torch.equal(rollout.action, obs.long())
    assert torch.equal(rollout.extra["value"], -obs)
    assert torch.equal(rollout.extra["carry"], torch.stack([obs, -obs], -1))
    return obs.tolist()


def cuts(rollout: Rollout) -> dict[int, float]:
    """Flat row index -> successor, after checking that each is beside its own hidden state."""
    index = rollout.cut_index.tolist()
    assert bool(index) == (rollout.cut_carry is not None)
    assert len(set(index)) == len(index)
    assert rollout.cut_obs.shape == (len(index), *rollout.obs.shape[2:])
    if rollout.cut_carry is not None:
        assert torch.equal(rollout.cut_carry, torch.cat([rollout.cut_obs, -rollout.cut_obs], 1))
    return dict(zip(index, rollout.cut_obs.flatten().tolist(), strict=True))


# --- a fixed number of steps


def test_batch_is_cut_at_its_edge_and_at_truncations_but_not_at_terminations() -> None:
    memory = build_batch(2, 4)
    assert not feed(memory, "C.", ".T", "B.")
    assert feed(memory, ".C", start=3)
    rollout = memory.sample()
    # (T, N): time first; flattening gives t*N + n
    assert rows(rollout) == [[0, 1], [10, 11], [20, 21], [30, 31]]
    # (0, 0) truncated: row 0; (1, 1) terminated: none; (2, 0) both, so terminated: none;
    # (3, 0) is the edge: row 6; (3, 1) truncated in the last row: row 7, once
    assert cuts(rollout) == {0: 0.5, 6: 30.5, 7: 31.5}
    assert rollout.terminated.int().tolist() == [[0, 0], [0, 1], [1, 0], [0, 0]]
    assert rollout.truncated.int().tolist() == [[1, 0], [0, 0], [1, 0], [0, 1]]
    assert rollout.done.int().tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_batch_whose_last_row_terminated_has_no_cuts() -> None:
    memory = build_batch(2, 2)
    feed(memory, "..", "TB")
    rollout = memory.sample()
    assert cuts(rollout) == {}
    assert rollout.cut_obs.shape == (0, 1)


def test_fields_keep_their_dtype_and_shape() -> None:
    """Trap 10: the reference stored float16."""
    memory = build_batch(2, 1)
    image, action = torch.full((2, 1, 3, 3), 200, dtype=torch.uint8), torch.tensor([[1, 2], [3, 4]])
    extra = {"log_prob": torch.tensor([0.1, 0.2])}
    memory.add(build_step(image, "..", action=action, reward=[1.25, -3e5], next_obs=image + 1, extra=extra))
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


def test_only_successors_that_are_cut_are_encoded() -> None:
    encoded: list[float] = []

    def encode(raw: torch.Tensor) -> torch.Tensor:
        encoded.extend(raw.flatten().tolist())
        return raw + 1000

    memory = build_batch(2, 3, encode=encode)
    feed(memory, "..", ".C", "T.")
    assert memory.sample().cut_obs.flatten().tolist() == [1011.5, 1021.5]
    # the last row of all envs as one batch
    assert encoded == [11.5, 20.5, 21.5]


def test_a_batch_waits_for_the_action_after_it() -> None:
    memory = build_batch(2, 2, waits=True)
    assert not feed(memory, "..", ".C")
    for end in (2, 4):
        assert feed(memory, "..", start=end)
        rollout = memory.sample()
        # no row is lost or comes twice
        assert rows(rollout) == [[10 * t, 10 * t + 1] for t in (end - 2, end - 1)]
        assert rollout.next_action is not None
        assert rollout.next_action.tolist() == [10 * end, 10 * end + 1]
        # what follows is what the policy saw then, but for the episode that was cut
        successor = rollout.cut_obs.flatten()[rollout.cut_index.argsort()].tolist()
        assert successor == [10 * end, 11.5 if end == 2 else 10 * end + 1]
        memory = reload(memory, build_batch(2, 2, waits=True))
        assert not feed(memory, "..", start=end + 1)


def reload(memory: RolloutMemory, fresh: RolloutMemory) -> RolloutMemory:
    fresh.load_state_dict(through_file(memory.state_dict()))
    return fresh


# --- whole episodes


def test_episodes_come_whole_and_partial_ones_stay() -> None:
    """W5: with several envs the reference never trained."""
    memory = build_episodes(2, 2)
    assert not feed(memory, "..", "T.", "..")
    assert feed(memory, "C.", start=3)
    rollout = memory.sample()
    # both episodes are env 0's: steps 0-1 and 2-3; env 1 has not ended
    assert rows(rollout) == [[0], [10], [20], [30]]
    assert rollout.terminated.flatten().int().tolist() == [0, 1, 0, 0]
    assert rollout.done.flatten().int().tolist() == [0, 1, 0, 1]
    assert cuts(rollout) == {3: 30.5}

    assert not feed(memory, ".T", start=4)
    assert feed(memory, "C.", start=5)
    rollout = memory.sample()
    # env 1's episode began at step 0, before the first batch; env 0's at step 4
    assert rows(rollout) == [[1], [11], [21], [31], [41], [40], [50]]
    assert cuts(rollout) == {6: 50.5}
    assert rollout.done.flatten().int().tolist() == [0, 0, 0, 0, 1, 0, 1]


def test_episodes_that_end_together_all_come() -> None:
    memory = build_episodes(3, 2)
    feed(memory, "...", "TCB")
    rollout = memory.sample()
    # three although two were asked for: none is left over for a later, older policy
    assert rows(rollout) == [[0], [10], [1], [11], [2], [12]]
    assert cuts(rollout) == {3: 11.5}
    assert rollout.obs.shape == (6, 1, 1)


# --- many batches in a row, against the obvious way


class BatchOracle:
    """A list of steps, handed over when it is long enough."""

    def __init__(self, num_envs: int, frequency: int) -> None:
        self.frequency = frequency
        self.steps: list[tuple[int, str]] = []

    @property
    def is_ready(self) -> bool:
        return len(self.steps) >= self.frequency

    @property
    def num_open(self) -> int:
        return len(self.steps)

    def add(self, t: int, ends: str) -> None:
        self.steps.append((t, ends))

    def sample(self) -> tuple[list[list[float]], dict[int, float]]:
        obs = [[10.0 * t + env for env in range(len(ends))] for t, ends in self.steps]
        cut = {}
        for row, (_, ends) in enumerate(self.steps):
            for env, end in enumerate(ends):
                if end == "C" or (end == "." and row == self.frequency - 1):
                    cut[row * len(ends) + env] = obs[row][env] + 0.5
        self.steps = []
        return obs, cut


class EpisodeOracle:
    """A list of steps for each env, moved to the finished ones when it ends."""

    def __init__(self, num_envs: int, frequency: int) -> None:
        self.frequency = frequency
        self.open: list[list[float]] = [[] for _ in range(num_envs)]
        self.closed: list[tuple[list[float], str]] = []

    @property
    def is_ready(self) -> bool:
        return len(self.closed) >= self.frequency

    @property
    def num_open(self) -> int:
        return max(map(len, self.open))

    def add(self, t: int, ends: str) -> None:
        for env, end in enumerate(ends):
            self.open[env].append(10.0 * t + env)
            if end != ".":
                self.closed.append((self.open[env], end))
                self.open[env] = []

    def sample(self) -> tuple[list[list[float]], dict[int, float]]:
        obs: list[list[float]] = []
        cut: dict[int, float] = {}
        for episode, end in self.closed:
            obs += [[value] for value in episode]
            if end == "C":
                cut[len(obs) - 1] = episode[-1] + 0.5
        self.closed = []
        return obs, cut


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("name", "kind"), [("OnPolicyBatchReplay", BatchOracle), ("OnPolicyReplay", EpisodeOracle)])
def test_many_updates_in_a_row(name: str, kind: type[BatchOracle | EpisodeOracle], num_envs: int) -> None:
    """Also through a file every so often: empty, half filled, with episodes under way."""
    rng = np.random.default_rng(0)
    memory, oracle = build(name, num_envs, 4), kind(num_envs, 4)
    num_sample = 0
    for t in range(300):
        if t % 7 == 0:
            memory = reload(memory, build(name, num_envs, 4))
        ends = "".join(rng.choice(list("." * 14 + "TTCB"), num_envs))
        feed(memory, ends, start=t)
        oracle.add(t, ends)
        assert memory.is_ready == oracle.is_ready
        if memory.is_ready:
            rollout = memory.sample()
            assert (rows(rollout), cuts(rollout)) == oracle.sample()
            # nothing is kept of what has been used
            assert len(memory.rows) == oracle.num_open
            num_sample += 1
    assert num_sample > 10


def test_a_memory_that_is_not_on_policy_is_refused() -> None:
    with pytest.raises(SpecError, match="Replay is not on-policy"):
        build("Replay", 2, 3)


# --- breaks


@pytest.mark.parametrize("ends", ["..T", "CB."])
def test_a_break_ends_episodes_like_a_time_limit(ends: str) -> None:
    broken, cut = build_batch(3, 4), build_batch(3, 4)
    feed(broken, "...", ".T.", ends)
    # what was seen after the last row, and the hidden state to see it with
    number = torch.tensor([20.5, 21.5, 22.5])
    broken.break_off(number[:, None], torch.stack([number, -number], 1))
    feed(cut, "...", ".T.", ends.replace(".", "C"))
    for memory in (broken, cut):
        feed(memory, "...", start=3)
    one, two = broken.sample(), cut.sample()
    assert rows(one) == rows(two)
    assert cuts(one) == cuts(two)
    assert torch.equal(one.truncated, two.truncated)


def test_a_break_finishes_episodes() -> None:
    memory = build_episodes(2, 3)
    assert not feed(memory, "..", ".T", "..")
    number = torch.tensor([20.5, 21.5])
    memory.break_off(number[:, None], torch.stack([number, -number], 1))
    assert memory.is_ready
    rollout = memory.sample()
    # what env 1 finished, then what was cut
    assert rows(rollout) == [[1.0], [11.0], [0.0], [10.0], [20.0], [21.0]]
    assert cuts(rollout) == {4: 20.5, 5: 21.5}
    assert not memory.rows


def test_a_break_before_the_first_step_changes_nothing() -> None:
    memory = build_episodes(2, 1)
    memory.break_off(torch.zeros(2, 1), None)
    assert not memory.is_ready
