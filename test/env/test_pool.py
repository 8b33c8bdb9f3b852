"""EnvPool gives what gymnasium gives from the same state, without fake rows, and says what it cannot do.

It is optional, so most of these tests are skipped without it. To run them:
`uv run --group envpool pytest test/env/test_pool.py`.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from slm_lab.env.build import build_vec_env
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import Step, VecEnv, to_host
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import EnvError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

Array = np.ndarray[Any, Any]

NAMES = [
    "Acrobot-v1",
    "CartPole-v1",
    "HalfCheetah-v5",
    "Hopper-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
]
# No noise at the start, so that both start alike; the other two tell the rest of their state.
CALM: dict[str, dict[str, float]] = {
    "Pusher-v5": {
        "reset_qvel_scale": 0.0,
        "cylinder_x_min": -0.25,
        "cylinder_x_max": -0.25,
        "cylinder_y_min": 0.1,
        "cylinder_y_max": 0.1,
    },
    "Reacher-v5": {"reset_qpos_scale": 0.0, "reset_qvel_scale": 0.0},
}
NUM_STEP, WINDOW = 200, 20


@pytest.fixture
def pool() -> Any:
    """The module under test, where its package is installed."""
    pytest.importorskip("envpool", reason="needs the group envpool: uv sync --group envpool")
    return importlib.import_module("slm_lab.env.pool")


def settings(name: str = "CartPole-v1", num_envs: int = 2, **options: Any) -> EnvSettings:
    return EnvSettings(name, num_envs, backend="envpool", **{"seed_key": (1, 0, 0), **options})


def start(env: Any, name: str, obs: Array) -> Array:
    """Reset a gymnasium env of MuJoCo to where EnvPool's started; its own first observation."""
    env.reset()
    if name in CALM:
        # all of it, for the solver starts from its last solution
        mujoco.mj_resetData(env.model, env.data)
        position = env.init_qpos.copy()
        position[-4:] = [-0.25, 0.1, 0.0, 0.0] if name == "Pusher-v5" else [0.0, 0.0, *obs[4:6]]
        env.set_state(position, env.init_qvel)
    return env._get_obs()


def put(env: Any, name: str, obs: Array) -> None:
    """Put a gymnasium env of classic control into the state that an observation tells, which is all of it."""
    obs = obs.astype(np.float64)
    if name == "Acrobot-v1":
        obs = np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])
    env.state = obs


def pick_action(name: str, env: Any, obs: Array, rng: np.random.Generator) -> Any:
    """Random, but for envs that would then never come to their end."""
    if rng.random() < 0.9:
        if name == "MountainCar-v0":
            return 2 if obs[1] > 0 else 0
        if name == "MountainCarContinuous-v0":
            return np.sign(obs[1:]).astype(np.float32)
        if name == "Acrobot-v1":
            return 2 if obs[5] > 0 else 0
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return int(rng.integers(space.n))
    return rng.uniform(space.low, space.high).astype(space.dtype)


def calc_error(one: Any, two: Any) -> float:
    """The largest difference, relative to what is larger than 1."""
    return float((np.abs(one - two) / np.maximum(1, np.abs(two))).max())


