"""The batched env contract: true successors, own seeds, exact rebuilding, in process and in workers."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env import vec_env
from slm_lab.env.build import build_vec_env, choose_workers
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, make_env
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.lib.errors import EnvError, EnvFaultError, WorkerDeathError, WorkerError

Array = np.ndarray[Any, Any]


class Counter(gym.Env[Array, Any]):
    """Counts its steps; terminates at 3 with action 1, otherwise truncated at 5; the start tells the seed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.start = float(self.np_random.integers(1_000_000))
        return self._obs(), {}

    def _obs(self) -> Array:
        return np.array([self.start, self.t])

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, bool(self.t == 3 and action == 1), self.t == 5, {}


@pytest.fixture(autouse=True)
def _counter() -> None:
    if "test/Counter-v0" not in gym.registry:
        gym.register("test/Counter-v0", entry_point=lambda **_: Counter())


def settings(name: str = "test/Counter-v0", num_envs: int = 2, **options: Any) -> EnvSettings:
    return EnvSettings(name, num_envs, seed_key=(1, 0, 0), **options)


@pytest.fixture
def start_workers() -> Iterator[Callable[..., WorkerVecEnv]]:
    """Envs in workers that end with the test."""
    started: list[WorkerVecEnv] = []

    def start(num_workers: int, *args: Any, **options: Any) -> WorkerVecEnv:
        started.append(WorkerVecEnv(settings(*args, **options), num_workers))
        return started[-1]

    yield start
    for env in started:
        env.close()


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module with an env of the user's own into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, body: str) -> None:
        head = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(head + dedent(body))

    return write


def run(env: VecEnv, actions: list[Array]) -> list[Step]:
    return [env.step(action) for action in actions]


def test_next_obs_is_the_true_successor_and_obs_the_new_start() -> None:
    # an autoreset of gymnasium's vector envs would give a fake row, or the new start as successor
    env = LocalVecEnv(settings())
    first = env.reset()
    steps = run(env, [np.array([0, 1])] * 6)
    third = steps[2]
    assert third.terminated.tolist() == [False, True]
    assert third.next_obs[1].tolist() == [first[1, 0], 3]
    assert third.obs[1, 1] == 0
    assert third.obs[1, 0] != first[1, 0]
    fifth = steps[4]
    assert fifth.truncated.tolist() == [True, False]
    assert not fifth.terminated[0]
    assert fifth.next_obs[0].tolist() == [first[0, 0], 5]
    # no fake row: the step after an end is the first of the new episode, with its reward
    assert steps[3].next_obs[1, 1] == 1
    assert all((step.reward == 1).all() for step in steps)
    assert np.array_equal(steps[0].obs, steps[0].next_obs)


def test_raw_returns_of_whole_episodes_are_counted() -> None:
    env = LocalVecEnv(settings())
    env.reset()
    run(env, [np.array([0, 1])] * 6)
    # env 1 ends after 3 and 6 steps, env 0 after 5
    assert env.pop_finished() == [3.0, 5.0, 3.0]
    assert env.pop_finished() == []
    assert env.num_episode == 3


