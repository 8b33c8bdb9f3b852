"""Dynamic batching: the requests that arrive while a batch is computed are the next one.

So no request waits for others to arrive, and a busier server has larger batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slm_lab.deploy.sessions import FullError
from slm_lab.lib.array import Array


class BusyError(Exception):
    """More requests wait than the server takes."""


@dataclass
class Job:
    """Observations of one request, as rows that the agent takes."""

    rows: Array
    state: Array
    deterministic: bool
    # requests of one session follow each other, so no batch has two of them
    session: str | None
    # load the hidden state when its turn has come and save the next one, for a session that the server keeps
    load: Callable[[], Array] | None = None
    save: Callable[[Array], None] | None = None
    done: "asyncio.Future[tuple[Any, Array]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


# rows, hidden states, whether deterministic -> actions (N, ...) of the env, next hidden states
Compute = Callable[[Array, Array, bool], tuple[Any, Array]]


class Batcher:
    """Gathers jobs into batches of at most `max_batch` rows, and computes them in a thread of its own."""

    def __init__(
        self, compute: Compute, slice_action: Callable[[Any, slice], Any], max_batch: int, max_wait: int
    ) -> None:
        self.compute = compute
        self.slice_action = slice_action
        self.max_batch = max_batch
        self.max_wait = max_wait
        self.waiting: deque[Job] = deque()
        self.num_batch = 0
        self.num_row = 0
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "act")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to compute."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Compute the jobs that wait, then stop."""
        while self.waiting:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown()

    async def submit(self, job: Job) -> tuple[Any, Array]:
        """Actions and next hidden states of a job."""
        if len(self.waiting) >= self.max_wait:
            raise BusyError
        self.waiting.append(job)
        self._wake.set()
        return await job.done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.waiting:
                batch = [job for job in self._take() if _load(job)]
                if not batch:
                    continue
                try:
                    results = await loop.run_in_executor(self._thread, self._act, batch)
                except Exception as error:  # in a user's own net: the request fails, the server keeps running
                    for job in batch:
                        _fail(job, error)
                    continue
                for job, result in zip(batch, results, strict=True):
                    if job.save is not None:
                        job.save(result[1])
                    # the client may have disconnected
                    if not job.done.done():
                        job.done.set_result(result)

    def _take(self) -> list[Job]:
        """The next batch: jobs of one kind, in order, and one of each session."""
        batch: list[Job] = []
        later: list[Job] = []
        sessions: set[str] = set()
        num = 0
        while self.waiting and num < self.max_batch:
            job = self.waiting.popleft()
            fits = not batch or (job.deterministic == batch[0].deterministic and num + len(job.rows) <= self.max_batch)
            if not fits or job.session in sessions:
                later.append(job)
                if job.session is not None:
                    sessions.add(job.session)
                if len(later) > self.max_batch:
                    break
                continue
            if job.session is not None:
                sessions.add(job.session)
            batch.append(job)
            num += len(job.rows)
        self.waiting.extendleft(reversed(later))
        return batch

    def _act(self, batch: list[Job]) -> list[tuple[Any, Array]]:
        rows = batch[0].rows if len(batch) == 1 else np.concatenate([job.rows for job in batch])
        state = batch[0].state if len(batch) == 1 else np.concatenate([job.state for job in batch])
        action, next_state = self.compute(rows, state, batch[0].deterministic)
        self.num_batch += 1
        self.num_row += len(rows)
        results, start = [], 0
        for job in batch:
            place = slice(start, start + len(job.rows))
            results.append((self.slice_action(action, place), next_state[place]))
            start = place.stop
        return results


def _load(job: Job) -> bool:
    """Find the hidden state of a job; False if there is no place for its session."""
    if job.load is None:
        return True
    try:
        job.state = job.load()
    except FullError as error:
        _fail(job, error)
        return False
    return True


def _fail(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