def compare(pool: Any, name: str, window: int, num_step: int, options: dict[str, Any]) -> tuple[float, float, int]:
    """The largest errors of observations and rewards within `window` steps of the same state, and how often it ended.

    Of MuJoCo's envs the state at the start is known, of the others that of every step.
    """
    is_mujoco = name.endswith("-v5")
    calm: dict[str, Any] = {} if name in CALM or not is_mujoco else {"reset_noise_scale": 0.0}
    ours: Any = gym.make(name, disable_env_checker=True, **{**calm, **options}).unwrapped
    theirs = pool.envpool.make_gymnasium(
        name, num_envs=1, num_threads=1, max_episode_steps=10**6, **{**CALM.get(name, calm), **options}
    )
    rng = np.random.default_rng(0)
    obs_errors, reward_errors = [], []
    num_end, t = 0, window
    obs = np.zeros((1, 1))
    for _ in range(num_step):
        if t == window:
            t, obs = 0, theirs.reset()[0]
            ours.reset()
            if is_mujoco:
                assert np.abs(start(ours, name, obs[0]) - obs[0]).max() < 1e-12
        if not is_mujoco:
            put(ours, name, obs[0])
        action = pick_action(name, ours, obs[0], rng)
        obs, reward, terminated, _, _ = theirs.step(np.array([action]))
        expected, expected_reward, is_end, _, _ = ours.step(action)
        assert terminated[0] == is_end
        obs_errors.append(calc_error(obs[0], expected))
        reward_errors.append(calc_error(reward[0], expected_reward))
        t = window if is_end else t + 1
        num_end += bool(is_end)
    ours.close()
    return max(obs_errors), max(reward_errors), num_end


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_gymnasium(pool: Any, name: str) -> None:
    # MuJoCo: EnvPool has version 3.6 and gymnasium uses another. With 3.6 in both, all bits of the observations are
    # equal. With 4.0 most windows of 20 steps are equal to 1e-9; in one of a hundred the solver stops an iteration
    # sooner or later, at its tolerance of 1e-8, which 20 steps of a running body make 4e-7 at most.
    # Classic control: the state is read from observations of 32 bits.
    # Rewards have 32 bits in EnvPool.
    is_mujoco = name.endswith("-v5")
    window, num_step = (WINDOW, NUM_STEP) if is_mujoco else (600, 2000)
    obs_error, reward_error, num_end = compare(pool, name, window, num_step, {})
    assert obs_error < 1e-6
    assert reward_error < 1e-6
    if not is_mujoco:
        assert num_end > 1


@pytest.mark.parametrize("name", ["Hopper-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Walker2d-v5"])
def test_falls_are_those_of_gymnasium(pool: Any, name: str) -> None:
    obs_error, _, num_end = compare(pool, name, 100, 400, {})
    assert obs_error < 1e-6
    assert num_end > 5


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-v5")])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ctrl_cost_weight", 0.7),
        ("forward_reward_weight", 2),
        ("frame_skip", 3),
        ("healthy_reward", 3.5),
        ("terminate_when_unhealthy", False),
    ],
)
def test_options_mean_the_same(pool: Any, name: str, option: str, value: Any) -> None:
    assert option in pool.OPTIONS
    try:
        pool.EnvPoolVecEnv(settings(name, kwargs={option: value})).close()
    except EnvError:
        pytest.skip(f"{name} has no {option}")
    obs_error, reward_error, _ = compare(pool, name, WINDOW, 3 * WINDOW, {option: value})
    assert obs_error < 1e-6
    assert reward_error < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_spread_as_in_gymnasium(pool: Any, name: str) -> None:
    env = pool.EnvPoolVecEnv(settings(name, 8))
    env.reset()
    every = np.arange(8, dtype=np.int32)
    theirs = np.concatenate([env.pool.reset(every)[0] for _ in range(60)])
    other = gym.make(name, disable_env_checker=True)
    other.reset(seed=0)
    ours = np.stack([other.reset()[0] for _ in range(480)])
    assert theirs.dtype == ours.dtype
    # four standard errors of a mean, and of a standard deviation of what is at most as wide-tailed as a normal
    spread = ours.std(0)
    np.testing.assert_array_less(np.abs(theirs.mean(0) - ours.mean(0)), 4 * spread * np.sqrt(2 / 480) + 1e-6)
    np.testing.assert_array_less(np.abs(theirs.std(0) - spread), 4 * spread / np.sqrt(480) + 1e-6)


def play(env: VecEnv, num_step: int, seed: int = 0) -> list[Step]:
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(num_step):
        if isinstance(env.action_space, gym.spaces.Discrete):
            action: Array = rng.integers(env.action_space.n, size=env.num_envs)
        else:
            action = rng.uniform(-1, 1, (env.num_envs, *env.action_map.shape))
        steps.append(env.step(action))
    return steps


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5"])
def test_there_is_no_fake_row(pool: Any, name: str) -> None:
    env = build_vec_env(settings(name, 3))
    obs = env.reset()
    total = np.zeros(3)
    returns = []
    for step in play(env, 300):
        total += step.reward
        # EnvPool's row after an end has the reward 0; no true step of these two has
        assert (step.reward != 0).all()
        for index in range(3):
            if step.ended[index]:
                assert not np.array_equal(step.obs[index], step.next_obs[index])
                if name == "CartPole-v1":
                    assert abs(step.obs[index]).max() <= 0.05
                    # out of bounds, which a first observation never is
                    assert abs(step.next_obs[index, 0]) > 2.4 or abs(step.next_obs[index, 2]) > 0.2
                returns.append(total[index])
                total[index] = 0
            else:
                assert np.array_equal(step.obs[index], step.next_obs[index])
        obs = step.obs
    assert obs.dtype == env.obs_space.dtype
    assert len(returns) > 10
    assert env.pop_finished() == pytest.approx(returns)
    env.close()


