"""Use from Python: everything the command line does is a plain call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from slm_lab.agent.agent import Agent
from slm_lab.env.vec_env import VecEnv
from slm_lab.experiment.build import TRAIN_ENV, build_env, build_session_agent
from slm_lab.experiment.callback import Callback
from slm_lab.experiment.growth import Schedules
from slm_lab.experiment.launch import prepare, start
from slm_lab.experiment.launch import resume as resume_run
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import enjoy
from slm_lab.experiment.trial import InProcess, TrialResult
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import DATA_DIR, open_run_folder
from slm_lab.share.settings import HUB_PREFIX
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.schema import Spec

if TYPE_CHECKING:
    from slm_lab.deploy.trained import TrainedAgent
    from slm_lab.experiment.grid_run import GridResult
    from slm_lab.experiment.search_result import SearchResult

# makes one env, with the options of `env.kwargs`
EnvFactory = Callable[..., gym.Env[Any, Any]]


def load(source: str | Path, name: str | None = None, **overrides: Any) -> Spec:
    """Load a spec from a file or by its shipped name; overrides fill `${key}`, or a path with `__` for each dot."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_spec(source, name, changes).spec


def _read_spec(spec: Spec | Document) -> Spec:
    if isinstance(spec, dict):
        return parse_spec(spec)[0]
    if not isinstance(spec, Spec):
        raise SpecError(f"spec: a spec or a dict expected, got {spec!r}; slm_lab.load(...) reads one from a file")
    return spec


def _keep_in_process(callbacks: Sequence[Callback], env: EnvFactory | None) -> InProcess | None:
    """The objects that exist only in this process, so that the sessions must train in it; None without any."""
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise LabError(f"callbacks: a list of slm_lab.Callback objects expected, such as [Mine()], got {callbacks!r}")
    return InProcess(callbacks) if callbacks or env is not None else None


def run(
    spec: Spec | Document,
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrialResult:
    """Train a spec and return its result; `imports` are your own modules that every process needs.

    `env` makes the env that the spec names, and `callbacks` watch the sessions. With either, sessions train in this
    process, one after the other.
    """
    spec = _read_spec(spec)
    in_process = _keep_in_process(callbacks, env)
    setup_console(log_level)
    if env is not None:
        spec = _register(spec, env)
    return start(spec, Options(Path(data_dir), log_level, imports=tuple(imports)), in_process)


def build(spec: Spec | Document, session: int = 0, env: EnvFactory | None = None) -> tuple[VecEnv, Agent]:
    """The envs and the agent of a session, for your own training loop."""
    spec = _read_spec(spec)
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
    """Resume a stopped run, or make one longer: `resume(folder, env__max_frame=200_000)`."""
    in_process = _keep_in_process(callbacks, env)
    setup_console(log_level)
    if env is not None:
        _register(open_run_folder(str(folder), Path(data_dir))[1], env)
    options = Options(Path(data_dir), log_level, imports=tuple(imports))
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return resume_run(str(folder), options, changes=given, schedules=schedules, in_process=in_process)


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
    """Search a spec and return its trials, best first, and the file with the best spec."""
    spec = _read_spec(spec)
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
    """Play episodes with the best agent of a run, write them as a video (.mp4 or .gif) and return their raw returns."""
    options = Options(Path(data_dir), imports=tuple(imports), video=Path(video))
    return enjoy(str(folder), options, num_episode, lambda index, value: None)


def load_agent(
    source: str | Path,
    data_dir: str | Path = DATA_DIR,
    session: int | None = None,
    imports: Sequence[str] = (),
    at: int | None = None,
    device: str | None = None,
) -> "TrainedAgent":
    """Load a trained agent from a run folder, a model or checkpoint file in one, an exported `agent.slm`, or the hub.

    `hub:OWNER/NAME` is a model repo, whose agent is downloaded, verified and kept in the cache.

    From a run it loads the best session, or `session`; `at` loads a kept checkpoint. It needs the env only for runs of
    older versions. The agent computes on `device`: by default on the CPU if it was exported, otherwise where the spec
    of its run says.
    """
    import_modules(imports)
    if str(source).startswith(HUB_PREFIX):
        # loaded only here: the hub's client takes a second
        source = import_module("slm_lab.share.model").fetch_agent(str(source))
    # loaded only here: remote runs do without it, and it is not sent there
    trained: TrainedAgent = import_module("slm_lab.deploy.loading").load(source, Path(data_dir), session, at, device)
    return trained
