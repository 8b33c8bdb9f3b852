"""How predictions are compared with targets, element by element or as a mean."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, l1_loss, mse_loss, smooth_l1_loss

Loss = Callable[[Tensor, Tensor], Tensor]

MEAN_LOSSES: dict[str, Callable[..., Tensor]] = {
    "MSELoss": mse_loss,
    "SmoothL1Loss": smooth_l1_loss,
    "HuberLoss": huber_loss,
    "L1Loss": l1_loss,
}
# one number per sample, so that each can have a weight of its own
ELEMENT_LOSSES: dict[str, Loss] = {name: partial(loss, reduction="none") for name, loss in MEAN_LOSSES.items()}


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): keeps small values and tames large ones."""
    # written without sign(x), whose zero at 0 would stop the gradient
    return torch.where(x >= 0, x.clamp(min=0).log1p(), -(-x).clamp(min=0).log1p())