def test_the_clock_truncates_and_an_end_in_the_last_step_is_an_end(pool: Any) -> None:
    env = build_vec_env(settings("CartPole-v1", 8, max_t=9))
    env.reset()
    steps = [env.step(np.ones(8, int)) for _ in range(30)]
    ended = {(bool(s.terminated[i]), bool(s.truncated[i])) for s in steps for i in range(8) if s.ended[i]}
    # pushed one way, the pole falls after 8 to 10 steps: before the clock, with it, and too late
    assert ended == {(True, False), (False, True), (True, True)}
    assert all((s.ended == (s.terminated | s.truncated)).all() for s in steps)
    env.close()
    whole = build_vec_env(settings("HalfCheetah-v5", 1))
    whole.reset()
    steps = play(whole, 1001)
    assert [t for t, step in enumerate(steps, 1) if step.truncated[0]] == [1000]
    assert not any(step.terminated[0] for step in steps)
    whole.close()


def test_a_seed_repeats_with_any_number_of_threads(pool: Any) -> None:
    def run(num_cores: int, seed_key: tuple[int, ...] = (1, 0, 0)) -> list[Step]:
        env = build_vec_env(settings("Hopper-v5", 5, num_cores=num_cores, seed_key=seed_key))
        env.reset()
        steps = play(env, 200)
        env.close()
        return steps

    one, same, threads, other = run(1), run(1), run(3), run(1, (1, 1, 0))
    for steps in (same, threads):
        assert all(np.array_equal(a, b) for x, y in zip(one, steps, strict=True) for a, b in zip(x, y, strict=True))
    assert not np.array_equal(one[0].obs, other[0].obs)
    # every env has a stream of its own
    assert len(np.unique(one[0].obs[:, 0])) == 5


def test_a_second_reset_starts_the_same_episodes(pool: Any) -> None:
    env = build_vec_env(settings("Hopper-v5"))
    first = env.reset()
    play(env, 60)
    assert np.array_equal(env.reset(), first)
    env.close()


def test_a_state_starts_new_episodes_with_nothing_scored(pool: Any) -> None:
    env = build_vec_env(settings("CartPole-v1", 3))
    env.reset()
    play(env, 200)
    state = env.state_dict()
    assert env.score.any()
    assert len(state["action"]) == 0
    for other in (build_vec_env(settings("CartPole-v1", 3)), LocalVecEnv(settings("CartPole-v1", 3))):
        obs = other.load_state_dict(state)
        assert np.abs(to_host(obs)).max() <= 0.05
        assert not np.array_equal(obs, other.reset())
        assert np.array_equal(other.load_state_dict(state), obs)
        assert other.score.tolist() == [0, 0, 0]
        assert other.episode.tolist() == env.episode.tolist()
        assert other.num_episode == env.num_episode
        other.pop_finished()
        # whole episodes only: CartPole gives 1 per step
        steps = play(other, 100)
        first_end = [next(t for t, s in enumerate(steps, 1) if s.ended[i]) for i in range(3)]
        assert set(first_end) <= set(other.pop_finished())
        other.close()


def test_what_another_backend_saved_is_continued_with_new_episodes(pool: Any) -> None:
    local = LocalVecEnv(settings("CartPole-v1", 3))
    local.reset()
    play(local, 55)
    env = build_vec_env(settings("CartPole-v1", 3))
    env.load_state_dict(local.state_dict())
    assert env.score.tolist() == [0, 0, 0]
    assert env.episode.tolist() == local.episode.tolist()
    assert np.abs(to_host(play(env, 1)[0].obs)).max() < 0.5
    env.close()


def make_spec(**env: Any) -> Spec:
    raw = {
        "name": "pool",
        "agent": {
            "algorithm": {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 2},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "hid_layers": [16]},
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 1600, "backend": "envpool", **env},
        "meta": {"log_frequency": 200, "device": "cpu", "rigorous_eval": 2, "eval_frequency": 800},
    }
    return parse_spec(raw)[0]


