"""A GPU that is not there: tensors say `cuda`, their numbers are computed on the CPU.

It is as strict as a real one: tensors of host and device do not mix (but for single numbers), a generator belongs to a
device, `.numpy()` is refused. Every wait of the host for the device is counted, by the line of the lab that causes it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from test.gpu.ledger import LEDGER, DeviceError, Ledger, find_site

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
MPS = torch.device("mps", 0)
# allocation and metadata only: no kernel is launched
NO_KERNEL = {
    aten._local_scalar_dense.default,
    aten._reshape_alias.default,
    aten._unsafe_view.default,
    aten.alias.default,
    aten.detach.default,
    aten.detach_.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.is_same_size.default,
    aten.lift_fresh.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.resize_.default,
    aten.set_.source_Tensor,
}
# only the device knows the size of what comes out
DATA_SIZED = {
    aten._unique2.default,
    aten.bincount.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
ANSWERS = {aten.equal.default, aten._local_scalar_dense.default}
MAY_MIX = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
INDEXED = {
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}
# these read not even a single number from the host
STRICT = {
    aten.addmm.default,
    aten.bmm.default,
    aten.cat.default,
    aten.cat.out,
    aten.convolution.default,
    aten.embedding.default,
    aten.gather.default,
    aten.index_select.default,
    aten.mm.default,
    aten.scatter.src,
    aten.stack.default,
}


REAL_GENERATOR: Any = torch.Generator
# which device is pretended: tensors ask it when they are asked
NOW = SimpleNamespace(device=CUDA)


class PretendGenerator(REAL_GENERATOR):
    """A generator of the device; it draws what the CPU's would draw."""

    # kept alive: C++ hands them over as plain generators, known by their addresses
    known: ClassVar[dict[int, torch.Generator]] = {}

    def __new__(cls) -> "PretendGenerator":
        made: PretendGenerator = super().__new__(cls, "cpu")
        cls.known[made._cdata] = made
        return made

    device = property(lambda self: NOW.device)


DEFAULT = PretendGenerator()


class _AnyGeneratorMeta(type(REAL_GENERATOR)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL_GENERATOR)


class AnyGenerator(REAL_GENERATOR, metaclass=_AnyGeneratorMeta):
    """`torch.Generator(device)` for either device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return PretendGenerator() if is_device(device) else REAL_GENERATOR(device)


class PretendTensor(Tensor):
    """A tensor of the device: `held` are its numbers.

    C++ sees a meta tensor, whose gradients need no GPU; Python sees `cuda`.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendTensor":
        if held.dtype is torch.float64 and NOW.device == MPS:
            raise DeviceError(f"mps has no float64, which is asked for at {find_site()}")
        made: PretendTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device("meta"),
        )
        made.held = held
        return made

    device = property(lambda self: NOW.device)
    is_cuda = property(lambda self: NOW.device == CUDA)
    is_meta = property(lambda self: False)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.held})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.numpy:
            if (kwargs or {}).get("force"):
                return args[0].detach().cpu().numpy()
            raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        if func is Tensor.data_ptr:
            return args[0].held.data_ptr()
        if func is Tensor.is_pinned:
            return False
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = args[0], _upload_lists(args[1]), *args[2:]
        if func is Tensor.__deepcopy__:
            return _copy_deeply(*args)
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            own, value = args
            if not isinstance(value, PretendTensor):
                raise DeviceError(f"data of a tensor on cuda:0 set to one on the cpu at {find_site()}")
            own.held = value.held
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        LEDGER.wait("download")
        return Tensor.clone, (self.held.detach(),)


def _upload_lists(index: Any) -> Any:
    """Lists in an index as tensors of the device; C++ would make them tensors without values."""
    if isinstance(index, (list, np.ndarray)):
        LEDGER.wait("index upload")
        return PretendTensor(torch.as_tensor(index))
    return tuple(map(_upload_lists, index)) if isinstance(index, tuple) else index


def _copy_deeply(own: PretendTensor, memo: dict[int, Any]) -> Any:
    if id(own) not in memo:
        with torch.no_grad():
            new = PretendTensor(own.held.clone())
        new.requires_grad_(own.requires_grad)
        if getattr(own, "_is_param", False):
            new._is_param = True
        memo[id(own)] = new
    return memo[id(own)]


class PretendMode(TorchDispatchMode):
    """Sees calls that no tensor of the device takes part in, such as those that make one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # would import the compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def is_device(name: Any) -> bool:
    return name is not None and torch.device(name).type in (NOW.device.type, "meta")


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One operation, on whichever device its arguments are."""
    leaves = tree_leaves((args, kwargs))
    generators = [leaf for leaf in leaves if isinstance(leaf, REAL_GENERATOR)]
    has_pretend = any(isinstance(leaf, PretendTensor) for leaf in leaves)
    place: Any = kwargs.get("device")
    # C++ that makes a tensor where another is, such as zeros for a missing gradient, says meta
    is_made_here = is_device(place) and not (torch.device(place).type == "meta" and _is_meant_as_meta())
    if not has_pretend and not is_made_here:
        return _run_on_host(func, args, kwargs, generators)
    if _is_composite(func):
        # what it is made of comes back here
        with PretendMode():
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
    for generator in generators:
        if generator._cdata not in PretendGenerator.known:
            raise DeviceError(f"{func}: expected a generator of cuda but found cpu at {find_site()}")
    return _run_on_device(func, args, kwargs, leaves, bool(generators))


def _run_on_host(func: Any, args: Sequence[Any], kwargs: dict[str, Any], generators: list[Any]) -> Any:
    if any(generator._cdata in PretendGenerator.known for generator in generators):
        raise DeviceError(f"{func}: expected a generator of cpu but found cuda at {find_site()}")
    if func is aten.is_pinned.default:
        return LEDGER.is_pinned(args[0])
    # inference mode does not take the first apart
    if func in (aten.pin_memory.default, aten._pin_memory.default):
        return LEDGER.pin(args[0].clone())
    if kwargs.get("pin_memory"):
        return LEDGER.pin(func(*args, **{**kwargs, "pin_memory": False}))
    return func(*args, **kwargs)


def _run_on_device(func: Any, args: Sequence[Any], kwargs: dict[str, Any], leaves: list[Any], is_drawn: bool) -> Any:
    host = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, PretendTensor)]
    _check_mixed(func, args, host)
    _count_answers(func, args)
    if func is aten._to_copy.default:
        return _move(args[0], kwargs)
    if func is aten.copy_.default and host:
        return _copy(*args, **kwargs)
    if not func.is_view and func not in NO_KERNEL:
        LEDGER.launch(str(func))
    held_args, held_kwargs = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
    if is_device(kwargs.get("device")):
        held_kwargs |= {"device": torch.device("cpu")}
    if held_kwargs.get("pin_memory"):
        raise DeviceError(f"{func}: only memory of the host can be pinned, at {find_site()}")
    if torch.Tag.nondeterministic_seeded in func.tags and not is_drawn:
        with _default_generator():
            out = func(*held_args, **held_kwargs)
    else:
        out = func(*held_args, **held_kwargs)
    written = _find_written(func._schema, args, kwargs)
    if written is not None:
        return written
    own = next((leaf for leaf in leaves if isinstance(leaf, PretendTensor)), None)
    if func.is_view and torch.is_inference_mode_enabled() and own is not None and not own.is_inference():
        # a view of a plain tensor is a plain tensor, also within inference mode
        with torch.inference_mode(False):
            return tree_map(_wrap, out)
    return tree_map(_wrap, out)


def _check_mixed(func: Any, args: Sequence[Any], host: list[Tensor]) -> None:
    """Refuse tensors of the host; indices are uploaded, at the cost of a wait each."""
    if not host or func in MAY_MIX:
        return
    refused = [tensor for tensor in host if tensor.dim() > 0 or func in STRICT]
    if func in INDEXED and isinstance(args[0], PretendTensor):
        indices = [index for index in args[1] if isinstance(index, Tensor) and not isinstance(index, PretendTensor)]
        for _ in indices:
            LEDGER.wait("index upload")
        refused = [tensor for tensor in refused if not any(tensor is index for index in indices)]
    if refused:
        shapes = [tuple(tensor.shape) for tensor in refused]
        raise DeviceError(
            f"{func}: expected all tensors on the same device, but found cuda:0 and cpu {shapes} at {find_site()}"
        )


def _count_answers(func: Any, args: Sequence[Any]) -> None:
    """Count what cannot return before the device has computed it."""
    if func in ANSWERS:
        LEDGER.wait("item")
    elif func in DATA_SIZED:
        LEDGER.wait("size")
    elif func in INDEXED:
        is_mask = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        # writing one number under a mask is a fill
        is_fill = func is not aten.index.Tensor and len(args) > 2 and args[2].numel() == 1
        if is_mask and not is_fill:
            LEDGER.wait("size")


def _move(tensor: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """`tensor.to(...)`: between the devices, or to another dtype where it is."""
    place, non_blocking = kwargs.get("device"), bool(kwargs.get("non_blocking"))
    kwargs = {**kwargs, "device": torch.device("cpu"), "non_blocking": False}
    if not isinstance(tensor, PretendTensor):
        LEDGER.upload(tensor, non_blocking)
        return PretendTensor(aten._to_copy.default(tensor, **kwargs))
    if is_device(place) and kwargs.get("dtype") in (None, tensor.dtype) and kwargs.get("memory_format") is None:
        return PretendTensor(tensor.held)  # it is there already, which C++ cannot see
    moved = aten._to_copy.default(tensor.held, **kwargs)
    if place is None or is_device(place):
        LEDGER.launch("aten._to_copy.default")
        return PretendTensor(moved)
    LEDGER.download(moved, tensor.held, non_blocking)
    return moved


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`target.copy_(source)` from one device to the other."""
    if isinstance(target, PretendTensor):
        LEDGER.upload(source, non_blocking)
        target.held.copy_(source)
    else:
        assert isinstance(source, PretendTensor)
        target.copy_(source.held)
        LEDGER.download(target, source.held, non_blocking)
    return target


def _find_written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What was written to, which is what an operation in place returns; None for others."""
    if not schema.returns or not all(one.alias_info is not None and one.alias_info.is_write for one in schema.returns):
        return None
    given = [
        args[index] if index < len(args) else kwargs[argument.name]
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    for one in given:
        if isinstance(one, PretendTensor) and one.shape != one.held.shape:
            raise NotImplementedError(f"{schema.name} resized its output")
    return given[0] if len(schema.returns) == 1 else tuple(given[: len(schema.returns)])


@contextmanager
def _default_generator() -> Iterator[None]:
    """Draw from the device's own generator."""
    kept = torch.get_rng_state()
    torch.set_rng_state(DEFAULT.get_state())
    yield
    DEFAULT.set_state(torch.get_rng_state())
    torch.set_rng_state(kept)


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, PretendTensor) else value


def _wrap(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) else value


_COMPOSITE: dict[Any, bool] = {}


def _is_composite(func: Any) -> bool:
    if func not in _COMPOSITE:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        name = func.name()
        _COMPOSITE[func] = has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CUDA")
    return _COMPOSITE[func]


def _is_meant_as_meta() -> bool:
    """Whether the call comes out of `with torch.device("meta")`."""
    frame: Any = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("torch/utils/_device.py"):
            return True
        frame = frame.f_back
    return False


class PretendEvent:
    """`torch.cuda.Event`: waiting for it is a wait."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        LEDGER.wait("event")


@contextmanager
def pretend_gpu() -> Iterator[Ledger]:
    """Within, device `cuda:0` works, slowly; `cuda` without its index does where torch is built for GPUs."""
    patches: dict[str, Callable[..., Any] | type] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: LEDGER.wait("synchronize"),
        "empty_cache": lambda: None,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": lambda *_: SimpleNamespace(name="Pretend GPU", major=8, minor=0),
        "set_sync_debug_mode": LEDGER.set_warning,
        "manual_seed_all": DEFAULT.manual_seed,
        "get_rng_state": lambda *_: DEFAULT.get_state(),
        "set_rng_state": lambda state, *_: DEFAULT.set_state(state),
        "mem_get_info": lambda *_: (40 << 30, 40 << 30),
        "Event": PretendEvent,
    }
    lifts_host_only = torch._C._only_lift_cpu_tensors()
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    # else Module.to would put the shape of a device tensor into a host parameter
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "Generator", AnyGenerator))
        # recurrent nets by plain operations, which a CPU can compute
        stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_acceptable", return_value=False))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(PretendMode())
        LEDGER.__init__()  # type: ignore[misc]
        try:
            yield LEDGER
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts_host_only)
            torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


@contextmanager
def pretend_mps() -> Iterator[Ledger]:
    """The same as a GPU of Apple: `mps:0`, without float64, pinned memory and anything of CUDA."""
    with pretend_gpu() as ledger, ExitStack() as stack:
        for name in ("is_available", "is_initialized"):
            stack.enter_context(mock.patch.object(torch.cuda, name, return_value=False))
        stack.enter_context(mock.patch.object(torch.backends.mps, "is_available", return_value=True))
        stack.enter_context(mock.patch.object(NOW, "device", MPS))
        yield ledger
