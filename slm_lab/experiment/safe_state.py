"""What a file of states may be made of, checked before torch reads it.

torch's own safe loader runs nothing of a file, but it allocates what the file asks for, reads past the end of a tensor
that is shorter than it says, and builds a few dozen kinds of objects that no state of the lab has. So a file is first
read by stand-ins that build nothing: only tensors and plain data pass, each tensor within its own bytes.
"""

import io
import math
import pickle
import pickletools
import zipfile
from collections import Counter
from typing import Any, NoReturn

# what torch.save writes for tensors and plain data; anything else is not ours
_OPCODES = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND"),
    *("APPENDS", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "GLOBAL", "REDUCE"),
    "BINPERSID",
}
_ITEM_BYTES = {
    "BoolStorage": 1,
    "ByteStorage": 1,
    "CharStorage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
_NO_COMMENT = b"\0\0"
_END_SIZE = 22
MAX_DEPTH = 100
# with what is referred to twice counted twice
MAX_NODES = 2_000_000
# Views of one tensor may overlap, as those of flat parameters do; beyond this many times the file they are a trap.
MAX_GROWTH = 16
_ROOM = 64_000_000


def check_state(payload: bytes) -> None:
    """Raise `pickle.UnpicklingError` unless a payload is tensors and plain data that fit into it."""
    try:
        sizes, document = _open(payload)
        _check_opcodes(document)
        reader = _Reader(document, sizes)
        _measure(reader.load(), 0, {})
    except pickle.UnpicklingError:
        raise
    except (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError) as error:
        _refuse(f"it does not fit together: {type(error).__name__}")
    except (NotImplementedError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile) as error:
        _refuse(f"it does not fit together: {type(error).__name__}")
    if reader.num_byte > MAX_GROWTH * len(payload) + _ROOM:
        _refuse(f"its tensors would take {reader.num_byte:,} bytes")


def _refuse(reason: str) -> NoReturn:
    raise pickle.UnpicklingError(reason)


def _open(payload: bytes) -> tuple[dict[str, int], bytes]:
    """Bytes of each stored tensor by its key, and the document that describes them."""
    # two readers of an archive that goes on after its end may see two archives
    end = payload[-_END_SIZE:]
    if not end.startswith(b"PK\5\6") or not end.endswith(_NO_COMMENT):
        _refuse("it is no archive of tensors")
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            _refuse("it is compressed, which no state of the lab is")
        if sum(entry.file_size for entry in entries) > len(payload):
            _refuse("its parts are larger than the whole")
        names = Counter(entry.filename for entry in entries)
        if names and max(names.values()) > 1:
            _refuse("two of its parts have one name")
        roots = {name.split("/", 1)[0] for name in names}
        if len(roots) != 1 or any(".." in name.split("/") for name in names):
            _refuse("its parts are in several places")
        (root,) = roots
        if f"{root}/data.pkl" not in names:
            _refuse("it is no archive of tensors")
        prefix = f"{root}/data/"
        sizes = {e.filename.removeprefix(prefix): e.file_size for e in entries if e.filename.startswith(prefix)}
        return sizes, archive.read(f"{root}/data.pkl")


def _check_opcodes(document: bytes) -> None:
    for count, (opcode, argument, _) in enumerate(pickletools.genops(document)):
        if opcode.name not in _OPCODES:
            _refuse(f"{opcode.name} is nothing that states are made of")
        # a table of references grows to the largest number in it
        if opcode.name == "LONG_BINPUT" and (argument is None or argument > count):
            _refuse("it refers to more than it has")


class _Storage:
    """The bytes of one or more tensors, not read."""

    def __init__(self, num_item: int, item_bytes: int) -> None:
        self.num_item = num_item
        self.item_bytes = item_bytes


class _Kind:
    """A type of storage, by its name."""

    def __init__(self, name: str) -> None:
        self.item_bytes = _ITEM_BYTES[name]


class _Reader(pickle.Unpickler):
    """Reads a document with stand-ins in place of tensors."""

    def __init__(self, document: bytes, sizes: dict[str, int]) -> None:
        super().__init__(io.BytesIO(document))
        self.sizes = sizes
        self.num_byte = 0

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._make_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return _make_hooks
        if module == "torch" and name in _ITEM_BYTES:
            return _Kind(name)
        _refuse(f"it names {module}.{name}, which no state of the lab has")

    def persistent_load(self, pid: Any) -> _Storage:
        _, kind, key, _, num_item = pid
        if not isinstance(kind, _Kind) or type(num_item) is not int or num_item < 0:
            _refuse("it has a tensor of no known type")
        if self.sizes[key] != num_item * kind.item_bytes:
            _refuse(f"tensor {key[:20]} has {self.sizes[key]:,} bytes and says {num_item * kind.item_bytes:,}")
        return _Storage(num_item, kind.item_bytes)

    def _make_tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
    ) -> None:
        numbers = (offset, *size, *stride)
        is_plain = isinstance(storage, _Storage) and all(type(n) is int and n >= 0 for n in numbers)
        if not is_plain or len(size) != len(stride) or metadata is not None:
            _refuse("it has a tensor of no known form")
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if math.prod(size) and last >= storage.num_item:
            _refuse("it has a tensor that goes on after its end")
        self.num_byte += math.prod(size) * storage.item_bytes


def _make_hooks() -> None:
    """What torch writes for the hooks of a tensor: always empty."""


def _measure(node: Any, depth: int, seen: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Nodes and levels of what is read, each as often as it is referred to."""
    if not isinstance(node, (dict, list, tuple)):
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
