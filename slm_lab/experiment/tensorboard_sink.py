"""Rows to TensorBoard; imported only if a spec asks for it, because its package is slow to import."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

# the metrics on the page of hyperparameters
SCORES = ("train/total_reward", "eval/total_reward")


class TensorBoardSink:
    """Rows as scalars over frames, and hyperparameters, in one file."""

    title = "TensorBoard"

    def __init__(self, path: Path, next_frame: int, hyperparameters: Mapping[str, str | float]) -> None:
        self.path = path
        self.next_frame = next_frame
        self.hyperparameters = hyperparameters
        self._writer: SummaryWriter | None = None

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Add a point to the curve of each column."""
        # only now, so that resuming a run that is done leaves no empty file
        if self._writer is None:
            # purge rows that the interrupted session wrote after its checkpoint
            self._writer = SummaryWriter(self.path, purge_step=self.next_frame)
            if not self.next_frame:
                # not add_hparams, which writes a separate file that shows up as another run
                file: Any = self._writer.file_writer
                for summary in hparams(dict(self.hyperparameters), dict.fromkeys(SCORES, 0.0)):
                    file.add_summary(summary)
        for name, value in row.items():
            self._writer.add_scalar(name, value, frame)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
