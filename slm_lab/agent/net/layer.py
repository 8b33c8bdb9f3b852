"""The layers an arc may name, and the checks on their arguments before anything is built."""

import inspect
import types
import warnings
from collections.abc import Sequence
from math import prod
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from slm_lab.agent.net.norm import BatchRenorm1d, LazyBatchRenorm1d, LazyWeightNormLinear, WeightNormLinear
from slm_lab.lib.errors import SpecError, nearest

# What a constructor or a forward raises when values or shapes do not fit.
MISFITS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError, ArithmeticError)


def _tensors(inputs: tuple[Tensor | Sequence[Tensor], ...], least: int = 2) -> list[Tensor]:
    """The tensors to merge, given one by one or as a single list."""
    first = inputs[0] if len(inputs) == 1 else inputs
    found = [first] if isinstance(first, Tensor) else list(first)
    tensors = [value for value in found if isinstance(value, Tensor)]
    if len(tensors) != len(found) or len(tensors) < least:
        raise ValueError(f"expected at least {least} tensors, got {[type(value).__name__ for value in found]}")
    return tensors


def _alike(inputs: tuple[Tensor | Sequence[Tensor], ...]) -> list[Tensor]:
    """The tensors to merge by element; the result has the shape of one of them."""
    tensors = _tensors(inputs)
    shapes = [tensor.shape for tensor in tensors]
    # (B, 1) with (B,) or with (1, B) would broadcast to (B, B) without a word.
    if len({len(shape) for shape in shapes}) > 1 or tuple(map(max, *shapes)) not in shapes:
        raise ValueError(f"shapes do not match by element: {[tuple(shape) for shape in shapes]}")
    return tensors


class Concat(nn.Module):
    """Join tensors along one dimension; the last unless told."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        return torch.cat(_tensors(inputs, least=1), dim=self.dim)


class Stack(nn.Module):
    """Join tensors of one shape along a new dimension."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        return torch.stack(_tensors(inputs, least=1), dim=self.dim)


class Add(nn.Module):
    """Sum of tensors."""

    def forward(self, *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        total, *rest = _alike(inputs)
        for tensor in rest:
            total = total + tensor
        return total


class Multiply(nn.Module):
    """Product of tensors by element."""

    def forward(self, *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        total, *rest = _alike(inputs)
        for tensor in rest:
            total = total * tensor
        return total


class Subtract(nn.Module):
    """The first tensor minus the second."""

    def forward(self, *inputs: Tensor | Sequence[Tensor]) -> Tensor:
        left, right = _alike(inputs)
        return left - right


class Mean(nn.Module):
    """Mean over one dimension."""

    def __init__(self, dim: int = -1, keepdim: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=self.dim, keepdim=self.keepdim)


class Get(nn.Module):
    """One item of a node that gives a list, a tuple or a dict."""

    def __init__(self, key: int | str) -> None:
        super().__init__()
        self.key = key

    def forward(self, x: Any) -> Any:
        # Indexing a tensor would pick a sample out of the batch.
        if isinstance(x, Tensor):
            raise TypeError("Get picks an item of a list, tuple or dict, not of a tensor")
        return x[self.key]


class Split(nn.Module):
    """Cut a tensor into parts of the given size or sizes."""

    def __init__(self, split_size: int | tuple[int, ...], dim: int = -1) -> None:
        super().__init__()
        self.split_size = split_size if isinstance(split_size, int) else list(split_size)
        self.dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.split(x, self.split_size, dim=self.dim))


class Chunk(nn.Module):
    """Cut a tensor into a number of equal parts."""

    def __init__(self, chunks: int, dim: int = -1) -> None:
        super().__init__()
        self.chunks = chunks
        self.dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.chunk(x, self.chunks, dim=self.dim)


class Reshape(nn.Module):
    """Give each sample the shape; the batch dimension stays."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(nn.Module):
    """Reorder all dimensions, the batch included."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


class Squeeze(nn.Module):
    """Drop a dimension of size 1."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(self.dim)


class Unsqueeze(nn.Module):
    """Add a dimension of size 1."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(self.dim)


# fmt: off
_BUILTIN: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.LazyLinear, nn.Bilinear, nn.Embedding, nn.MultiheadAttention, nn.Identity,
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LazyConv1d, nn.LazyConv2d, nn.LazyConv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.LazyConvTranspose1d, nn.LazyConvTranspose2d, nn.LazyConvTranspose3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.LPPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d,
    nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm,
    BatchRenorm1d, LazyBatchRenorm1d, WeightNormLinear, LazyWeightNormLinear,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.GLU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Tanhshrink, nn.Hardtanh, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Sigmoid, nn.LogSigmoid,
    nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Threshold,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle,
    Concat, Stack, Add, Subtract, Multiply, Mean, Get, Split, Chunk, Reshape, Permute, Squeeze, Unsqueeze,
)
# fmt: on

