"""Follows the runs while a page is open, and tells the pages what has changed."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from slm_lab.lib.data import Document
from slm_lab.ui.library import Library

TICK_SECONDS = 0.5
# a look at all runs; where there are many, it is taken less often
SWEEP_SECONDS = 3.0
# of a core, for finding the runs; asking each whether it has changed costs as much again
SCAN_SHARE = 0.015
HEARTBEAT_SECONDS = 15.0
# rows are sent together, so that a page is drawn once for many
BATCH_SECONDS = 0.3
# events that a page has not taken; with more its stream ends, and it starts from scratch when it connects again
MAX_WAITING = 1000


@dataclass(eq=False)
class Subscriber:
    """A page that is open."""

    watched: frozenset[str]
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Document] = field(default_factory=asyncio.Queue)
    # whether events were dropped
    is_lost: bool = False

    def send(self, event: Document) -> None:
        """Hand over an event, from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Document) -> None:
        if self.queue.qsize() < MAX_WAITING:
            self.queue.put_nowait(event)
        else:
            self.is_lost = True


class Watcher:
    """A thread that looks at the runs' files; it rests while no page is open."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._subscribers: set[Subscriber] = set()
        self._changed = threading.Condition()
        self._is_over = False
        self._next_sweep = 0.0
        self._log_times: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end_streams(self) -> None:
        """End the thread and all streams of events, soon."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.publish({"type": "end"})

    def stop(self) -> None:
        """End the thread and all streams of events, and wait for the thread."""
        self.end_streams()
        self._thread.join(timeout=5)

    def publish(self, event: Document) -> None:
        """Tell every open page."""
        with self._changed:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber.send(event)

    @contextmanager
    def subscribe(self, watched: frozenset[str]) -> Iterator[Subscriber]:
        """A place for events, as long as a page is open."""
        subscriber = Subscriber(watched, asyncio.get_running_loop())
        with self._changed:
            self._subscribers.add(subscriber)
            self._changed.notify_all()
        try:
            yield subscriber
        finally:
            with self._changed:
                self._subscribers.discard(subscriber)

    async def stream(self, watched: frozenset[str]) -> AsyncIterator[Document | None]:
        """Events as they come; None now and then, by which a lost page is noticed."""
        with self.subscribe(watched) as subscriber:
            yield {"type": "hello"}
            while not (self._is_over or subscriber.is_lost):
                try:
                    event = await asyncio.wait_for(subscriber.queue.get(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield None
                    continue
                if event["type"] == "end":
                    return
                yield event

    def _run(self) -> None:
        # the first page finds the names of all runs
        self.library.scan()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._subscribers or self._is_over)
                if self._is_over:
                    return
                watched = frozenset().union(*(one.watched for one in self._subscribers))
            self._tick(watched)
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, TICK_SECONDS)

    def _tick(self, watched: frozenset[str]) -> None:
        is_sweep = time.monotonic() >= self._next_sweep
        if is_sweep:
            # the core's time: on a busy machine, or while new runs are read, the clock would put the next look far off
            started = time.thread_time()
            rows, gone = self.library.scan()
            took = time.thread_time() - started
            self._next_sweep = time.monotonic() + max(SWEEP_SECONDS, took / SCAN_SHARE)
            if rows or gone:
                self.publish({"type": "rows", "rows": rows, "gone": gone})
        self._send(self.library.refresh(None if is_sweep else self.library.find_hot() | watched))
        for id_ in watched:
            self._look_at_logs(id_)

    def _send(self, rows: Iterator[Document]) -> None:
        batch: list[Document] = []
        sent = time.monotonic()
        for row in rows:
            batch.append(row)
            if time.monotonic() - sent > BATCH_SECONDS:
                self.publish({"type": "rows", "rows": batch, "gone": []})
                batch, sent = [], time.monotonic()
            if self._is_over:
                return
        if batch:
            self.publish({"type": "rows", "rows": batch, "gone": []})

    def _look_at_logs(self, id_: str) -> None:
        place = self.library.places.get(id_)
        if place is None:
            return
        try:
            with os.scandir(place.path / "log") as items:
                newest = max((item.stat(follow_symlinks=False).st_mtime_ns for item in items), default=0)
        except OSError:
            return
        if self._log_times.get(id_, newest) != newest:
            self.publish({"type": "log", "id": id_})
        self._log_times[id_] = newest
