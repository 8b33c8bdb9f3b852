"""Envs with one mistake each, and what is said of them."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env.check import check_env
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, make_env
from slm_lab.lib.errors import EnvError, EnvFaultError


class Env(gym.Env[Any, Any]):
    """Sound, with episodes of five steps; a keyword puts one mistake in."""

    def __init__(self, mistake: str = "") -> None:
        self.mistake = mistake
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space: gym.Space[Any] = spaces.Discrete(2)
        if mistake == "text actions":
            self.action_space = spaces.Text(3)
        if mistake == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.t = 0
        self.num_episode = 0

    def _obs(self) -> Any:
        obs = np.full(2, self.t / 10, np.float32)
        if self.mistake == "memory":
            return np.minimum(obs + self.num_episode / 100, 1)
        if self.mistake == "random":
            return np.random.default_rng().random(2).astype(np.float32)
        if self.t == 3:
            changed = {
                "nan": np.array([0.0, np.nan], np.float32),
                "shape": np.zeros(3, np.float32),
                "bounds": np.array([0.0, 7.0], np.float32),
                "dtype": np.array([1j, 0]),
            }
            return changed.get(self.mistake, obs)
        return obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.num_episode = min(self.num_episode + 1, 5)
        if self.mistake == "old reset":
            return self._obs()
        if self.mistake == "second reset" and self.num_episode > 2:
            raise KeyError("board")
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        if self.mistake == "crash" and self.t == 4:
            raise ZeroDivisionError("division by zero")
        reward: Any = {"infinite reward": np.inf, "text reward": "one"}.get(self.mistake, 1.0)
        terminated: Any = self.t >= 5 and self.mistake != "endless"
        if self.mistake == "endless":
            self.t = min(self.t, 9)
        terminated = {"parts of an end": np.zeros(2)}.get(self.mistake, terminated)
        info: Any = {"no info": None, "list info": []}.get(self.mistake, {})
        if self.mistake == "old step":
            return self._obs(), reward, terminated, info  # type: ignore[return-value]
        return self._obs(), reward, terminated, False, info


def texts(mistake: str, level: str) -> list[str]:
    items = check_env(Env(mistake), 50, make_fresh=lambda: Env(mistake))
    return [item.text for item in items if item.level == level]


def test_a_sound_env() -> None:
    assert texts("", "wrong") == []
    assert texts("", "note") == []
    assert "10 episodes ended, after 5 steps on average" in texts("", "ok")
    assert "the same seed and actions give the same episode: runs repeat and resume exactly" in texts("", "ok")


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("nan", "step 3: the observation is nan at [1]"),
        ("shape", "step 3: the observation has the shape (3,), the space says (2,)"),
        ("bounds", "step 3: the observation is 7.0 at [1], outside [-1.0, 1.0]"),
        ("dtype", "step 3: the observation is of type complex128, the space says float32"),
        ("infinite reward", "step 1: the reward is inf"),
        ("text reward", "step 1: the reward is str of shape (), a number expected"),
        ("parts of an end", "step 1: terminated is ndarray, true or false expected"),
        ("no info", "step 1: info is NoneType, a dict expected"),
        ("old reset", "reset: returned ndarray, (observation, info) expected"),
        ("old step", "step 1: returned 4 values, (observation, reward, terminated, truncated, info) expected"),
        ("text actions", "env.name: actions of Text are not supported"),
    ],
)
def test_mistakes_are_named_with_their_step(mistake: str, text: str) -> None:
    assert texts(mistake, "wrong") == [text]


@pytest.mark.parametrize(
    ("mistake", "start"),
    [
        ("endless", "no episode ended in 50 random steps"),
        ("random", "the same seed and actions differ from step 0 on"),
        ("memory", "a fresh env differs from one that has played episodes, from step 0 on"),
        ("unbounded", "some actions have no bound"),
    ],
)
def test_what_a_user_should_know(mistake: str, start: str) -> None:
    assert texts(mistake, "wrong") == []
    (note,) = texts(mistake, "note")
    assert note.startswith(start)


class OldReset(Env):
    """Takes no seed, as gym before 0.26."""

    def reset(self) -> Any:  # type: ignore[override]
        return self._obs()


@pytest.mark.parametrize(
    ("mistake", "start"),
    [
        ("crash", "step 4: raises ZeroDivisionError: division by zero (test_check.py, line "),
        ("second reset", "reset after step 5: raises KeyError: 'board' (test_check.py, line "),
    ],
)
def test_an_exception_in_the_env_is_named_with_its_line(mistake: str, start: str) -> None:
    (text,) = texts(mistake, "wrong")
    assert text.startswith(start)


def test_an_exception_in_an_episode_played_again_is_named() -> None:
    items = check_env(Env(), 50, make_fresh=lambda: Env("crash"))
    assert items[-1].level == "wrong"
    assert items[-1].text.startswith("an episode played again: raises ZeroDivisionError: division by zero")


def test_a_reset_of_the_old_api_gets_the_new_signature() -> None:
    (text,) = [item.text for item in check_env(OldReset(), 50) if item.level == "wrong"]
    assert text.startswith("reset: raises TypeError: OldReset.reset() got an unexpected keyword argument 'seed'")
    assert text.endswith("; gymnasium calls reset(self, *, seed=None, options=None)")


def test_a_class_that_is_no_env_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: Any) -> Any:
        return object()

    gym.register("test/Plain-v0", entry_point=make)
    monkeypatch.setitem(gym.registry, "test/Plain-v0", gym.registry.pop("test/Plain-v0"))
    with pytest.raises(EnvError, match=r"^env\.name: 'test/Plain-v0' is not a gymnasium\.Env"):
        make_env(EnvSettings("test/Plain-v0", 1))


class Unfinished(Env):
    """Needs an argument, and forgets a space."""

    def __init__(self, size: int) -> None:
        super().__init__()
        del self.action_space


def test_an_env_that_is_not_finished_is_refused_in_one_line() -> None:
    gym.register("Unfinished-v0", f"{__name__}:Unfinished")
    try:
        with pytest.raises(EnvError, match=r"env\.kwargs: 'Unfinished-v0' needs an option that is not given: .*'size'"):
            make_env(EnvSettings("Unfinished-v0", 1))
        with pytest.raises(EnvError, match=r"^env\.name: 'Unfinished-v0' has no action_space; "):
            make_env(EnvSettings("Unfinished-v0", 1, kwargs={"size": 1}))
    finally:
        del gym.registry["Unfinished-v0"]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "Hopper-v5", "Blackjack-v1"])
def test_envs_of_gymnasium_pass(name: str) -> None:
    env = make_env(EnvSettings(name, 1))
    assert [item for item in check_env(env, 200) if item.level == "wrong"] == []
    env.close()


def test_names_of_the_parts_of_an_observation() -> None:
    env = make_env(EnvSettings("Blackjack-v1", 1))
    texts = [item.text for item in check_env(env, 10)]
    assert "parts of an observation: 0 (32,), 1 (11,), 2 (2,)" in texts
    plain = make_env(EnvSettings("CartPole-v1", 1))
    assert not any(item.text.startswith("parts") for item in check_env(plain, 10))


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            "old step",
            "the step has not enough values to unpack (expected 5, got 4): (observation, reward, ",
        ),
        ("old reset", "returned ndarray, (observation, info) expected"),
        ("list info", "info is list, a dict expected"),
    ],
)
def test_training_names_them_too(mistake: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gym.register("test/Mistaken-v0", entry_point=lambda **_: Env(mistake))
    monkeypatch.setitem(gym.registry, "test/Mistaken-v0", gym.registry.pop("test/Mistaken-v0"))

    def play() -> None:
        env = LocalVecEnv(EnvSettings("test/Mistaken-v0", 2))
        env.reset()
        env.step(np.zeros(2, np.int64))

    with pytest.raises(EnvFaultError) as error:
        play()
    assert text in str(error.value)


@pytest.mark.parametrize("entry_point", ["test.env.test_check:NoSuchEnv", "no_such_module:Env", "test.env.test_check"])
def test_an_entry_point_that_is_not_there_is_one_line(entry_point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gym.register("test/Nowhere-v0", entry_point=entry_point)
    monkeypatch.setitem(gym.registry, "test/Nowhere-v0", gym.registry.pop("test/Nowhere-v0"))
    with pytest.raises(EnvError, match=r"'test/Nowhere-v0' is registered with .*, which cannot be imported: "):
        make_env(EnvSettings("test/Nowhere-v0", 1))


def test_a_mistake_within_the_env_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unpacking(Env):
        def step(self, action: Any) -> Any:
            values: Any = (0.0,) * 4
            one, two, three, four, five = values
            return one, two, three, four, five

    gym.register("test/Unpacking-v0", entry_point=lambda **_: Unpacking())
    monkeypatch.setitem(gym.registry, "test/Unpacking-v0", gym.registry.pop("test/Unpacking-v0"))
    env = LocalVecEnv(EnvSettings("test/Unpacking-v0", 1))
    env.reset()
    with pytest.raises(ValueError, match="values to unpack") as error:
        env.step(np.zeros(1, np.int64))
    assert not isinstance(error.value, EnvFaultError)
