"""Files that pretend to be a checkpoint: each would run, write, or take memory, if it were trusted."""

import io
import os
import pickle
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slm_lab.lib.io import seal

CANARY = "canary"
GIGABYTE = 10**9


class _Call:
    """Something that is called when it is read by plain pickle."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.args


def save(state: Any) -> bytes:
    """A state as torch writes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def archive(document: bytes, tensors: dict[str, bytes] | None = None, kind: int = zipfile.ZIP_STORED) -> bytes:
    """An archive like torch's around a document of one's own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as file:
        for name, content in {"data.pkl": document, "byteorder": b"little", "version": b"3\n"}.items():
            file.writestr(f"archive/{name}", content)
        for key, content in (tensors or {}).items():
            file.writestr(f"archive/data/{key}", content)
    return buffer.getvalue()


def call(module: str, name: str, arguments: bytes) -> bytes:
    """A document that calls a function with arguments given as opcodes."""
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n" + arguments + b"R."


def text(value: str) -> bytes:
    """The opcodes of a text."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """The opcodes of a whole number."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(*values: int) -> bytes:
    """The opcodes of a tuple of whole numbers."""
    return b"(" + b"".join(number(value) for value in values) + b"t"


def tensor(
    num_item: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...], kind: str = "FloatStorage"
) -> bytes:
    """A document of a state with one tensor."""
    storage = b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text("0") + text("cpu") + number(num_item)
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = b"(" + storage + b"tQ" + number(offset) + numbers(*size) + numbers(*stride) + b"\x89" + hooks + b"t"
    return b"\x80\x02}" + text("x") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def laugh(levels: int) -> bytes:
    """Lists each of which holds the one before ten times."""
    parts = [b"\x80\x02]r\x00\x00\x00\x00K\x01a"]
    for level in range(1, levels):
        before, now = struct.pack("<I", level - 1), struct.pack("<I", level)
        parts.append(b"]r" + now + b"(" + (b"j" + before) * 10 + b"e")
    return b"".join(parts) + b"}" + text("x") + b"j" + struct.pack("<I", levels - 1) + b"s."


def nested(levels: int) -> bytes:
    """Lists in lists."""
    return b"\x80\x02}" + text("x") + b"]" * levels + b"a" * (levels - 1) + b"s."


def key_of_tuples(levels: int) -> bytes:
    """A key of tuples in tuples, which a reader would have to hash."""
    return b"\x80\x02})" + b"\x85" * levels + b"K\x01s."


def laughing_key(levels: int) -> bytes:
    """A key each level of which holds the one before ten times."""
    levels_of_it = b"".join(b"(" + bytes([0x68, level - 1]) * 10 + b"tq" + bytes([level]) for level in range(1, levels))
    return b"\x80\x02})\x85q\x00" + levels_of_it + b"K\x01s."


def two_directories(seen: bytes, hidden: bytes) -> bytes:
    """An archive with two tables of contents: one where its end says, one right before its end.

    Readers that look in one place or the other see another document. Offsets of the second are those of a reader that
    takes the distance between the two for something in front of the archive.
    """
    tables, parts = [], []
    for document in (hidden, seen):
        data = archive(document)
        size, offset = struct.unpack("<II", data[-10:-2])
        parts.append(data[:offset])
        tables.append(data[offset : offset + size])
    start = len(parts[0])
    shift = len(tables[0]) + len(parts[1])
    moved, place = b"", 0
    while place < len(tables[1]):
        entry = tables[1][place:]
        length = 46 + sum(struct.unpack("<HHH", entry[28:34]))
        (offset,) = struct.unpack("<I", entry[42:46])
        offset = (offset + start + len(tables[0]) - shift) % 2**32
        moved += entry[:42] + struct.pack("<I", offset) + entry[46:length]
        place += length
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 3, 3, len(moved), start, 0)
    return parts[0] + tables[0] + parts[1] + moved + end


def end_long(data: bytes, shift: int = 0, short: tuple[int, int] = (2**32 - 1,) * 2, gap: bytes = b"") -> bytes:
    """An archive as one of more than 4 GiB ends: with records of 64 bits, and the short fields at their largest.

    The long record can name a place `shift` further on, the short fields another table, and a gap be left before.
    """
    size, offset = struct.unpack("<II", data[-10:-2])
    (count,) = struct.unpack("<H", data[-12:-10])
    body = data[: -98 if data[-98:-94] == b"PK\6\6" else -22] + gap
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset + shift)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body), 1)
    return body + end + locator + data[-22:-10] + struct.pack("<II", *short) + data[-2:]


