"""How much disk a run will take, told before it starts."""

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

# Of a run as measured: the report and the trial's graphs, the graphs of a session, a number in a table.
RUN_BYTES = 200_000
SESSION_BYTES = 200_000
CELL_BYTES = 14
# steps of the longest episode, where the spec has no limit
EPISODE_STEPS = 1000


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of a run by what they are for; rotation keeps them from growing beyond."""

    checkpoint: int
    model: int
    replay: int
    table: int
    num_session: int
    # models that are kept beside the last and the best
    num_kept: int = 0

    @property
    def _models(self) -> int:
        return (2 + self.num_kept) * self.model

    @property
    def total(self) -> int:
        """All of it: of checkpoints the last and the one before, of models the last and the best."""
        session = 2 * self.checkpoint + self._models + self.replay + self.table + SESSION_BYTES
        return RUN_BYTES + self.num_session * session

    @property
    def peak(self) -> int:
        """While a checkpoint is written, the two before it are still there."""
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
    """What a run takes on disk, from an agent that has seen nothing yet."""
    env, meta, algorithm = spec.env, spec.meta, agent.algorithm
    model = len(encode_state(agent.model_state()))
    num_column = len(list_columns((*algorithm.metric_names, *agent.norm_names), env.info_keys))
    num_cell = env.max_frame // meta.log_frequency * num_column
    if meta.num_eval_episode:
        # about half of the points are within the budget of evaluations in a short run
        num_cell += env.max_frame // spec.eval_every * len(CORE_COLUMNS) // 2
    num_action = math.prod(agent.context.family.action_shape)
    num_step = min(env.max_t or EPISODE_STEPS, EPISODE_STEPS, env.max_frame)
    checkpoint = (
        # the best model so far is in it too
        len(encode_state(agent.state_dict()))
        + model
        + algorithm.estimate_growth(env.max_frame)
        + 8 * num_cell
        # actions since the envs' last seeds
        + 8 * num_action * num_step * env.num_envs
    )
    rows = [memory.estimate_rows(env.max_frame) for memory in algorithm.replays.values()]
    # the file at the head is there twice: as the last checkpoint needs it and the one before
    replay = sum(size + min(size, CHUNK_BYTES) for size in rows)
    num_kept = env.max_frame // meta.keep_checkpoints if meta.keep_checkpoints else 0
    return DiskNeed(checkpoint, model, replay, CELL_BYTES * num_cell, meta.max_session, num_kept)


def _find_size(path: Path) -> int:
    """Bytes of a file; 0 for anything else, such as one that a session has just replaced."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def check_disk(need: DiskNeed, path: Path) -> None:
    """Refuse a run that will not fit; what a continued one has written already counts as room."""
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
