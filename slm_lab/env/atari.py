"""Atari games: preprocessed stacks of grey frames, one game per emulator.

The numbers equal those of ALE's own vector env (see `ale.py`), which is written in C++ and cannot render.
"""

from typing import Annotated, Any, Self

import ale_py
import gymnasium as gym
import numpy as np
from ale_py import roms
from gymnasium import spaces
from pydantic import Field, ValidationError

from slm_lab.env.gym_types import Info
from slm_lab.lib.array import Array
from slm_lab.lib.errors import EnvError
from slm_lab.spec.problem import describe_first
from slm_lab.spec.types import Bool, Fraction, Int, Model

# half an hour of play at 60 frames per second
MAX_FRAMES = 108_000
SIZE = 84
# Steps between seeded games of one env. Seeding loads the cartridge, which takes a fifth of a second. With 16 envs at
# 200 frames per second this is less than 1 % of the time, and rebuilding their 80,000 steps takes about a minute.
SEED_INTERVAL = 5_000
_SCREEN = (210, 160)
_LARGEST = 2**31 - 1


class AtariOptions(Model):
    """How a game is played: sticky actions as in Machado et al. (2018), the usual frames of 84x84 and skip of 4."""

    life_loss_info: Bool = False
    repeat_action_probability: Fraction = 0.25
    frameskip: Annotated[Int, Field(ge=1, le=1000)] = 4
    noop_max: Annotated[Int, Field(ge=0, le=10_000)] = 30
    stack_num: Annotated[Int, Field(ge=1, le=64)] = 4
    use_fire_reset: Bool = True
    full_action_space: Bool = False
    mode: Int | None = None
    difficulty: Int | None = None
    # frames after which a game is truncated, from `env.max_t`
    _max_frames: int = MAX_FRAMES

    @classmethod
    def parse(cls, kwargs: dict[str, Any], max_t: int | None) -> Self:
        """The options of a spec; `max_t` counts steps, each of `frameskip` frames."""
        try:
            options = cls.model_validate(kwargs)
        except ValidationError as error:
            raise EnvError(describe_first(error, cls, kwargs, "env.kwargs")) from None
        if max_t is not None:
            options._max_frames = min(max_t * options.frameskip, _LARGEST)
        return options

    @property
    def max_frames(self) -> int:
        """Frames after which a game is truncated."""
        return self._max_frames

    @property
    def needs_emulator(self) -> bool:
        """Whether the C++ vector env lacks an option in use."""
        return self.mode is not None or self.difficulty is not None


