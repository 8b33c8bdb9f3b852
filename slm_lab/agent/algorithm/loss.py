"""Parts of losses: value losses by name, symlog, and the policy gradient."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, l1_loss, layer_norm, mse_loss, smooth_l1_loss

MEAN_LOSSES: dict[str, Callable[..., Tensor]] = {
    "MSELoss": mse_loss,
    "SmoothL1Loss": smooth_l1_loss,
    "HuberLoss": huber_loss,
    "L1Loss": l1_loss,
}
# one number per sample, so that each can have a weight of its own
ELEMENT_LOSSES: dict[str, Callable[..., Tensor]] = {
    name: partial(loss, reduction="none") for name, loss in MEAN_LOSSES.items()
}


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): nearly the identity for small values, logarithmic for large ones."""
    # not by sign, abs or clamp: in some versions of torch each of them has gradient 0 at 0
    size = torch.where(x >= 0, x, -x).log1p()
    return torch.where(x >= 0, size, -size)


def symlogged(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss that compares the symlog of values and targets."""
    return lambda value, target: loss(symlog(value), symlog(target))


def calc_policy_loss(log_prob: Tensor, adv: Tensor) -> Tensor:
    """-E[log pi(a|s) A]; its gradient is the policy gradient."""
    return -(log_prob * adv).mean()


def standardize(adv: Tensor) -> Tensor:
    """Advantages with mean 0 and std 1; a single one, which would become 0, is kept."""
    # layer_norm is one operation instead of five
    return layer_norm(adv, adv.shape, eps=1e-16) if len(adv) > 1 else adv
