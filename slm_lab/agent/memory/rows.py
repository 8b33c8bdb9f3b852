"""Writing rows into preallocated tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Array


class RowWriter:
    """Writes one step at a time; on a CPU through numpy views of the same memory, which takes a third of the time."""

    def __init__(self, fields: Mapping[str, Tensor]) -> None:
        self.is_host = all(field.device.type == "cpu" for field in fields.values())
        self.views: dict[str, Any] = {name: field.numpy() if self.is_host else field for name, field in fields.items()}

    def write(self, index: int, row: Mapping[str, Tensor | Array]) -> None:
        """Put a step of all envs where rows of this index are."""
        views = self.views
        for name, value in row.items():
            if isinstance(value, np.ndarray):
                views[name][index] = value if self.is_host else torch.from_numpy(value)
            else:
                views[name][index] = value.numpy() if self.is_host else value