def _move_locator(data: bytes) -> bytes:
    """The long end of an archive twice, of which the locator means the first."""
    return data[:-22] + data[-98:-22] + data[-22:]


def add_entry(data: bytes, name: str, content: bytes, attributes: int = 0) -> bytes:
    """An archive with one more entry."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as file:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = attributes << 16
        file.writestr(entry, content)
    return buffer.getvalue()


GOOD = {"x": torch.zeros(4)}
EMPTY = b"\x80\x02}."


def build_payloads() -> dict[str, bytes]:
    """What is sealed, and so has a hash that matches."""
    touch = f"touch {CANARY}"
    system = _Call(os.system, touch)
    good, two = save(GOOD), two_directories(EMPTY, laugh(12))
    size, place = struct.unpack("<II", two[-10:-2])
    bomb = archive(tensor(GIGABYTE // 2, 0, (GIGABYTE // 2,), (1,)), {"0": bytes(10**8)}, zipfile.ZIP_DEFLATED)
    plain = {
        "plain pickle that runs a command": pickle.dumps(system, 2),
        "plain pickle of the newest protocol": pickle.dumps(system, 5),
        "plain pickle that writes a file": pickle.dumps(_Call(open, CANARY, "w"), 2),
        "plain pickle of an eval": pickle.dumps(_Call(eval, f"open({CANARY!r}, 'w')"), 2),
        "old format of torch": _save_old(GOOD),
        "old format of torch that runs a command": _save_old({"x": system}),
    }
    documents = {
        "command in an archive": call("os", "system", text(touch) + b"\x85"),
        "command by the name of the platform": call("posix", "system", text(touch) + b"\x85"),
        "command by a part of a module": call("torch", "serialization.os.system", text(touch) + b"\x85"),
        "import of a module": call("builtins", "__import__", text("antigravity") + b"\x85"),
        "eval": call("builtins", "eval", text(f"open({CANARY!r}, 'w')") + b"\x85"),
        "getattr": call("builtins", "getattr", b"cos\n__dict__\n" + text("system") + b"\x86"),
        "loading of a library": call("ctypes", "CDLL", text(f"./{CANARY}.so") + b"\x85"),
        "torch.load of another file": call("torch.serialization", "load", text("other.pt") + b"\x85"),
        "download": call("torch.hub", "download_url_to_file", text("http://127.0.0.1:9/x") + text(CANARY) + b"\x86"),
        "object by NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text(touch) + b"\x85\x81.",
        "object by INST": b"(" + b"S'" + touch.encode() + b"'\nios\nsystem\n.",
        "object by OBJ": b"(cos\nsystem\n" + text(touch) + b"o.",
        "global from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(touch) + b"\x85R.",
        "state for an object": b"\x80\x02ccollections\nOrderedDict\n)R}" + text("items") + text("x") + b"sb.",
        "bytes of ten gigabytes": call("builtins", "bytearray", number(10 * GIGABYTE) + b"\x85"),
        "tensor of ten gigabytes without any": call("torch", "FloatTensor", number(10 * GIGABYTE // 4) + b"\x85"),
        "storage of ten gigabytes": call("torch.storage", "UntypedStorage", number(10 * GIGABYTE) + b"\x85"),
        "references without end": b"\x80\x02}r\xff\xff\xff\x7f.",
        "text of four gigabytes that is not there": b"\x80\x02X\xff\xff\xff\xff.",
        "list that contains itself": b"\x80\x02}" + text("x") + b"]q\x00h\x00as.",
        "laughs": laugh(12),
        "nesting": nested(200_000),
        "key of tuples": key_of_tuples(200_000),
        "key that laughs": laughing_key(14),
        "key of a tensor": tensor(4, 0, (4,), (1,)).replace(text("x"), b"").removesuffix(b"s.") + b"K\x01s.",
        "a flood of lists": b"\x80\x02" + b"]" * 8_000_000 + b"}.",
        "more than one state": b"\x80\x02]}.",
        "escape codes in a name": call("os\x1b]0;hi\x07", "system\x1b[31m", b")"),
        "a type of tensor as a value": b"\x80\x02}" + text("x") + b"ctorch\nFloatStorage\ns.",
        "no end": b"\x80\x02}" + text("x"),
        "nothing": b"",
    }
    tensors = {
        "tensor longer than its bytes": archive(tensor(GIGABYTE, 0, (GIGABYTE,), (1,)), {"0": bytes(16)}),
        "tensor that ends after its bytes": archive(tensor(4, 0, (5,), (1,)), {"0": bytes(16)}),
        "tensor that begins after its bytes": archive(tensor(4, 10**6, (4,), (1,)), {"0": bytes(16)}),
        "tensor with a step back": archive(tensor(4, 3, (4,), (-1,)), {"0": bytes(16)}),
        "one number as ten gigabytes": archive(tensor(1, 0, (10 * GIGABYTE,), (0,)), {"0": bytes(4)}),
        "tensor without its bytes": archive(tensor(4, 0, (4,), (1,))),
        "storage of an unknown type": archive(tensor(4, 0, (4,), (1,), "QInt8Storage"), {"0": bytes(4)}),
        "compressed zeros": bomb,
        "tensor of forty thousand dimensions": archive(tensor(1, 0, (2**60,) * 40_000, (0,) * 40_000), {"0": bytes(4)}),
        "empty tensor beyond all numbers": archive(tensor(4, 0, (0, 2**100), (1, 1)), {"0": bytes(16)}),
        "array of a type that numpy lacks": archive(
            _as_array(tensor(4, 0, (4,), (1,), "BFloat16Storage")), {"0": bytes(8)}
        ),
        "tensor with a gradient": archive(tensor(4, 0, (4,), (1,)).replace(b"\x89", b"\x88"), {"0": bytes(16)}),
        "hooks that are text": archive(
            tensor(4, 0, (4,), (1,)).replace(b"ccollections\nOrderedDict\n)R", text("x")), {"0": bytes(16)}
        ),
    }
    archives = {
        "name that leaves the folder": add_entry(good, f"../../{CANARY}", b"x"),
        "name by an absolute path": add_entry(good, f"/tmp/{CANARY}", b"x"),
        "link as an entry": add_entry(good, "archive/link", b"/etc/passwd", stat.S_IFLNK | 0o777),
        "two documents": add_entry(good, "archive/data.pkl", call("os", "system", text(touch) + b"\x85")),
        "archive after an archive": good + archive(call("os", "system", text(touch) + b"\x85")),
        "end that goes on": good + bytes(100),
        "header of a huge entry": _claim_size(good),
        "half an archive": good[: len(good) // 2],
        "two tables of contents": two,
        "two tables of contents with a long end": end_long(two),
        "long and short end that name two tables": end_long(two, len(two) - 22 - size - place, (size, place)),
        "long end behind a gap": end_long(good, gap=bytes(30)),
        "long end somewhere else": _move_locator(end_long(good)),
        "end without the long one that it needs": good[:-98] + good[-22:-10] + b"\xff" * 8 + good[-2:],
        "more entries than it says": good[:-14] + b"\1\0\1\0" + good[-10:],
        "two documents that differ in case": add_entry(archive(EMPTY), "archive/DATA.PKL", laugh(12)),
    }
    return {**plain, **{name: archive(document) for name, document in documents.items()}, **tensors, **archives}


def _as_array(document: bytes) -> bytes:
    """The tensor of a document as an array."""
    head = b"\x80\x02}" + text("x")
    return head + b"}" + text("__array__") + document.removeprefix(head).removesuffix(b".") + b"s."


def _save_old(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def _claim_size(data: bytes) -> bytes:
    """The table of contents says that the first entry has three gigabytes."""
    place = data.index(b"PK\1\2")
    return data[: place + 20] + struct.pack("<II", 3 * GIGABYTE, 3 * GIGABYTE) + data[place + 28 :]


def write_files(folder: Path) -> dict[str, Path]:
    """Every hostile file by what it is; those of the file system too."""
    found = {}
    for index, (name, payload) in enumerate(build_payloads().items()):
        path = folder / f"{index}.pt"
        path.write_bytes(seal(payload))
        found[name] = path
    found["pipe that no one writes to"] = folder / "pipe.pt"
    os.mkfifo(folder / "pipe.pt")
    found["link to a device without end"] = folder / "zero.pt"
    (folder / "zero.pt").symlink_to("/dev/zero")
    found["link to itself"] = folder / "loop.pt"
    (folder / "loop.pt").symlink_to("loop.pt")
    found["folder"] = folder / "folder.pt"
    (folder / "folder.pt").mkdir()
    found["file of a terabyte"] = folder / "large.pt"
    with (folder / "large.pt").open("wb") as file:
        file.truncate(10**12)
    return found
