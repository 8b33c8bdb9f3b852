"""What is missing, and how long it would take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slm_lab.benchmark.matrix import Row
from slm_lab.benchmark.result import Result
from slm_lab.benchmark.state import RowState, Standing

# Frames per second of one session before any run of its kind was measured: to tell minutes from days, no more.
# Classic, box2d and mujoco on a core of a small machine; atari and playground on a GPU, as the published lab had it.
ROUGH_FPS: dict[str, dict[str, float]] = {
    "classic": {"SAC": 300, "CrossQ": 200, "DQN": 1500, "DDQN+PER": 1000, "": 4000},
    "box2d": {"SAC": 200, "CrossQ": 150, "DQN": 1000, "DDQN+PER": 700, "": 2500},
    "mujoco": {"SAC": 150, "CrossQ": 700, "": 1000},
    "atari": {"SAC": 230, "CrossQ": 230, "": 1500},
    "playground": {"": 10_000},
}


# standings that need a run
OPEN = (Standing.MISSING, Standing.STALE, Standing.STOPPED, Standing.REFUSED)


@dataclass(frozen=True)
class Estimate:
    """How long a row takes."""

    fps: float
    # whether runs of this kind were measured
    is_measured: bool
    seconds: float


def measure_fps(states: Sequence[RowState], results: Mapping[str, Result]) -> dict[tuple[str, str], float]:
    """Frames per second of a session by phase and algorithm: of runs here, else of results."""
    seen: dict[tuple[str, str], list[float]] = {}
    for state in states:
        run, result = state.run, results.get(state.row.key)
        fps = run.fps if run is not None else result.fps if result is not None else None
        if fps is not None and np.isfinite(fps) and fps > 0:
            seen.setdefault((state.row.phase, state.row.algorithm), []).append(fps)
    return {kind: float(np.median(speeds)) for kind, speeds in seen.items()}


def estimate(row: Row, measured: Mapping[tuple[str, str], float], at_once: int) -> Estimate:
    """Time of a row whose sessions run so many at once."""
    known = measured.get((row.phase, row.algorithm))
    rough = ROUGH_FPS[row.phase]
    fps = known if known is not None else rough.get(row.algorithm, rough[""])
    rounds = -(-row.max_session // max(1, min(at_once, row.max_session)))
    return Estimate(fps, known is not None, rounds * row.max_frame / fps)


def find_open(states: Sequence[RowState]) -> list[RowState]:
    """Rows that still need a run."""
    return [state for state in states if state.standing in OPEN]
