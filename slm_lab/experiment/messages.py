"""What a session reports to the process that started it: its progress and its end."""

import math
import traceback
from dataclasses import dataclass, field
from typing import Literal

from slm_lab.lib.errors import DivergenceError, EnvHangError, LabError, StorageError, WorkerDeathError, WorkerError
from slm_lab.lib.secret import redact
from slm_lab.results.metrics import SessionResult

# a new row of the table, or a phase that takes long
What = Literal["row", "starting", "compiling", "compiled"]
# Why a session has no result. killed: the session or one of its env workers, perhaps by a stop of the run; input: a
# mistake of the user; diverged: numbers were not finite, which may not happen with other values of the spec.
Reason = Literal["failed", "killed", "not started", "input", "diverged"]


@dataclass(frozen=True)
class Progress:
    """The progress of a session."""

    session: int
    frame: int = 0
    max_frame: int = 0
    fps: float = math.nan
    total_reward: float = math.nan
    total_reward_ma: float = math.nan
    # of the last evaluation
    eval_reward: float = math.nan
    what: What = "row"


@dataclass
class SessionEnd:
    """How a session ended: a result, or the reason why there is none."""

    session: int
    result: SessionResult | None = None
    error: str = ""
    reason: Reason = "failed"
    # when, by the monotonic clock of the process that runs all sessions
    ended: float = field(default=0.0, compare=False)

    @property
    def is_stopped(self) -> bool:
        """Whether the session has no result because it was stopped, provided that a stop was requested."""
        return self.result is None and self.reason in ("killed", "not started")


# the first match counts; anything else is a bug, whose traceback is kept
REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (WorkerDeathError, "killed"),
    (DivergenceError, "diverged"),
    (WorkerError, "failed"),
    (StorageError, "failed"),
    (LabError, "input"),
)


def explain_end(session: int, error: BaseException, is_stopping: bool) -> SessionEnd:
    """The end of a session that an exception ended."""
    if isinstance(error, SystemExit):
        text = f"the env or the agent ended the process, with exit code {error.code or 0}"
        return SessionEnd(session, error=text)
    if isinstance(error, EnvHangError):
        return SessionEnd(session, error=redact(str(error)), reason="killed" if is_stopping else "failed")
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return SessionEnd(session, error=redact(str(error)), reason=reason)
    return SessionEnd(session, error=redact("".join(traceback.format_exception(error))))
