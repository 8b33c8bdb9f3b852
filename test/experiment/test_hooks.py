"""What envs tell of their episodes, wrappers and curricula: in every table, and exact after any kill."""

import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm_lab.api import build
from slm_lab.audit.difference import find_difference
from slm_lab.audit.replay_fault import read_bundle, replay_fault
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, build_settings
from slm_lab.env.vec_env import VecEnv
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained, play_episodes
from slm_lab.experiment.trial import find_random_return
from slm_lab.lib.errors import DivergenceError, LabError
from slm_lab.results.folder import RunFolder
from slm_lab.results.table import read_table
from slm_lab.spec.schedule import calc_level, calc_schedule
from slm_lab.spec.schema import Spec
from slm_lab.spec.types import ScheduleSpec
from test.tiny import make_tiny_spec

WALK = "toy_env:test/Walk-v0"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # for workers too, which get this process's path
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


# from frame 100 to 900
RISING = {"name": "linear_decay", "start_val": 2, "end_val": 6, "start_step": 100, "end_step": 900}


class KilledError(Exception):
    """Ends a session as a kill does: nothing more is saved."""


def make_spec(algorithm: str = "PPO", meta: dict[str, Any] | None = None, **env: Any) -> Spec:
    own = {"log_frequency": 100, "checkpoint_frequency": 100, "rigorous_eval": 2, "eval_frequency": 200}
    return make_tiny_spec(
        algorithm, env={"name": WALK, "num_workers": 0, "max_frame": 1200, **env}, meta=own | (meta or {})
    )


def train(spec: Spec, path: Path, kills: tuple[int, ...] = ()) -> Path:
    """Train to the end, with kills at some frames; each resumes from the checkpoint before."""
    for kill in kills:
        with pytest.raises(KilledError):
            train_until(spec, path, kill)
    train_until(spec, path)
    return path


def train_until(spec: Spec, path: Path, kill: float = math.inf) -> Session:
    """Train to the end or to a kill."""
    session = Session(spec, RunFolder(path, spec.name))

    def die() -> bool:
        if session.frame >= kill:
            raise KilledError
        return False

    session.should_stop = die
    session.run()
    return session


def check_exact(spec: Spec, tmp_path: Path, kills: tuple[int, ...]) -> RunFolder:
    """A run that is killed ends bit for bit like one that is not; gives its folder."""
    whole, killed = train(spec, tmp_path / "whole"), train(spec, tmp_path / "killed", kills)
    assert find_difference(whole, killed, spec.name) is None
    folders = RunFolder(whole, spec.name), RunFolder(killed, spec.name)
    if spec.meta.episode_table:
        one, two = (folder.table_file(0, 0, "episode").read_bytes() for folder in folders)
        assert one == two
    return folders[1]


TWENTY = tuple(range(24, 1200, 58))[:20]


# --- what the env tells


def play(env: VecEnv, num_step: int) -> VecEnv:
    for t in range(num_step):
        env.step(np.full(env.num_envs, t % 3 != 0, np.int64))
    return env


def test_backends_give_the_same_episodes() -> None:
    settings = EnvSettings(WALK, 5, seed_key=(1,), info_keys=("distance", "goal"))
    local, workers, again = LocalVecEnv(settings), WorkerVecEnv(settings, 2), LocalVecEnv(settings)
    try:
        for env in (local, workers):
            env.reset()
            play(env, 120)
        again.load_state_dict(local.state_dict())
        for env in (local, workers, again):
            play(env, 60)
        episodes = local.pop_episodes()
        assert len(episodes) > 30
        assert workers.pop_episodes() == episodes == again.pop_episodes()
        assert [list(one.info) for one in episodes] == [["distance", "goal", "is_success"]] * len(episodes)
        for one in episodes:
            assert one.info["is_success"] <= (one.info["distance"] >= 3)
            assert one.length == 30 or one.info["distance"] >= 3
        # what all envs have stepped is in finished episodes or in running ones
        running = local.state_dict()["length"]
        for index in range(5):
            assert sum(one.length for one in episodes if one.env == index) + running[index] == 180
    finally:
        workers.close()


