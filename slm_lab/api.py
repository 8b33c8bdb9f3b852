"""Use from Python: everything the command line does is a plain call."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.experiment.folder import DATA_DIR
from slm_lab.experiment.run import Options, enjoy, load_trained, start
from slm_lab.experiment.run import resume as resume_run
from slm_lab.experiment.trial import TrialResult
from slm_lab.lib.log import setup_console
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.schema import Spec

Array = np.ndarray[Any, Any]


def load(source: str | Path, name: str | None = None, **overrides: Any) -> Spec:
    """Load a spec from a file or by its shipped name; overrides fill `${key}`, or a path with `__` for each dot."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_spec(source, name, changes).spec


def run(
    spec: Spec | dict[str, Any],
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
) -> TrialResult:
    """Train a spec and return its result; `imports` are modules of your own that every process needs."""
    if isinstance(spec, dict):
        spec = parse_spec(spec)[0]
    setup_console(log_level)
    return start(spec, Options(Path(data_dir), log_level, imports=tuple(imports)))


def resume(
    folder: str | Path, data_dir: str | Path = DATA_DIR, imports: Sequence[str] = (), log_level: str = "INFO"
) -> TrialResult:
    """Continue a stopped run."""
    setup_console(log_level)
    return resume_run(str(folder), Options(Path(data_dir), log_level, imports=tuple(imports)))


def search(
    spec: Spec | dict[str, Any],
    data_dir: str | Path = DATA_DIR,
    imports: Sequence[str] = (),
    log_level: str = "INFO",
    keep: int = 3,
) -> Any:
    """Search a spec and return a `SearchResult`: its trials, best first, and the file with the spec of the best."""
    if isinstance(spec, dict):
        spec = parse_spec(spec)[0]
    setup_console(log_level)
    options = Options(Path(data_dir), log_level, imports=tuple(imports))
    # loaded only here: the sampler takes a second
    return vars(import_module("slm_lab.experiment.search_run"))["start_search"](spec, options, keep)


def record(folder: str | Path, video: str | Path, num_episode: int = 1, data_dir: str | Path = DATA_DIR) -> list[float]:
    """Play episodes with the best agent of a run and write them as a video, .mp4 or .gif; their raw returns."""
    options = Options(Path(data_dir), video=Path(video))
    return enjoy(str(folder), options, num_episode, lambda index, value: None)


class TrainedAgent:
    """A trained policy: observations in, actions of the env out."""

    def __init__(self, folder: str | Path, data_dir: str | Path = DATA_DIR, session: int | None = None) -> None:
        self.agent, env, self.spec = load_trained(str(folder), Path(data_dir), session=session)
        self._action_map = env.action_map
        self._carry = self.agent.init_carry(1)
        env.close()

    def reset(self) -> None:
        """Forget the past; call at the start of an episode with a recurrent net."""
        self._carry = self.agent.init_carry(1)

    def act(self, obs: Array) -> Any:
        """The deterministic action for one observation, as the env's own step takes it."""
        act = self.agent.act(np.asarray(obs)[None], self._carry)
        self._carry = act.carry
        action = self._action_map(act.action.cpu().numpy())[0]
        return action.item() if action.ndim == 0 else action


def load_agent(folder: str | Path, data_dir: str | Path = DATA_DIR, session: int | None = None) -> TrainedAgent:
    """The best trained agent of a run folder."""
    return TrainedAgent(folder, data_dir, session)
