"""Detect calls of envs that do not return, in a separate thread."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from loguru import logger

from slm_lab.env.gym_types import GymEnv
from slm_lab.lib.errors import EnvHangError

TICK_SECONDS = 0.5
# an env that has not closed by then is abandoned
CLOSE_SECONDS = 3.0


class Watched(Protocol):
    """Envs with watched calls."""

    # increases when a call begins and when it returns, so it is odd during a call
    calls: int
    # seconds that a call may take; 0: no limit
    limit: float

    def describe_call(self) -> str:
        """The env of the call, with its seed and step."""

    def interrupt(self, error: EnvHangError) -> bool:
        """Make the call raise the error; False if only its own thread can do that."""


# the envs of this process; replaced at once, since another thread reads the list
_watched: list[weakref.ref[Watched]] = []


def watch(envs: Watched) -> None:
    """Register envs with the watchdog of this process, if there is one."""
    _watched[:] = [*(one for one in _watched if one() is not None), weakref.ref(envs)]


class Watchdog:
    """Repeatedly reports the calls of envs that have not returned, and for how many seconds."""

    def __init__(self, on_tick: Callable[[list[tuple[Watched, float]]], None]) -> None:
        self.on_tick = on_tick
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="env watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        # counts ticks instead of reading a clock, so that the time of a suspended process does not count
        waits: dict[int, tuple[int, float]] = {}
        while not self._over.wait(TICK_SECONDS):
            waiting = []
            for envs in [envs for ref in tuple(_watched) if (envs := ref()) is not None]:
                calls = envs.calls
                last, seconds = waits.get(id(envs), (0, 0.0))
                seconds = seconds + TICK_SECONDS if calls == last and calls % 2 else 0.0
                waits[id(envs)] = calls, seconds
                if calls % 2:
                    waiting.append((envs, seconds))
            self.on_tick(waiting)


def close_envs(envs: Sequence[GymEnv], name: str, is_drawn: bool = False) -> None:
    """Close envs; errors are only warnings, since the work is done."""

    def close() -> None:
        for env in envs:
            try:
                env.close()
            except (Exception, SystemExit) as error:  # the env's own code: anything can come
                reason = (str(error).splitlines() or [""])[0]
                logger.warning(f"close() of '{name}' failed: {type(error).__name__}: {reason}")

    if is_drawn:
        # only the thread that opened a window may close it
        close()
        return
    thread = threading.Thread(target=close, name="env close", daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        logger.warning(f"close() of '{name}' has not returned after {CLOSE_SECONDS:g} s and is not waited for")
