"""Initial weights of all layers, with a separate gain for heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.net.dict_net import Encoder
from slm_lab.agent.net.norm import WeightNormLinear

# functions by the names a spec may use, grouped by their arguments
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
    """Fill the weights of every linear, convolution and recurrent layer; biases become zero."""
    if init_fn is None:
        return
    gains = {layer: one.activation for one in module.modules() if isinstance(one, Encoder) for layer in one.modules()}
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            _fill(layer.weight, init_fn, gains.get(layer, activation))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.RNNBase):
            _fill_recurrent(layer, init_fn)
        if isinstance(layer, WeightNormLinear):
            # its gain depends on the weight
            layer.renew()


def _fill(weight: Tensor, init_fn: str, activation: str | None) -> None:
    if init_fn in WITH_GAIN:
        gain = nn.init.calculate_gain(activation) if activation in GAINED else 1.0  # type: ignore[arg-type]
        WITH_GAIN[init_fn](weight, gain=gain)
    elif init_fn in KAIMING:
        slope = activation if activation in ("relu", "leaky_relu") else "relu"
        KAIMING[init_fn](weight, nonlinearity=slope)
    else:
        PLAIN[init_fn](weight)


def _fill_recurrent(layer: nn.RNNBase, init_fn: str) -> None:
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        # torch stacks the gates, so fill each one; gain 1, since gates are not hidden activations
        for gate in parameter.split(layer.hidden_size):
            _fill(gate, init_fn, None)


@torch.no_grad()
def init_head(head: nn.Linear, init_std: float | None) -> None:
    """Initialise an output layer with its own gain, if there is one."""
    if init_std is not None:
        nn.init.orthogonal_(head.weight, gain=init_std)
        nn.init.zeros_(head.bias)
