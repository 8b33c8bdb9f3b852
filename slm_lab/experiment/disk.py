"""How much disk a run will take, told before it starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slm_lab.agent.agent import Agent
from slm_lab.agent.memory.prioritized import PrioritizedReplay
from slm_lab.agent.memory.rollout import RolloutMemory
from slm_lab.experiment.checkpoint.replay_files import CHUNK_BYTES
from slm_lab.experiment.checkpoint.state import encode_state
from slm_lab.experiment.tracker import CORE_COLUMNS
from slm_lab.lib.errors import StorageError
from slm_lab.lib.unit import format_size
from slm_lab.spec.schema import Spec

# Of a run as measured: plotly's script and the trial's graphs, the graphs of a session, a number in a table.
RUN_BYTES = 5_100_000
SESSION_BYTES = 400_000
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

    @property
    def total(self) -> int:
        """All of it: of checkpoints the last and the one before, of models the last and the best."""
        session = 2 * self.checkpoint + 2 * self.model + self.replay + self.table + SESSION_BYTES
        return RUN_BYTES + self.num_session * session

    @property
    def peak(self) -> int:
        """While a checkpoint is written, the two before it are still there."""
        return self.total + self.num_session * self.checkpoint

    def __str__(self) -> str:
        parts = {
            "checkpoints": 2 * self.checkpoint,
            "models": 2 * self.model,
            "replay": self.replay,
            "tables": self.table,
        }
        listed = [f"{name} {format_size(self.num_session * size)}" for name, size in parts.items() if size]
        listed.append(f"graphs {format_size(RUN_BYTES + self.num_session * SESSION_BYTES)}")
        return f"Estimated disk use: {format_size(self.total)} ({', '.join(listed)})"


def estimate_disk(spec: Spec, agent: Agent) -> DiskNeed:
    """What a run takes on disk, from an agent that has seen nothing yet."""
    env, meta, algorithm = spec.env, spec.meta, agent.algorithm
    model = _saved_bytes(agent.model_state())
    num_column = len({*CORE_COLUMNS, *algorithm.metric_names, *agent.norm_names})
    num_cell = env.max_frame // meta.log_frequency * num_column
    if meta.num_eval_episode:
        # about half of the points are within the budget of evaluations in a short run
        num_cell += env.max_frame // spec.eval_every * len(CORE_COLUMNS) // 2
    num_action = torch.Size(agent.context.family.action_shape).numel()
    num_step = min(env.max_t or EPISODE_STEPS, EPISODE_STEPS, env.max_frame)
    checkpoint = (
        # the best model so far is in it too
        _saved_bytes(agent.state_dict())
        + model
        + _rollout_bytes(agent)
        + 8 * num_cell
        # actions since the envs' last seeds
        + 8 * num_action * num_step * env.num_envs
    )
    replay = 0
    for memory in algorithm.replays.values():
        share = min(1.0, env.max_frame / memory.spec.max_size)
        rows = int(share * memory.num_bytes)
        # the file at the head is there twice: as the last checkpoint needs it and the one before
        replay += rows + min(rows, CHUNK_BYTES)
        if isinstance(memory, PrioritizedReplay):
            checkpoint += int(8 * share * memory.spec.max_size)
    return DiskNeed(checkpoint, model, replay, CELL_BYTES * num_cell, meta.max_session)


def _saved_bytes(state: dict[str, Any]) -> int:
    return len(encode_state(state))


def _rollout_bytes(agent: Agent) -> int:
    """A rollout that is nearly full."""
    memory = vars(agent.algorithm).get("memory")
    if not isinstance(memory, RolloutMemory):
        return 0
    context = agent.context
    obs = torch.Size(context.obs_shape).numel() * agent.encode.dtype.itemsize
    # action, reward, ends, value and log probability
    step = obs + 8 * torch.Size(context.family.action_shape).numel() + 14
    return memory.typical_size * context.num_envs * step


def check_disk(need: DiskNeed, path: Path) -> None:
    """Refuse a run that will not fit; what a continued one has written already counts as room."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
    free = shutil.disk_usage(place).free
    if free + held < need.peak:
        raise StorageError(
            f"{place}: has {format_size(free)} free, which is not enough. {need}; free some space, or choose another "
            "place with --data-dir"
        )
