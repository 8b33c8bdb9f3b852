"""Values that change with the frame, as pure functions; each starts at start_val and reaches end_val."""

import math

from slm_lab.spec.types import ScheduleSpec

_DECAY_RATE = 0.9
_NUM_DECAY = 20
_NUM_PERIOD = 10
_NUM_LEVEL = 20


def calc_schedule(spec: float | ScheduleSpec, frame: int) -> float:
    """The value at a frame."""
    if not isinstance(spec, ScheduleSpec):
        return float(spec)
    # 0 is a value like any other: only null means "not given"
    end_val = spec.start_val if spec.end_val is None else spec.end_val
    if spec.name == "no_decay":
        return spec.start_val
    if frame >= spec.end_step:
        return end_val
    if frame <= spec.start_step:
        return spec.start_val
    progress = (frame - spec.start_step) / (spec.end_step - spec.start_step)
    return end_val + (spec.start_val - end_val) * _calc_rest(spec.name, progress)


def calc_level(spec: ScheduleSpec, frame: int) -> float:
    """The value at a frame where each change costs much: the path is taken in steps, of at most 20 values."""
    span = spec.end_step - spec.start_step
    if 0 < frame - spec.start_step < span:
        frame = spec.start_step + (frame - spec.start_step) * (_NUM_LEVEL - 1) // span * span // (_NUM_LEVEL - 1)
    return calc_schedule(spec, frame)


def _calc_rest(name: str, progress: float) -> float:
    """Share of the way that is still to go: 1 at the start, 0 at the end."""
    if name == "linear_decay":
        return 1 - progress
    if name == "rate_decay":
        floor = _DECAY_RATE**_NUM_DECAY
        return (_DECAY_RATE ** (_NUM_DECAY * progress) - floor) / (1 - floor)
    # periodic_decay: a cosine wave under a falling line
    return (1 - progress) * 0.5 * (1 + math.cos(2 * math.pi * _NUM_PERIOD * progress))