# The only names an arc can build. A name is looked up here and nowhere else.
LAYERS: dict[str, type[nn.Module]] = {layer.__name__: layer for layer in _BUILTIN}

# Arguments that are sizes: zero or less builds an empty layer or fails far from its cause.
_SIZES = frozenset(
    {"in_features", "out_features", "in1_features", "in2_features", "in_channels", "out_channels", "num_features"}
    | {"num_channels", "num_groups", "groups", "num_embeddings", "embedding_dim", "embed_dim", "num_heads", "kdim"}
    | {"vdim", "num_parameters", "normalized_shape", "kernel_size", "stride", "dilation", "chunks", "split_size"}
    | {"upscale_factor", "downscale_factor"}
)


def _parameters(layer: type[nn.Module]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The arguments a spec may set, and their type hints."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    allowed = {
        name: parameter
        for name, parameter in inspect.signature(layer).parameters.items()
        # Where tensors live and their type is the lab's choice, not the arc's.
        if parameter.kind in named and name not in ("device", "dtype") and not name.startswith("_")
    }
    try:
        hints = get_type_hints(layer.__init__)
    except (NameError, TypeError):
        hints = {}
    for name, parameter in allowed.items():
        # An argument without a hint takes the type of its default.
        if name not in hints and type(parameter.default) in (bool, int, float, str):
            hints[name] = type(parameter.default)
    return allowed, hints


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value (lists already tuples) matches a type hint."""
    origin = get_origin(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        return type(value) in (int, float)
    if hint is torch.Size:
        return type(value) is tuple and all(type(item) is int for item in value)
    if origin in (tuple, list):
        if type(value) is not tuple:
            return False
        options = get_args(hint)
        if origin is list or options[-1] is Ellipsis:
            return all(_fits(item, options[0]) for item in value)
        return len(value) == len(options) and all(map(_fits, value, options))
    return type(value) is hint


def _wanted(hint: Any) -> str:
    """A type hint in words."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_wanted(option) for option in options))
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in options)
    if origin is tuple and options[-1] is not Ellipsis:
        return f"a list of {len(options)} {_wanted(options[0])}"
    if origin in (tuple, list):
        return f"a list of {_wanted(options[0])}"
    words: dict[Any, str] = {bool: "true or false", float: "a number", str: "text", type(None): "null", int: "int"}
    return words.get(hint, "a list of int" if hint is torch.Size else "a plain value")


