"""What envs tell of their episodes, wrappers and curricula: in every table, and exact after any kill."""

import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm_lab.audit.difference import find_difference
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import VecEnv
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.results.table import read_table
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

WALK = "toy_env:test/Walk-v0"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # for workers too, which get this process's path
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


class KilledError(Exception):
    """Ends a session as a kill does: nothing more is saved."""


def make_spec(algorithm: str = "PPO", meta: dict[str, Any] | None = None, **env: Any) -> Spec:
    own = {"log_frequency": 100, "checkpoint_frequency": 100, "rigorous_eval": 2, "eval_frequency": 200}
    return make_tiny_spec(
        algorithm, env={"name": WALK, "num_workers": 0, "max_frame": 1200, **env}, meta=own | (meta or {})
    )


def train(spec: Spec, path: Path, kills: tuple[int, ...] = ()) -> Path:
    """Train to the end, with kills at some frames; each resumes from the checkpoint before."""
    for kill in (*kills, math.inf):
        session = Session(spec, RunFolder(path, spec.name))

        def die(kill: float = kill, session: Session = session) -> bool:
            if session.frame >= kill:
                raise KilledError
            return False

        session.should_stop = die
        if kill == math.inf:
            session.run()
        else:
            with pytest.raises(KilledError):
                session.run()
    return path


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
        ({"info_keys": ["clip_frac"]}, "env.info_keys: 'clip_frac' is a column of the lab's own"),
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
