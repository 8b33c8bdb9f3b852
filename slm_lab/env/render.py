"""Prepare for rendering: check the display for a window, or find an OpenGL backend for MuJoCo."""

import os
import subprocess
import sys
import warnings
from typing import Any, Literal

import glfw
import numpy as np

from slm_lab.env.gym_types import GymEnv
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError
from slm_lab.lib.parent import child_python_path

RenderMode = Literal["human", "rgb_array"]
# OpenGL backends without a display, the faster first
GL_BACKENDS = ("egl", "osmesa")
# the first call of a software renderer compiles its shaders
PROBE_SECONDS = 60.0
# drawing must be tried: a context can be created even where MuJoCo cannot draw in it
PROBE = """
import mujoco
from mujoco.{backend} import GLContext

context = GLContext(16, 16)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_150)
"""
GL_HINT = (
    "without a display MuJoCo draws through EGL or OSMesa: install one (on Debian: apt-get install libegl1 libgl1, or "
    "libosmesa6) and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
)


def has_display() -> bool:
    """Whether a window can open; a display that does not answer does not count."""
    if sys.platform != "linux":
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    with warnings.catch_warnings():
        # glfw reports failures as warnings
        warnings.simplefilter("ignore")
        # not terminated afterwards, which would close windows of this process
        return bool(glfw.init()) and bool(glfw.get_primary_monitor())


def check_display() -> None:
    """Refuse a window if none can open: MuJoCo would abort the process, pygame would render invisibly."""
    if not has_display():
        name = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        reason = f"the display '{name}' does not answer" if name else "DISPLAY is not set"
        raise EnvError(f"no window can be opened: {reason}; a video needs none: slm-lab run enjoy@DIR --video out.mp4")


def uses_mujoco(env: GymEnv) -> bool:
    """Whether an env is, or is built on, one of gymnasium's MuJoCo envs."""
    return any("mujoco" in kind.__module__ for kind in type(env.unwrapped).__mro__)


def prepare(render_mode: RenderMode, is_mujoco: bool) -> None:
    """Prepare this process for rendering an env, or raise an error of one line."""
    if render_mode == "human":
        check_display()
    elif not has_display():
        # let pygame draw into memory, without a screen or a sound card
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        if is_mujoco and "MUJOCO_GL" not in os.environ:
            os.environ["MUJOCO_GL"] = find_gl_backend()


def find_gl_backend() -> str:
    """The first working backend; each is tried in a separate process, since PyOpenGL keeps its first choice."""
    for backend in GL_BACKENDS:
        environment = {key: value for key, value in os.environ.items() if key != "PYOPENGL_PLATFORM"}
        try:
            result = subprocess.run(
                [sys.executable, "-c", PROBE.format(backend=backend)],
                env={**environment, "MUJOCO_GL": backend, "PYTHONPATH": child_python_path()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        if result.returncode == 0:
            return backend
    raise EnvError(f"neither EGL nor OSMesa works on this machine; {GL_HINT}")


def draw(env: GymEnv, name: str) -> Array:
    """An env as an image: (height, width, 3), 8 bits."""
    try:
        frame: Any = env.render()
    except Exception as error:  # the env's own code on top of a graphics library: anything can come
        reason = (str(error).splitlines() or [""])[0]
        hint = f"; {GL_HINT}" if uses_mujoco(env) else ""
        raise EnvError(f"'{name}' cannot be rendered: {type(error).__name__}: {reason}{hint}") from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        found = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise EnvError(f"'{name}' renders {found}, not an 8-bit image of shape (height, width, 3)")
    return frame
