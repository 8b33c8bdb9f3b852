"""Envs of MuJoCo Playground: the contract on a toy whose answers are known, MJX itself on CartpoleBalance."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slm_lab
from slm_lab.env.build import build_vec_env, make_random_env
from slm_lab.env.make import EnvSettings
from slm_lab.env.random_baseline import measure_random_baseline
from slm_lab.env.vec_env import Step, VecEnv, to_host
from slm_lab.lib.errors import EnvError

Array = np.ndarray[Any, Any]
is_installed = importlib.util.find_spec("mujoco_playground") is not None
needs_playground = pytest.mark.skipif(
    not is_installed, reason="mujoco_playground is not installed: uv sync --group playground"
)
CARTPOLE = "playground/CartpoleBalance"
TOY = "playground/Toy"
SPEC_FILE = Path(slm_lab.__file__).parent / "spec/benchmark_arc/ppo/ppo_playground.yaml"


# --- what needs no package


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    monkeypatch.delitem(sys.modules, "slm_lab.env.playground", raising=False)
    # None in sys.modules makes the import fail as a missing package does; jax, if installed, is not reached
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(EnvError, match=r"needs the package '\w+', which is not installed.*uv sync --group playground$"):
        build_vec_env(EnvSettings(CARTPOLE, 2))


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        (EnvSettings(CARTPOLE, 2, backend="gymnasium"), {}, "env.backend: .* use auto"),
        (EnvSettings(CARTPOLE, 2), {"num_workers": 2}, "env.num_workers: .* leave it out"),
        (EnvSettings(CARTPOLE, 2), {"render_mode": "human"}, "cannot be rendered"),
    ],
)
def test_what_such_envs_cannot_do_is_said(settings: EnvSettings, given: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        build_vec_env(settings, **given)


def test_observations_on_a_device_come_to_the_host_to_be_saved() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert to_host(array) is array
    np.testing.assert_array_equal(to_host(torch.from_numpy(array)), array)


# --- a toy whose answers are known


def add_toy() -> None:
    """Adds `playground/Toy`: a number that grows by the action and by 1 each control step, and ends above 10."""
    jax = importlib.import_module("jax")
    jnp = importlib.import_module("jax.numpy")
    playground: Any = importlib.import_module("mujoco_playground")
    config_dict = importlib.import_module("ml_collections").config_dict

    def config() -> Any:
        return config_dict.create(
            ctrl_dt=0.01, sim_dt=0.01, episode_length=8, action_repeat=1, impl="jax", noise={"level": 0.0}
        )

    class Toy(playground.MjxEnv):
        def obs(self, x: Any) -> dict[str, Any]:
            return {"state": jnp.stack([x, -x]), "privileged_state": 100 * x[None]}

        def reset(self, rng: Any) -> Any:
            x = jax.random.uniform(rng)
            info = {"rng": rng, "count": 0}  # a weakly typed number
            return playground.State(x, self.obs(x), jnp.float32(0), jnp.float32(0), {}, info)

        def step(self, state: Any, action: Any) -> Any:
            x = state.data + action[0] + 1
            info = {**state.info, "count": state.info["count"] + 1}
            return playground.State(x, self.obs(x), x, (x > 10).astype(float), {}, info)

        xml_path = mj_model = mjx_model = property(lambda self: None)
        action_size = property(lambda self: 1)

    playground.dm_control_suite.register_environment("Toy", Toy, config)


@pytest.fixture(scope="module")
def toy() -> None:
    if not is_installed:
        pytest.skip("mujoco_playground is not installed: uv sync --group playground")
    add_toy()


def build(name: str, num_envs: int, **given: Any) -> Any:
    """A batch whose backend the tests may look into."""
    return build_vec_env(EnvSettings(name, num_envs, **given))


def steps(env: VecEnv, actions: list[Any]) -> list[Step]:
    shape = (env.num_envs, *env.action_map.shape)
    return [env.step(np.broadcast_to(np.float32(action), shape).copy()) for action in actions]


def start(env: VecEnv) -> Array:
    return to_host(env.reset())


@pytest.mark.slow
def test_parts_have_names_in_the_order_of_the_flat_observation(toy: None) -> None:
    env = build(TOY, 2)
    assert [(part.name, part.start, part.stop) for part in env.facts.parts] == [
        ("privileged_state", 0, 1),
        ("state", 1, 3),
    ]
    assert env.obs_space.shape == (3,)
    obs = start(env)
    x = obs[:, 1]
    np.testing.assert_array_equal(obs, np.stack([100 * x, x, -x], 1))


@pytest.mark.slow
def test_the_time_limit_truncates_and_the_successor_is_true(toy: None) -> None:
    env = build(TOY, 3)
    first = start(env)[:, 1]
    *before, last = steps(env, [-1] * 8)  # +1 - 1: x stays where it began
    assert not any(step.done.any() for step in before)
    assert all(step.obs is step.next_obs for step in before)
    assert last.truncated.all()
    assert not last.terminated.any()
    assert last.ended.all()
    np.testing.assert_allclose(to_host(last.next_obs)[:, 1], first, rtol=1e-6)
    # the next episode starts elsewhere, in each env from a seed of its own
    assert len({*first.tolist(), *to_host(last.obs)[:, 1].tolist()}) == 6
    np.testing.assert_allclose(env.pop_finished(), 8 * first, rtol=1e-6)
    assert not env.t.any()


@pytest.mark.slow
def test_the_end_of_the_task_terminates_also_at_the_time_limit(toy: None) -> None:
    env = build(TOY, 2, max_t=5)
    first = start(env)[:, 1]
    # env 0 passes 10 with its fifth step of +2, at the limit; env 1 stays
    action = np.array([[1.0], [-1.0]])
    *before, last = steps(env, [action] * 5)
    assert not any(step.done.any() for step in before)
    assert last.terminated.tolist() == [True, False]
    assert last.truncated.tolist() == [False, True]
    np.testing.assert_allclose(to_host(last.next_obs)[0, 1], first[0] + 10, rtol=1e-6)
    # 2 + 4 + 6 + 8 + 10 and five times where it began
    np.testing.assert_allclose(env.pop_finished(), [30 + 5 * first[0], 5 * first[1]], rtol=1e-6)


@pytest.mark.slow
def test_a_repeated_action_sums_its_rewards_and_stops_at_the_end(toy: None) -> None:
    env = build(TOY, 2, kwargs={"action_repeat": 4})
    assert env.simulator.max_t == 2  # 8 control steps
    first = start(env)[:, 1]
    one, two = steps(env, [1.0, 1.0])
    np.testing.assert_allclose(one.reward, 4 * first + 2 + 4 + 6 + 8, rtol=1e-6)
    # the fifth control step passes 10; nothing after it counts
    np.testing.assert_allclose(two.reward, first + 10, rtol=1e-6)
    np.testing.assert_allclose(to_host(two.next_obs)[:, 1], first + 10, rtol=1e-6)
    assert two.terminated.all()


@pytest.mark.slow
def test_what_is_not_finite_ends_the_episode_and_stays_out(toy: None) -> None:
    env = build(TOY, 2)
    first = start(env)
    env._state = env._state.replace(data=env._state.data.at[1].set(np.nan))
    (step,) = steps(env, [0.0])
    assert step.terminated.tolist() == [False, True]
    assert step.reward[1] == 0
    np.testing.assert_array_equal(to_host(step.next_obs)[1], first[1])
    assert np.isfinite(to_host(step.obs)).all()
    assert env.num_broken == 1


@pytest.mark.slow
def test_arrays_belong_to_the_caller(toy: None) -> None:
    env, other = (build(TOY, 2) for _ in range(2))
    for array in (start(env), start(other)):
        assert array.flags.writeable
    (step,) = steps(env, [0.5])
    to_host(step.obs)[:] = np.nan
    steps(other, [0.5])
    np.testing.assert_array_equal(to_host(steps(env, [0.5])[0].obs), to_host(steps(other, [0.5])[0].obs))


@pytest.mark.slow
def test_a_step_is_compiled_once(toy: None) -> None:
    env = build(TOY, 2, max_t=3)
    start(env)
    steps(env, [0.0] * 7)
    simulator = env.simulator
    assert (simulator.step._cache_size(), simulator.reset._cache_size()) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("few", [1, 4])
def test_envs_that_end_are_reset_a_few_at_a_time(toy: None, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(TOY, 10, max_t=8)
    monkeypatch.setattr("slm_lab.env.playground.FEW", few)
    env, other = build(TOY, 10, max_t=8), build(TOY, 10, max_t=8)
    assert env.simulator.few == few
    np.testing.assert_array_equal(start(env), start(whole))
    start(other)
    # each env ends at another step, or some of them at the same
    action = np.linspace(-1, 1, 10, dtype=np.float32)[:, None] * np.float32(0.9)
    for _ in range(30):
        step, same = env.step(action), whole.step(action)
        np.testing.assert_array_equal(to_host(step.obs), to_host(same.obs))
        np.testing.assert_array_equal(to_host(step.next_obs), to_host(same.next_obs))
    np.testing.assert_array_equal(to_host(other.load_state_dict(env.state_dict())), to_host(step.obs))
    assert env.num_episode > 20


@pytest.mark.slow
def test_random_play_of_a_batch(toy: None) -> None:
    settings = EnvSettings(TOY, 8)
    baseline = measure_random_baseline(lambda: make_random_env(settings))
    assert baseline.num_episode == 104  # rounds of 8
    # x grows by 1 a step from 0.5: 1.5 + ... + 8.5
    assert baseline.mean == pytest.approx(40, abs=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("playground/CartpolBalance", {}, "did you mean 'playground/CartpoleBalance'"),
        ("playground/", {}, "there is no env"),
        (TOY, {"implementation": "jax"}, "env.kwargs: 'Toy' has no option 'implementation'"),
        (TOY, {"impl": "cuda"}, "impl is jax or warp"),
        (TOY, {"impl": "warp"}, "impl warp needs a GPU"),
        (TOY, {"noise.level": "much"}, "env.kwargs: 'Toy' cannot take an option given"),
        (TOY, {"noise.lvl": 1.0}, "no option 'noise.lvl'; did you mean 'noise.level'"),
    ],
)
def test_mistakes_in_names_and_options(toy: None, name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        build(name, 2, kwargs=kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_robots_that_must_be_downloaded(toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    playground = importlib.import_module("slm_lab.env.playground")
    where = tmp_path / "menagerie"
    monkeypatch.setattr(playground, "MENAGERIE_PATH", where)
    with pytest.raises(EnvError, match="needs the robots of mujoco_menagerie; download them with: git clone "):
        build("playground/Go1JoystickFlatTerrain", 2)
    assert not where.exists()


@pytest.mark.slow
def test_tensors_are_handed_over_as_copies(toy: None) -> None:
    playground = importlib.import_module("slm_lab.env.playground")
    array = importlib.import_module("jax.numpy").arange(6.0).reshape(2, 3)
    tensor = playground.to_torch(array)
    assert (tensor.dtype, tensor.shape) == (torch.float32, (2, 3))
    tensor += 1
    np.testing.assert_array_equal(np.asarray(array), np.arange(6.0).reshape(2, 3))


# --- MJX


def play(env: VecEnv, count: int, seed: int = 0) -> list[Step]:
    rng = np.random.default_rng(seed)
    shape = (env.num_envs, *env.action_map.shape)
    return [env.step(rng.uniform(-1, 1, shape).astype(np.float32)) for _ in range(count)]


def assert_equal(one: list[Step], two: list[Step]) -> None:
    for left, right in zip(one, two, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def cartpoles() -> list[Any]:
    """Two batches of the same seed: one compiled, one read from disk."""
    if not is_installed:
        pytest.skip("mujoco_playground is not installed: uv sync --group playground")
    return [build(CARTPOLE, 3, max_t=6) for _ in range(2)]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_steps(cartpoles: list[Any]) -> None:
    one, two = cartpoles
    np.testing.assert_array_equal(start(one), start(two))
    first = play(one, 13)
    assert_equal(first, play(two, 13))
    assert sum(step.ended.all() for step in first) == 2
    assert one.pop_finished() == two.pop_finished()


@pytest.mark.slow
def test_continuation_is_exact_with_episodes_of_different_lengths(cartpoles: list[Any]) -> None:
    one, two = cartpoles
    start(one)
    one.t[:] = [0, 2, 5]  # episodes that end at different times
    play(one, 8)
    state = one.state_dict()
    assert sorted(one.t.tolist()) == [1, 2, 4]
    obs = to_host(two.load_state_dict(state))
    assert two.t.tolist() == one.t.tolist()
    steps_one, steps_two = play(one, 9, seed=1), play(two, 9, seed=1)
    assert obs.shape == (3, 5)
    assert_equal(steps_one, steps_two)
    assert one.pop_finished() == two.pop_finished()


@pytest.mark.slow
def test_physics_is_that_of_mujoco(cartpoles: list[Any]) -> None:
    mujoco = importlib.import_module("mujoco")
    env = cartpoles[0]
    start(env)
    simulator = env.simulator
    model = simulator.env.mj_model
    data = mujoco.MjData(model)
    data.qpos, data.qvel = env._state.data.qpos[0], env._state.data.qvel[0]
    for step_action in (0.3, -1.0, 0.8):
        data.ctrl[:] = step_action
        mujoco.mj_step(model, data)
        steps(env, [step_action])
        np.testing.assert_allclose(env._state.data.qpos[0], data.qpos, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_playground
def test_ppo_trains_through_the_command_line(tmp_path: Path) -> None:
    given = {
        "env": CARTPOLE,
        "max_frame": 960,
        "env.num_envs": 16,
        "env.max_t": 20,
        "meta.max_session": 1,
        "meta.log_frequency": 480,
        "agent.algorithm.minibatch_size": 120,
    }
    options = [word for key, value in given.items() for word in ("-s", f"{key}={value}")]
    spec = [str(SPEC_FILE), "ppo_playground_vnorm", "train"]
    result = subprocess.run(
        [str(Path(sys.executable).with_name("slm-lab")), "run", *spec, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (metrics,) = tmp_path.glob("data/*/*_t0_trial_metrics.json")
    assert json.loads(metrics.read_text())["is_complete"]
    # two updates of 16 epochs with four minibatches
    (table,) = tmp_path.glob("data/*/info/*_s0_session_df_train.csv")
    assert ",128," in table.read_text().splitlines()[-1]
