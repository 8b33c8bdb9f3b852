"""Drawing envs: the terminal picture, windows, and what is said where nothing can be drawn."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env import render
from slm_lab.env.build import build_vec_env
from slm_lab.env.local import LocalVecEnv
from slm_lab.env.make import EnvSettings, make_env
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError


class Painted(gym.Env[Any, Any]):
    """Episodes of three steps; the number of the step is the colour of all but one pixel."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 3, False, {}

    def render(self) -> Any:
        frame = np.full((4, 6, 3), 10 * (self.t + 1), np.uint8)
        frame[0, 0] = 255
        return frame


class Unpaintable(Painted):
    """Fails as a graphics library would."""

    def render(self) -> Any:
        raise RuntimeError("no context\nand a long story")


class Grey(Painted):
    """Pictures of another shape."""

    def render(self) -> Any:
        return np.zeros((4, 6), np.uint8)


class Bare(Painted):
    """Takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def _envs() -> Iterator[None]:
    kinds: list[Callable[..., gym.Env[Any, Any]]] = [Painted, Unpaintable, Grey, Bare]
    for kind in kinds:
        gym.register(f"{kind.__name__}-v0", kind)
    yield
    for kind in kinds:
        del gym.registry[f"{kind.__name__}-v0"]


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No display, and no choice of how to draw made yet; what the test chooses is forgotten."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def colour(frame: Array) -> int:
    return int(frame[-1, -1, 0])


def test_the_last_picture_of_an_episode_is_kept_from_the_reset() -> None:
    env = build_vec_env(EnvSettings("Painted-v0", 2), render_mode="rgb_array")
    env.reset()
    assert env.render_fps == 12
    seen = [colour(env.render())]
    action = np.zeros(2, np.int64)
    for _ in range(2):
        env.step(action)
        seen.append(colour(env.render()))
        with pytest.raises(EnvError, match="gives no pictures"):
            env.render_ended()
    assert env.step(action).done.all()
    # step 3 ended the episode, and the env already stands at the start of the next
    assert [*seen, colour(env.render_ended()), colour(env.render())] == [10, 20, 30, 40, 10]
    env.step(action)
    with pytest.raises(EnvError, match="gives no pictures"):
        env.render_ended()


def test_cartpole_is_drawn_without_a_display_at_its_own_speed(headless: pytest.MonkeyPatch) -> None:
    env = build_vec_env(EnvSettings("CartPole-v1", 1), num_workers=2, render_mode="rgb_array")
    env.reset()
    frame = env.render()
    assert frame.shape == (400, 600, 3)
    assert len(np.unique(frame)) > 2
    assert env.render_fps == 50
    env.close()


def test_rendering_changes_no_number() -> None:
    shown = build_vec_env(EnvSettings("CartPole-v1", 1), render_mode="rgb_array")
    plain = build_vec_env(EnvSettings("CartPole-v1", 1))
    assert np.array_equal(shown.reset(), plain.reset())
    for t in range(60):
        action = np.array([t % 2])
        one, two = shown.step(action), plain.step(action)
        shown.render()
        assert all(np.array_equal(left, right) for left, right in zip(one, two, strict=True))
    shown.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unpaintable-v0", "'Unpaintable-v0' cannot be rendered: RuntimeError: no context$"),
        ("Grey-v0", r"'Grey-v0' renders uint8 \(4, 6\), not an 8-bit image"),
        ("probe/ConstantReward-v0", "cannot be rendered: it has no render mode rgb_array"),
        ("Bare-v0", "cannot be rendered: it takes no render_mode"),
    ],
)
def test_an_env_that_cannot_be_drawn_says_so_in_one_line(name: str, message: str) -> None:
    def draw() -> None:
        env = build_vec_env(EnvSettings(name, 1), render_mode="rgb_array")
        env.reset()
        env.render()

    with pytest.raises(EnvError, match=message) as caught:
        draw()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_envs_made_without_a_render_mode_give_no_pictures(num_workers: int) -> None:
    env = build_vec_env(EnvSettings("Pendulum-v1", 1), num_workers)
    env.reset()
    with pytest.raises(EnvError, match="'Pendulum-v1' gives no pictures"):
        env.render()
    assert env.render_fps == 30
    env.close()


@pytest.mark.parametrize(
    ("display", "message"), [(None, "DISPLAY is not set"), (":987", "the display ':987' does not answer")]
)
@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5"])
def test_a_window_without_a_display_is_refused(
    name: str, display: str | None, message: str, headless: pytest.MonkeyPatch
) -> None:
    if display is not None:
        headless.setenv("DISPLAY", display)
    with pytest.raises(EnvError, match=f"no window can be opened: {message}; a video needs none"):
        make_env(EnvSettings(name, 1), "human")


def test_the_first_backend_that_works_is_taken(headless: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        tried.append(env["MUJOCO_GL"])
        if env["MUJOCO_GL"] == "egl":
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, code)

    headless.setattr(subprocess, "run", run)
    code = 0
    render.prepare("rgb_array", is_mujoco=True)
    assert os.environ["MUJOCO_GL"] == "osmesa"
    assert tried == ["egl", "osmesa"]
    # what is set stays
    render.prepare("rgb_array", is_mujoco=True)
    assert tried == ["egl", "osmesa"]
    headless.delenv("MUJOCO_GL")
    code = 1
    with pytest.raises(EnvError, match=r"neither EGL nor OSMesa works.*libegl1 libgl1, or libosmesa6.*MUJOCO_GL=egl"):
        render.prepare("rgb_array", is_mujoco=True)
    assert "MUJOCO_GL" not in os.environ
    render.prepare("rgb_array", is_mujoco=False)
    assert "MUJOCO_GL" not in os.environ


def test_hopper_is_drawn_without_a_display(headless: pytest.MonkeyPatch) -> None:
    try:
        render.find_gl_backend()
    except EnvError as error:
        pytest.skip(str(error))
    env = build_vec_env(EnvSettings("Hopper-v5", 1), render_mode="rgb_array")
    env.reset()
    frame = env.render()
    assert frame.shape == (480, 480, 3)
    assert frame.std() > 10
    assert env.render_fps == 125
    # the camera goes along: the robot is as much to be seen far from its start
    assert isinstance(env, LocalVecEnv)
    hopper: Any = env.slots.envs[0].unwrapped
    far = hopper.data.qpos.copy()
    far[0] += 20
    hopper.set_state(far, hopper.data.qvel.copy())
    shown, still_shown = (count_orange(picture) for picture in (frame, env.render()))
    assert shown > 500
    assert still_shown > shown / 2
    env.close()


def count_orange(frame: Array) -> int:
    """Pixels of the robot: much more red than blue."""
    return int((frame[..., 0].astype(int) - frame[..., 2] > 50).sum())


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb (apt-get install xvfb)")
@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Hopper-v5", marks=pytest.mark.slow)])
def test_a_window_opens_and_shows_the_env(name: str, tmp_path: Path) -> None:
    script = f"""
        import os

        import numpy as np
        from PIL import ImageGrab

        from slm_lab.env.make import EnvSettings
        from slm_lab.env.build import build_vec_env

        env = build_vec_env(EnvSettings("{name}", 1), render_mode="human")
        env.reset()
        for _ in range(3):
            env.step(np.zeros((1, *env.action_space.shape), env.action_space.dtype))
        screen = np.asarray(ImageGrab.grab(xdisplay=os.environ["DISPLAY"]).convert("RGB"))
        print(len(np.unique(screen.reshape(-1, 3), axis=0)), (screen != 0).any(axis=2).sum())
        env.close()
    """
    read_end, write_end = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write_end), "-screen", "0", "800x600x24"],
        pass_fds=[write_end],
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as file:
            display = f":{file.readline().strip()}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SDL_", "MUJOCO_GL"))}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**environment, "DISPLAY": display},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        server.terminate()
        server.wait()
    assert done.returncode == 0, done.stderr
    num_colour, num_lit = (int(word) for word in done.stdout.split()[-2:])
    # the window has its own colours, and covers a good part of the empty black screen
    assert num_colour > 3
    assert num_lit > 20_000