def read_episodes(folder: RunFolder) -> list[dict[str, str]]:
    with folder.table_file(0, 0, "episode").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_columns_are_means_of_the_last_episodes_and_survive_kills(algorithm: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, {"episode_table": True}, info_keys=["distance"])
    folder = check_exact(spec, tmp_path, TWENTY)
    table, episodes = read_table(folder.table_file(0, 0, "train")), read_episodes(folder)
    assert list(episodes[0]) == ["frame", "env", "total_reward", "episode_length", "distance", "is_success"]
    assert list(table)[-2:] == ["distance", "is_success"]
    assert table["epi"][-1] == len(episodes) > 100
    for row, frame in enumerate(table["frame"]):
        last = [one for one in episodes if int(one["frame"]) <= frame][-100:]
        for name in ("total_reward", "episode_length", "distance", "is_success"):
            assert table[name][row] == pytest.approx(np.mean([float(one[name]) for one in last]))
    frames = [int(one["frame"]) for one in episodes]
    assert all(one <= two for one, two in pairwise(frames))
    evaluated = read_table(folder.table_file(0, 0, "eval"))
    assert len(evaluated["frame"]) == 6
    assert np.isfinite([evaluated[name] for name in ("episode_length", "distance", "is_success")]).all()


def test_a_run_stops_at_a_success_rate(tmp_path: Path) -> None:
    meta = {"stop": {"is_success": 0.1, "distance": 1, "for": "2 rows"}, "rigorous_eval": 0, "log_frequency": 20}
    folder = start(make_spec(meta=meta, info_keys=["distance"]), Options(data_dir=tmp_path)).folder
    table = read_table(RunFolder(folder, "tiny").table_file(0, 0, "train"))
    assert table["frame"][-1] < 1200
    assert (table["is_success"][-2:] >= 0.1).all()


