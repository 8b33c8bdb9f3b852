"""Activations by the names a spec may use."""

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
}


def build_activation(name: str) -> nn.Module:
    """A fresh activation layer."""
    return ACTIVATIONS[name]()
