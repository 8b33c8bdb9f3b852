"""A sink with its own thread, so that neither its start nor a lost network blocks training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from threading import Thread

from slm_lab.lib.secret import redact

# a session that is asked to stop has little more before it is killed
CLOSE_SECONDS = 5.0
# a frame and its row
Row = tuple[int, dict[str, float]]


class ThreadSink(ABC):
    """Queues rows for `_send`, which runs in a thread; the next call raises its error."""

    title: str
    # advice about rows that could not be sent in time
    remedy = ""

    def __init__(self) -> None:
        self._rows: SimpleQueue[Row | None] = SimpleQueue()
        self._error: str | None = None
        self._thread: Thread | None = None

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Queue a row; the first one starts the thread."""
        self._check()
        if self._thread is None:
            # a daemon, so that a network that hangs does not keep the process alive
            self._thread = Thread(target=self._run, name=f"{self.title} sink", daemon=True)
            self._thread.start()
        self._rows.put((frame, dict(row)))

    def close(self) -> None:
        """Wait a little for the rows to be sent."""
        if self._thread is None:
            return
        self._rows.put(None)
        self._thread.join(CLOSE_SECONDS)
        self._check()
        if self._thread.is_alive():
            raise RuntimeError(f"not sent within {CLOSE_SECONDS:.0f} s{self.remedy}")

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)

    def _run(self) -> None:
        try:
            self._send(iter(self._rows.get, None))
        except Exception as error:  # anything from a network; raised by the next call
            # it goes into a log file
            self._error = redact(f"{type(error).__name__}: {error}")

    @abstractmethod
    def _send(self, rows: Iterator[Row]) -> None:
        """Start, send the rows, and finish after the last one."""
