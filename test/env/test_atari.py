"""Atari games: both backends give the same numbers, scores are those of whole games, and states are rebuilt exactly."""

import re
from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py import roms
from gymnasium import spaces

from slm_lab.env.ale import AleVecEnv
from slm_lab.env.atari import bound_seed, shrink
from slm_lab.env.build import build_vec_env
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, find_game, make_env
from slm_lab.env.vec_env import Step, VecEnv, calc_episode_seed
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.lib.errors import EnvError


def settings(name: str = "ALE/Breakout-v5", num_envs: int = 2, max_t: int | None = None, **kwargs: Any) -> EnvSettings:
    return EnvSettings(name, num_envs, max_t, kwargs, seed_key=(1, 2, 3))


def play(env: VecEnv, num_step: int, seed: int = 0) -> list[Step]:
    """Random actions, the same for every env of a kind."""
    assert isinstance(env.action_space, spaces.Discrete)
    rng, num_action = np.random.default_rng(seed), int(env.action_space.n)
    return [env.step(rng.integers(num_action, size=env.num_envs)) for _ in range(num_step)]


def assert_same(ours: Step, theirs: Step) -> None:
    for name, one, two in zip(Step._fields, ours, theirs, strict=True):
        assert np.array_equal(one, two), name
        assert one.dtype == two.dtype, name


@pytest.mark.parametrize(
    ("name", "num_step", "kwargs"),
    [
        ("ALE/Breakout-v5", 400, {"life_loss_info": True}),
        ("ALE/Pong-v5", 100, {"max_t": 30}),
        ("ALE/Freeway-v5", 60, {"repeat_action_probability": 0.0, "frameskip": 3, "max_t": 25}),
        ("ALE/MsPacman-v5", 150, {"life_loss_info": True, "stack_num": 2, "noop_max": 5}),
        ("ALE/SpaceInvaders-v5", 60, {"full_action_space": True, "use_fire_reset": False}),
    ],
)
def test_backends_agree(name: str, num_step: int, kwargs: dict[str, Any]) -> None:
    native, plain = AleVecEnv(settings(name, **kwargs)), LocalVecEnv(settings(name, **kwargs))
    assert native.obs_space == plain.obs_space
    assert native.action_space == plain.action_space
    assert native.facts.parts == plain.facts.parts
    assert native.facts.frame_stack == plain.facts.frame_stack == kwargs.get("stack_num", 4)
    assert np.array_equal(native.reset(), plain.reset())
    steps = list(zip(play(native, num_step), play(plain, num_step), strict=True))
    for ours, theirs in steps:
        assert_same(ours, theirs)
    assert native.pop_finished() == plain.pop_finished()
    ends = sum(step.ended.sum() for step, _ in steps)
    lost = sum((step.done & ~step.ended).sum() for step, _ in steps)
    assert ends > 0 or name in ("ALE/SpaceInvaders-v5", "ALE/MsPacman-v5")  # long games
    assert (lost > 0) == kwargs.get("life_loss_info", False)


def test_lost_life_goes_on_with_its_true_successor() -> None:
    env = AleVecEnv(settings(num_envs=4, life_loss_info=True))
    obs = env.reset()
    for step in play(env, 150):
        lost = step.done & ~step.ended
        # what comes next is what to act on, and no new game
        assert np.array_equal(step.obs[lost], step.next_obs[lost])
        assert not step.truncated[lost].any()
        # frames shift by one, also at a lost life
        assert np.array_equal(step.next_obs[:, :-1], obs[:, 1:])
        obs = step.obs
        if step.ended.any():
            assert not np.array_equal(step.obs[step.ended], step.next_obs[step.ended])
    assert env.num_episode == len(env.pop_finished())


@pytest.mark.parametrize(
    "name",
    [
        "ALE/Breakout-v5",
        "ALE/Pong-v5",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ALE/Tennis-v5", "ALE/Freeway-v5")),
    ],
)
def test_scores_are_raw_and_of_whole_games(name: str) -> None:
    """Against the emulator alone: one seed, the same actions held for four frames, all rewards of a game added up."""
    env = AleVecEnv(settings(name, num_envs=1, life_loss_info=True))
    env.reset()
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.25)
    seed = bound_seed(calc_episode_seed(env.settings, 0, 0))
    emulator.setInt("random_seed", seed)
    rom = roms.get_rom_path(find_game(name))
    assert rom is not None
    emulator.loadROM(rom)
    emulator.reset_game()
    actions = emulator.getMinimalActionSet()
    # fire and no-ops; the first number of a Mersenne twister decides how many
    num_frame = int(np.random.RandomState(seed).randint(2**32, dtype=np.uint64) * 30 >> 32)
    begin = [ale_py.Action.FIRE] * (ale_py.Action.FIRE in actions)
    begin += [ale_py.Action.NOOP] * (num_frame - len(begin))
    for action in begin:
        emulator.act(action)
    score, rng = 0.0, np.random.default_rng(1)
    while not env.finished:
        choice = int(rng.integers(len(actions)))
        env.step(np.array([choice]))
        for _ in range(4):
            if not emulator.game_over():
                score += emulator.act(actions[choice])
    assert emulator.game_over()
    assert env.pop_finished() == [score]
    if name == "ALE/Tennis-v5":
        assert -24 <= score <= 24