def show(value: Any) -> str:
    """A value as the user wrote it, cut short."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is how torch takes shapes and sizes."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _check_value(name: str, value: Any, parameter: inspect.Parameter, hints: dict[str, Any], path: str) -> None:
    """Refuse a value of the wrong type or a size below one."""
    if value is None and parameter.default is None:
        return
    hint = hints.get(name, Any)
    if not _fits(value, hint):
        # YAML reads 1e-5 as text: a number there needs a dot.
        number = isinstance(value, str) and value.replace("e", "").replace("-", "").replace(".", "").isdigit()
        tip = " (write a number without quotes and with a dot, as in 1.0e-5)" if number else ""
        near = nearest(value, get_args(hint)) if get_origin(hint) is Literal and isinstance(value, str) else ""
        raise SpecError(f"{path}.{name}: must be {_wanted(hint)}, got {show(value)}{tip}{near}")
    if name in _SIZES and any(type(size) is int and size < 1 for size in (value if type(value) is tuple else (value,))):
        raise SpecError(f"{path}.{name}: must be 1 or more, got {show(value)}")


def build_layer(name: str, kwargs: Any, path: str) -> nn.Module:
    """One allowed layer from plain, checked arguments."""
    layer = LAYERS.get(name)
    if layer is None:
        raise SpecError(f"{path}: unknown layer {name!r}{nearest(name, [*LAYERS, 'Sequential', 'compact'])}")
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, dict):
        raise SpecError(f"{path}: arguments must be a mapping of name to value, got {show(kwargs)}")
    allowed, hints = _parameters(layer)
    for key in kwargs:
        if key not in allowed:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise SpecError(f"{path}: {name} has no argument {key!r}, {takes}{nearest(key, allowed)}")
    for key, parameter in allowed.items():
        if parameter.default is inspect.Parameter.empty and key not in kwargs:
            lazy = LAYERS.get(f"Lazy{name}")
            tip = f"; Lazy{name} reads it from the data" if lazy and key not in _parameters(lazy)[0] else ""
            raise SpecError(f"{path}: argument {key!r} is missing{tip}")
    plain = {key: _tuples(value) for key, value in kwargs.items()}
    for key, value in plain.items():
        _check_value(key, value, allowed[key], hints, path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            return layer(**plain)
    except MISFITS as error:
        raise SpecError(f"{path}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """An exception as one short line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def size_of(module: nn.Module) -> int:
    """Number of values in the parameters and buffers that have a shape already."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(prod(tensor.shape) for tensor in tensors if not nn.parameter.is_lazy(tensor))


def foresee(module: nn.Module, inputs: list[Any]) -> tuple[int, int]:
    """How many parameters a lazy layer is about to make, and how many values its pass.

    Worked out from shapes, since torch's own way (a pass on the meta device) costs seconds of imports.
    """
    flat = [item for value in inputs for item in (value if isinstance(value, list | tuple) else [value])]
    tensors = [item for item in flat if isinstance(item, Tensor)]
    values = sum(tensor.numel() for tensor in tensors)
    first = tensors[0] if tensors else torch.empty(())
    lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params()
    if isinstance(module, nn.Linear | nn.Bilinear) and first.ndim:
        features = first.shape[-1]
        return features * module.out_features * lazy, values // max(features, 1) * module.out_features
    if isinstance(module, nn.Embedding):
        return 0, values * module.embedding_dim
    if isinstance(module, nn.MultiheadAttention) and len(tensors) > 1:
        # Attention weights: queries times keys, for each head.
        width = module.embed_dim
        return 0, values + module.num_heads * (first.numel() // width) * (tensors[1].numel() // width)
    pools = nn.modules.pooling._AdaptiveAvgPoolNd | nn.modules.pooling._AdaptiveMaxPoolNd
    if isinstance(module, pools):
        sizes = module.output_size if isinstance(module.output_size, tuple) else (module.output_size,) * 3
        return 0, values * prod(size or 1 for size in sizes)
    if isinstance(module, nn.modules.conv._ConvNd) and first.ndim > len(module.kernel_size):
        return _foresee_conv(module, first, lazy)
    # No other layer of the list gives more values than it takes.
    return 0, values


def _foresee_conv(module: nn.modules.conv._ConvNd, x: Tensor, lazy: bool) -> tuple[int, int]:
    """Weights and output of a convolution, with the columns its input may be unfolded to."""
    dims = len(module.kernel_size)
    batch, channels = prod(x.shape[: -dims - 1]), x.shape[-dims - 1]
    window = channels * prod(module.kernel_size) // module.groups
    places = batch
    for i, size in enumerate(x.shape[-dims:]):
        reach, stride = module.dilation[i] * (module.kernel_size[i] - 1), module.stride[i]
        if module.transposed:
            places *= size * stride + reach + module.output_padding[i]
        elif module.padding == "same":
            places *= size
        else:
            padding = 0 if isinstance(module.padding, str) else 2 * module.padding[i]
            places *= max(size + padding - reach - 1, 0) // stride + 1
    return window * module.out_channels * lazy, places * max(module.out_channels, window)
