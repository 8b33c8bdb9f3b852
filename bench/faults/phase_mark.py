"""Imported by a command through `--import`: says when a phase begins, and keeps it long enough to be hit.

FAULT_PHASE names the phase, FAULT_MARK the file that is made when it begins, with the frame of the session in it.
"""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slm_lab.agent.agent import Agent
from slm_lab.agent.compile.engine import CompiledFunction
from slm_lab.experiment.control import Session
from slm_lab.experiment.filming import Filming
from slm_lab.results import conclude
from slm_lab.share import push

PHASE = os.environ["FAULT_PHASE"]
MARK = Path(os.environ["FAULT_MARK"])
# a phase that has begun lasts at least so long
HOLD_SECONDS = 1.0
# training is under way
FRAME = 500
frame = 0


def mark() -> None:
    """Say once that the phase has begun, then stay in it."""
    try:
        with MARK.open("x") as file:
            file.write(str(frame))
    except FileExistsError:
        return
    time.sleep(HOLD_SECONDS)


def marked(function: Callable[..., Any], is_due: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    """A function that says when it is called."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_due():
            mark()
        return function(*args, **kwargs)

    return call


def follow(update: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers the frame."""

    @functools.wraps(update)
    def call(self: Agent, now: int) -> Any:
        global frame
        frame = now
        return update(self, now)

    return call


def is_under_way() -> bool:
    """Whether some frames have been trained."""
    return frame >= FRAME


Agent.update = follow(Agent.update)  # type: ignore[method-assign]
if PHASE == "compile":
    CompiledFunction._compile = marked(CompiledFunction._compile)  # type: ignore[method-assign]
elif PHASE == "rollout":
    Agent.act = marked(Agent.act, is_under_way)  # type: ignore[method-assign]
elif PHASE == "update":
    Agent.update = marked(Agent.update, is_under_way)  # type: ignore[method-assign]
elif PHASE == "eval":
    Session._evaluate = marked(Session._evaluate)  # type: ignore[method-assign]
elif PHASE == "video":
    Filming.film = marked(Filming.film)  # type: ignore[method-assign]
elif PHASE == "plot":
    conclude.plot_run = marked(conclude.plot_run)
elif PHASE == "upload":
    push.send = marked(push.send)
