"""Envs stepped as arrays give every bit that they give one after the other, and are taken where they are faster."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from slm_lab.env.array import ArrayVecEnv
from slm_lab.env.build import build_vec_env, choose_array
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings
from slm_lab.env.vec_env import Obs, Step, VecEnv, to_host
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import EnvError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

Array = np.ndarray[Any, Any]


def settings(num_envs: int = 2, name: str = "CartPole-v1", **options: Any) -> EnvSettings:
    return EnvSettings(name, num_envs, **{"seed_key": (1, 0, 0), **options})


def pick_action(obs: Array, t: int, rng: np.random.Generator) -> Array:
    """By turns of 700 steps and over the envs: at random, holding the pole up, pushing it over."""
    balance = (obs[:, 2] + 0.5 * obs[:, 3] + 0.1 * obs[:, 0] + 0.2 * obs[:, 1] > 0).astype(np.int64)
    which = (np.arange(len(obs)) + t // 700) % 3
    return np.choose(which, [rng.integers(2, size=len(obs)), balance, np.ones(len(obs), np.int64)])


def bits(array: Any) -> tuple[Any, ...]:
    """All that a net or a table could notice of an array: values to the sign of a zero, type, layout."""
    return array.dtype, array.shape, array.flags.c_contiguous, array.tobytes()


def compare(one: VecEnv, two: VecEnv, obs: Obs, num_step: int, first: int = 0) -> list[Step]:
    """Step both alike from `obs`; what they gave is equal in every bit."""
    rng = np.random.default_rng(first)
    steps = []
    for t in range(first, first + num_step):
        action = pick_action(to_host(obs), t, rng)
        step, other = one.step(action), two.step(action)
        for field, a, b in zip(Step._fields, step, other, strict=True):
            assert bits(a) == bits(b), f"{field} at step {t}: {a} and {b}"
        assert one.finished == two.finished
        obs = step.obs
        steps.append(step)
        for part in other:
            # arrays of a step belong to the caller
            to_host(part)[:] = 7
    return steps


def check_equal(one: Any, two: Any) -> None:
    """Two states, of envs or agents."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key, value in one.items():
            check_equal(value, two[key])
    elif isinstance(one, (list, tuple)):
        for a, b in zip(one, two, strict=True):
            check_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two)
    elif isinstance(one, np.ndarray):
        assert bits(one) == bits(two)
    else:
        assert one == two


def truncated_lengths(steps: list[Step]) -> set[int]:
    length, found = np.zeros(len(steps[0].reward), int), set()
    for step in steps:
        length += 1
        found.update(length[step.truncated].tolist())
        length[step.ended] = 0
    return found


@pytest.mark.parametrize("num_envs", [1, 4, 64])
@pytest.mark.parametrize(
    ("name", "max_t", "kwargs"),
    [
        ("CartPole-v1", None, {}),
        ("CartPole-v1", 9, {}),
        ("CartPole-v0", None, {"sutton_barto_reward": True}),
    ],
)
def test_every_bit_is_that_of_single_envs(num_envs: int, name: str, max_t: int | None, kwargs: dict[str, Any]) -> None:
    given = settings(num_envs, name, max_t=max_t, kwargs=kwargs)
    local, array = LocalVecEnv(given), ArrayVecEnv(given)
    assert array.facts == local.facts
    obs = local.reset()
    assert bits(obs) == bits(array.reset())
    steps = compare(local, array, obs, 600 if num_envs == 64 else 2100)
    ends = {(bool(t), bool(u)) for step in steps for t, u in zip(step.terminated, step.truncated, strict=True)}
    # pushed one way the pole falls after 8 to 10 steps: before the clock, with it, and too late
    assert ends == {(False, False), (True, False), (False, True)} | ({(True, True)} if max_t else set())
    assert truncated_lengths(steps) == {max_t or {"CartPole-v0": 200, "CartPole-v1": 500}[name]}
    check_equal(local.state_dict(), array.state_dict())
    assert array.num_episode > 20
    assert local.pop_finished() == array.pop_finished()
    local.close()
    array.close()


def test_a_second_reset_starts_the_same_episodes() -> None:
    env = ArrayVecEnv(settings(3))
    first = env.reset()
    # amid the first episodes, and amid later ones
    for num_step in (5, 33):
        env.reset()
        steps = [env.step(np.array([0, 1, 1])) for _ in range(num_step)]
        assert np.array_equal(env.reset(), first)
        again = [env.step(np.array([0, 1, 1])) for _ in range(num_step)]
        for one, two in zip(steps, again, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("source", [LocalVecEnv, ArrayVecEnv])
@pytest.mark.parametrize("target", [LocalVecEnv, ArrayVecEnv])
# the start; amid episodes; where the second env, whose pole stays up, has just ended by the clock
@pytest.mark.parametrize("num_step", [0, 157, 180])
def test_either_backend_continues_what_the_other_saved(source: Any, target: Any, num_step: int) -> None:
    given = settings(5, max_t=60)
    one, local = source(given), LocalVecEnv(given)
    obs = one.reset()
    local.reset()
    steps = compare(one, local, obs, num_step)
    obs = steps[-1].obs if steps else obs
    if num_step == 180:
        assert steps[-1].truncated[1]
    two = target(given)
    two.reset()
    # it comes from another place
    two.step(np.ones(5, np.int64))
    assert bits(two.load_state_dict(one.state_dict())) == bits(obs)
    check_equal(one.state_dict(), two.state_dict())
    rest = compare(one, two, obs, 300, first=num_step)
    assert any(step.truncated.any() for step in rest)
    check_equal(one.state_dict(), two.state_dict())


def test_an_episode_longer_than_its_log_goes_on_from_a_start() -> None:
    env = ArrayVecEnv(settings(2, max_t=100_000))
    env.reset()
    state = env.state_dict()
    # the pole lies long before the end of these
    state["action"] = np.ones((500, 2), np.int64)
    obs = to_host(env.load_state_dict(state))
    assert np.abs(obs[:, 2]).max() < 0.21
    assert env.native.steps.max() < 12
    assert not env.native.prev_done.any()
    # from its seed, not from the native env's own generator
    assert bits(ArrayVecEnv(settings(2, max_t=100_000)).load_state_dict(state)) == bits(obs)


def train(path: Path, *backends: str) -> dict[str, Any]:
    """A session with as many stops as there are backends after the first."""
    folder = RunFolder(path, "array")
    for stop, backend in zip((604, 1600)[-len(backends) :], backends, strict=True):
        session = Session(make_spec(backend), folder, 0, 0, lambda _: None, lambda: False)
        session.should_stop = lambda stop=stop, session=session: session.frame >= stop  # type: ignore[misc]
        session.run()
    return load_state(folder.resume_file(0, 0))


def make_spec(backend: str) -> Spec:
    raw = {
        "name": "array",
        "agent": {
            "algorithm": {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 2},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "hid_layers": [16]},
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 1600, "backend": backend, "num_workers": 0},
        "meta": {"log_frequency": 200, "device": "cpu"},
    }
    return parse_spec(raw)[0]


