"""Estimate the disk use of a run before it starts."""

import math
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from slm_lab.agent.agent import Agent
from slm_lab.experiment.checkpoint.replay_files import CHUNK_BYTES
from slm_lab.experiment.checkpoint.state import encode_state
from slm_lab.experiment.tracker import CORE_COLUMNS, list_columns
from slm_lab.lib.errors import StorageError
from slm_lab.lib.unit import format_size
from slm_lab.spec.schema import Spec

# measured: the report and graphs of a trial, the graphs of a session, a number in a table
RUN_BYTES = 200_000
SESSION_BYTES = 200_000
CELL_BYTES = 14
# steps of the longest episode, if the spec has no time limit
EPISODE_STEPS = 1000


@dataclass(frozen=True)
class DiskNeed:
    """Bytes per session by kind of file; old checkpoints are deleted, so they do not accumulate."""

    checkpoint: int
    model: int
    replay: int
    table: int
    num_session: int
    # kept models (meta.keep_checkpoints), apart from the last and the best
    num_kept: int = 0

    @property
    def _models(self) -> int:
        return (2 + self.num_kept) * self.model

    @property
    def total(self) -> int:
        """Bytes of the whole run, with two checkpoints per session: the last and the previous one."""
        session = 2 * self.checkpoint + self._models + self.replay + self.table + SESSION_BYTES
        return RUN_BYTES + self.num_session * session

    @property
    def peak(self) -> int:
        """Bytes while every session writes a third checkpoint."""
        return self.total + self.num_session * self.checkpoint

    def __str__(self) -> str:
        parts = {
            "checkpoints": 2 * self.checkpoint,
            "models": self._models,
            "replay": self.replay,
            "tables": self.table,
        }
        listed = [f"{name} {format_size(self.num_session * size)}" for name, size in parts.items() if size]
        listed.append(f"graphs {format_size(RUN_BYTES + self.num_session * SESSION_BYTES)}")
        return f"Estimated disk use: {format_size(self.total)} ({', '.join(listed)})"


def estimate_disk(spec: Spec, agent: Agent) -> DiskNeed:
    """Estimate a run from its untrained agent."""
    env, meta, algorithm = spec.env, spec.meta, agent.algorithm
    model = len(encode_state(agent.model_state()))
    num_column = len(list_columns((*algorithm.metric_names, *agent.norm_names), env.info_keys))
    num_cell = env.max_frame // meta.log_frequency * num_column
    if meta.num_eval_episode:
        # the budget of evaluations allows about half of them in a short run
        num_cell += env.max_frame // spec.eval_every * len(CORE_COLUMNS) // 2
    num_action = math.prod(agent.context.family.action_shape)
    num_step = min(env.max_t or EPISODE_STEPS, EPISODE_STEPS, env.max_frame)
    checkpoint = (
        # a checkpoint also holds the best model so far
        len(encode_state(agent.state_dict()))
        + model
        + algorithm.estimate_growth(env.max_frame)
        + 8 * num_cell
        # actions since the envs' last seeds
        + 8 * num_action * num_step * env.num_envs
    )
    rows = [memory.estimate_rows(env.max_frame) for memory in algorithm.replays.values()]
    # the last file is there twice: the last two checkpoints each have their own version
    replay = sum(size + min(size, CHUNK_BYTES) for size in rows)
    num_kept = env.max_frame // meta.keep_checkpoints if meta.keep_checkpoints else 0
    return DiskNeed(checkpoint, model, replay, CELL_BYTES * num_cell, meta.max_session, num_kept)


def _find_size(path: Path) -> int:
    """Bytes of a regular file; 0 for anything else, and for a file that has just been replaced."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def check_disk(need: DiskNeed, path: Path) -> None:
    """Refuse a run that will not fit; a resumed run reuses the space of its files."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    held = sum(map(_find_size, path.rglob("*"))) if path.is_dir() else 0
    free = shutil.disk_usage(place).free
    if free + held < need.peak:
        raise StorageError(
            f"{place}: has {format_size(free)} free, which is not enough. {need}; free some space, or choose another "
            "place with --data-dir"
        )
