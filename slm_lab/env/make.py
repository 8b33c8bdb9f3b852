"""Makes one env by its name, with observations that nets can read."""

import sys
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import ale_py
import gymnasium as gym
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from slm_lab.env import probe
from slm_lab.env.atari import SEED_INTERVAL, AtariEnv, AtariOptions
from slm_lab.env.gym_types import GymEnv, GymSpace
from slm_lab.env.hybrid import flatten_action
from slm_lab.env.layout import FlatObservation, ObsPart, calc_parts, in_one_line
from slm_lab.env.mask import MASK, MaskedObservation, lift_mask
from slm_lab.env.render import RenderMode, prepare
from slm_lab.env.wrapper import FreshWorld, apply_wrappers
from slm_lab.lib.errors import EnvError, EnvHangError, nearest
from slm_lab.lib.runtime import import_by_name, num_cores
from slm_lab.spec.schedule import calc_level, calc_schedule
from slm_lab.spec.schema import EnvSpec, Spec, WrapperSpec
from slm_lab.spec.types import ScheduleSpec

probe.register()
gym.register_envs(ale_py)

ATARI_PREFIX = "ALE/"
PLAYGROUND_PREFIX = "playground/"


@dataclass(frozen=True)
class EnvSettings:
    """Everything a process needs to make its envs; plain data that can be sent to workers."""

    name: str
    num_envs: int
    max_t: int | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    # start of the key from which the seeds of all episodes derive
    seed_key: tuple[int, ...] = (0,)
    backend: str = "auto"
    # cores that stepping may use; it changes the speed, not the numbers
    num_cores: int = 1
    # modules that register envs, for workers to import
    imports: tuple[str, ...] = ()
    # where a simulator that has the choice computes, as torch names it
    device: str = "cpu"
    # seconds that a call of an env may take; 0: no limit
    step_timeout: float = 0.0
    # numbers of `info` to report with each episode
    info_keys: tuple[str, ...] = ()
    wrappers: tuple[WrapperSpec, ...] = ()
    # whether masks that the env gives are used
    is_masked: bool = True
    # options that change from episode to episode; `kwargs` has their last values
    schedules: dict[str, ScheduleSpec] = field(default_factory=dict)

    @property
    def needs_gymnasium(self) -> bool:
        """Whether only gymnasium's single envs, in process or in workers, can do what is asked for."""
        return bool(self.info_keys or self.wrappers or self.schedules)

    def calc_kwargs(self, frame: int) -> dict[str, Any]:
        """Options of an episode that begins at a frame."""
        return self.kwargs | {key: calc_level(schedule, frame) for key, schedule in self.schedules.items()}


class StepOptions(TypedDict, total=False):
    """How to step envs."""

    num_cores: int
    device: str
    imports: tuple[str, ...]


@dataclass(frozen=True)
class EnvFacts:
    """What an agent must know about an env."""

    obs_space: spaces.Box
    action_space: GymSpace
    # frames an observation consists of, each of which also belongs to its neighbours
    frame_stack: int
    # what the numbers of an observation are, in order
    parts: tuple[ObsPart, ...]
    # Steps of an env before a new episode starts from a seed again. 0 seeds every episode; where that costs much, the
    # episodes in between follow from the last seeded one and the actions since.
    seed_interval: int = 0
    # observations as the env itself gives them, where `obs_space` is those flattened
    source_space: GymSpace | None = None

    @property
    def mask(self) -> ObsPart | None:
        """The part of an observation that says which actions are allowed: the last one, if there is any."""
        return self.parts[-1] if self.parts[-1].is_mask else None


