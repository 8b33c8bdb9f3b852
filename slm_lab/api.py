"""Use from Python: everything the command line does is a plain call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Carry
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.layout import flatten_obs
from slm_lab.env.mask import MASK, read_masks
from slm_lab.env.vec_env import VecEnv
from slm_lab.experiment.build import TRAIN_ENV, build_env, build_session_agent
from slm_lab.experiment.callback import Callback
from slm_lab.experiment.growth import Schedules
from slm_lab.experiment.launch import prepare, start
from slm_lab.experiment.launch import resume as resume_run
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import enjoy, load_trained
from slm_lab.experiment.trial import Here, TrialResult
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import DATA_DIR, open_run_folder
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.schema import Spec

if TYPE_CHECKING:
    from slm_lab.experiment.grid_run import GridResult
    from slm_lab.experiment.search_result import SearchResult

# makes one env, with the options of `env.kwargs`
EnvFactory = Callable[..., gym.Env[Any, Any]]


def load(source: str | Path, name: str | None = None, **overrides: Any) -> Spec:
    """Load a spec from a file or by its shipped name; overrides fill `${key}`, or a path with `__` for each dot."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_spec(source, name, changes).spec


def run(
    spec: Spec | Document,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrialResult:
    """Train a spec and return its result; `imports` are modules of your own that every process needs.

    `env` makes the env that the spec names, and `callbacks` watch the sessions. With either, sessions train in this
    process, one after the other.
    """
    if isinstance(spec, dict):
        spec = parse_spec(spec)[0]
    setup_console(log_level)
    if env is not None:
        spec = _register(spec, env)
    here = Here(callbacks) if callbacks or env is not None else None
    return start(spec, Options(Path(data_dir), log_level, imports=tuple(imports)), here)


def build(spec: Spec | Document, session: int = 0, env: EnvFactory | None = None) -> tuple[VecEnv, Agent]:
    """The envs and the agent of a session, for a training loop of your own."""
    if isinstance(spec, dict):
        spec = parse_spec(spec)[0]
    if env is not None:
        spec = _register(spec, env)
    spec, _ = prepare(spec)
    envs = build_env(spec, TRAIN_ENV, session, spec.env.num_envs)
    return envs, build_session_agent(spec, envs, session)


def _register(spec: Spec, env: EnvFactory) -> Spec:
    """Let a factory make the env that a spec names, in this process."""
    name = spec.env.name
    known = gym.registry.get(name)
    if known is not None and not isinstance(known.entry_point, _Factory):
        raise LabError(f"env: '{name}' is registered already; give your env another env.name in the spec, e.g. Mine-v0")
    # the env says itself when an episode is over, or env.max_t does
    gym.registry.pop(name, None)
    gym.register(name, entry_point=_Factory(env))
    return spec.replace(env={"num_workers": 0})


@dataclass(frozen=True)
class _Factory:
    """Tells envs that were registered here from others."""

    make: EnvFactory

    def __call__(self, **kwargs: Any) -> gym.Env[Any, Any]:
        return self.make(**kwargs)


def resume(
    folder: str | Path,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
    schedules: Schedules | None = None,
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> TrialResult:
    """Continue a stopped run, or make one longer: `resume(folder, env__max_frame=200_000)`."""
    setup_console(log_level)
    if env is not None:
        _register(open_run_folder(str(folder), Path(data_dir))[1], env)
    here = Here(callbacks) if callbacks or env is not None else None
    options = Options(Path(data_dir), log_level, imports=tuple(imports))
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return resume_run(str(folder), options, changes=given, schedules=schedules, here=here)


def run_experiment(
    experiment: str | Path | Document,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
) -> "GridResult":
    """Run what is new in an experiment: a file, or the mapping under its key `experiment`."""
    setup_console(log_level)
    source = experiment if isinstance(experiment, dict) else Path(experiment)
    options = Options(Path(data_dir), log_level, imports=tuple(imports))
    # loaded only here: the statistics take a second
    result: GridResult = import_module("slm_lab.experiment.grid_run").run_experiment(source, options)
    return result


def search(
    spec: Spec | Document,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
    keep: int = 3,
) -> "SearchResult":
    """Search a spec: its trials, best first, and the file with the spec of the best."""
    if isinstance(spec, dict):
        spec = parse_spec(spec)[0]
    setup_console(log_level)
    options = Options(Path(data_dir), log_level, imports=tuple(imports), keep=keep)
    # loaded only here: the sampler takes a second
    result: SearchResult = import_module("slm_lab.experiment.search_run").start_search(spec, options)
    return result


def record(
    folder: str | Path,
    video: str | Path,
    num_episode: int = 1,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
) -> list[float]:
    """Play episodes with the best agent of a run and write them as a video, .mp4 or .gif; their raw returns."""
    options = Options(Path(data_dir), imports=tuple(imports), video=Path(video))
    return enjoy(str(folder), options, num_episode, lambda index, value: None)


class TrainedAgent:
    """A trained policy: observations in, actions of the env out.

    `observation_space` and `action_space` are those of the env it was trained in.
    """

    def __init__(
        self,
        folder: str | Path,
        data_dir: str | Path = DATA_DIR,
        session: int | None = None,
        at: int | None = None,
    ) -> None:
        self.agent, env, self.spec = load_trained(str(folder), Path(data_dir), session=session, at=at)
        env.close()
        facts = self.agent.facts
        self.observation_space = facts.obs_space if facts.source_space is None else facts.source_space
        space = facts.action_space
        self.action_space = space.source if isinstance(space, HybridSpace) else space
        self._action_map = env.action_map
        # what decays while training, such as epsilon, is at its last value
        self.agent.algorithm.frame = self.spec.env.max_frame
        # hidden state of a recurrent net; None at the start of episodes
        self._carry: Carry = None

    def reset(self, done: Array | None = None) -> None:
        """Clear the hidden state of a recurrent net, which `act` keeps between calls; other nets have none.

        Call it at the start of an episode; in a batch with `done` (N,), to clear it for the envs that ended only.
        """
        self._carry = None if done is None else reset_rows(self._carry, np.asarray(done, bool))

    def act(self, obs: Any, deterministic: bool = True, mask: Any = None) -> Any:
        """The action for one observation, or actions (N, ...) for a batch, as the env's own `step` takes them.

        Observations are as the env returns them, Dict and Tuple included; a batch is what a gymnasium vector env
        returns. With `deterministic=False` it samples from the policy as at the end of training. `mask` is the
        `action_mask` of the env's `info`, if it gives one there; a batch has a row for each observation.
        """
        rows, is_batch = flatten_obs(self.observation_space, obs)
        space, num = self.agent.facts.obs_space, len(rows)
        if mask is None and isinstance(obs, dict):
            mask = obs.get(MASK)
        is_masked = self.agent.facts.mask is not None
        if is_masked != (mask is not None):
            hint = f"with masks; give it mask=info['{MASK}']" if is_masked else "without masks; leave it out"
            raise LabError(f"mask: the agent was trained {hint}")
        if is_masked:
            masks = mask if is_batch else [mask]
            rows = np.append(rows, read_masks(masks, self.agent.facts.action_space, num), 1)
        carry = self.agent.init_carry(num) if self._carry is None else self._carry
        if carry is not None and len(carry) != num:
            raise LabError(f"the hidden state is that of {len(carry)} env(s), not of {num}; call reset() in between")
        act = self.agent.act(rows.reshape(num, *space.shape).astype(space.dtype), carry, explore=not deterministic)
        self._carry = act.carry
        action = self._action_map(act.action.numpy(force=True))
        if isinstance(self.agent.facts.action_space, HybridSpace):
            return self.agent.facts.action_space.unflatten(action if is_batch else action[0])
        if is_batch:
            return action
        return action[0].item() if action[0].ndim == 0 else action[0]


def load_agent(
    folder: str | Path,
    data_dir: str | Path = DATA_DIR,
    session: int | None = None,
    imports: Sequence[str] = (),
    at: int | None = None,
) -> TrainedAgent:
    """The trained agent of a run folder: of the best session or the one given; `at` takes a kept checkpoint."""
    import_modules(imports)
    return TrainedAgent(folder, data_dir, session, at)
