"""MuJoCo Playground: all envs of a session simulated as one batch by MJX, on the CPU or on a GPU.

Importing this loads jax and MuJoCo's compilers, which takes seconds; `build.py` does so when such an env is made.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from loguru import logger
from mujoco_playground import dm_control_suite, locomotion, manipulation, registry
from mujoco_playground._src.mjx_env import MENAGERIE_COMMIT_SHA, MENAGERIE_PATH

from slm_lab.env.gym_types import Info
from slm_lab.env.layout import calc_parts
from slm_lab.env.make import PLAYGROUND_PREFIX, EnvFacts, EnvSettings
from slm_lab.env.vec_env import Obs, Step, VecEnv
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import EnvError, nearest
from slm_lab.lib.io import cache_folder

IMPLS = ("jax", "warp")
MENAGERIE_URL = "https://github.com/deepmind/mujoco_menagerie.git"
# longer replays are logged, because they take some time
_LONG_REPLAY = 200
# envs are reset in groups of FEW; with more than MANY groups, a single call for all envs is faster
FEW, MANY = 64, 4


def list_names() -> list[str]:
    """All env names, as a spec gives them."""
    # from each suite, since the list of the registry lacks envs that were added later
    suites = (dm_control_suite, locomotion, manipulation)
    return [PLAYGROUND_PREFIX + name for suite in suites for name in suite.ALL_ENVS]


class Simulator:
    """One env for a batch of N: its reset and its step, compiled, on one device.

    A state is a tree of arrays (N, ...). Rows do not influence each other.
    """

    def __init__(self, settings: EnvSettings) -> None:
        self.name = settings.name
        self.num_envs = settings.num_envs
        # size of a group of envs that are reset together
        self.few = min(FEW, self.num_envs)
        self.is_compiled = False
        self.device = _choose_device(settings.device)
        self.is_on_gpu = self.device.platform == "gpu"
        _keep_compiled()
        name = _check_name(settings.name)
        config = _build_config(name, settings.kwargs, self.is_on_gpu)
        self.env = _load_env(name, config)
        self.repeat = int(config.action_repeat)
        # the env's own limit counts control steps, an action may take several
        self.max_t = settings.max_t or math.ceil(config.episode_length / self.repeat)
        seed = jax.ShapeDtypeStruct((), jnp.uint32)
        source = _build_space(jax.eval_shape(self._start, seed).obs)
        self.parts = calc_parts(source)
        self.source_space = None if isinstance(source, spaces.Box) else source
        self.obs_space = source if isinstance(source, spaces.Box) else _unbounded((self.parts[-1].stop,))
        self.action_space = spaces.Box(-1.0, 1.0, (self.env.action_size,), np.float32)
        self.reset = jax.jit(self._reset)
        self.step = jax.jit(self._step)
        self.select = jax.jit(_select)
        self.place = jax.jit(_place)

    def compile(self) -> None:
        """Compile everything, so that later measurements time only the simulation."""
        if self.is_compiled:
            return
        logger.info(
            f"Compiling {self.name} for {self.num_envs} env(s): a minute at first, seconds from then on, since it is "
            f"kept in {jax.config.jax_compilation_cache_dir}"
        )
        state, obs = self.reset(np.zeros(self.num_envs, np.uint32))
        for size in {self.few, self.num_envs}:
            first = self.reset(np.zeros(size, np.uint32))
            jax.block_until_ready(self.place(np.arange(size), first, (state, obs)))
        new, new_obs, _ = self.step(state, np.zeros((self.num_envs, *self.action_space.shape), np.float32))
        jax.block_until_ready(self.select(np.zeros(self.num_envs, bool), (new, new_obs), (state, obs)))
        self.is_compiled = True

    def _start(self, seed: jax.Array) -> Any:
        return self.env.reset(jax.random.PRNGKey(seed))

    def _reset(self, seed: jax.Array) -> tuple[Any, jax.Array]:
        """States and observations at the start of the episodes with these seeds, as many as there are."""
        state = jax.vmap(self._start)(seed)
        # with weak types the step would be compiled twice, because it returns strong types
        return _as_typed(state, state), self._flatten(state.obs)

    def _step(self, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """States, observations, and (3, N): rewards, whether the task ended, whether the physics diverged."""

        def advance(carry: tuple[Any, jax.Array], _: None) -> tuple[tuple[Any, jax.Array], None]:
            now, total = carry
            new = _as_typed(jax.vmap(self.env.step)(now, action), now)
            if self.repeat == 1:
                return (new, new.reward), None
            # an episode may end before all repetitions of its action
            is_alive = now.done < 0.5
            return (_select(is_alive, new, now), total + jnp.where(is_alive, new.reward, 0.0)), None

        carry = (state, jnp.zeros(self.num_envs, jnp.float32))
        if self.repeat == 1:
            carry, _ = advance(carry, None)
        else:
            carry, _ = jax.lax.scan(advance, carry, length=self.repeat)
        new, reward = carry
        obs = self._flatten(new.obs)
        is_finite = jnp.isfinite(obs).reshape(self.num_envs, -1).all(1) & jnp.isfinite(reward)
        # replace NaN: learning multiplies the value after an end by 0, and 0 times NaN is NaN
        obs = _select(is_finite, obs, self._flatten(state.obs))
        ended = (new.done > 0.5) | ~is_finite
        return new, obs, jnp.stack([jnp.where(is_finite, reward, 0.0), ended, ~is_finite])

    def _flatten(self, obs: jax.Array | Mapping[str, jax.Array]) -> jax.Array:
        """Observations (N, ...), with the parts of a dict concatenated."""
        if not isinstance(obs, Mapping):
            return obs.astype(jnp.float32)
        parts = [obs[part.name] for part in self.parts]
        return jnp.concatenate([part.reshape(len(part), -1) for part in parts], 1, jnp.float32)

    @property
    def facts(self) -> EnvFacts:
        """What an agent must know about the env."""
        return EnvFacts(self.obs_space, self.action_space, 1, self.parts, source_space=self.source_space)


class PlaygroundVecEnv(VecEnv):
    """All envs of a session in one simulator; time limits, seeds and ends of episodes are tracked on the host."""

    def __init__(self, settings: EnvSettings) -> None:
        self.simulator = Simulator(settings)
        super().__init__(settings, self.simulator.facts)
        self.t = np.zeros(self.num_envs, np.int64)
        self.num_broken = 0
        self._state: Any = None
        # keeps arrays alive that torch may still read, so that jax does not reuse their memory
        self._lent: tuple[jax.Array, ...] = ()

    def _seeds(self, indices: Array, episode: Array) -> Array:
        return np.array([self.episode_seed(index, int(episode[index])) for index in indices.tolist()], np.uint32)

    def _hand_over(self, obs: jax.Array) -> Obs:
        """Observations owned by the caller; on a GPU they stay there."""
        if self.simulator.is_on_gpu:
            return to_torch(obs)
        # a copy, because jax arrays are read-only; it takes microseconds, a step takes milliseconds
        return np.array(obs)

    def _start(self, episode: Array) -> Any:
        self.simulator.compile()
        everyone = np.arange(self.num_envs)
        return self.simulator.reset(self._seeds(everyone, episode))

    def _reset(self) -> Obs:
        self._state, obs = self._start(self.episode)
        self.t[:] = 0
        self._lent = (obs,)
        return self._hand_over(obs)

    def _step(self, action: Array) -> Step:
        simulator = self.simulator
        self._state, next_obs, outcome = simulator.step(self._state, action)
        # one transfer for all results
        reward, has_ended, is_broken = np.asarray(outcome)
        terminated = has_ended > 0
        self.t += 1
        truncated = (self.t >= simulator.max_t) & ~terminated
        ended = terminated | truncated
        obs = next_obs
        if ended.any():
            self._warn(is_broken > 0)
            self._state, obs = self._restart(np.flatnonzero(ended), (self._state, next_obs))
            self.t[ended] = 0
        self._lent = (obs, next_obs)
        successor = self._hand_over(next_obs)
        current = successor if obs is next_obs else self._hand_over(obs)
        return Step(current, successor, reward.astype(np.float64), terminated, truncated, ended)

    def _restart(self, ended: Array, now: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        """States and observations after a reset of the ended envs.

        A reset takes as long as several steps, so it covers only groups of envs if few of them ended.
        """
        simulator = self.simulator
        size = simulator.few if len(ended) <= MANY * simulator.few else self.num_envs
        for start in range(0, len(ended), size):
            part = ended[start : start + size]
            seeds, index = np.zeros(size, np.uint32), np.full(size, self.num_envs)
            seeds[: len(part)] = self._seeds(part, self.episode + 1)
            index[: len(part)] = part
            now = simulator.place(index, simulator.reset(seeds), now)
        return now

    def _warn(self, is_broken: Array) -> None:
        if not is_broken.any():
            return
        index = int(np.flatnonzero(is_broken)[0])
        self.num_broken += int(is_broken.sum())
        episode = int(self.episode[index])
        logger.warning(
            f"env {index}, episode {episode} (seed {self.episode_seed(index, episode)}), step {self.t[index]}: the "
            f"simulation gave numbers that are not finite; the episode ends there, with reward 0 "
            f"({self.num_broken} such so far)"
        )

    def _replay(self, action: list[Array]) -> tuple[Obs, None]:
        simulator = self.simulator
        log, lengths = self._align(action, _LONG_REPLAY)
        now = self._start(self.origin)
        for left, actions in zip(range(len(log), 0, -1), log, strict=True):
            state, obs, _ = simulator.step(now[0], actions)
            # an env with fewer actions stays in its first state until it is due
            is_due = lengths >= left
            now = (state, obs) if is_due.all() else simulator.select(is_due, (state, obs), now)
        self._state, current = now
        self.t[:] = lengths
        self._lent = (current,)
        # returns are not needed: they follow from the state, which is compared
        return self._hand_over(current), None

    def close(self) -> None:
        self._state = None
        self._lent = ()


class PlaygroundEnv(gym.Env[Array, Array]):
    """A single env, for `slm-lab env check`."""

    def __init__(self, settings: EnvSettings) -> None:
        assert settings.num_envs == 1
        self.simulator = Simulator(settings)
        self.observation_space = self.simulator.obs_space
        self.action_space = self.simulator.action_space
        self._state: Any = None
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        self.simulator.compile()
        start = int(self.np_random.integers(2**32)) if seed is None else seed
        self._state, obs = self.simulator.reset(np.array([start], np.uint32))
        self._t = 0
        return np.array(obs[0]), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """One step."""
        self._state, obs, outcome = self.simulator.step(self._state, np.asarray(action, np.float32)[None])
        reward, ended, is_broken = np.asarray(outcome)[:, 0]
        self._t += 1
        is_over = bool(ended) or self._t >= self.simulator.max_t
        seen = np.full(self.observation_space.shape or (), np.nan, np.float32) if is_broken else np.array(obs[0])
        return seen, float(reward), bool(ended), is_over and not ended, {}


def to_torch(array: jax.Array) -> torch.Tensor:
    """A copy as a tensor on the array's device, owned by the caller."""
    return torch.from_dlpack(array).clone()


