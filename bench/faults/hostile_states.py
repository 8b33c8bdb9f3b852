"""Files that pretend to be a checkpoint or weights: each would run, write, or take memory, if it were trusted."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import TensorSpec, serialize

from slm_lab.experiment.checkpoint.state import KEY, MAX_TEXT, hash_content

CANARY = "canary"
GIGABYTE = 10**9
TOUCH = f"touch {CANARY}"


class _Call:
    """Something that is called when it is read by plain pickle."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.args


SYSTEM = _Call(os.system, TOUCH)


# --- states


def forge(text: str, **tensors: torch.Tensor) -> bytes:
    """A state with a hash that matches, whatever its JSON says."""
    specs = {
        name: TensorSpec(
            dtype=str(one.dtype).removeprefix("torch."),
            shape=list(one.shape),
            data_ptr=one.data_ptr(),
            data_len=one.nbytes,
        )
        for name, one in tensors.items()
    }
    return serialize(specs, {KEY: f"{hash_content(text, tensors)} {text}"})


def header(content: Any, data: bytes = b"") -> bytes:
    """A file with a header of one's own, as an object or as text."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[int], *offsets: int, dtype: str = "F32") -> dict[str, Any]:
    """What a header says of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def build_states() -> dict[str, bytes]:
    """What is read as a checkpoint."""
    good = forge('{"x": {"$tensor": "x"}}', x=torch.zeros(4))
    headers = {
        "nothing": b"",
        "plain pickle that runs a command": pickle.dumps(SYSTEM, 2),
        "archive of torch": save({"x": torch.zeros(4)}),
        "half a header": good[:20],
        "half a file": good[:-8],
        "end that goes on": good + bytes(100),
        "header of an exabyte": struct.pack("<Q", 10**18) + b"{}",
        "header longer than the file": struct.pack("<Q", 10**6) + b"{}",
        "header that is no JSON": header(b"\x80\x02}."),
        "header that is no text": header(b'{"\xff": 1}'),
        "header of lists in lists": header(b"[" * 200_000),
        "tensor of ten gigabytes without any": header({"x": entry([10 * GIGABYTE], 0, 40 * GIGABYTE)}),
        "tensor longer than its bytes": header({"x": entry([5], 0, 16)}, bytes(16)),
        "tensor that begins after its bytes": header({"x": entry([4], 10**6, 10**6 + 16)}, bytes(16)),
        "tensor that ends before it begins": header({"x": entry([4], 16, 0)}, bytes(16)),
        "tensors on top of each other": header({"x": entry([4], 0, 16), "y": entry([4], 0, 16)}, bytes(16)),
        "tensor beyond all numbers": header({"x": entry([2**63, 2**63], 0, 16)}, bytes(16)),
        "tensor of a size below zero": header({"x": entry([-4], 0, 16)}, bytes(16)),
        "tensor of an unknown type": header({"x": entry([4], 0, 16, dtype="OBJECT")}, bytes(16)),
        "tensor of half a byte": header({"x": entry([4], 0, 2, dtype="F4")}, bytes(2)),
        "no state beside the tensors": header({"x": entry([4], 0, 16)}, bytes(16)),
        "hash of another state": good.replace(b"$tensor", b"$TENSOR"),
    }
    texts = {
        "no JSON": "{",
        "nesting": "[" * 200_000 + "]" * 200_000,
        "a flood of lists": '{"x": [' + "[]," * (MAX_TEXT // 2) + "[]]}",
        "number without end": '{"x": ' + "9" * 100_000 + "}",
        "no state": "5",
        "list of states": "[{}]",
        "tensor that is not there": '{"x": {"$tensor": "y"}}',
        "tensor by a list": '{"x": {"$tensor": []}}',
        "array that is not there": '{"x": {"$array": "y"}}',
        "items that are none": '{"x": {"$items": 5}}',
        "items without values": '{"x": {"$items": [[1]]}}',
        "key of a list": '{"x": {"$items": [[[], 1]]}}',
    }
    return {
        **headers,
        **{name: forge(text) for name, text in texts.items()},
        "array of a type that numpy lacks": forge('{"x": {"$array": "x"}}', x=torch.zeros(4, dtype=torch.bfloat16)),
    }


# --- weights of others, which torch wrote


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


def build_weights() -> dict[str, bytes]:
    """What is read as the weights of a published run."""
    good = save({"x": torch.zeros(4)})
    old = io.BytesIO()
    torch.save({"x": torch.zeros(4)}, old, _use_new_zipfile_serialization=False)
    plain = {
        "nothing": b"",
        "plain pickle that runs a command": pickle.dumps(SYSTEM, 2),
        "plain pickle of an eval": pickle.dumps(_Call(eval, f"open({CANARY!r}, 'w')"), 2),
        "old format of torch": old.getvalue(),
        "half an archive": good[: len(good) // 2],
    }
    documents = {
        "command": call("os", "system", text(TOUCH) + b"\x85"),
        "command by a part of a module": call("torch", "serialization.os.system", text(TOUCH) + b"\x85"),
        "import of a module": call("builtins", "__import__", text("antigravity") + b"\x85"),
        "loading of a library": call("ctypes", "CDLL", text(f"./{CANARY}.so") + b"\x85"),
        "torch.load of another file": call("torch.serialization", "load", text("other.pt") + b"\x85"),
        "download": call("torch.hub", "download_url_to_file", text("http://127.0.0.1:9/x") + text(CANARY) + b"\x86"),
        "object by NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text(TOUCH) + b"\x85\x81.",
        "object by INST": b"(" + b"S'" + TOUCH.encode() + b"'\nios\nsystem\n.",
        "global from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(TOUCH) + b"\x85R.",
        "bytes of ten gigabytes": call("builtins", "bytearray", number(10 * GIGABYTE) + b"\x85"),
        "tensor of ten gigabytes without any": call("torch", "FloatTensor", number(10 * GIGABYTE // 4) + b"\x85"),
        "storage of ten gigabytes": call("torch.storage", "UntypedStorage", number(10 * GIGABYTE) + b"\x85"),
        "text of four gigabytes that is not there": b"\x80\x02X\xff\xff\xff\xff.",
        "nesting": b"\x80\x02}" + text("x") + b"]" * 200_000 + b"a" * 199_999 + b"s.",
        "key of tuples": b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
        "a flood of lists": b"\x80\x02" + b"]" * 8_000_000 + b"}.",
        "escape codes in a name": call("os\x1b]0;hi\x07", "system\x1b[31m", b")"),
        "a type of tensor as a value": b"\x80\x02}" + text("x") + b"ctorch\nFloatStorage\ns.",
        "no end": b"\x80\x02}" + text("x"),
    }
    bomb = archive(tensor(GIGABYTE // 2, 0, (GIGABYTE // 2,), (1,)), {"0": bytes(10**8)}, zipfile.ZIP_DEFLATED)
    tensors = {
        "tensor longer than its bytes": archive(tensor(GIGABYTE, 0, (GIGABYTE,), (1,)), {"0": bytes(16)}),
        "tensor that ends after its bytes": archive(tensor(4, 0, (5,), (1,)), {"0": bytes(16)}),
        "tensor with a step back": archive(tensor(4, 3, (4,), (-1,)), {"0": bytes(16)}),
        "one number as ten gigabytes": archive(tensor(1, 0, (10 * GIGABYTE,), (0,)), {"0": bytes(4)}),
        "tensor without its bytes": archive(tensor(4, 0, (4,), (1,))),
        "tensor of forty thousand dimensions": archive(tensor(1, 0, (2**60,) * 40_000, (0,) * 40_000), {"0": bytes(4)}),
        "compressed zeros": bomb,
    }
    return {**plain, **{name: archive(document) for name, document in documents.items()}, **tensors}


# --- as files


def write_files(folder: Path) -> dict[str, Path]:
    """Every hostile file by what it is; those of the file system too."""
    found: dict[str, Path] = {}
    for kind, suffix, payloads in (("state", ".safetensors", build_states()), ("weights", ".pt", build_weights())):
        for index, (name, payload) in enumerate(payloads.items()):
            path = folder / f"{index}{suffix}"
            path.write_bytes(payload)
            found[f"{kind}: {name}"] = path
        for name, make in ODD_FILES.items():
            path = folder / f"{name.split()[0]}{suffix}"
            make(path)
            found[f"{kind}: {name}"] = path
    return found


def _make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


ODD_FILES: dict[str, Callable[[Path], None]] = {
    "pipe that no one writes to": os.mkfifo,
    "device without end": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "terabyte": _make_large,
}
