"""The layers that an arc may use, built from arguments that are checked against their signatures."""

import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slm_lab.agent.net.norm import BatchRenorm1d, LazyBatchRenorm1d, LazyWeightNormLinear, WeightNormLinear
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.spec.problem import describe_first, show

# errors of constructors and forward passes when values or shapes do not fit
MISFITS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError, ArithmeticError)
# a limit, since an arc may come from an untrusted file
MAX_PARAMETERS = 1_000_000_000


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
    # (B, 1) with (B,) or with (1, B) would silently broadcast to (B, B)
    if len({len(shape) for shape in shapes}) > 1 or tuple(map(max, *shapes)) not in shapes:
        raise ValueError(f"shapes do not match by element: {[tuple(shape) for shape in shapes]}")
    return tensors


def _concat(*inputs: Tensor | Sequence[Tensor], dim: int = -1) -> Tensor:
    return torch.cat(_tensors(inputs, least=1), dim=dim)


def _stack(*inputs: Tensor | Sequence[Tensor], dim: int = 1) -> Tensor:
    return torch.stack(_tensors(inputs, least=1), dim=dim)


def _add(*inputs: Tensor | Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, _alike(inputs))


def _multiply(*inputs: Tensor | Sequence[Tensor]) -> Tensor:
    return reduce(torch.mul, _alike(inputs))


def _subtract(*inputs: Tensor | Sequence[Tensor]) -> Tensor:
    left, right = _alike(inputs)
    return left - right


def _mean(x: Tensor, /, *, dim: int = -1, keepdim: bool = False) -> Tensor:
    return x.mean(dim=dim, keepdim=keepdim)


def _get(x: Any, /, *, key: int | str) -> Any:
    """One item of a node that returns a list, a tuple or a dict."""
    # indexing a tensor would select a sample of the batch
    if isinstance(x, Tensor):
        raise TypeError("Get picks an item of a list, tuple or dict, not of a tensor")
    return x[key]


def _split(x: Tensor, /, *, split_size: int | list[int], dim: int = -1) -> tuple[Tensor, ...]:
    return tuple(torch.split(x, split_size, dim=dim))


def _chunk(x: Tensor, /, *, chunks: int, dim: int = -1) -> tuple[Tensor, ...]:
    return torch.chunk(x, chunks, dim=dim)


def _reshape(x: Tensor, /, *, shape: tuple[int, ...]) -> Tensor:
    """Reshape each sample; the batch dimension stays."""
    return x.reshape(x.shape[0], *shape)


def _permute(x: Tensor, /, *, dims: tuple[int, ...]) -> Tensor:
    """Reorder all dimensions, the batch included."""
    return x.permute(dims)


def _squeeze(x: Tensor, /, *, dim: int = -1) -> Tensor:
    return x.squeeze(dim)


def _unsqueeze(x: Tensor, /, *, dim: int = -1) -> Tensor:
    return x.unsqueeze(dim)


class Function(nn.Module):
    """A function of tensors as a layer, with its options."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, **self.options)


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
)
# fmt: on

# the only layers that an arc can name
LAYERS: dict[str, type[nn.Module] | Callable[..., Any]] = {
    **{layer.__name__: layer for layer in _BUILTIN},
    "Concat": _concat,
    "Stack": _stack,
    "Add": _add,
    "Subtract": _subtract,
    "Multiply": _multiply,
    "Mean": _mean,
    "Get": _get,
    "Split": _split,
    "Chunk": _chunk,
    "Reshape": _reshape,
    "Permute": _permute,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}

# arguments that must be positive: otherwise the layer is empty, or fails far from the cause
_SIZES = frozenset(
    {"in_features", "out_features", "in1_features", "in2_features", "in_channels", "out_channels", "num_features"}
    | {"num_channels", "num_groups", "groups", "num_embeddings", "embedding_dim", "embed_dim", "num_heads", "kdim"}
    | {"vdim", "num_parameters", "normalized_shape", "kernel_size", "stride", "dilation", "chunks", "split_size"}
    | {"upscale_factor", "downscale_factor"}
)


class Budget(TorchFunctionMode):
    """Counts new parameters and buffers before they are allocated, and stops at the limit."""

    def __init__(self, used: int = 0) -> None:
        super().__init__()
        self.used = used

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.empty, torch.zeros, torch.ones):
            sizes = args if args else (kwargs["size"],)
            self.used += prod(sizes[0] if isinstance(sizes[0], Sequence) else sizes)
            if self.used > MAX_PARAMETERS:
                raise ValueError(f"the net has over {MAX_PARAMETERS:,} parameters")
        return func(*args, **(kwargs or {}))


def _positive(value: Any) -> Any:
    if any(isinstance(size, int) and size < 1 for size in (value if isinstance(value, (list, tuple)) else (value,))):
        raise ValueError(f"must be 1 or more, got {show(value)}")
    return value


def _arguments(layer: type[nn.Module] | Callable[..., Any]) -> type[BaseModel]:
    """The arguments of a layer as a model: lists become tuples if needed, without any other conversion."""
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(layer, eval_str=True).parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        # the lab chooses device and type of tensors
        if not is_named or name in ("device", "dtype") or name.startswith("_"):
            continue
        hint, default = parameter.annotation, parameter.default
        if hint is parameter.empty:
            hint = Any if default in (None, parameter.empty) else type(default)
        hint = Annotated[hint, AfterValidator(_positive)] if name in _SIZES else hint
        fields[name] = (hint, ... if default is parameter.empty else default)
    config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    return create_model(layer.__name__, __config__=config, **fields)


def build_layer(name: str, given: Any, path: str) -> nn.Module:
    """One allowed layer from plain arguments."""
    layer = LAYERS.get(name)
    if layer is None:
        raise SpecError(f"{path}: unknown layer {show(name)}{nearest(name, [*LAYERS, 'Sequential', 'compact'])}")
    model = _arguments(layer)
    try:
        # strict JSON: a list may become a tuple, but a number never a text
        arguments = model.model_validate_json(json.dumps({} if given is None else given))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            plain = {key: arguments.__dict__[key] for key in arguments.model_fields_set}
            return layer(**plain) if isinstance(layer, type) else Function(layer, plain)
    except ValidationError as error:
        problem = describe_first(error, model, given, path)
        lazy = LAYERS.get(f"Lazy{name}")
        missing = [one["loc"][0] for one in error.errors() if one["type"] == "missing"]
        is_read = lazy is not None and missing and missing[0] not in _arguments(lazy).model_fields
        raise SpecError(problem + (f"; Lazy{name} reads it from the data" if is_read else "")) from None
    except MISFITS as error:
        raise SpecError(f"{path}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """An exception as one short line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