@pytest.mark.parametrize("backend", ["ale", pytest.param("gymnasium", marks=pytest.mark.slow)])
def test_state_is_rebuilt_across_games(backend: str) -> None:
    """Games in between start without a seed; the state still follows from the last seed and the actions."""
    few = settings(num_envs=2, life_loss_info=True, max_t=40)

    def build() -> VecEnv:
        env = AleVecEnv(few) if backend == "ale" else LocalVecEnv(few)
        # seeds return after 60 steps: within the second game
        object.__setattr__(env.facts, "seed_interval", 60)
        return env

    env = build()
    env.reset()
    play(env, 30, seed=1)
    for num_step in (5, 101):
        last = play(env, num_step, seed=num_step)[-1]
        state = env.state_dict()
        again = build()
        assert np.array_equal(again.load_state_dict(state), last.obs)
        env.finished.clear()
        again.finished.clear()
        for ours, theirs in zip(play(env, 50), play(again, 50), strict=True):
            assert_same(ours, theirs)
        assert env.pop_finished() == again.pop_finished()
        assert (env.origin == again.origin).all()
    assert (env.episode > env.origin).any()
    assert (env.origin > 0).all()


def test_workers_and_threads_change_no_number() -> None:
    one, two = (AleVecEnv(EnvSettings("ALE/Pong-v5", 3, seed_key=(1,), num_cores=n)) for n in (1, 2))
    three = WorkerVecEnv(EnvSettings("ALE/Pong-v5", 3, seed_key=(1,)), 2)
    try:
        start = one.reset()
        for other in (two, three):
            assert np.array_equal(start, other.reset())
        for steps in zip(*(play(env, 30) for env in (one, two, three)), strict=True):
            assert_same(steps[0], steps[1])
            assert_same(steps[0], steps[2])
    finally:
        three.close()


def test_backend_is_chosen() -> None:
    assert isinstance(build_vec_env(settings()), AleVecEnv)
    assert isinstance(build_vec_env(settings(mode=4)), LocalVecEnv)
    plain = EnvSettings("ALE/Pong-v5", 1, backend="gymnasium")
    assert isinstance(build_vec_env(plain), LocalVecEnv)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"liveloss": True}, "env.kwargs.liveloss: unknown key; did you mean 'life_loss_info'?"),
        ({"frameskip": 0}, "env.kwargs.frameskip: greater than or equal to 1 expected, got 0"),
        (
            {"repeat_action_probability": 2},
            "env.kwargs.repeat_action_probability: less than or equal to 1 expected, got 2",
        ),
        ({"mode": True}, "env.kwargs.mode: whole number expected, got true"),
        ({"mode": 77}, f"env.kwargs.mode: the game has {list(range(0, 48, 4))}, not 77"),
        ({"life_loss_info": "no"}, 'env.kwargs.life_loss_info: true or false expected, got "no"'),
        ({"stack_num": 10**10}, "env.kwargs.stack_num: less than or equal to 64 expected, got 10000000000"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=f"^{re.escape(message)}$"):
        build_vec_env(settings(**change))


def test_ale_backend_is_for_atari() -> None:
    with pytest.raises(EnvError, match="ale is for ALE/ games"):
        build_vec_env(EnvSettings("CartPole-v1", 1, backend="ale"))


def test_shrink_keeps_means() -> None:
    assert (shrink(np.full((210, 160), 77, np.uint8)) == 77).all()
    half = np.zeros((210, 160), np.uint8)
    half[:105] = 200
    small = shrink(half)
    assert small.shape == (84, 84)
    assert (small[:42] == 200).all()
    assert (small[42:] == 0).all()


def test_render_gives_the_screen_in_colour() -> None:
    env = make_env(settings(num_envs=1))
    env.reset(seed=1)
    assert env.render().shape == (210, 160, 3)
