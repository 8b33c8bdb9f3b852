"""Stop signals: the first SIGTERM, SIGHUP or Ctrl-C asks the session to stop, a second one ends the process at once.

`end_hangs` ends a session that cannot react, because it waits for an env.
"""

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from slm_lab.env.watch import TICK_SECONDS, Watchdog, Watched
from slm_lab.lib.errors import EnvHangError
from slm_lab.lib.system import NO_SIGNAL, SIGHUP, SIGVTALRM

STOPS = (signal.SIGTERM, signal.SIGINT, *([SIGHUP] if SIGHUP != NO_SIGNAL else []))
# makes the main thread raise an error that another thread has found; libraries do not use this signal
_INTERRUPT = SIGVTALRM
# longest step after a request to stop, of the ten seconds that a session has in all
PATIENCE_SECONDS = 5.0
# a call that does not even end by an error ends the process after this time
GRACE_SECONDS = 2.0


class StopSignal:
    """Remembers the first stop signal, so that the loop can check for it, save and end."""

    def __init__(self, is_patient: bool = False) -> None:
        # whether to ignore further signals: a batch system signals a session and its parent, which passes the signal on
        self.is_patient = is_patient
        self.number: int | None = None
        # when it came, by the monotonic clock
        self.since = math.inf
        self.error: EnvHangError | None = None
        # whether its handlers are installed
        self.is_active = False
        self._old: dict[int, signal.Handlers] = {}
        # those of standard input, output and error that are terminals
        self._terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]

    def __enter__(self) -> "StopSignal":
        # only the main thread may handle signals; elsewhere the caller stops the run
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                # nohup ignores SIGHUP; keep that
                if signal.getsignal(number) is not signal.SIG_IGN or number != SIGHUP:
                    self._old[number] = signal.signal(number, self._handle)  # type: ignore[assignment]
            self._old[_INTERRUPT] = signal.signal(_INTERRUPT, self._raise)  # type: ignore[assignment]
            # Handlers run in the main thread, between instructions of Python. The numbers of signals reach this socket
            # at once, even while the main thread is stuck in other code.
            self._receiver, self._sender = socket.socketpair()
            self._receiver.setblocking(False)
            self._sender.setblocking(False)
            self._old_wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            self.is_active = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_active:
            self.is_active = False
            signal.set_wakeup_fd(self._old_wakeup)
            self._receiver.close()
            self._sender.close()
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number is not None and not self.is_patient:
            raise KeyboardInterrupt
        if number == SIGHUP:
            self._leave_terminal()
        self.note(number)

    def _leave_terminal(self) -> None:
        """Redirect to /dev/null what would go to a terminal that is gone, where every line is an error."""
        for descriptor in self._terminals:
            if not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor)
                os.close(null)

    def note(self, number: int) -> None:
        """Remember a signal, unless there was one before."""
        if self.number is None:
            self.number, self.since = number, time.monotonic()

    def _raise(self, *_: object) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def find_unhandled(self) -> int | None:
        """A stop signal since the last call, even if its handler could not run because the main thread is stuck."""
        try:
            numbers = self._receiver.recv(4096)
        except OSError:
            return None
        return next((number for number in numbers if number in STOPS), None)

    def interrupt(self, error: EnvHangError) -> None:
        """Raise an error in the main thread, as soon as it runs or waits in Python."""
        self.error = error
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, _INTERRUPT)

    def __call__(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C, 129 for SIGHUP."""
        return 128 + self.number if self.number is not None else 0


@contextmanager
def end_hangs(
    stop: StopSignal, should_stop: Callable[[], bool], tell: Callable[[EnvHangError, bool], None]
) -> Iterator[None]:
    """End calls of envs that take longer than `env.step_timeout`, or too long after a request to stop.

    If possible by an error in the call; otherwise `tell` reports the error and the process ends.
    """
    if not stop.is_active:
        yield
        return
    guard = _Guard(stop, should_stop, tell)
    with Watchdog(guard.on_tick):
        yield


class _Guard:
    def __init__(
        self, stop: StopSignal, should_stop: Callable[[], bool], tell: Callable[[EnvHangError, bool], None]
    ) -> None:
        self.stop = stop
        self.should_stop = should_stop
        self.tell = tell
        # a stop signal whose handler may not have run
        self.unhandled: int | None = None
        # seconds since the request to stop
        self.stopping = 0.0
        # the call in which an error was raised, and the seconds since then
        self.raised: tuple[int, int] | None = None
        self.raised_for = 0.0

    def on_tick(self, waiting: list[tuple[Watched, float]]) -> None:
        self.unhandled = self.stop.find_unhandled() or self.unhandled
        if self.unhandled is not None or self.should_stop():
            self.stopping += TICK_SECONDS
        for envs, seconds in waiting:
            is_stopping = min(seconds, self.stopping) >= PATIENCE_SECONDS
            if is_stopping or (envs.limit and seconds >= envs.limit):
                self._end(envs, seconds, is_stopping)

    def _end(self, envs: Watched, seconds: float, is_stopping: bool) -> None:
        call = (id(envs), envs.calls)
        why = "the run is asked to stop" if is_stopping else "env.step_timeout"
        if self.raised != call:
            self.raised, self.raised_for = call, 0.0
            error = EnvHangError(f"{envs.describe_call()}: no answer for {seconds:g} s ({why})")
            if not envs.interrupt(error):
                self.stop.interrupt(error)
            return
        self.raised_for += TICK_SECONDS
        if self.raised_for < GRACE_SECONDS:
            return
        if self.stop.number is None and self.unhandled is not None:
            self.stop.note(self.unhandled)
        self.tell(EnvHangError(f"{envs.describe_call()}: no answer for {seconds:g} s ({why})"), is_stopping)
        os._exit(self.stop.exit_code or 1)


@contextmanager
def no_exit() -> Iterator[None]:
    """Turn `os._exit` into SystemExit, so that an env cannot end this process silently."""
    leave, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        # forked processes end this way, and an exception in another thread would not reach the main one
        if os.getpid() != process:
            leave(status)
        if threading.current_thread() is not threading.main_thread():
            leave(status or 1)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave
