"""Matrix products in compiled code on a CPU: by MKL, as in plain calls, or by oneDNN if MKL is slow.

torch has both, but always uses MKL for float32, which does not use AVX-512 on AMD processors. Since the Zen 5, where
AVX-512 is twice as fast, a product of three 256 x 256 takes 320 us with MKL and 150 us with oneDNN.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.lowering import permute, register_lowering
from torch._inductor.mkldnn_ir import LinearUnary, _create_output_node

from slm_lab.lib.runtime import describe_processor

# number of multiplications from which oneDNN is faster, despite the overhead of its calls
MIN_SIZE = 2**21
# the Zen 5; AVX-512 of the Zen 4 is only as fast as AVX2
MIN_FAMILY = 26


def build_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions of matrix products for the CPU of this machine."""
    aten = torch.ops.aten
    if not prefers_onednn():
        return {aten.mm.default: _multiply_by_mkl}
    return {aten.mm.default: _multiply, aten.addmm.default: _multiply_and_add}


@lru_cache(maxsize=1)
def prefers_onednn() -> bool:
    """Whether oneDNN is faster than MKL for large products; not measured, so that a run repeats bit for bit."""
    facts = describe_processor()
    family = facts.get("cpu family", "")
    is_new = facts.get("vendor_id") == "AuthenticAMD" and family.isdecimal() and int(family) >= MIN_FAMILY
    return is_new and "avx512f" in facts.get("flags", "").split() and torch.backends.mkldnn.is_available()


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    return multiply(left, right) if _is_large(left, right) else _multiply_by_mkl(left, right)


def _multiply_and_add(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == 1 and alpha == 1 and _is_large(left, right):
        # the sum is fused with the activation
        return bias + multiply(left, right)
    return NotImplemented


def _is_large(left: Tensor, right: Tensor) -> bool:
    """Whether a product is worth a call of oneDNN."""
    return left.dtype == torch.float32 and left.shape[0] * left.shape[1] * right.shape[1] >= MIN_SIZE


def _multiply_by_mkl(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product; if the result has few columns, as the transpose of one with few rows.

    MKL takes up to six times as long for few columns, for example in the gradient of a first layer, which has one
    column per input. Only multiples of 16 columns are equally fast.
    """
    num_column = right.shape[1]
    if 1 < num_column < left.shape[0] and num_column % 16:
        return torch.mm(right.t(), left.t()).t()
    return NotImplemented


@torch.library.custom_op("slm_lab::multiply", mutates_args=(), device_types="cpu")
def multiply(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` by oneDNN."""
    # made for layers: the weights (out, in) are transposed
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")


@multiply.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@register_lowering(torch.ops.slm_lab.multiply.default, type_promotion_kind=None)
def _lower(left: TensorBox, right: TensorBox) -> TensorBox:
    """The call in the machine code. Inductor's own lowering takes constant weights alone."""
    device = left.get_device()
    assert device is not None
    size = [left.get_size()[0], right.get_size()[1]]
    # the weights may have any strides
    inputs = [
        LinearUnary.require_contiguous(LinearUnary.realize_input(left)),
        LinearUnary.realize_input(permute(right, [1, 0])),
    ]
    layout = FixedLayout(device=device, dtype=left.get_dtype(), size=size)
    # without a bias or an activation
    call = LinearUnary(layout=layout, inputs=inputs, constant_args=[None, "none", [-1], ""])
    return TensorBox.create(_create_output_node(call))
