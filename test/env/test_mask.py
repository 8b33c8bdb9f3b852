"""Action masks as envs give them: their forms, their faults, and what every part of the lab makes of them."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import slm_lab
from slm_lab.agent.agent import Agent
from slm_lab.env.build import build_vec_env
from slm_lab.env.check import check_env
from slm_lab.env.layout import MisfitError
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, build_settings, make_env
from slm_lab.env.mask import count_choices, read_mask, sample_allowed
from slm_lab.env.random_baseline import measure_random_baseline
from slm_lab.env.vec_env import VecEnv, to_host
from slm_lab.env.worker import WorkerVecEnv
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.lib.errors import DivergenceError, EnvError, LabError
from slm_lab.results.folder import RunFolder
from test import tic_tac_toe
from test.tiny import make_tiny_spec

GAME = tic_tac_toe.NAME


# --- forms


@pytest.mark.parametrize(
    ("mask", "choices", "allowed"),
    [
        (np.array([1, 0, 1], np.int8), (3,), [1, 0, 1]),
        ([True, False, True], (3,), [1, 0, 1]),
        (np.array([0.0, 1.0]), (2,), [0, 1]),
        ((np.array([0, 1]), np.array([1, 0, 0])), (2, 3), [0, 1, 1, 0, 0]),
        ([[0, 1], [1, 0, 0]], (2, 3), [0, 1, 1, 0, 0]),
        (np.array([0, 1, 1, 0, 0]), (2, 3), [0, 1, 1, 0, 0]),
        ([0, 1, 1, 0, 0], (2, 3), [0, 1, 1, 0, 0]),
        (np.array([[0, 1], [1, 1]]), (2, 2), [0, 1, 1, 1]),
    ],
)
def test_forms_of_masks(mask: Any, choices: tuple[int, ...], allowed: list[int]) -> None:
    assert read_mask(mask, choices).tolist() == [bool(one) for one in allowed]


@pytest.mark.parametrize(
    ("mask", "choices", "message"),
    [
        ([0, 0, 0], (3,), "forbids every action"),
        ([0, 1, 0, 0, 0], (2, 3), "forbids every choice of part 1 of the action"),
        ([1, 1], (3,), "has the shape (2,); expected (3,)"),
        ([[1, 1, 1]], (3,), "has the shape (1, 3); expected (3,)"),
        (([1, 1, 1], [1, 1]), (2, 3), "has the shape (3,), (2,); expected (5,), or one of each part: (2,), (3,)"),
        (([1, 1], [1, 1]), (2, 3), "has the shape (2,), (2,); expected (5,), or one of each part"),
        (None, (3,), "has the shape NoneType; expected (3,)"),
        ({"a": 1}, (2,), "has the shape dict; expected (2,)"),
        ([1, 2, 0], (3,), "holds other values than 0 and 1"),
        ([1, 0.5, 0], (3,), "holds other values than 0 and 1"),
        ([1, np.nan, 0], (3,), "holds other values than 0 and 1"),
        (["a", "b"], (2,), "holds other values than 0 and 1"),
        ([[1, 1], [1]], (2,), "is no array: list"),
    ],
)
def test_masks_that_are_refused(mask: Any, choices: tuple[int, ...], message: str) -> None:
    with pytest.raises(MisfitError) as error:
        read_mask(mask, choices)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("space", "allowed", "actions"),
    [
        (spaces.Discrete(3, start=5), [1, 0, 1], {5, 7}),
        (spaces.MultiDiscrete([2, 2]), [0, 1, 1, 1], {(1, 0), (1, 1)}),
        (spaces.MultiBinary(2), [0, 1, 1, 1], {(1, 0), (1, 1)}),
    ],
)
def test_random_allowed_actions(space: Any, allowed: list[int], actions: set[Any]) -> None:
    space.seed(0)
    found = [sample_allowed(space, np.array(allowed, bool)) for _ in range(50)]
    assert all(space.contains(action) for action in found)
    assert {tuple(action) if action.shape else int(action) for action in found} == actions
    assert count_choices(spaces.Box(0, 1)) == ()


# --- envs


class Scripted(gym.Env[Any, Any]):
    """Observations of any kind; every step tells a mask that a class attribute makes of the step's number."""

    observation_space: Any = spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)
    length = 6

    def mask(self) -> Any:
        """The mask at the step under way."""
        return np.array([self.t % 2, 1, 0])

    def see(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.see(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, spaces.Discrete) and not self.info().get("action_mask", [1] * 3)[action]:
            raise ValueError("forbidden")
        self.t += 1
        return self.see(), 1.0, False, self.t >= self.length, self.info()


class Closing(Scripted):
    """Forbids everything, or has no mask, when it is over."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, is_over, info = super().step(action)
        if is_over:
            info = {"action_mask": np.zeros(3)} if self.np_random.integers(2) else {}
        return obs, reward, is_over, False, info


class Picture(Scripted):
    """Images."""

    observation_space: Any = spaces.Box(0, 255, (12, 12), np.uint8)

    def see(self) -> Any:
        return self.np_random.integers(0, 255, (12, 12), np.uint8)


class Keyed(Picture):
    """An image and a mask in one observation."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "picture": Picture.observation_space})

    def see(self) -> Any:
        return {"action_mask": self.mask(), "picture": super().see()}

    def info(self) -> dict[str, Any]:
        return {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask()[action]:
            raise ValueError("forbidden")
        return super().step(action)


def fail_at(make: Any) -> type[Scripted]:
    return type("Failing", (Scripted,), {"mask": make})


FAULTS: dict[str, tuple[type[Scripted], str]] = {
    "NoChoice": (fail_at(lambda env: np.zeros(3) if env.t == 4 else np.array([0, 1, 1])), "forbids every action"),
    "Short": (fail_at(lambda env: [1, 1] if env.t == 4 else [1, 1, 1]), "has the shape (2,); expected (3,)"),
    "Text": (fail_at(lambda env: "no" if env.t == 4 else [1, 1, 1]), "has the shape str; expected (3,)"),
    "Forgotten": (
        type("Forgotten", (Scripted,), {"info": lambda env: {} if env.t == 4 else Scripted.info(env)}),
        "info has no 'action_mask', which earlier steps had",
    ),
}
ENVS: dict[str, type[Scripted]] = {
    **{kind.__name__: kind for kind in (Scripted, Closing, Picture, Keyed)},
    **{name: kind for name, (kind, _) in FAULTS.items()},
    "NoStart": fail_at(lambda env: np.zeros(3) if env.t == 0 else np.array([0, 1, 1])),
    "Continuous": type("Continuous", (Scripted,), {"action_space": spaces.Box(-1, 1, (3,))}),
    "Later": type("Later", (Scripted,), {"info": lambda env: {}}),
}
for _name, _kind in ENVS.items():
    gym.register(f"mask/{_name}-v0", entry_point=lambda kind=_kind, **_: kind())


def make(name: str, **keys: Any) -> VecEnv:
    spec = make_tiny_spec(env={"name": f"mask/{name}-v0", "num_envs": 2, **keys}).env
    return build_vec_env(build_settings(spec, (0,)))


def test_a_mask_is_the_end_of_an_observation() -> None:
    env = make("Scripted")
    mask = env.facts.mask
    assert mask is not None
    assert (mask.start, mask.stop, env.obs_space.shape) == (2, 5, (5,))
    obs = env.reset()
    assert obs[:, 2:].tolist() == [[0, 1, 0]] * 2
    step = env.step(np.array([1, 1]))
    assert step.obs[:, 2:].tolist() == step.next_obs[:, 2:].tolist() == [[1, 1, 0]] * 2
    for _ in range(5):
        step = env.step(np.array([1, 1]))
    # the end of one episode and the start of the next
    assert step.ended.all()
    assert step.next_obs[0, 2:].tolist() == [0, 1, 0]
    env.close()


def test_nothing_need_be_allowed_when_the_task_is_over() -> None:
    env = make("Closing")
    env.reset()
    for _ in range(100):
        step = env.step(np.array([1, 1]))
        assert (step.next_obs[step.terminated, 2:] == 1).all()
    assert env.num_episode > 20
    env.close()


@pytest.mark.parametrize("name", ["Picture", "Keyed"])
@pytest.mark.parametrize("stack", [0, 4])
def test_images_and_stacks_of_them(name: str, stack: int) -> None:
    wrappers = [{"name": "FrameStackObservation", "kwargs": {"stack_size": stack}}] if stack else []
    net = {"type": "ConvNet", "conv_hid_layers": [[4, 4, 2]], "fc_hid_layers": [8], "normalize": True}
    kwargs: dict[str, Any] = {"name": f"mask/{name}-v0", "wrappers": wrappers, "num_envs": 2}
    spec = make_tiny_spec("DQN", env=kwargs, net=net if stack else {})
    env = build_vec_env(build_settings(spec.env, (0,)))
    assert env.facts.parts[0].shape == ((stack, 12, 12) if stack else (12, 12))
    agent = Agent(spec, env.facts, 2, (0,), torch.device("cpu"))
    obs = env.reset()
    assert obs.dtype == np.uint8
    for frame in range(2, 300, 2):
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        agent.update(frame)
        obs = step.obs
    assert agent.algorithm.opt_step > 0
    # nets see the picture alone
    assert agent.algorithm.net.body.select.slices == [slice(0, 144 * (stack or 1))]
    env.close()


def test_workers_and_exact_rebuilding() -> None:
    settings = EnvSettings("probe/Masked-v0", 4, seed_key=(3,))
    local, workers = LocalVecEnv(settings), WorkerVecEnv(settings, 2)
    assert workers.facts == local.facts
    seen = [to_host(env.reset()) for env in (local, workers)]
    np.testing.assert_array_equal(seen[0], seen[1])
    for _ in range(20):
        action = seen[0][:, 1:].argmax(1)
        steps = [env.step(action) for env in (local, workers)]
        for one, two in zip(*steps, strict=True):
            np.testing.assert_array_equal(one, two)
        seen = [to_host(step.obs) for step in steps]
    rebuilt = LocalVecEnv(settings)
    np.testing.assert_array_equal(rebuilt.load_state_dict(workers.state_dict()), seen[0])
    for env in (local, workers, rebuilt):
        env.close()


def test_random_play_follows_masks() -> None:
    settings = EnvSettings("mask/Scripted-v0", 2, num_cores=2)
    env = LocalVecEnv(settings)
    env.try_episode()
    assert env.measure(0.01) > 0
    env.close()
    assert measure_random_baseline(lambda: make_env(settings), 5).mean == 6
    items = check_env(make_env(settings), 50, make_fresh=lambda: make_env(settings))
    assert "action masks: which of 3 choices are allowed" in [item.text for item in items]
    assert not [item for item in items if item.level == "wrong"]


def test_normalisers_leave_masks_alone() -> None:
    spec = make_tiny_spec(env={"name": "mask/Scripted-v0", "num_envs": 2, "normalize_obs": True, "clip_obs": 0.5})
    env = build_vec_env(build_settings(spec.env, (0,)))
    agent = Agent(spec, env.facts, 2, (0,), torch.device("cpu"))
    obs = env.reset()
    for _ in range(9):
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs = step.obs
    assert agent.encode.stats is not None
    assert agent.encode.stats.mean.shape == (2,)
    np.testing.assert_allclose(agent.encode.stats.count, 20)
    seen = agent.encode(obs)
    np.testing.assert_array_equal(seen[:, 2:], obs[:, 2:])
    assert seen[:, :2].abs().max() <= 0.5
    # batches of a replay come as tensors
    np.testing.assert_array_equal(agent.encode(torch.from_numpy(obs)), seen)
    env.close()


# --- mistakes


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_mask_ends_the_run_with_one_line_and_a_checkpoint(name: str, tmp_path: Path) -> None:
    spec = make_tiny_spec(env={"name": f"mask/{name}-v0", "num_envs": 2}, meta={"checkpoint_frequency": 100_000})
    folder = RunFolder(tmp_path, spec.name)
    with pytest.raises(DivergenceError) as error:
        Session(spec, folder).run()
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("action mask of the env is not what it should be at frame 8: env 0, episode 0 (seed ")
    assert f"step 4: the action mask {FAULTS[name][1]}" in message or f"step 4: {FAULTS[name][1]}" in message
    # resumed, the env meets the same step with the same action
    state = load_state(folder.resume_file(0, 0))
    assert state["frame"] == 6
    with pytest.raises(DivergenceError) as again:
        Session(spec, folder).run()
    assert str(again.value) == message


def test_masks_of_continuous_actions_are_refused_before_training(tmp_path: Path) -> None:
    spec = make_tiny_spec(env={"name": "mask/Continuous-v0", "max_frame": 64})
    with pytest.raises(EnvError) as error:
        slm_lab.run(spec, tmp_path)
    assert str(error.value) == (
        "env.name: 'mask/Continuous-v0' gives an action_mask, which only discrete actions can have, and its actions "
        "are Box(-1.0, 1.0, (3,), float32); set env.action_mask: ignore"
    )
    assert not list(tmp_path.iterdir())
    env = make("Continuous", action_mask="ignore")
    assert env.facts.mask is None
    assert env.reset().shape == (2, 2)
    env.close()


def test_a_wrong_mask_at_the_first_reset_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(EnvError) as error:
        slm_lab.run(make_tiny_spec(env={"name": "mask/NoStart-v0", "max_frame": 64}), tmp_path)
    assert str(error.value) == (
        "env.name: the first reset of 'mask/NoStart-v0' gives a wrong mask: the action mask forbids every action; "
        "allow at least one"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["NoStart", *FAULTS])
def test_a_check_names_the_step_of_a_wrong_mask(name: str) -> None:
    items = check_env(make_env(EnvSettings(f"mask/{name}-v0", 1)), 50)
    (wrong,) = [item.text for item in items if item.level == "wrong"]
    at, message = ("reset", "forbids every action") if name == "NoStart" else ("step 4", FAULTS[name][1])
    assert wrong.startswith(f"{at}: ")
    assert message in wrong


def test_ignored_masks() -> None:
    env = make("Keyed", action_mask="ignore")
    assert env.facts.mask is None
    assert [part.name for part in env.facts.parts] == ["action_mask", "picture"]
    env.close()


def test_a_mask_that_comes_in_a_later_episode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("Later")
    assert env.facts.mask is None
    env.reset()
    monkeypatch.setattr(ENVS["Later"], "info", lambda env: {"action_mask": [1, 1, 1]})
    for _ in range(5):
        env.step(np.array([1, 1]))
    with pytest.raises(EnvError, match="gives an action_mask in some episodes only; give one in all"):
        env.step(np.array([1, 1]))
    env.close()


# --- trained agents


@pytest.mark.parametrize("in_obs", [False, True])
@pytest.mark.usefixtures("undrawn")
def test_a_trained_agent_takes_masks(in_obs: bool, tmp_path: Path) -> None:
    game = {"name": GAME, "kwargs": {"in_obs": in_obs}, "max_frame": 256, "num_workers": 0}
    spec = make_tiny_spec(env=game, meta={"final_eval": 2, "rigorous_eval": 2})
    agent = slm_lab.load_agent(slm_lab.run(spec, tmp_path, log_level="ERROR").folder)
    env = gym.make(GAME, in_obs=in_obs)
    for seed in range(3):
        obs, info = env.reset(seed=seed)
        is_over = False
        while not is_over:
            action = agent.act(obs, deterministic=bool(seed), mask=info.get("action_mask"))
            obs, _, is_over, _, info = env.step(action)
    obs, info = env.reset(seed=0)
    board = obs["board"] if in_obs else obs
    masks = np.eye(9)
    batch = {"board": np.tile(board, (9, 1))} if in_obs else np.tile(board, (9, 1))
    assert agent.act(batch, mask=masks).tolist() == list(range(9))
    alone = {"board": board} if in_obs else board
    for mask, message in (
        (None, "mask: the agent was trained with masks; give it mask=info['action_mask']"),
        (np.zeros(9), "mask: the action mask forbids every action; allow at least one"),
        (np.ones(4), "mask: the action mask has the shape (4,); expected (9,)"),
    ):
        with pytest.raises(LabError) as error:
            agent.act(alone, mask=mask)
        assert str(error.value) == message
    with pytest.raises(LabError, match="mask: 2 masks for 9 observations"):
        agent.act(batch, mask=masks[:2])
