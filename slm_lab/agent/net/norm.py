"""Norm layers that torch lacks: batch renormalisation, and linear layers with normalised weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

# avoids a division by zero for rows of zeros
TINY = 1e-12


class BatchRenorm1d(nn.Module):
    """Batch renormalisation (Ioffe 2017) of inputs (B, C) or (B, C, L).

    Training normalises by the batch like batch norm, then moves by r and d towards what evaluation would give, where
    the running statistics are used. r = 1 and d = 0 (batch norm) at first; their limits open in a line over
    `warmup_steps` training forwards.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warmup_steps: int = 10_000,
    ) -> None:
        super().__init__()
        if r_max < 1 or d_max < 0 or warmup_steps < 0:
            raise ValueError("r_max must be 1 or more, d_max and warmup_steps 0 or more")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.r_max = r_max
        self.d_max = d_max
        self.warmup_steps = warmup_steps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3):
            raise ValueError(f"expected (B, C) or (B, C, L), got {tuple(x.shape)}")
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        if x.numel() == x.shape[1]:
            raise ValueError(f"one value per feature has no spread to normalise by, got {tuple(x.shape)}")
        with torch.no_grad():
            r, d = self._observe(x)
        # gamma (x_hat r + d) + beta, as batch norm with another scale and shift
        return F.batch_norm(x, None, None, self.weight * r, self.weight * d + self.bias, True, 0.0, self.eps)

    def _observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """r and d of this batch relative to the running statistics, which are then updated."""
        # in the precision of the statistics: inputs may be bfloat16
        x = x.to(self.running_mean.dtype)
        var, mean = torch.var_mean(x, dim=(0,) if x.dim() == 2 else (0, 2), correction=0)
        # a tensor, because reading its value would wait for the device
        share = (self.num_batches_tracked / max(self.warmup_steps, 1)).clamp(max=1.0)
        if self.warmup_steps == 0:
            share = torch.ones_like(share)
        std = (self.running_var + self.eps).sqrt()
        r_limit, d_limit = 1 + share * (self.r_max - 1), share * self.d_max
        r = ((var + self.eps).sqrt() / std).clamp(1 / r_limit, r_limit)
        d = ((mean - self.running_mean) / std).clamp(-d_limit, d_limit)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        self.num_batches_tracked += 1
        return r, d

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, warmup_steps={self.warmup_steps}"


class LazyBatchRenorm1d(LazyModuleMixin, BatchRenorm1d):
    """Batch renormalisation that reads `num_features` from its first input."""

    cls_to_become = BatchRenorm1d

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warmup_steps: int = 10_000,
    ) -> None:
        super().__init__(0, eps, momentum, r_max, d_max, warmup_steps)
        self.weight = UninitializedParameter()  # type: ignore[assignment]
        self.bias = UninitializedParameter()  # type: ignore[assignment]
        self.running_mean = UninitializedBuffer()
        self.running_var = UninitializedBuffer()

    @torch.no_grad()
    def initialize_parameters(self, x: Tensor) -> None:
        """Read the number of features from an input."""
        if not self.has_uninitialized_params():
            return
        self.num_features = x.shape[1]
        for tensor, start in ((self.weight, 1), (self.bias, 0), (self.running_mean, 0), (self.running_var, 1)):
            tensor.materialize((self.num_features,))  # type: ignore[attr-defined]
            tensor.fill_(start)


class WeightNormLinear(nn.Linear):
    """A linear layer of weight g v / ||v|| (Salimans & Kingma 2016), g per output; `weight` holds v.

    At first g = ||v||, so it is the plain linear layer of the same weight.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.gain = nn.Parameter(torch.empty(out_features))
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Set the gain after the weight was replaced, so that the layer computes with this weight."""
        # a norm on the meta device would import torch's compiler
        if not self.weight.is_meta:
            self.gain.copy_(self.weight.norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.gain / self.weight.norm(dim=1).clamp(min=TINY)
        return F.linear(x, self.weight * scale.unsqueeze(1), self.bias)


class LazyWeightNormLinear(LazyModuleMixin, WeightNormLinear):
    """A weight-normalised linear layer that reads `in_features` from its first input."""

    cls_to_become = WeightNormLinear

    def __init__(self, out_features: int, bias: bool = True) -> None:
        # the weight gets its shape later
        super().__init__(0, out_features, bias)
        self.weight = UninitializedParameter()

    def reset_parameters(self) -> None:
        # nn.Linear calls this before the shape is known
        if self.in_features:
            super().reset_parameters()

    @torch.no_grad()
    def initialize_parameters(self, x: Tensor) -> None:
        """Read the number of inputs from an input."""
        if not self.has_uninitialized_params():
            return
        self.in_features = x.shape[-1]
        self.weight.materialize((self.out_features, self.in_features))  # type: ignore[attr-defined]
        self.reset_parameters()
        self.renew()


def differs_in_training(layer: nn.Module) -> bool:
    """Whether a layer computes something else in training mode than in evaluation mode."""
    match layer:
        case _BatchNorm() | BatchRenorm1d() | nn.RReLU():
            return True
        case _InstanceNorm():
            return bool(layer.track_running_stats)
        case _DropoutNd():
            return layer.p > 0
        case nn.MultiheadAttention():
            return layer.dropout > 0
    return False