def test_an_env_that_tells_nothing_has_no_columns(tmp_path: Path) -> None:
    folder = RunFolder(train(make_spec(name="CartPole-v1"), tmp_path), "tiny")
    table = read_table(folder.table_file(0, 0, "train"))
    assert "is_success" not in table
    assert (table["episode_length"] == table["total_reward"]).all()
    assert not folder.table_file(0, 0, "episode").exists()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"info_keys": ["distanc"]},
            "env.info_keys: the info of 'toy_env:test/Walk-v0' has no number 'distanc' at the end of an episode; "
            "did you mean 'distance'?; it has clip_frac, distance, goal, is_success, loss",
        ),
        ({"info_keys": ["note"]}, "has no number 'note' at the end of an episode"),
        ({"name": "CartPole-v1", "info_keys": ["x"]}, "has no number 'x' at the end of an episode; it has none"),
        ({"info_keys": ["loss"]}, "env.info_keys: 'loss' is a column of the lab's own"),
        (
            {"kwargs": {"goal": {**RISING, "start_val": -1}}},
            "env.kwargs: 'toy_env:test/Walk-v0' cannot be made with {'goal': -1.0}: AssertionError: goal -1.0 is not",
        ),
        ({"kwargs": {"goal": {**RISING, "end_val": -1}}}, "cannot be made with {'goal': -1.0}: AssertionError"),
        ({"kwargs": {"gaol": RISING}}, "does not take an option given: "),
        (
            {"kwargs": {"size": RISING}},
            "env.kwargs: the schedule of size changes the observations or actions of the env",
        ),
        ({"info_keys": ["clip_frac"]}, "env.info_keys: 'clip_frac' is a column of the lab's own"),
        (
            {"wrappers": ["FrameStackObservatio"]},
            "env.wrappers: gymnasium has no wrapper 'FrameStackObservatio'; did you mean 'FrameStackObservation'? "
            "(one of your own needs its module: my_module:FrameStackObservatio)",
        ),
        ({"wrappers": ["Autoreset"]}, "env.wrappers: gymnasium has no wrapper 'Autoreset'"),
        (
            {"wrappers": ["toy_env:Shape"]},
            "env.wrappers: module 'toy_env' has no wrapper 'Shape'; did you mean 'Shaped'?",
        ),
        ({"wrappers": ["toy_env:Walk"]}, "env.wrappers: module 'toy_env' has no wrapper 'Walk'"),
        ({"wrappers": ["nowhere:Shaped"]}, "env.wrappers: module 'nowhere' of 'nowhere:Shaped' cannot be imported"),
        ({"wrappers": ["os; x:Shaped"]}, "env.wrappers: module 'os; x' of 'os; x:Shaped' cannot be imported"),
        ({"wrappers": ["__main__:Shaped"]}, "which no other process can import; move it to a module"),
        (
            {"wrappers": [{"name": "FrameStackObservation", "kwargs": {"stack_sise": 4}}]},
            "env.wrappers: FrameStackObservation has no option 'stack_sise'; did you mean 'stack_size'?",
        ),
        (
            {"wrappers": ["FrameStackObservation"]},
            "env.wrappers: FrameStackObservation cannot be made with {}: TypeError: ",
        ),
        (
            {"wrappers": [{"name": "FrameStackObservation", "kwargs": {"stack_size": 0}}]},
            "env.wrappers: FrameStackObservation cannot be made with {'stack_size': 0}: ",
        ),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_written(
    env: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LabError) as caught:
        start(make_spec(**env), Options(data_dir=tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_key_that_the_probe_cannot_know_is_refused_at_the_first_end() -> None:
    env = LocalVecEnv(EnvSettings(WALK, 1, kwargs={"goal": 1000.0}, info_keys=("nothing",)))
    # no episode ends within these steps
    env.try_episode(10)
    env.reset()
    with pytest.raises(LabError, match="has no number 'nothing'"):
        play(env, 40)


# --- wrappers

STACK = {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}
SHAPED = {"name": "toy_env:Shaped", "kwargs": {"factor": 0.5}}


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_wrappers_keep_a_run_exact(algorithm: str, tmp_path: Path) -> None:
    spec = make_spec(algorithm, {"episode_table": True}, wrappers=[SHAPED, STACK])
    folder = check_exact(spec, tmp_path, TWENTY)
    # the score is what the wrapped env gives
    plain = RunFolder(train(make_spec(algorithm), tmp_path / "plain"), spec.name)
    one, two = (read_table(each.table_file(0, 0, "train"))["total_reward"] for each in (folder, plain))
    assert (one != two).all()


def test_wrappers_are_applied_in_order_here_and_in_workers() -> None:
    spec = make_spec(wrappers=["toy_env:Shaped", STACK])
    settings = build_settings(spec.env, (1,))
    assert [wrapper.name for wrapper in settings.wrappers] == ["toy_env:Shaped", "FrameStackObservation"]
    local, workers = LocalVecEnv(settings), WorkerVecEnv(settings, 2)
    plain = LocalVecEnv(build_settings(make_spec().env, (1,)))
    try:
        assert local.obs_space.shape == (4, 2)
        first = plain.reset()
        obs = local.reset()
        assert np.array_equal(workers.reset(), obs)
        # gymnasium fills the stack with the first observation
        assert np.array_equal(obs, np.repeat(np.asarray(first)[:, None], 4, 1))
        for _ in range(30):
            action = np.ones(4, np.int64)
            one, two, three = (env.step(action) for env in (local, workers, plain))
            assert np.array_equal(one.next_obs, two.next_obs)
            assert np.array_equal(np.asarray(one.next_obs)[:, -1], three.next_obs)
            assert np.array_equal(one.reward, three.reward + 0.1 * np.asarray(three.next_obs)[:, 0].astype(float))
    finally:
        workers.close()


@pytest.mark.parametrize(
    ("wrappers", "grade"),
    [
        ([], "exact"),
        ([STACK], "exact"),
        # draws from the generator of the env
        ([{"name": "StickyAction", "kwargs": {"repeat_action_probability": 0.5}}], "exact"),
        (["toy_env:Noisy"], "statistical"),
        # its statistics are of all episodes
        (["NormalizeReward"], "statistical"),
    ],
)
def test_the_grade_tells_whether_wrappers_can_be_rebuilt(wrappers: list[Any], grade: str, tmp_path: Path) -> None:
    spec = make_spec(wrappers=wrappers)
    with pytest.raises(KilledError):
        train_until(spec, tmp_path, 700)
    assert train_until(spec, tmp_path).grade == grade


def test_a_run_is_not_resumed_with_other_wrappers(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        train_until(make_spec(wrappers=[SHAPED]), tmp_path, 700)
    with pytest.raises(LabError, match="belongs to another spec"):
        train(make_spec(), tmp_path)


def test_enjoy_and_the_random_baseline_use_the_wrappers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLM_LAB_CACHE", str(tmp_path / "cache"))
    spec = make_spec(wrappers=[{"name": "toy_env:Shaped", "kwargs": {"factor": 100.0}}, STACK], kwargs={"wind": 0.0})
    result = start(spec, Options(data_dir=tmp_path / "data"))
    agent, env, _ = load_trained(str(result.folder))
    assert env.obs_space.shape == (4, 2)
    assert abs(next(play_episodes(env, agent, 1)).total_reward) > 40
    env.close()
    # without shaping it would be between 0 and 30
    means = [find_random_return(make_spec(wrappers=[wrapper]), True) for wrapper in (SHAPED, {**SHAPED, "kwargs": {}})]
    assert means[0] != means[1]


def test_a_fault_in_a_wrapper_is_replayed_with_it(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="the reward is nan"):
        train(make_spec(wrappers=["toy_env:Broken"]), tmp_path)
    (path,) = (tmp_path / "fault").iterdir()
    replayed = replay_fault(read_bundle(path, is_trusted=True), path)
    assert replayed.is_reproduced, replayed


# --- curricula


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_an_episode_has_the_options_of_the_frame_at_which_it_begins(algorithm: str, tmp_path: Path) -> None:
    meta = {"episode_table": True}
    spec = make_spec(algorithm, meta, kwargs={"goal": RISING, "wind": 2.0}, info_keys=["goal"], wrappers=[SHAPED])
    folder = check_exact(spec, tmp_path, TWENTY)
    episodes = read_episodes(folder)
    schedule = spec.env.schedules["goal"]
    for one in episodes:
        begin = int(one["frame"]) - 4 * int(one["episode_length"])
        assert (
            float(one["goal"]) == calc_level(schedule, begin) == pytest.approx(calc_schedule(schedule, begin), abs=0.22)
        )
    goals = [float(one["goal"]) for one in episodes]
    assert (min(goals), max(goals)) == (2, 6)
    assert 12 < len(set(goals)) <= 20
    # evaluations use the last value from the start
    assert (read_table(folder.table_file(0, 0, "eval"))["goal"] == 6).all()


def test_an_own_training_loop_follows_schedules() -> None:
    env, _ = build(make_spec(kwargs={"goal": RISING}, info_keys=["goal"], backend="gymnasium"))
    env.reset()
    goals = [episode.info["goal"] for episode in play(env, 300).pop_episodes()]
    assert (goals[0], goals[-1]) == (2, 6)


def test_workers_follow_schedules_too(tmp_path: Path) -> None:
    spec = make_spec(kwargs={"goal": RISING}, info_keys=["goal"])
    workers = spec.replace(env={"num_workers": 2})
    whole, killed = train(spec, tmp_path / "whole"), train(workers, tmp_path / "killed", (330, 700))
    assert find_difference(whole, killed, spec.name) is None


def test_games_with_a_schedule_start_from_seeds() -> None:
    schedule = ScheduleSpec(start_val=0.0, end_val=0.5, end_step=60)
    settings = EnvSettings("ALE/Breakout-v5", 2, max_t=14, schedules={"repeat_action_probability": schedule})
    used, fresh = LocalVecEnv(settings), LocalVecEnv(settings)
    used.reset()
    play(used, 35)
    last = used.step(np.array([3, 2])).obs
    state = used.state_dict()
    # the third game of each, not one in a row since the first
    assert (state["origin"] == 2).all()
    assert np.array_equal(fresh.load_state_dict(state), last)
    for action in ([3, 2], [1, 3], [2, 2]):
        assert np.array_equal(used.step(np.array(action)).obs, fresh.step(np.array(action)).obs)