def train(spec: Spec, path: Path, stops: tuple[int, ...] = ()) -> dict[str, Any]:
    folder = RunFolder(path, spec.name)
    for stop in (*stops, spec.env.max_frame):
        session = Session(spec, folder, 0, 0, lambda _: None, lambda: False)
        session.should_stop = lambda stop=stop, session=session: session.frame >= stop  # type: ignore[misc]
        session.run()
    return load_state(folder.resume_file(0, 0))


def test_a_session_repeats_and_continues_statistically(pool: Any, tmp_path: Path, log: list[str]) -> None:
    whole, again = train(make_spec(), tmp_path / "a"), train(make_spec(), tmp_path / "b")
    assert np.array_equal(whole["obs"], again["obs"])
    text = "".join(log)
    assert text.count("a run repeats from its seed; one that was stopped resumes statistically") == 2
    assert "statistical only" not in text
    # not at a multiple of a batch, amid episodes
    stopped, alike = train(make_spec(), tmp_path / "c", (604,)), train(make_spec(), tmp_path / "d", (604,))
    assert "".join(log).count("resumes at frame 604: statistical only") == 2
    assert stopped["frame"] == 1600
    assert not np.array_equal(stopped["obs"], whole["obs"])
    assert np.array_equal(stopped["obs"], alike["obs"])


# --- what is refused


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.delitem(sys.modules, "slm_lab.env.pool", raising=False)
    with pytest.raises(EnvError, match="envpool is not installed; install it with `uv sync --group envpool`"):
        build_vec_env(settings())


@pytest.mark.parametrize("name", ["Pendulum-v1", "Ant-v5", "Humanoid-v5", "LunarLander-v3", "ALE/Pong-v5"])
def test_other_envs_are_refused(pool: Any, name: str) -> None:
    with pytest.raises(EnvError, match=f"not known to give gymnasium's numbers for '{name}'.*; use auto"):
        build_vec_env(settings(name))
    assert sorted(pool.ENV_IDS) == NAMES


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"healthy_z_range": [0.5, 2.0]}, "the envpool backend has no healthy_z_range"),
        ({"xml_file": "hopper.xml"}, "the envpool backend has no xml_file"),
        ({"wrong": 1}, "does not take an option given"),
        ({"reset_noise_scale": "much"}, "envpool cannot make 'Hopper-v5' with {'reset_noise_scale': 'much'}"),
    ],
)
def test_other_options_are_refused(pool: Any, kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(EnvError) as caught:
        build_vec_env(settings("Hopper-v5", kwargs=kwargs))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_spaces_are_refused(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "OPTIONS", frozenset({"exclude_current_positions_from_observation"}))
    kwargs = {"exclude_current_positions_from_observation": False}
    build_vec_env(settings("Hopper-v5", kwargs=kwargs)).close()
    monkeypatch.setattr(pool.envpool, "make_spec", lambda *_, **__: gym.make("Walker2d-v5"))
    with pytest.raises(EnvError, match="envpool has other spaces than gymnasium for 'Hopper-v5'"):
        build_vec_env(settings("Hopper-v5"))


def test_a_drawn_env_is_gymnasiums(log: list[str]) -> None:
    env = build_vec_env(settings(), None, "rgb_array")
    assert isinstance(env, LocalVecEnv)
    assert "Env backend gymnasium, not envpool, for rendering" in "".join(log)
    env.close()


def test_what_is_not_finite_is_named(pool: Any) -> None:
    env = build_vec_env(settings("Hopper-v5", 3))
    env.reset()

    class Broken:
        def step(self, action: Array) -> tuple[Any, ...]:
            obs = np.zeros((3, 11))
            obs[1, 4] = np.nan
            return obs, np.zeros(3), np.zeros(3, bool), np.zeros(3, bool), {}

    env.pool = Broken()  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"env 1, episode 0, step 1: the reward is 0\.0, the observation .*nan"):
        env.step(np.zeros((3, 3)))


def test_auto_never_takes_it() -> None:
    env = build_vec_env(EnvSettings("CartPole-v1", 1), None)
    assert isinstance(env, LocalVecEnv)
    env.close()
