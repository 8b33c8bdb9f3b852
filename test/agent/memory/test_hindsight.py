"""Goals in hindsight: which goals a batch gets, their rewards, exact resume, and envs that have none."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory.hindsight import HindsightReplay
from slm_lab.agent.memory.replay import Setting
from slm_lab.audit.difference import find_difference
from slm_lab.env.goal import Goal, build_goal
from slm_lab.env.layout import ObsPart
from slm_lab.env.make import build_settings, describe, make_env
from slm_lab.env.probe import BitFlip, Reach
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import EnvError, SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.memory import HindsightReplaySpec
from slm_lab.spec.schema import EnvSpec, Spec
from test.agent.conftest import build_step, through_file

# what an observation is: the step's own number, the goal that it reached, the goal that was wanted
OBS, ACHIEVED, DESIRED = (ObsPart(name, i, i + 1, (1,)) for i, name in enumerate(("obs", "achieved", "desired")))


def make_replay(max_size: int = 60, num_envs: int = 2, has_end: bool = False, **keys: Any) -> HindsightReplay:
    """A replay whose rewards are the difference of both goals."""
    goal = Goal(ACHIEVED, DESIRED, lambda reached, wanted: (reached - wanted)[:, 0])
    if has_end:
        goal = Goal(ACHIEVED, DESIRED, goal.reward, lambda reached, wanted: (reached == wanted)[:, 0])
    spec = HindsightReplaySpec(max_size=max_size, batch_size=200, **keys)
    generator = torch.Generator().manual_seed(0)
    device = torch.device("cpu")
    setting = Setting(num_envs, (3,), torch.float32, (), torch.int64, 0.9, device, generator, goal=goal)
    return HindsightReplay(spec, setting)


def fill(replay: HindsightReplay, num: int, start: int = 0) -> None:
    """Episodes of 7 steps of env 0 and of 4 of env 1; step t of env e is 100 e + t, and reaches half more."""
    for t in range(start, start + num):
        number = torch.tensor([t, 100.0 + t])
        obs = torch.stack([number, number, -number], 1)
        ends = ("C" if t % 7 == 6 else ".") + ("T" if t % 4 == 3 else ".")
        replay.add(build_step(obs, ends, reward=number, next_obs=obs + torch.tensor([0.5, 0.5, 0.0])))


@pytest.mark.parametrize("num_row", [5, 23, 30, 100], ids=["short", "part", "full", "over"])
@pytest.mark.parametrize("strategy", ["future", "final"])
def test_goals_are_of_later_steps_of_the_same_episode(num_row: int, strategy: str) -> None:
    replay = make_replay(strategy=strategy)
    fill(replay, num_row)
    batch = replay.sample(0)
    assert replay.num_relabelled == 160
    found = set()
    for row in range(200):
        number, _, wanted = batch.obs[row].tolist()
        env, t = divmod(number, 100)
        next_number, reached, next_wanted = batch.next_obs[row].tolist()
        assert (next_number, next_wanted) == (number + 0.5, wanted)
        if row >= 160:
            assert (wanted, float(batch.reward[row])) == (-number, number)
            continue
        length = 4 if env else 7
        last = min(t - t % length + length - 1, num_row - 1)
        ahead = wanted - 0.5 - number
        assert 0 <= ahead <= last - t
        assert ahead == int(ahead)
        if strategy == "final":
            assert ahead == last - t
        found.add((env, ahead))
        assert float(batch.reward[row]) == pytest.approx(reached - wanted)
        # of the step itself, since these goals have no end of their own
        assert float(batch.discount[row]) == pytest.approx(0.0 if env and t % 4 == 3 else 0.9)
    if strategy == "future" and num_row > 5:
        assert {(1, ahead) for ahead in range(4)} <= found
        assert {(0, ahead) for ahead in range(5)} <= found


def test_goals_are_not_taken_from_beyond_a_break() -> None:
    replay = make_replay()
    fill(replay, 3)
    replay.break_off()
    fill(replay, 3, start=3)
    batch = replay.sample(0)
    for row in range(replay.num_relabelled):
        number, _, wanted = batch.obs[row].tolist()
        # steps 0 to 2 are of one episode, 3 to 5 of others
        assert (wanted - 0.5) % 100 // 3 == number % 100 // 3


def test_a_goal_that_is_reached_may_end_the_task() -> None:
    replay = make_replay(has_end=True)
    fill(replay, 23)
    batch = replay.sample(0)
    is_reached = batch.next_obs[:160, 1] == batch.next_obs[:160, 2]
    assert 0 < int(is_reached.sum()) < 160
    assert torch.equal(batch.discount[:160] == 0, is_reached)


@pytest.mark.parametrize("num_row", [17, 45])
def test_a_loaded_replay_goes_on_alike(num_row: int) -> None:
    replay, other = make_replay(), make_replay()
    fill(replay, num_row)
    replay.sample(0)
    other.load_rows(replay.held_first, through_file(replay.rows(replay.held_first, replay.head)))
    other.load_state_dict(through_file(replay.state_dict()))
    other.generator.set_state(replay.generator.get_state())
    for more in (0, 1, 9):
        for one in (replay, other):
            fill(one, more, start=one.head)
        for mine, theirs in zip(replay.sample(0), other.sample(0), strict=True):
            assert torch.equal(mine, theirs)


def make_goal(name: str, **keys: Any) -> Goal:
    spec = EnvSpec.model_validate({"name": name, "max_frame": 10, **keys})
    return build_goal(spec, describe(make_env(build_settings(spec, (0,)))))


def test_rewards_are_those_of_the_env() -> None:
    goal = make_goal("probe/Reach-v0", reward_scale=2.0, clip_reward=1.5)
    reached = np.zeros((3, 4), np.float32)
    wanted = np.array([[0.0] * 4, [0.05] * 4, [0.5] * 4], np.float32)
    assert goal.reward(reached, wanted).tolist() == [0.0, 0.0, -1.5]
    assert goal.terminated is None
    flip = make_goal("probe/BitFlip-v0")
    assert flip.terminated is not None
    bits = np.ones((2, 10), np.float32)
    other = bits.copy()
    other[1, 3] = -1
    assert flip.reward(bits, other).tolist() == [0.0, -1.0]
    assert flip.terminated(bits, other).tolist() == [True, False]


class RowByRow(Reach):
    """Takes no batches, as envs of the old kind do."""

    num_call = 0

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        RowByRow.num_call += 1
        return -float(max(abs(a - d) for a, d in zip(achieved_goal, desired_goal, strict=True)) > 0.2)


class NeedsInfo(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return info["speed"]


class NoReward(BitFlip):
    def __getattribute__(self, name: str) -> Any:
        if name == "compute_reward":
            raise AttributeError(name)
        return super().__getattribute__(name)


class OddGoals(BitFlip):
    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.observation_space, spaces.Dict)
        parts = self.observation_space.spaces
        self.observation_space = spaces.Dict({**parts, "desired_goal": spaces.Discrete(10)})


for _class in (RowByRow, NeedsInfo, NoReward, OddGoals):
    if f"test/{_class.__name__}-v0" not in gym.registry:
        gym.register(f"test/{_class.__name__}-v0", entry_point=lambda _class=_class, **_: _class())


def test_an_env_without_batches_is_asked_row_by_row() -> None:
    goal = make_goal("test/RowByRow-v0")
    before = RowByRow.num_call
    wanted = np.array([[0.0] * 4, [0.5] * 4], np.float32)
    assert goal.reward(np.zeros((2, 4), np.float32), wanted).tolist() == [0.0, -1.0]
    assert RowByRow.num_call - before == 2


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "CartPole-v1",
            {},
            r"needs an env with the parts achieved_goal and desired_goal, 'CartPole-v1' has obs \(4,\)",
        ),
        ("test/NeedsInfo-v0", {}, "fails without the info of a step: KeyError: 'speed'; use Replay"),
        ("test/NoReward-v0", {}, "has no compute_reward, which HindsightReplay needs; use Replay"),
        ("test/OddGoals-v0", {}, "must be Boxes of one shape"),
        ("probe/Reach-v0", {"normalize_reward": True}, "env.normalize_reward: rewards of other goals have another"),
        (
            "probe/Reach-v0",
            {"wrappers": ({"name": "ClipReward", "kwargs": {"min_reward": -0.5}},)},
            r"env\.wrappers: ClipReward makes the reward -0\.5 where compute_reward gives -1,",
        ),
    ],
)
def test_envs_without_goals_are_refused(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_goal(name, **keys)


def test_wrappers_that_keep_rewards_and_goals_are_taken() -> None:
    goal = make_goal("probe/Reach-v0", wrappers=({"name": "ClipReward", "kwargs": {"min_reward": -2}}, "ClipAction"))
    assert goal.reward(np.zeros((1, 4)), np.ones((1, 4))).tolist() == [-1.0]


def make_spec(name: str, env: str, memory: dict[str, Any] | None = None, net: dict[str, Any] | None = None) -> Spec:
    raw = {
        "name": "tiny",
        "agent": {
            "algorithm": {"name": name, "training_start_step": 60},
            "memory": {"name": "HindsightReplay", "batch_size": 16, "max_size": 150, **(memory or {})},
            "net": net or {"type": "MLPNet", "hid_layers": [16]},
        },
        "env": {"name": env, "num_envs": 2, "max_frame": 400},
        "meta": {"log_frequency": 100, "rigorous_eval": 0, "final_eval": 0, "compile": False},
    }
    return parse_spec(raw)[0]


def test_keys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="num_step_returns sums rewards of one goal; set it to 1, or use Replay"):
        make_spec("DQN", "probe/BitFlip-v0", memory={"num_step_returns": 3})
    with pytest.raises(SpecError, match="sequences for a RecurrentNet are drawn uniformly; use Replay"):
        make_spec("DQN", "probe/BitFlip-v0", net={"type": "RecurrentNet"})


@pytest.mark.parametrize(
    ("name", "env"), [("DQN", "BitFlip"), ("SoftActorCritic", "Reach"), ("TD3", "Reach"), ("CrossQ", "Reach")]
)
def test_a_stopped_run_ends_like_a_whole_one(name: str, env: str, tmp_path: Path) -> None:
    spec = make_spec(name, f"probe/{env}-v0")
    whole, stopped = (RunFolder(tmp_path / place, "tiny") for place in ("whole", "stopped"))
    Session(spec, whole).run()
    for frame in (4, 78, 250, 400):
        session = Session(spec, stopped)
        session.should_stop = lambda session=session, frame=frame: session.frame >= frame  # type: ignore[misc]
        session.run()
    assert find_difference(whole.path, stopped.path, "tiny") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "solved", "missed"), [("her_dqn_bitflip", -6.0, -9.0), ("her_sac_reach", -8.0, -18.0)]
)
def test_what_plain_replays_miss_is_found_in_hindsight(name: str, solved: float, missed: float, tmp_path: Path) -> None:
    scores = []
    for num_goal in (4, 0):
        changes = {"agent.memory.num_goal": num_goal, "env.max_frame": 10_000, "meta.compile": False}
        spec = load_spec(name, overrides=changes).spec
        result = Session(spec, RunFolder(tmp_path / str(num_goal), spec.name)).run()
        scores.append(float(np.mean(result.final_eval)))
    assert scores[0] > solved
    assert scores[1] < missed
