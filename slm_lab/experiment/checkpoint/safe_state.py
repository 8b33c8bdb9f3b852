"""Reads the files of states: tensors and plain data, built here and by nothing else.

A file is what `torch.save` writes, and `torch.load` can read it too. The lab does not ask it to. torch's safe loader
runs nothing of a file, but it takes the memory that a file asks for, reads past the end of a tensor that is shorter
than it says, and builds a few dozen kinds of objects that no state has. And whoever checks a file first and then has
it read by somebody else trusts that both see the same archive. So the few opcodes that states are made of are carried
out below, each within its bounds, and a tensor gets the bytes that were counted.
"""

import io
import math
import pickletools
import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from typing import Any, BinaryIO, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

Kind = TypeVar("Kind")
_DTYPES = {
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "IntStorage": torch.int32,
    "FloatStorage": torch.float32,
    "LongStorage": torch.int64,
    "DoubleStorage": torch.float64,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
DTYPES = frozenset(_DTYPES.values())
# The end of an archive: sign, four numbers of 16 bits on disks and entries, size and place of the table of contents,
# length of a comment.
_END = struct.Struct("<4s4H2LH")
# the same with 64 bits, which torch always writes, and where that lies
_LONG_END = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_LONG_SIZE = _LONG_END.size + _LOCATOR.size
# a number that does not fit is written as the largest one that does
_LARGEST = (2**16 - 1,) * 4 + (2**32 - 1,) * 2
_BLOCK_BYTES = 1 << 20
# of a document, so all that is there once
MAX_OPCODES = 2_000_000
MAX_DEPTH = 100
# with what is referred to twice counted twice
MAX_NODES = 2_000_000
MAX_DIMENSIONS = 64
MAX_NUMBER = 2**63 - 1
# Views of one tensor may overlap, as those of flat parameters do; beyond this many times the file they are a trap.
MAX_GROWTH = 16
_ROOM = 64_000_000
# how many values each takes from the stack
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
# what a document names instead of holding it
_TENSOR = object()
_ORDERED = object()


class BadStateError(ValueError):
    """A file that is no state, or one that no lab has written."""


def read_state(payload: bytes) -> Any:
    """The state in a payload: tensors and plain data that fit into it."""
    return _read(io.BytesIO(payload), "cpu")


def read_weights(payload: bytes) -> dict[str, Tensor]:
    """The weights of one net by name, as `torch.save(net.state_dict(), ...)` writes them."""
    state = _read(io.BytesIO(payload), "cpu", of_net=True)
    if type(state) is not dict or not all(type(k) is str and isinstance(v, Tensor) for k, v in state.items()):
        _refuse("it does not hold the weights of one net")
    return state


def check_state(file: BinaryIO) -> None:
    """Refuse what `read_state` would refuse, for those who write: bytes of tensors are counted, not read."""
    _read(file, "meta")


def _read(file: BinaryIO, device: str, of_net: bool = False) -> Any:
    try:
        num_byte = file.seek(0, io.SEEK_END)
        with _open(file, num_byte) as archive:
            state = _Reader(archive, num_byte, device, of_net).read()
        _measure(state, 0, {})
    except BadStateError:
        raise
    except (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError) as error:
        _refuse(f"it does not fit together: {type(error).__name__}")
    except (NotImplementedError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile) as error:
        _refuse(f"it does not fit together: {type(error).__name__}")
    return state


def _refuse(reason: str) -> NoReturn:
    raise BadStateError(reason)


def _open(file: BinaryIO, num_byte: int) -> zipfile.ZipFile:
    num_entry = _check_end(file, num_byte)
    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    if len(entries) != num_entry:
        _refuse("its table of contents is not as long as it says")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        _refuse("it is compressed, which no state of the lab is")
    if sum(entry.file_size for entry in entries) > num_byte:
        _refuse("its parts are larger than the whole")
    # some readers take names that differ in case for one
    names = Counter(entry.filename.lower() for entry in entries)
    if names and max(names.values()) > 1:
        _refuse("two of its parts have one name")
    roots = {name.split("/", 1)[0] for name in names}
    if len(roots) != 1 or any(".." in name.split("/") for name in names):
        _refuse("its parts are in several places")
    return archive


def _check_end(file: BinaryIO, num_byte: int) -> int:
    """How many entries there are, if the table of contents is right before the end and all that tells of it agrees.

    Readers that look for it in another place, or in one of two places, would see another archive.
    """
    file.seek(max(0, num_byte - _LONG_SIZE - _END.size))
    tail = file.read()
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\5\6":
        _refuse("it is no archive of tensors")
    _, *numbers, comment = _END.unpack(tail[-_END.size :])
    if comment:
        _refuse("it is no archive of tensors")
    long = tail[: -_END.size]
    end = num_byte - _END.size
    if len(long) == _LONG_SIZE and long[_LONG_END.size :][:4] == b"PK\6\7":
        end -= _LONG_SIZE
        sign, rest, _, _, *wide = _LONG_END.unpack(long[: _LONG_END.size])
        is_there = sign == b"PK\6\6" and rest == _LONG_END.size - 12
        if not is_there or _LOCATOR.unpack(long[_LONG_END.size :])[1:] != (0, end, 1):
            _refuse("its table of contents is not where it says")
        agree = zip(numbers, wide, _LARGEST, strict=True)
        if not all(number in (full, largest) for number, full, largest in agree):
            _refuse("it says two things of its table of contents")
        numbers = wide
    disk, first_disk, num_here, num_entry, size, place = numbers
    if disk or first_disk or num_here != num_entry or place + size != end:
        _refuse("its table of contents is not where it says")
    return num_entry


class _Reader:
    """Carries out the opcodes of a document; on the device "meta" tensors have no bytes."""

    def __init__(self, archive: zipfile.ZipFile, num_byte: int, device: str, of_net: bool) -> None:
        self.archive = archive
        self.device = device
        self.of_net = of_net
        self.root = archive.namelist()[0].split("/", 1)[0]
        self.num_byte = num_byte
        self.num_tensor_byte = 0
        self.storages: dict[str, Tensor] = {}
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        """What the document holds."""
        name = f"{self.root}/data.pkl"
        if name not in self.archive.namelist():
            _refuse("it is no archive of tensors")
        for count, (opcode, argument, _) in enumerate(pickletools.genops(self.archive.read(name))):
            if count > MAX_OPCODES:
                _refuse(f"it has more than {MAX_OPCODES:,} parts")
            if opcode.name == "STOP":
                break
            self._do(opcode.name, argument)
        if self.marks or len(self.stack) != 1:
            _refuse("it holds more than one state")
        return self.stack[0]

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            # they are counted up
            if argument > len(self.memo):
                _refuse("it refers to more than it has")
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "TUPLE":
            stack.append(tuple(self._take_marked()))
        elif name in _TUPLES:
            stack.append(tuple(self._take(_TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = self._take(1) if name == "APPEND" else self._take_marked()
            _as(list, stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._take(2) if name == "SETITEM" else self._take_marked()
            # others would have to be hashed, whatever they hold
            if len(items) % 2 or not all(type(key) in (str, int) for key in items[::2]):
                _refuse("it has a key that is neither a text nor a whole number")
            _as(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_find(argument))
        elif name == "BINPERSID":
            stack.append(self._read_storage(*_as(tuple, stack.pop())))
        elif name == "REDUCE":
            function, arguments = self._take(2)
            stack.append(self._call(function, _as(tuple, arguments)))
        elif name == "BUILD" and self.of_net:
            # beside its weights a net writes the versions of its layers, which nothing here needs
            _as(dict, self._take(1)[0])
            _as(dict, stack[-1])
        elif name != "PROTO":
            _refuse(f"{name} is nothing that states are made of")

    def _take(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            _refuse("it takes more than it has")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def _take_marked(self) -> list[Any]:
        taken = self._take(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return taken

    def _read_storage(self, tag: Any, dtype: Any, key: Any, _place: Any, num_item: Any) -> "_Storage":
        """All bytes of one or more tensors."""
        if tag != "storage" or not isinstance(dtype, torch.dtype) or type(key) is not str or type(num_item) is not int:
            _refuse("it has a tensor of no known type")
        known = self.storages.get(key)
        if known is None:
            entry = self.archive.getinfo(f"{self.root}/data/{key}")
            if entry.file_size != num_item * dtype.itemsize:
                _refuse(f"a tensor has {entry.file_size:,} bytes and says {num_item * dtype.itemsize:,}"[:200])
            known = torch.empty(entry.file_size, dtype=torch.uint8, device=self.device)
            if self.device != "meta":
                self._fill(known, entry)
            known = known.view(dtype)
            self.storages[key] = known
        elif known.dtype != dtype or len(known) != num_item:
            _refuse("it has the bytes of a tensor twice, as two types")
        return _Storage(known)

    def _fill(self, content: Tensor, entry: zipfile.ZipInfo) -> None:
        """Read an entry block by block: its bytes are twice in memory, in the payload and in the tensor."""
        target, place = content.numpy(), 0
        with self.archive.open(entry) as file:
            while block := file.read(_BLOCK_BYTES):
                target[place : place + len(block)] = np.frombuffer(block, np.uint8)
                place += len(block)
        if place != len(content):
            _refuse("a tensor has fewer bytes than it says")

    def _call(self, function: Any, arguments: Sequence[Any]) -> Any:
        if function is _TENSOR:
            return self._make_tensor(*arguments)
        if function is _ORDERED and not arguments:
            return {}
        _refuse("it calls what is nothing to call")

    def _make_tensor(self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any) -> Tensor:
        size, stride = _as(tuple, size), _as(tuple, stride)
        is_plain = isinstance(storage, _Storage) and hooks == {} and requires_grad is False
        if not is_plain or len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
            _refuse("it has a tensor of no known form")
        if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in (offset, *size, *stride)):
            _refuse("it has a tensor of no known form")
        num_item = math.prod(size)
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if num_item and last >= len(storage.items):
            _refuse("it has a tensor that goes on after its end")
        self.num_tensor_byte += num_item * storage.items.itemsize
        if self.num_tensor_byte > MAX_GROWTH * self.num_byte + _ROOM:
            _refuse("its tensors would take many times its bytes")
        return storage.items.as_strided(size, stride, offset) if num_item else storage.items.new_empty(size)


class _Storage:
    """A storage that a document refers to, which is no value by itself."""

    def __init__(self, items: Tensor) -> None:
        self.items = items


def _find(name: str) -> Any:
    """What a document may name, of all there is: `genops` gives module and name with a space between."""
    if name == "torch._utils _rebuild_tensor_v2":
        return _TENSOR
    if name == "collections OrderedDict":
        return _ORDERED
    module, _, kind = name.partition(" ")
    if module == "torch" and kind in _DTYPES:
        return _DTYPES[kind]
    shown = "".join(char if char.isprintable() else "?" for char in name.replace(" ", "."))
    _refuse(f"it names {shown[:100]}, which no state of the lab has")


def _as(kind: type[Kind], value: Any) -> Kind:
    if type(value) is not kind:
        _refuse(f"it has no {kind.__name__} where one is needed")
    return value


def _measure(node: Any, depth: int, seen: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Nodes and levels of what is read, each as often as it is referred to."""
    if not isinstance(node, (dict, list, tuple)):
        if node is not None and not isinstance(node, (bool, int, float, str, Tensor)):
            _refuse("it has a part of a tensor where a value belongs")
        return 1, 0
    if id(node) in seen:
        known = seen[id(node)]
        if known is None:
            _refuse("it has something that contains itself")
        count, height = known
    else:
        if depth >= MAX_DEPTH:
            _refuse(f"it is nested more than {MAX_DEPTH} deep")
        seen[id(node)] = None
        parts = [_measure(item, depth + 1, seen) for item in (node.values() if isinstance(node, dict) else node)]
        count = 1 + sum(part[0] for part in parts)
        height = 1 + max((part[1] for part in parts), default=0)
        seen[id(node)] = count, height
    if depth + height > MAX_DEPTH:
        _refuse(f"it is nested more than {MAX_DEPTH} deep")
    if count > MAX_NODES:
        _refuse(f"it has more than {MAX_NODES:,} entries")
    return count, height