def test_a_run_is_the_same_by_either_backend_and_across_them(tmp_path: Path, log: list[str]) -> None:
    whole, other = train(tmp_path / "whole", "gymnasium"), train(tmp_path / "other", "array", "gymnasium")
    assert whole["frame"] == 1600
    assert bits(other["obs"]) == bits(whole["obs"])
    for key in ("agent", "env"):
        check_equal(other[key], whole[key])
    assert "resumes at frame 604: exact" in "".join(log)


# --- which backend


def test_it_is_taken_where_it_is_faster(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    cost: dict[type, float] = {LocalVecEnv: 0.0004, ArrayVecEnv: 0.0001}
    measured: list[int] = []

    def measure(env: VecEnv, seconds: float) -> float:
        measured.append(env.num_envs)
        assert seconds <= 0.05
        return cost[type(env)]

    monkeypatch.setattr(VecEnv, "measure", measure)
    assert isinstance(build_vec_env(settings(16), None), ArrayVecEnv)
    assert "Env backend array: a step of 16 envs takes 0.400 ms one by one, 0.100 ms as arrays" in log[-1]
    # many envs take long to make, so few are tried
    env = build_vec_env(settings(100), None)
    assert isinstance(env, ArrayVecEnv)
    assert env.num_envs == 100
    assert "a step of 64 envs takes" in log[-1]
    assert measured == [16, 16, 64, 64]
    cost[ArrayVecEnv] = 0.0005
    assert isinstance(build_vec_env(settings(4), None), LocalVecEnv)
    assert "gymnasium, in process: a step of 4 envs takes 0.400 ms one by one, 0.500 ms as arrays" in log[-1]


def test_it_is_not_tried_where_it_cannot_be_taken(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    def refuse(env: VecEnv, seconds: float) -> float:
        raise AssertionError("measured")

    monkeypatch.setattr(VecEnv, "measure", refuse)
    assert isinstance(build_vec_env(settings(1), None), LocalVecEnv)
    assert "gymnasium, in process: one env" in log[-1]
    assert isinstance(build_vec_env(settings(64), 0), LocalVecEnv)
    assert isinstance(build_vec_env(settings(64, backend="gymnasium"), None), LocalVecEnv)
    assert isinstance(build_vec_env(settings(64), None, "rgb_array"), LocalVecEnv)
    assert isinstance(build_vec_env(settings(2, "Acrobot-v1"), None), LocalVecEnv)
    assert isinstance(build_vec_env(settings(2, kwargs={"max_episode_steps": 7}), None), LocalVecEnv)


def test_many_envs_are_faster_as_arrays() -> None:
    # three times at 64 envs, which one try on a busy machine may miss
    assert any(choose_array(settings(1024))[0] for _ in range(3))


def test_an_env_of_the_users_own_by_this_name_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gym.registry, "CartPole-v1")
    gym.register("CartPole-v1", entry_point=lambda **options: CartPoleEnv(**options), max_episode_steps=500)
    env = build_vec_env(settings(64, num_cores=1), None)
    assert isinstance(env, LocalVecEnv)
    with pytest.raises(EnvError, match="array is for"):
        build_vec_env(settings(64, backend="array"))


@pytest.mark.parametrize(
    ("given", "num_workers", "text"),
    [
        (
            settings(2, "Acrobot-v1", backend="array"),
            None,
            "env.backend: array is for CartPole-v0 and CartPole-v1, not for 'Acrobot-v1'; use auto",
        ),
        (
            settings(2, "ALE/Pong-v5", backend="array"),
            None,
            "env.backend: array is for CartPole-v0 and CartPole-v1, not for 'ALE/Pong-v5'; use auto",
        ),
        (
            settings(2, backend="array", kwargs={"max_episode_steps": 7}),
            None,
            "env.kwargs: the array backend has no max_episode_steps; use env.backend gymnasium",
        ),
    ],
)
def test_what_is_refused(given: EnvSettings, num_workers: int | None, text: str) -> None:
    with pytest.raises(EnvError) as caught:
        build_vec_env(given, num_workers)
    assert str(caught.value) == text


def test_a_drawn_env_is_gymnasiums(log: list[str]) -> None:
    env = build_vec_env(settings(backend="array"), None, "rgb_array")
    assert isinstance(env, LocalVecEnv)
    assert "Env backend gymnasium, not array, for rendering" in log[-1]
    env.close()
