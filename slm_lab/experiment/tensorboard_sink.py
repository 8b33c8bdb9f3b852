"""Rows to TensorBoard; loaded only where a spec asks for it, because its package is slow to import."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorBoardSink:
    """Rows as scalars over frames."""

    title = "TensorBoard"

    def __init__(self, path: Path, next_frame: int) -> None:
        self.path = path
        self.next_frame = next_frame
        self._writer: SummaryWriter | None = None

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Add a point to the curve of each column."""
        # only now, so that a run which is continued but done leaves no empty file
        if self._writer is None:
            # hides what an earlier process drew after the checkpoint that this one continues from
            self._writer = SummaryWriter(self.path, purge_step=self.next_frame)
        for name, value in row.items():
            self._writer.add_scalar(name, value, frame)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