def test_every_episode_of_every_env_has_a_seed_of_its_own_and_repeats() -> None:
    def starts() -> list[float]:
        env = LocalVecEnv(settings(num_envs=3))
        found = env.reset()[:, 0].tolist()
        for step in run(env, [np.ones(3, int)] * 9):
            found += step.obs[step.done, 0].tolist()
        return found

    first = starts()
    assert len(set(first)) == len(first) == 12
    assert first == starts()
    other = LocalVecEnv(EnvSettings("test/Counter-v0", 3, seed_key=(1, 1, 0))).reset()[:, 0].tolist()
    assert not set(other) & set(first)


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3", "LunarLanderContinuous-v3", "Hopper-v5"],
)
def test_an_env_is_rebuilt_exactly_from_seed_and_actions(name: str) -> None:
    env = LocalVecEnv(settings(name, max_t=60))
    env.reset()
    draw = np.random.default_rng(0)

    def action() -> Array:
        if isinstance(env.action_space, spaces.Discrete):
            return draw.integers(env.action_space.n, size=2)
        return draw.normal(size=(2, *env.action_space.shape)).astype(np.float32)  # type: ignore[misc]

    last = run(env, [action() for _ in range(157)])[-1]
    twin = LocalVecEnv(settings(name, max_t=60))
    assert np.array_equal(twin.load_state_dict(env.state_dict()), last.obs)
    rest = [action() for _ in range(90)]
    for one, two in zip(run(env, rest), run(twin, rest), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert env.pop_finished()[-1] == twin.pop_finished()[-1]


def test_the_action_log_stays_short() -> None:
    env = LocalVecEnv(settings())
    env.reset()
    run(env, [np.array([0, 1])] * 5000)
    assert len(env._action_log) <= 1100
    assert len(env.state_dict()["action"]) <= 5


def test_max_t_truncates() -> None:
    env = LocalVecEnv(settings("CartPole-v1", max_t=7))
    env.reset()
    # alternating pushes keep the pole up for seven steps
    steps = run(env, [np.array([t % 2, t % 2]) for t in range(7)])
    assert steps[-1].truncated.all()
    assert not steps[-1].terminated.any()
    assert not any(step.done.any() for step in steps[:-1])


def test_workers_give_the_same_steps_as_one_process(start_workers) -> None:
    one, two = LocalVecEnv(settings("CartPole-v1", 5)), start_workers(2, "CartPole-v1", 5)
    assert np.array_equal(one.reset(), two.reset())
    draw = np.random.default_rng(0)
    for _ in range(80):
        action = draw.integers(2, size=5)
        for a, b in zip(one.step(action), two.step(action), strict=True):
            assert np.array_equal(a, b)
    assert one.pop_finished() == two.pop_finished()


def test_a_worker_shows_its_own_traceback(write_module, start_workers) -> None:
    write_module(
        "broken_env.py",
        """
        class Broken(CartPoleEnv):
            def step(self, action):
                raise ZeroDivisionError('planted')
        gym.register('Broken-v0', entry_point=Broken)
        """,
    )
    env = start_workers(2, "broken_env:Broken-v0")
    env.reset()
    with pytest.raises(WorkerError, match="ZeroDivisionError: planted"):
        env.step(np.zeros(2, int))


def test_a_dead_worker_is_named(start_workers) -> None:
    env = start_workers(1, "CartPole-v1")
    env.reset()
    os.kill(env.workers[0].process.pid, signal.SIGKILL)
    # the worker follows its keeper, and may answer once more before
    with pytest.raises(WorkerDeathError, match="killed by signal 9"):
        run(env, [np.zeros(2, int)] * 100_000)


def test_workers_outlive_a_wish_to_stop_until_their_session_has_saved(start_workers) -> None:
    env = start_workers(1, "CartPole-v1")
    env.reset()
    os.kill(env.workers[0].process.pid, signal.SIGTERM)
    env.step(np.zeros(2, int))
    env.close()
    assert env.workers[0].process.returncode == 0


def test_helpers_of_an_env_in_a_worker_can_be_ended(write_module, start_workers) -> None:
    write_module(
        "helped_env.py",
        """
        import multiprocessing, time
        class Helped(CartPoleEnv):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.helper = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))
                self.helper.start()
            def close(self):
                self.helper.terminate()
                self.helper.join()
        gym.register('Helped-v0', entry_point=Helped)
        """,
    )
    env = start_workers(1, "helped_env:Helped-v0")
    env.reset()
    env.close()
    assert env.workers[0].process.returncode == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unknown_env_names_the_nearest(num_workers: int) -> None:
    with pytest.raises(EnvError, match="no env 'CartPol-v1' is registered; did you mean 'CartPole-v1'"):
        build_vec_env(settings("CartPol-v1"), num_workers)


def test_a_missing_module_and_a_wrong_option_are_told() -> None:
    with pytest.raises(EnvError, match="module 'no_such_module'"):
        make_env(settings("no_such_module:Env-v0"))
    with pytest.raises(EnvError, match=r"env\.kwargs"):
        make_env(settings("CartPole-v1", kwargs={"colour": "red"}))


def test_a_user_env_is_imported_from_the_working_folder(write_module) -> None:
    write_module("my_package/my_env.py", "gym.register('MyEnv-v0', entry_point=CartPoleEnv, max_episode_steps=50)")
    assert LocalVecEnv(settings("my_package.my_env:MyEnv-v0")).reset().shape == (2, 4)


@pytest.mark.parametrize(
    ("space", "size"),
    [(spaces.Discrete(3), 3), (spaces.MultiDiscrete([2, 3]), 5), (spaces.Dict(a=spaces.Discrete(2)), 2)],
)
def test_observations_that_are_not_arrays_become_one_hot(space: gym.Space[Any], size: int) -> None:
    class Odd(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def _obs(self) -> Any:
            return space.sample()

    gym.register(f"test/Odd{size}-v0", entry_point=lambda **_: Odd())
    obs = LocalVecEnv(settings(f"test/Odd{size}-v0")).reset()
    assert obs.shape == (2, size)
    assert set(np.unique(obs)) <= {0, 1}


class Faulty(Counter):
    """Counts its steps, until it gives something wrong at the third."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.t == 3 and action == 1:
            changed: dict[str, tuple[Any, float]] = {
                "nan": (np.array([0.0, np.nan]), 1.0),
                "inf": (obs, -np.inf),
                "huge": (obs, 10**400),
                "shape": (np.zeros(1), 1.0),
            }
            obs, reward = changed[self.fault]
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nan", "the observation is nan at [1]"),
        ("inf", "the reward is -inf"),
        ("huge", "the reward is too large for a float"),
        ("shape", "the observation has the shape (1,), the space says (2,)"),
    ],
)
def test_a_faulty_env_is_named_with_its_episode_and_step(fault: str, text: str) -> None:
    name = f"test/Faulty-{fault}-v0"
    if name not in gym.registry:
        gym.register(name, entry_point=lambda **_: Faulty(fault))
    env = LocalVecEnv(settings(name, num_envs=3))
    env.reset()
    # the second episode of env 2: five steps without the fault, then two
    run(env, [np.zeros(3, int)] * 7)
    with pytest.raises(EnvError) as caught:
        env.step(np.array([0, 0, 1]))
    seed = env.slots.episode_seed(2, 1)
    assert str(caught.value).startswith(f"env 2, episode 1 (seed {seed}), step 3: {text}")
    env.close()


class BadStart(gym.Env[Any, int]):
    """Its resets give something wrong from the given one on; a first one is to see whether it gives masks."""

    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, start: Any, num_good: int, has_parts: bool) -> None:
        self.start, self.num_good = start, num_good
        whole: gym.Space[Any] = spaces.Box(-1, 1, (2,))
        self.observation_space = spaces.Dict(a=whole) if has_parts else whole

    def _wrap(self, obs: Any) -> Any:
        return {"a": obs} if isinstance(self.observation_space, spaces.Dict) else obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.num_good -= 1
        return self._wrap(np.zeros(2, np.float32) if self.num_good >= 0 else self.start), {}

    def step(self, action: int) -> Any:
        return self._wrap(np.zeros(2, np.float32)), 0.0, True, False, {}


@pytest.mark.parametrize("has_parts", [False, True])
@pytest.mark.parametrize("episode", [0, 1])
@pytest.mark.parametrize(
    ("start", "text"),
    [
        (np.array([np.nan, 0], np.float32), "the first observation of an episode is not finite"),
        (np.zeros(3, np.float32), "has the shape (3,), the space says (2,)"),
        (np.array(["a", "b"]), "is of type <U1, the space says float32"),
    ],
)
def test_a_fault_in_a_reset_is_one_of_step_0(start: Any, text: str, episode: int, has_parts: bool) -> None:
    gym.register("test/BadStart-v0", entry_point=lambda **_: BadStart(start, episode + 1, has_parts))
    try:
        env = LocalVecEnv(settings("test/BadStart-v0", num_envs=1))
        if episode:
            env.reset()
        with pytest.raises(EnvFaultError) as caught:
            run(env, [np.zeros(1, int)]) if episode else env.reset()
    finally:
        del gym.registry["test/BadStart-v0"]
    assert str(caught.value).startswith(f"env 0, episode {episode} (seed {env.episode_seed(0, episode)}), step 0: ")
    assert text in str(caught.value)


PARTS = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(0, 9, (3,), np.uint8), c=spaces.Discrete(3))
GOOD = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.uint8), "c": 1}
BYTES = spaces.Box(0, 255, (2,), np.uint8)
FLOATS = spaces.Box(-1, 1, (2,), np.float32)


class Given(Counter):
    """Returns the given values from the third step on."""

    def __init__(self, space: gym.Space[Any], good: Any, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.observation_space = space
        self.good, self.given = good, given

    def _obs(self) -> Any:
        return self.good

    def step(self, action: int) -> Any:
        good = super().step(action)
        return (*self.given, *good[len(self.given) :]) if self.t == 3 else good


def step_given(space: gym.Space[Any], good: Any, *given: Any) -> Step:
    gym.register("test/Given-v0", entry_point=lambda **_: Given(space, good, given))
    try:
        env = LocalVecEnv(settings("test/Given-v0", num_envs=1))
        env.reset()
        return run(env, [np.zeros(1, int)] * 3)[-1]
    finally:
        del gym.registry["test/Given-v0"]


@pytest.mark.parametrize(
    ("space", "good", "given", "text"),
    [
        (BYTES, np.zeros(2, np.uint8), (np.array([0.0, 1.5]),), "the observation is 1.5 at [1], the space says uint8"),
        (BYTES, np.zeros(2, np.uint8), (np.array([np.nan, 1]),), "the observation is nan at [0], the space says uint8"),
        (BYTES, np.zeros(2, np.uint8), (np.array([1, -1]),), "the observation is -1 at [1], the space says uint8"),
        (FLOATS, np.zeros(2, np.float32), (["a", "b"],), "the observation is of type <U1, the space says float32"),
        (FLOATS, np.zeros(2, np.float32), ([[1.0], 2.0],), "the observation is no array: list"),
        (
            PARTS,
            GOOD,
            ({**GOOD, "a": np.zeros(3, np.float32), "b": np.zeros(2, np.uint8)},),
            "part 'a' of the observation has the shape (3,), the space says (2,)",
        ),
        (
            PARTS,
            GOOD,
            ({**GOOD, "b": np.array([0, 0.5, 0])},),
            "part 'b' of the observation is 0.5 at [1], the space says uint8",
        ),
        (PARTS, GOOD, ({**GOOD, "c": -1},), "part 'c' of the observation is -1, the space says Discrete(3)"),
        (PARTS, GOOD, ({"a": GOOD["a"], "b": GOOD["b"]},), "the observation has no part 'c'"),
        (spaces.Discrete(3), 0, (1.5,), "the observation is 1.5, the space says Discrete(3)"),
        (FLOATS, np.zeros(2), (np.zeros(2), 10**400), "the reward is too large for a float"),
        (FLOATS, np.zeros(2), (np.zeros(2), None), "the reward is NoneType of shape (), a number expected"),
        (FLOATS, np.zeros(2), (np.zeros(2), np.zeros(2)), "the reward is ndarray of shape (2,), a number expected"),
        (FLOATS, np.zeros(2), (np.zeros(2), 1.0, None), "terminated is None, true or false expected"),
        (FLOATS, np.zeros(2), (np.zeros(2), 1.0, "no"), "terminated is 'no', true or false expected"),
        (FLOATS, np.zeros(2), (np.zeros(2), 1.0, np.nan), "terminated is nan, true or false expected"),
        (FLOATS, np.zeros(2), (np.zeros(2), 1.0, False, np.zeros(2)), "truncated is ndarray, true or false expected"),
    ],
)
def test_what_does_not_fit_the_spaces_is_named(
    space: gym.Space[Any], good: Any, given: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(EnvFaultError) as caught:
        step_given(space, good, *given)
    assert re.match(r"env 0, episode 0 \(seed \d+\), step 3: " + re.escape(text), str(caught.value))


def test_what_loses_nothing_is_taken() -> None:
    step = step_given(BYTES, [0, 0], np.array([3.0, 255.0]), np.array([2.5]), np.array([0]), np.bool_(True), None)
    assert step.next_obs.tolist() == [[3, 255]]
    assert step.next_obs.dtype == np.uint8
    assert step.reward.tolist() == [2.5]
    assert step.truncated.tolist() == [True]


def test_a_single_number_is_an_observation_of_one() -> None:
    step = step_given(spaces.Box(-1, 1, ()), np.float32(0.5), np.float32(0.25))
    assert step.next_obs.tolist() == [[0.25]]


def test_an_episode_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    monkeypatch.setattr(vec_env, "ENDLESS", 30)
    env = LocalVecEnv(settings("Pendulum-v1", max_t=1000))
    env.reset()
    for _ in range(40):
        env.step(np.zeros((2, 1), np.float32))
    (line,) = warnings
    seed = env.episode_seed(0, 0)
    assert f"env 0, episode 0 (seed {seed}), step 30 since its seed: not ended yet" in line


def test_workers_are_chosen_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(name: str, num_envs: int, num_cores: int) -> tuple[int, str]:
        return choose_workers(EnvSettings(name, num_envs, num_cores=num_cores))

    assert told("CartPole-v1", 8, 1) == (0, "one core for this session")
    assert told("CartPole-v1", 1, 2) == (0, "one env")
    cost = {LocalVecEnv: 0.0001, WorkerVecEnv: 0.0}
    monkeypatch.setattr(VecEnv, "measure", lambda env, _: cost[type(env)])
    assert told("CartPole-v1", 2, 2)[0] == 0
    cost = {LocalVecEnv: 0.004, WorkerVecEnv: 0.003}
    count, reason = told("CartPole-v1", 2, 2)
    assert count == 2
    assert reason == "a step of 2 envs takes 4.00 ms in process, 3.00 ms in workers"
    cost = {LocalVecEnv: 0.004, WorkerVecEnv: 0.0039}
    assert told("CartPole-v1", 2, 2)[0] == 0


def test_measuring_steps_every_env(start_workers) -> None:
    for env in (LocalVecEnv(settings("CartPole-v1")), start_workers(1, "CartPole-v1")):
        assert env.measure(0.0) > 0


def test_a_choice_of_workers_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An env that only this process knows."""
    monkeypatch.setattr("slm_lab.env.build._MESSAGE_SECONDS", 0.0)
    count, reason = choose_workers(EnvSettings("test/Counter-v0", 2, num_cores=2))
    assert count == 0
    assert reason.startswith("workers cannot step these envs: env.name: no env 'test/Counter-v0' is registered")


def test_workers_import_what_registers_their_env(write_module, start_workers) -> None:
    write_module("registering.py", "gym.register('Imported-v0', entry_point=CartPoleEnv)")
    assert start_workers(1, "Imported-v0", imports=("registering",)).reset().shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "LunarLander-v3",
            {"gravity": 5},
            "env.kwargs: 'LunarLander-v3' cannot be made with {'gravity': 5}: Assertion",
        ),
        ("Hopper-v5", {"xml_file": "nope.xml"}, "env.kwargs: 'Hopper-v5' cannot be made with {'xml_file': 'nope.xml'}"),
    ],
)
def test_options_that_an_env_cannot_use(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=re.escape(message)):
        make_env(EnvSettings(name, 1, kwargs=kwargs))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), "which no net can read"),
        (spaces.Dict(), "the observation has no parts"),
        (spaces.Box(-1, 1, (0,)), "has empty observations"),
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))}), "have the same name"),
    ],
)
def test_observations_without_a_flat_form(space: Any, message: str) -> None:
    class Odd(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

    gym.register("test/OddSpace-v0", entry_point=lambda **_: Odd())
    try:
        with pytest.raises(EnvError, match=message):
            make_env(settings("test/OddSpace-v0"))
    finally:
        del gym.registry["test/OddSpace-v0"]
