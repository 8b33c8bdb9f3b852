"""The rows of a replay on disk: a checkpoint writes only new rows."""

from pathlib import Path
from typing import Any

from slm_lab.agent.memory.replay import Replay
from slm_lab.experiment.checkpoint.state import content_errors, load_state, save_state
from slm_lab.lib.data import State
from slm_lab.lib.errors import CheckpointError
from slm_lab.results.folder import STATE_SUFFIX, replay_file

# a file takes about a tenth of a second to write
CHUNK_BYTES = 8_000_000
Chunk = tuple[int, int]


class ReplayFiles:
    """Files of consecutive rows, each with its hash.

    Rows never change, so a full file is written once. The last file is not full yet: a later checkpoint replaces it by
    a longer one under another name. Files that neither the last nor the previous checkpoint needs are deleted.
    """

    def __init__(self, prefix: Path, replay: Replay) -> None:
        self.prefix = prefix
        self.replay = replay
        self.num_row = max(1, CHUNK_BYTES // replay.row_bytes)
        self.chunks: list[Chunk] = []
        self.previous: list[Chunk] = []

    def _file(self, chunk: Chunk) -> Path:
        return replay_file(self.prefix, *chunk)

    def _write(self, end: int) -> None:
        """Write one more file, up to row `end` at most; it includes the rows of the last file if that is not full."""
        start = self.chunks[-1][1] if self.chunks else 0
        if self.chunks and self.chunks[-1][1] - self.chunks[-1][0] < self.num_row:
            start = self.chunks.pop()[0]
        # rows may have been overwritten since
        start = max(start, self.replay.held_first)
        chunk = (start, min(end, start + self.num_row))
        save_state(self._file(chunk), {"rows": self.replay.rows(*chunk)})
        self.chunks.append(chunk)

    def _end(self) -> int:
        """The end of the last full file."""
        if not self.chunks:
            return 0
        start, end = self.chunks[-1]
        return end if end - start >= self.num_row else start

    def flush(self) -> None:
        """Write a file once it is full, so that checkpoints have little to write."""
        if self.replay.head - self._end() >= self.num_row:
            self._write(self.replay.head)

    def save(self) -> list[list[int]]:
        """Write rows that are not on disk yet; returns the list of files for the checkpoint."""
        self.chunks = [chunk for chunk in self.chunks if chunk[1] > self.replay.held_first]
        while self.replay.head > (self.chunks[-1][1] if self.chunks else self.replay.held_first):
            self._write(self.replay.head)
        return [list(chunk) for chunk in self.chunks]

    def clean(self) -> None:
        """Delete files that the last two checkpoints do not need; call after the last one is written."""
        needed = {self._file(chunk) for chunk in (*self.chunks, *self.previous)}
        for path in self.prefix.parent.glob(f"{self.prefix.name}_*-*{STATE_SUFFIX}"):
            if path not in needed:
                path.unlink(missing_ok=True)
        self.previous = list(self.chunks)

    def load(self, chunks: Any) -> None:
        """Read the rows into the memory."""
        self.chunks = parse_chunks(chunks)
        for chunk in self.chunks:
            rows = load_rows(self._file(chunk))
            with content_errors(self._file(chunk)):
                self.replay.load_rows(chunk[0], rows)
        self.previous = list(self.chunks)


def parse_chunks(value: Any) -> list[Chunk]:
    """The files of a replay that a checkpoint lists; the checkpoint may be forged, so check them."""
    chunks = [(int(start), int(end)) for start, end in value]
    if not all(0 <= start < end for start, end in chunks):
        raise ValueError("rows of a replay that end before they begin")
    return chunks


def load_rows(path: Path) -> State:
    """The rows in a file of a replay."""
    rows = load_state(path).get("rows")
    if not isinstance(rows, dict):
        raise CheckpointError(f"{path}: does not hold rows of a replay")
    return rows
