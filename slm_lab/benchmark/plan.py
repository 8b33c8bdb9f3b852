"""Missing rows, and their cost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.state import RowState, Standing
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_json

# Frames per second of one session if nothing similar was measured, good enough to tell minutes from days:
# Atari and Playground on the published lab's GPU, the others on one core of a small machine.
_MUJOCO: dict[str, float] = {"SAC": 250, "CrossQ": 150, "": 3000}
_BOX2D: dict[str, float] = {"SAC": 500, "CrossQ": 300, "DQN": 1000, "DDQN+PER": 700, "": 2500}
ROUGH_FPS: dict[str, dict[str, float]] = {
    "classic": {"SAC": 300, "CrossQ": 200, "DQN": 1500, "DDQN+PER": 1000, "": 4000},
    "box2d": _BOX2D,
    "mujoco": _MUJOCO,
    "atari": {"SAC": 230, "CrossQ": 230, "": 1500},
    "playground": {"": 10_000},
    "further": _BOX2D,
    "short": _MUJOCO,
}
# frames per second by env and algorithm, and by phase and algorithm
Speeds = Mapping[tuple[str, str], float]
# standings that need a run
OPEN = (Standing.MISSING, Standing.STALE, Standing.STOPPED, Standing.REFUSED)


@dataclass(frozen=True)
class Estimate:
    """The cost of a row."""

    # whether runs of this kind were measured
    is_measured: bool
    # of all sessions together
    core_seconds: float
    # of the row, with as many sessions in parallel as there are cores
    seconds: float


def costs_file(data_dir: Path) -> Path:
    """The file with the costs of rows on this machine."""
    return data_dir / "bench" / "costs.json"


def load_costs(data_dir: Path) -> dict[str, tuple[float, float]]:
    """Core-seconds and frames of the rows that were trained on this machine, by their keys."""
    path = costs_file(data_dir)
    try:
        costs = json.loads(path.read_text(encoding="utf-8"))
        return {key: (float(seconds), float(frames)) for key, (seconds, frames) in costs.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); delete it") from None


def add_cost(data_dir: Path, row: Row, core_seconds: float, frames: int) -> None:
    """Add the cost of a part of a row's training."""
    costs = load_costs(data_dir)
    old_seconds, old_frames = costs.get(row.key, (0.0, 0.0))
    write_json(costs_file(data_dir), {**costs, row.key: (old_seconds + core_seconds, old_frames + frames)})


def measure_fps(states: Sequence[RowState], costs: Mapping[str, tuple[float, float]]) -> dict[tuple[str, str], float]:
    """Frames per second of a session: medians by env and algorithm, and by phase and algorithm."""
    seen: dict[tuple[str, str], list[float]] = {}
    for state in states:
        fps, row = _find_fps(state, costs), state.row
        if fps is not None and np.isfinite(fps) and fps > 0:
            for group in (row.env, row.phase):
                seen.setdefault((group, row.algorithm), []).append(fps)
    return {kind: float(np.median(speeds)) for kind, speeds in seen.items()}


def _find_fps(state: RowState, costs: Mapping[str, tuple[float, float]]) -> float | None:
    """The speed of a row: from CPU time on this machine, else from its local run, else from its result."""
    seconds, frames = costs.get(state.row.key, (0.0, 0.0))
    if frames and seconds:
        return frames / seconds
    if state.run is not None:
        return state.run.fps
    return None if state.result is None else state.result.fps


def estimate(row: Row, measured: Speeds, at_once: int) -> Estimate:
    """The cost of a row with at most `at_once` parallel sessions."""
    known = [measured[kind] for kind in ((row.env, row.algorithm), (row.phase, row.algorithm)) if kind in measured]
    rough = ROUGH_FPS[row.phase]
    session = row.max_frame / (known[0] if known else rough.get(row.algorithm, rough[""]))
    rounds = -(-row.max_session // max(1, min(at_once, row.max_session)))
    return Estimate(bool(known), row.max_session * session, rounds * session)


def find_open(states: Sequence[RowState]) -> list[RowState]:
    """Rows that still need a run."""
    return [state for state in states if state.standing in OPEN]