class AtariEnv(gym.Env[Array, Any]):
    """One game; `info["life_lost"]` marks a lost life after which the game continues.

    A seeded reset loads the cartridge again (a fifth of a second). A reset without a seed starts the next game, with
    the generators as they are.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 60}  # noqa: RUF012 (gymnasium's own way)

    def __init__(self, game: str, options: AtariOptions, render_mode: str | None = None) -> None:
        self.options = options
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": 60 / options.frameskip}
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", options.repeat_action_probability)
        if render_mode == "human":
            self.ale.setBool("display_screen", True)
            self.ale.setBool("sound", True)
        rom = roms.get_rom_path(game)
        assert rom is not None, game  # every registered game has one
        self._rom = rom
        self._load(0)
        self._actions = self.ale.getLegalActionSet() if options.full_action_space else self.ale.getMinimalActionSet()
        self._fires = options.use_fire_reset and ale_py.Action.FIRE in self._actions
        self._bits = np.random.MT19937()
        self._seen = (np.zeros(_SCREEN, np.uint8), np.zeros(_SCREEN, np.uint8))
        self._stack = np.zeros((options.stack_num, SIZE, SIZE), np.uint8)
        self._lives = 0
        self._num_frame = 0
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def _load(self, seed: int) -> None:
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(self._rom)
        for what, value, known, choose in (
            ("mode", self.options.mode, self.ale.getAvailableModes, self.ale.setMode),
            ("difficulty", self.options.difficulty, self.ale.getAvailableDifficulties, self.ale.setDifficulty),
        ):
            if value is not None:
                if value not in known():
                    raise EnvError(f"env.kwargs.{what}: the game has {known()}, not {value}")
                choose(value)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start a game: fire if the game can, then a random number of frames without a move."""
        if seed is not None:
            seed = bound_seed(seed)
            self._bits._legacy_seeding(seed)  # how the generator of C++ is seeded
            self._load(seed)
        self.ale.reset_game()
        num_noop = _draw(self._bits, self.options.noop_max) - self._fires
        if self._fires:
            self._act(ale_py.Action.FIRE)
        for _ in range(num_noop):
            self._act(ale_py.Action.NOOP)
        self.ale.getScreenGrayscale(self._seen[0])
        self._seen[1][:] = 0
        self._stack[:-1] = 0
        self._stack[-1] = self._see()
        self._lives = self.ale.lives()
        self._num_frame = 0
        return self._stack.copy(), {"life_lost": False}

    def _act(self, action: Any) -> None:
        self.ale.act(action)
        if self.ale.game_over():
            self.ale.reset_game()

    def step(self, action: int) -> tuple[Array, float, bool, bool, Info]:
        """Repeat an action for `frameskip` frames; the observation is the pixel-wise maximum of the last two."""
        reward = 0.0
        truncated = False
        for left in range(self.options.frameskip - 1, -1, -1):
            reward += self.ale.act(self._actions[int(action)])
            self._num_frame += 1
            truncated = self._num_frame >= self.options.max_frames
            if truncated or self.ale.game_over():
                break  # without a look at the last frame, as the C++ env does
            if left < 2:
                self.ale.getScreenGrayscale(self._seen[left])
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._see()
        terminated = self.ale.game_over()
        lives = self.ale.lives()
        life_lost = self.options.life_loss_info and lives < self._lives and not (terminated or truncated)
        self._lives = lives
        info = {"life_lost": life_lost, "lives": lives, "episode_frame_number": self._num_frame}
        return self._stack.copy(), reward, terminated, truncated, info

    def _see(self) -> Array:
        """The pixel-wise maximum of the last two frames."""
        # kept in place of the newest, as the C++ env does; it shows where a game ends within a step
        return shrink(np.maximum(*self._seen, out=self._seen[0]))

    def render(self) -> Any:
        """The screen in colour."""
        return self.ale.getScreenRGB()


def bound_seed(seed: int) -> int:
    """A seed for the emulator: positive, 31 bits."""
    return seed % (2**31 - 1) + 1


def _draw(bits: np.random.MT19937, count: int) -> int:
    """A number below `count` from 32 random bits (Lemire 2019), the same as in C++."""
    if count < 1:
        return 0
    while True:
        product = int(bits.random_raw()) * count
        if product & 0xFFFFFFFF >= 2**32 % count:
            return product >> 32


def _calc_taps(source: int, target: int) -> tuple[Array, Array]:
    """The source pixels that each target pixel covers, and their shares of it, (taps, target)."""
    scale = source / target
    rows: list[list[tuple[int, float]]] = []
    for index in range(target):
        low, high = index * scale, (index + 1) * scale
        first, last = int(np.ceil(low)), min(int(high), source - 1)
        row = [(first - 1, first - low)] if first - low > 1e-3 else []
        row += [(pixel, 1.0) for pixel in range(first, last)]
        row += [(last, high - last)] if high - last > 1e-3 else []
        rows.append(row)
    num_tap = max(len(row) for row in rows)
    pixel, share = np.zeros((num_tap, target), np.intp), np.zeros((num_tap, target), np.float32)
    for index, row in enumerate(rows):
        for tap, (where, covered) in enumerate(row):
            pixel[tap, index], share[tap, index] = where, covered / scale
    return pixel, share


_ROW_PIXEL, _ROW_SHARE = _calc_taps(_SCREEN[0], SIZE)
_COLUMN_PIXEL, _COLUMN_SHARE = _calc_taps(_SCREEN[1], SIZE)


def shrink(screen: Array) -> Array:
    """A grey screen as 84x84 means over the area of each pixel, summed in the order that gives OpenCV's very bits."""
    wide = screen.astype(np.float32)
    slim = sum(wide[:, pixel] * share for pixel, share in zip(_COLUMN_PIXEL, _COLUMN_SHARE, strict=True))
    small = sum(slim[pixel] * share[:, None] for pixel, share in zip(_ROW_PIXEL, _ROW_SHARE, strict=True))
    return np.rint(small).astype(np.uint8)
