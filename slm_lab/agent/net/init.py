"""Initial weights that really apply: to every layer, and to the heads by their own gain."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Functions by the names a spec may use; gain and nonlinearity are passed where the function takes them.
PLAIN: dict[str, Callable[..., Any]] = {
    "normal_": nn.init.normal_,
    "uniform_": nn.init.uniform_,
    "trunc_normal_": nn.init.trunc_normal_,
    "zeros_": nn.init.zeros_,
}
WITH_GAIN: dict[str, Callable[..., Any]] = {
    "orthogonal_": nn.init.orthogonal_,
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
}
KAIMING: dict[str, Callable[..., Any]] = {
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "kaiming_normal_": nn.init.kaiming_normal_,
}
GAINED = ("sigmoid", "tanh", "relu", "leaky_relu", "selu")
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def init_weights(module: nn.Module, init_fn: str | None, activation: str | None) -> None:
    """Fill the weights of every linear and convolution layer; biases become zero."""
    if init_fn is None:
        return
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            if init_fn in WITH_GAIN:
                gain = nn.init.calculate_gain(activation) if activation in GAINED else 1.0  # type: ignore[arg-type]
                WITH_GAIN[init_fn](layer.weight, gain=gain)
            elif init_fn in KAIMING:
                slope = activation if activation in ("relu", "leaky_relu") else "relu"
                KAIMING[init_fn](layer.weight, nonlinearity=slope)
            else:
                PLAIN[init_fn](layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


@torch.no_grad()
def init_head(head: nn.Linear, init_std: float | None) -> None:
    """Give an output layer a gain of its own."""
    if init_std is not None:
        nn.init.orthogonal_(head.weight, gain=init_std)
        nn.init.zeros_(head.bias)