def build_settings(
    spec: EnvSpec,
    seed_key: tuple[int, ...],
    num_envs: int | None = None,
    is_training: bool = False,
    **options: Unpack[StepOptions],
) -> EnvSettings:
    """The settings of a spec's envs, with their seeds; `options` are fields that do not affect results.

    Only training follows the schedules of `env.kwargs`; other envs have the values at their ends.
    """
    count = num_envs or spec.num_envs
    return EnvSettings(
        spec.name,
        count,
        spec.max_t,
        {**spec.kwargs, **{key: calc_schedule(one, one.end_step) for key, one in spec.schedules.items()}},
        seed_key,
        spec.backend,
        step_timeout=spec.step_timeout,
        info_keys=spec.info_keys,
        wrappers=spec.wrappers,
        is_masked=spec.action_mask != "ignore",
        schedules=spec.schedules if is_training else {},
        **options,
    )


def share_cores(spec: Spec) -> int:
    """Cores for each of the parallel sessions."""
    cores = num_cores()
    return max(1, cores // min(spec.meta.max_session, cores))


def make_env(settings: EnvSettings, render_mode: RenderMode | None = None) -> GymEnv:
    """Make one env; a mistake in its name or options gives one line."""
    name = resolve_name(settings.name)
    if is_atari(name):
        if render_mode is not None:
            prepare(render_mode, is_mujoco=False)
        game = AtariEnv(find_game(name), AtariOptions.parse(settings.kwargs, settings.max_t), render_mode)
        return _finish(game, settings)
    kwargs = dict(settings.kwargs)
    if settings.max_t is not None:
        kwargs["max_episode_steps"] = settings.max_t
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
        if "gymnasium.envs.mujoco" in str(gym.registry[name].entry_point) and "camera_id" not in kwargs:
            # the default one stays where the robot started; models without this camera keep the default
            kwargs.setdefault("camera_name", "track")
        # an env of the user's own is known as MuJoCo's by what its module has imported
        prepare(render_mode, "mujoco" in str(gym.registry[name].entry_point) or "mujoco" in sys.modules)
    entry_point = gym.registry[name].entry_point
    try:
        if isinstance(entry_point, str):
            gym.envs.registration.load_env_creator(entry_point)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvError(
            f"env.name: '{settings.name}' is registered with {entry_point}, which cannot be imported: {error}"
        ) from None
    try:
        # the passive checker costs a third of a CartPole step and repeats what the lab checks itself
        env = gym.make(name, disable_env_checker=True, **kwargs)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"env.name: '{settings.name}' needs a package that is not installed: {error}") from None
    except gym.error.Error as error:
        raise EnvError(f"env.name: '{settings.name}' cannot be made: {error}") from None
    except SystemExit as error:
        raise EnvError(f"env.name: '{settings.name}' exits the process when it is made: {error!r}") from None
    except EnvHangError:
        raise
    except Exception as error:  # the env's own code: anything can come
        if isinstance(error, TypeError) and "must inherit from the gymnasium.Env" in str(error):
            raise EnvError(f"env.name: '{settings.name}' is not a gymnasium.Env: derive its class from it") from None
        if "required" in str(error) and "argument" in str(error) and isinstance(error, TypeError):
            raise EnvError(f"env.kwargs: '{settings.name}' needs an option that is not given: {error}") from None
        if "unexpected keyword argument" not in str(error):
            if not settings.kwargs:
                raise
            reason = (str(error).splitlines() or [""])[0]
            raise EnvError(
                f"env.kwargs: '{settings.name}' cannot be made with {settings.kwargs}: {type(error).__name__}: {reason}"
            ) from error
        if render_mode is not None and "'render_mode'" in str(error):
            raise EnvError(f"env.name: '{settings.name}' cannot be rendered: it takes no render_mode") from None
        raise EnvError(f"env.kwargs: '{settings.name}' does not take an option given: {error}") from None
    if render_mode not in (None, env.render_mode, *env.metadata.get("render_modes", ())):
        env.close()
        raise EnvError(f"env.name: '{settings.name}' cannot be rendered: it has no render mode {render_mode}")
    bipedal = sys.modules.get("gymnasium.envs.box2d.bipedal_walker")
    if bipedal is not None and isinstance(env.unwrapped, bipedal.BipedalWalker):
        env = FreshWorld(env)
    return _finish(env, settings)


