"""Random baselines: shipped lookup, user cache, reproducible measuring and keys."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from measure_random_baselines import main

from slm_lab.env.random_baseline import (
    CACHE_FILE,
    baseline_key,
    get_random_baseline,
    measure_random_baseline,
)
from slm_lab.results.baseline import SHIPPED_PATH, RandomBaseline


class CoinEnv(gym.Env[int, int]):
    """Pay 1 for action 1; an episode lasts `length` steps, or for ever when it is None."""

    def __init__(self, length: int | None = 4, reward: float = 1.0) -> None:
        self.observation_space = gym.spaces.Discrete(1)  # type: ignore[assignment]
        self.action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]
        self.length = length
        self.reward = reward
        self.t = 0
        self.seeds: list[int | None] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Start over and note the seed."""
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Pay for action 1."""
        self.t += 1
        return 0, self.reward * float(action), self.length is not None and self.t >= self.length, False, {}

    def close(self) -> None:
        """Note the closing."""
        self.closed = True


def no_env() -> gym.Env[Any, Any]:
    """Stand for an env that must not be needed."""
    raise AssertionError("the env was made although its baseline is known")


def measure_coin() -> RandomBaseline:
    return measure_random_baseline(CoinEnv)


def measure_nothing() -> RandomBaseline:
    return measure_random_baseline(no_env)


def cartpole() -> gym.Env[Any, Any]:
    """Make a real, quick env."""
    return gym.make("CartPole-v1")


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    """Give a cache file whose folder does not exist yet."""
    return tmp_path / "new" / "folder" / CACHE_FILE


# measuring


def test_measure_is_reproducible() -> None:
    first = measure_random_baseline(cartpole, num_episode=10, seed=3)
    assert first == measure_random_baseline(cartpole, num_episode=10, seed=3)
    assert first != measure_random_baseline(cartpole, num_episode=10, seed=4)
    assert first.num_episode == 10


def test_measure_gives_mean_and_std_of_episode_returns() -> None:
    env = CoinEnv()
    result = measure_random_baseline(lambda: env, num_episode=20, seed=7)
    space = gym.spaces.Discrete(2, seed=7)
    returns = [sum(int(space.sample()) for _ in range(4)) for _ in range(20)]
    assert result == RandomBaseline(float(np.mean(returns)), float(np.std(returns)), 20)
    assert env.seeds == list(range(7, 27))
    assert env.closed


def test_a_reward_may_be_an_array_of_one() -> None:
    as_array: Any = np.ones(1)
    plain = measure_random_baseline(CoinEnv, num_episode=5)
    assert measure_random_baseline(lambda: CoinEnv(reward=as_array), num_episode=5) == plain


def test_measure_starts_no_episode_past_max_step() -> None:
    # 4 steps each: the third episode begins at step 8 and is played to its end, the fourth would begin at 12.
    assert measure_random_baseline(CoinEnv, num_episode=100, max_step=10).num_episode == 3


def test_measure_reports_an_endless_env_and_closes_it() -> None:
    env = CoinEnv(length=None)
    with pytest.raises(RuntimeError, match="time limit"):
        measure_random_baseline(lambda: env, max_step=50)
    assert env.closed


# shipped data


def test_shipped_baseline_needs_no_env(cache_file: Path) -> None:
    data = json.loads(SHIPPED_PATH.read_text(encoding="utf-8"))
    assert get_random_baseline("CartPole-v1", measure_nothing, cache_file.parent) == data["CartPole-v1"]["mean"]
    assert not cache_file.exists()


def test_shipped_file_is_complete_sorted_and_one_line_per_env() -> None:
    text = SHIPPED_PATH.read_text(encoding="utf-8")
    data = json.loads(text)
    assert list(data) == sorted(data)
    assert len(text.splitlines()) == len(data) + 2
    assert len(data) == 77
    for entry in data.values():
        assert set(entry) == {"mean", "std", "num_episode"}
        assert math.isfinite(entry["mean"])
        assert entry["std"] >= 0
        assert 1 <= entry["num_episode"] <= 100
        assert entry["mean"] == round(entry["mean"], 4)


def test_shipped_cartpole_is_what_is_measured() -> None:
    shipped = json.loads(SHIPPED_PATH.read_text(encoding="utf-8"))["CartPole-v1"]
    measured = measure_random_baseline(cartpole)
    assert measured.mean == pytest.approx(shipped["mean"], abs=1e-4)
    assert measured.std == pytest.approx(shipped["std"], abs=1e-4)


# the user's cache


def test_unknown_env_is_measured_once(cache_file: Path) -> None:
    mean = get_random_baseline("Coin-v0", measure_coin, cache_file.parent)
    assert mean == measure_random_baseline(CoinEnv).mean
    assert json.loads(cache_file.read_text(encoding="utf-8"))["Coin-v0"]["num_episode"] == 100
    assert get_random_baseline("Coin-v0", measure_nothing, cache_file.parent) == mean


def test_cache_keeps_what_others_wrote_meanwhile(cache_file: Path) -> None:
    def make_while_another_writes() -> gym.Env[Any, Any]:
        get_random_baseline("Other-v0", measure_coin, cache_file.parent)
        return CoinEnv(length=2)

    get_random_baseline("Coin-v0", lambda: measure_random_baseline(make_while_another_writes), cache_file.parent)
    assert set(json.loads(cache_file.read_text(encoding="utf-8"))) == {"Coin-v0", "Other-v0"}


def test_cache_stays_valid_under_simultaneous_writes(cache_file: Path) -> None:
    def look_up(index: int) -> float:
        return get_random_baseline(f"Coin{index}-v0", measure_coin, cache_file.parent)

    with ThreadPoolExecutor(8) as pool:
        means = set(pool.map(look_up, range(16)))
    assert len(means) == 1
    assert json.loads(cache_file.read_text(encoding="utf-8"))
    assert os.listdir(cache_file.parent) == [CACHE_FILE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"Coin-v0": {"mean": 1',
        b"[1, 2]",
        b"null",
        b"\xff\xfe\x00",
        b'{"Coin-v0": 3}',
        b'{"Coin-v0": {"mean": "high", "std": 0, "num_episode": 100}}',
        b'{"Coin-v0": {"mean": NaN, "std": 0, "num_episode": 100}}',
        b'{"Coin-v0": {"mean": 1.0}}',
    ],
)
def test_corrupt_cache_is_rewritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CACHE_FILE).write_bytes(content)
    mean = get_random_baseline("Coin-v0", measure_coin, tmp_path)
    assert json.loads((tmp_path / CACHE_FILE).read_text(encoding="utf-8"))["Coin-v0"]["mean"] == mean


def test_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    # A file where the folder should be stops even root, unlike missing permissions.
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    assert get_random_baseline("Coin-v0", measure_coin, blocker) == measure_random_baseline(CoinEnv).mean
    assert get_random_baseline("Coin-v0", measure_coin, blocker / "below") == measure_random_baseline(CoinEnv).mean


def test_non_finite_baseline_is_not_cached(cache_file: Path) -> None:
    assert math.isnan(
        get_random_baseline(
            "Coin-v0", lambda: measure_random_baseline(lambda: CoinEnv(reward=math.nan)), cache_file.parent
        )
    )
    assert not cache_file.exists()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"SLM_LAB_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/slm_lab"),
        ({}, "home/.cache/slm_lab"),
    ],
)
def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str) -> None:
    monkeypatch.delenv("SLM_LAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    get_random_baseline("Coin-v0", measure_coin)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / folder / CACHE_FILE]


# keys


@pytest.mark.parametrize(
    ("env_id", "kwargs", "max_t", "key"),
    [
        ("CartPole-v1", {}, None, "CartPole-v1"),
        ("CartPole-v1", {}, 500, "CartPole-v1"),
        ("CartPole-v1", {}, 200, "CartPole-v1|max_t=200"),
        ("CartPole-v1", {"render_mode": "rgb_array"}, None, "CartPole-v1"),
        ("LunarLanderContinuous-v3", {"continuous": True}, None, "LunarLanderContinuous-v3"),
        ("LunarLander-v3", {"gravity": -5.0}, None, 'LunarLander-v3|{"gravity":-5.0}'),
        ("ALE/Pong-v5", {"obs_type": "ram", "frameskip": 4}, None, "ALE/Pong-v5"),
        ("ALE/Pong-v5", {"frameskip": 1}, None, 'ALE/Pong-v5|{"frameskip":1}'),
        ("My-v0", {"b": 1, "a": [2, 3]}, 10, 'My-v0|{"a":[2,3],"b":1}|max_t=10'),
        ("My-v0", {"b": {"y": 2, "x": 3}, "a": 1}, None, 'My-v0|{"a":1,"b":{"x":3,"y":2}}'),
        ("My-v0", {"obs_type": "ram"}, None, 'My-v0|{"obs_type":"ram"}'),
    ],
)
def test_baseline_key(env_id: str, kwargs: dict[str, Any], max_t: int | None, key: str) -> None:
    assert baseline_key(env_id, kwargs, max_t) == key


# regenerating the shipped file


def test_the_script_measures_what_is_there_or_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shipped.json"
    made: list[str] = []

    def make(env_id: str) -> gym.Env[Any, Any]:
        made.append(env_id)
        return CoinEnv()

    monkeypatch.setattr("measure_random_baselines.SHIPPED_PATH", path)
    monkeypatch.setattr("measure_random_baselines.make_env", make)
    main(["B-v0", "A-v0"])
    main([])
    assert made == ["B-v0", "A-v0", "A-v0", "B-v0"]
    assert list(json.loads(path.read_text(encoding="utf-8"))) == ["A-v0", "B-v0"]