def _select(mask: jax.Array, new: Any, old: Any) -> Any:
    """Rows of `new` where the mask (N,) is true, otherwise of `old`."""
    count = mask.shape[0]

    def pick(one: jax.Array, other: jax.Array) -> jax.Array:
        # without a row per env, such as the list of contacts in warp
        if other.ndim == 0 or other.shape[0] != count:
            return other
        return jnp.where(mask.reshape(count, *[1] * (other.ndim - 1)), one, other)

    return jax.tree.map(pick, new, old)


def _place(index: jax.Array, new: Any, old: Any) -> Any:
    """States and observations with those of `new` in these places of `old`; places beyond its end are dropped."""
    count = len(old[1])

    def put(fresh: jax.Array, held: jax.Array) -> jax.Array:
        # as above: no row per env
        if held.ndim == 0 or held.shape[0] != count or fresh.shape[0] != len(index):
            return held
        return held.at[index].set(fresh, mode="drop")

    return jax.tree.map(put, new, old)


def _as_typed(new: Any, old: Any) -> Any:
    """The numbers of `new` in the types of `old`, without weak types."""
    return jax.tree.map(lambda one, other: jax.lax.convert_element_type(one, other.dtype), new, old)


def _unbounded(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _build_space(obs: jax.Array | Mapping[str, jax.Array]) -> spaces.Box | spaces.Dict:
    if isinstance(obs, Mapping):
        return spaces.Dict({name: _unbounded(part.shape) for name, part in obs.items()})
    return _unbounded(obs.shape)


def _choose_device(name: str) -> jax.Device:
    """The jax device for a torch device."""
    kind, _, index = name.partition(":")
    if kind == "cuda":
        # by default jax takes most of the GPU's memory, but torch needs some too
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        try:
            device = jax.devices("cuda")[int(index or 0)]
        except RuntimeError:
            logger.warning(
                "jax finds no GPU, so the envs are simulated on the CPU; its GPU part comes with: "
                "uv sync --group playground --group playground-gpu"
            )
        else:
            jax.config.update("jax_default_device", device)
            return device
    else:
        # otherwise jax takes a GPU that is not wanted; without effect if jax is initialised already
        jax.config.update("jax_platforms", "cpu")
    device = jax.devices("cpu")[0]
    jax.config.update("jax_default_device", device)
    return device


def _keep_compiled() -> None:
    """Cache compiled code on disk, since compiling takes a minute, unless the user has configured it."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))


def _check_name(full_name: str) -> str:
    names = list_names()
    if full_name not in names:
        raise EnvError(f"env.name: there is no env '{full_name}'{nearest(full_name, names)}")
    return full_name.removeprefix(PLAYGROUND_PREFIX)


def _build_config(name: str, kwargs: Document, is_on_gpu: bool) -> Any:
    """The env's own options, updated with those of the spec."""
    config = registry.get_default_config(name)
    known = _list_options(config.to_dict())
    for key in kwargs:
        if key not in known:
            raise EnvError(f"env.kwargs: '{name}' has no option '{key}'{nearest(key, known)}")
    impl = kwargs.get("impl", config.impl if is_on_gpu else "jax")
    if impl not in IMPLS:
        raise EnvError(f"env.kwargs: impl is {' or '.join(IMPLS)}, got {impl!r}")
    if impl == "warp" and not is_on_gpu:
        raise EnvError("env.kwargs: impl warp needs a GPU; use jax")
    try:
        config.update_from_flattened_dict({**kwargs, "impl": impl})
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(f"env.kwargs: '{name}' cannot take an option given: {str(error).splitlines()[0]}") from None
    return config


def _list_options(options: Document) -> list[str]:
    """Names of options; nested ones are joined by dots."""
    names = []
    for key, value in options.items():
        below = _list_options(value) if isinstance(value, dict) else []
        names += [f"{key}.{name}" for name in below] or [key]
    return names


def _load_env(name: str, config: Any) -> Any:
    if name in dm_control_suite.ALL_ENVS:
        return registry.load(name, config=config)
    how = f"git clone {MENAGERIE_URL} {MENAGERIE_PATH} && git -C {MENAGERIE_PATH} checkout {MENAGERIE_COMMIT_SHA}"
    # otherwise the package would start the download in each session, all into the same folder
    if not MENAGERIE_PATH.exists():
        raise EnvError(f"env.name: '{name}' needs the robots of mujoco_menagerie; download them with: {how}")
    try:
        return registry.load(name, config=config)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EnvError(
            f"env.name: '{name}' cannot be made from {MENAGERIE_PATH} ({reason}); if its download is not whole, delete "
            f"that folder, then: {how}"
        ) from None