def resolve_name(name: str) -> str:
    """Check that a name is registered, importing the module of `package.module:EnvId`."""
    module, sign, env_id = name.partition(":")
    if sign:
        try:
            import_by_name(module)
        except ImportError as error:
            raise EnvError(f"env.name: module '{module}' of '{name}' cannot be imported: {error}") from None
    else:
        env_id = name
    if env_id not in gym.registry:
        own = "" if sign else f" (an env of your own needs its module: my_module:{env_id}, or --import my_module)"
        raise EnvError(f"env.name: no env '{env_id}' is registered{nearest(env_id, gym.registry)}{own}")
    return env_id


def is_atari(name: str) -> bool:
    """Whether a name is a game of the Arcade Learning Environment, which the lab prepares itself."""
    return name.rpartition(":")[2].startswith(ATARI_PREFIX)


def is_playground(name: str) -> bool:
    """Whether a name is an env of MuJoCo Playground, which is only fast as a whole batch."""
    return name.startswith(PLAYGROUND_PREFIX)


def find_reward_threshold(env: EnvSpec) -> float | None:
    """The return from which an env counts as solved, where its author says so; wrappers may give other rewards."""
    known = gym.registry.get(env.name.rpartition(":")[2])
    if known is None or known.reward_threshold is None or env.wrappers:
        return None
    return float(known.reward_threshold)


def find_game(name: str) -> str:
    """The emulator's name of a game, e.g. ms_pacman of ALE/MsPacman-v5."""
    return str(gym.spec(name).kwargs["game"])


def describe(env: GymEnv) -> EnvFacts:
    """What an agent must know about an env of `make_env`."""
    space = env.observation_space
    assert isinstance(space, spaces.Box), space  # flattened if it was not
    is_masked = isinstance(env, MaskedObservation)
    inner = env.env if isinstance(env, MaskedObservation) else env
    source = inner.observation_space if is_masked else None
    if isinstance(inner, FlatObservation):
        source = inner.env.observation_space
    seed_interval = SEED_INTERVAL if isinstance(env.unwrapped, AtariEnv) else 0
    parts = calc_parts(space if source is None else source)
    if is_masked:
        start, stop = parts[-1].stop, space.shape[0]
        parts = (*parts, ObsPart(MASK, start, stop, (stop - start,), is_mask=True))
    return EnvFacts(space, env.action_space, _count_frames(env), parts, seed_interval, source)


def _count_frames(env: GymEnv) -> int:
    """How many frames an observation stacks, 1 without stacking."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, FrameStackObservation):
            return env.stack_size
        env = env.env
    return env.options.stack_num if isinstance(env, AtariEnv) else 1


def _finish(env: GymEnv, settings: EnvSettings) -> GymEnv:
    """The env with its wrappers, and with observations that nets can read."""
    name = settings.name
    try:
        for key in ("observation_space", "action_space"):
            if not isinstance(getattr(env, key, None), spaces.Space):
                raise EnvError(f"env.name: '{name}' has no {key}; set it in __init__, to a space of gymnasium.spaces")
        # wrappers that stack or reshape observations must not see a mask, and may give one themselves
        env = apply_wrappers(lift_mask(env) if settings.is_masked else env, settings.wrappers)
        env = flatten_action(lift_mask(env) if settings.is_masked else env)
        space = env.observation_space
        if not space.is_np_flattenable:
            raise EnvError(f"env.name: '{name}' has observations of {in_one_line(space)}, which no net can read")
        calc_parts(space)  # refuses what has no parts
        if spaces.flatdim(space) == 0:
            raise EnvError(f"env.name: '{name}' has empty observations: {in_one_line(space)}")
        # Discrete parts become one-hot
        return env if isinstance(space, spaces.Box) and space.shape else FlatObservation(env)
    except EnvError:
        env.close()
        raise
