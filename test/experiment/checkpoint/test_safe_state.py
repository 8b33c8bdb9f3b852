"""States from anyone: only tensors within their own bytes and plain data are read, and only as much as the file has."""

import math
import struct
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from bench.faults.hostile_states import CANARY, archive, build_payloads, end_long, save, tensor, write_files
from slm_lab.experiment.checkpoint import safe_state
from slm_lab.experiment.checkpoint.safe_state import BadStateError, read_state
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.lib.errors import CheckpointError
from slm_lab.lib.io import seal

with warnings.catch_warnings():
    # one of them has two entries of one name, which zipfile remarks
    warnings.simplefilter("ignore", UserWarning)
    PAYLOADS = build_payloads()
# nothing is unpacked to a disk, so nothing follows it
HARMLESS = "link as an entry"


def test_there_are_enough_of_them() -> None:
    assert len(PAYLOADS) >= 40


@pytest.mark.parametrize("name", [name for name in PAYLOADS if name != HARMLESS])
def test_a_hostile_payload_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    path.write_bytes(seal(PAYLOADS[name]))
    with pytest.raises(CheckpointError, match="refused") as caught:
        load_state(path)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == [path]
    assert not Path("/tmp", CANARY).exists()


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        files = write_files(tmp_path)
    others = {name: path for name, path in files.items() if name not in PAYLOADS}
    assert len(others) == 5
    for path in others.values():
        with pytest.raises(CheckpointError, match=r"damaged or not a checkpoint|cannot be read") as caught:
            load_state(path)
        assert "\n" not in str(caught.value)


def test_a_refusal_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(seal(PAYLOADS["command in an archive"]))
    with pytest.raises(
        CheckpointError, match=r"x\.pt: refused \(it names os\.system, which no state of the lab has\)$"
    ):
        load_state(path)


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    kinds += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    flat = torch.arange(12.0)
    state: dict[str, Any] = {
        "kinds": [torch.ones(3, dtype=kind) for kind in kinds],
        "views": {"all": flat, "part": flat[4:8], "matrix": flat.view(3, 4).T},
        "empty": torch.zeros(0, 5),
        "none": torch.zeros(()),
        "array": np.arange(6).reshape(2, 3),
        "plain": [None, True, 2**70, -1.5, "text", {"nested": (1, 2)}],
        "repeated": torch.ones(1).expand(1000),
    }
    save_state(tmp_path / "x.pt", state)
    again = load_state(tmp_path / "x.pt")
    assert all(torch.equal(one, two) for one, two in zip(state["kinds"], again["kinds"], strict=True))
    assert torch.equal(again["views"]["matrix"], flat.view(3, 4).T)
    assert torch.equal(again["repeated"], torch.ones(1000))
    assert again["plain"] == [None, True, 2**70, -1.5, "text", {"nested": [1, 2]}]
    assert np.array_equal(again["array"], state["array"])


def test_what_is_referred_to_often_counts_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_state, "MAX_NODES", 100)
    one = [0] * 9
    read_state(save({"x": [one] * 9}))
    with pytest.raises(BadStateError, match="more than 100 entries"):
        read_state(save({"x": [one] * 10}))


def test_depth_counts_through_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_state, "MAX_DEPTH", 5)
    deep = [[[0]]]
    read_state(save({"x": [deep]}))
    # seen first where it is not too deep
    with pytest.raises(BadStateError, match="nested more than 5 deep"):
        read_state(save({"a": deep, "b": [[deep]]}))


def test_views_may_take_a_few_times_the_file() -> None:
    read_state(archive(tensor(4, 0, (10**6,), (0,)), {"0": bytes(16)}))
    with pytest.raises(BadStateError, match="many times its bytes"):
        read_state(archive(tensor(4, 0, (10**9,), (0,)), {"0": bytes(16)}))


@pytest.mark.parametrize("short", [(2**32 - 1, 2**32 - 1), (None, 2**32 - 1), (2**32 - 1, None), (None, None)])
def test_a_file_of_more_than_4_gib_is_read(short: tuple[int | None, int | None]) -> None:
    payload = save({"x": torch.arange(4.0)})
    for data in (payload, archive(tensor(4, 0, (4,), (1,)), {"0": payload[:16]})):
        real = struct.unpack("<II", data[-10:-2])
        size, place = (own if field is None else field for own, field in zip(real, short, strict=True))
        assert len(read_state(end_long(data, short=(size, place)))["x"]) == 4
    # as torch ends it itself, with too many entries for 16 bits as well
    whole = payload[:-14] + b"\xff" * 12 + payload[-2:]
    assert torch.equal(read_state(whole)["x"], torch.arange(4.0))


def test_each_changed_byte_of_the_end_is_refused_or_changes_nothing() -> None:
    payload = save({"x": torch.arange(4.0)})
    is_read = []
    for place in range(len(payload) - 98, len(payload)):
        data = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
        try:
            assert torch.equal(read_state(data)["x"], torch.arange(4.0))
        except BadStateError:
            continue
        is_read.append(place - len(payload) + 98)
    # the versions that wrote it and that it needs
    assert is_read == [12, 13, 14, 15]


def test_bytes_of_tensors_are_not_held_a_third_time() -> None:
    state = {"x": torch.zeros(20_000_000, dtype=torch.uint8)}
    payload = save(state)
    tracemalloc.start()
    read_state(payload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # torch's own memory is not traced; bytes of Python on the way to it would be
    assert peak < 5_000_000


def test_a_key_that_is_no_array_stays_what_it_is(tmp_path: Path) -> None:
    save_state(tmp_path / "x.pt", {"x": {"__array__": 5}})
    assert load_state(tmp_path / "x.pt") == {"x": {"__array__": 5}}


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_unsigned_numbers_come_back(kind: type, tmp_path: Path) -> None:
    array: np.ndarray = np.array([0, 1, np.iinfo(kind).max], kind)
    save_state(tmp_path / "x.pt", {"array": array, "tensor": torch.from_numpy(array)})
    again = load_state(tmp_path / "x.pt")
    assert again["array"].dtype == kind
    assert np.array_equal(again["array"], array)
    assert torch.equal(again["tensor"], torch.from_numpy(array))


class OwnTensor(torch.Tensor):
    """A type that torch writes down with its name."""


class OwnParameter(nn.Parameter):
    """Becomes a plain tensor once it is detached."""


def nest(levels: int, inside: Any = 0) -> Any:
    for _ in range(levels):
        inside = [inside]
    return inside


def own_tail() -> list[Any]:
    """A list that contains itself."""
    own: list[Any] = []
    own.append(own)
    return own


def freed() -> torch.Tensor:
    """A tensor whose memory was taken away."""
    tensor = torch.ones(5)
    tensor.untyped_storage().resize_(0)
    return tensor


def ragged() -> torch.Tensor:
    with warnings.catch_warnings():
        # torch says that they may change
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


LARGE = torch.zeros(2_000_000)
UNREADABLE: dict[str, Any] = {
    "bytes": b"bytes",
    "set": {1, 2},
    "complex number": 1 + 2j,
    "long number": 2**3000,
    "long number as a key": {2**3000: 1},
    "key of a tuple": {(1, 2): 3},
    "key of None": {None: 1},
    "sparse": torch.zeros(1).to_sparse(),
    "entries": [0] * 2_000_000,
    "deep": nest(99),
    "deep array": nest(97, np.zeros(1, np.uint16)),
    "itself": own_tail(),
    "meta": torch.empty(3, device="meta"),
    "lazy": nn.UninitializedParameter(),
    "subclass": torch.ones(2).as_subclass(OwnTensor),
    "nested": ragged(),
    "dimensions": torch.zeros([1] * 65),
    "freed": freed(),
    "one tensor very often": [LARGE] * 40,
    "array of objects": np.array([None]),
    "array with a mask": np.ma.masked_array([1, 2], [False, True]),
    "number that Python lacks": np.longdouble(1),
    "tensor that would come back as an array": {"__array__": torch.ones(2)},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_could_not_be_read_again_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a state.*deep\.inside"):
        save_state(tmp_path / "x.pt", {"deep": {"inside": UNREADABLE[name]}})
    assert not list(tmp_path.iterdir())


def test_steps_of_reading_are_counted_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_state, "MAX_OPCODES", 300)
    texts = [str(index) for index in range(150)]
    save_state(tmp_path / "x.pt", {"few": texts[:100]})
    load_state(tmp_path / "x.pt")
    with pytest.raises(TypeError, match=r"it has more than 300 parts \(part\.many\)"):
        save_state(tmp_path / "y.pt", {"part": {"few": texts[:50], "many": texts}})
    with pytest.raises(TypeError, match=r"more than 300 parts \(all of it together\)"):
        save_state(tmp_path / "y.pt", {"one": texts[:100], "two": texts[:100]})
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


COMPLEX = torch.complex(torch.arange(3.0), torch.arange(1.0, 4.0))
TURNED: dict[str, torch.Tensor] = {
    "conjugated": COMPLEX.conj(),
    "negated": COMPLEX.conj().imag,
    "expanded": torch.arange(1.0).expand(30_000_000),
    "parameter": nn.Parameter(torch.ones(2)),
    "own parameter": OwnParameter(torch.ones(2)),
    "as deep as it goes": torch.ones(2),
}


@pytest.mark.parametrize("name", TURNED)
def test_what_torch_writes_in_another_form_comes_back(name: str, tmp_path: Path) -> None:
    save_state(tmp_path / "x.pt", {"x": nest(98, [TURNED[name]])})
    again = load_state(tmp_path / "x.pt")["x"]
    for _ in range(99):
        (again,) = again
    assert torch.equal(again, TURNED[name])


def test_an_array_of_another_machine_comes_back(tmp_path: Path) -> None:
    save_state(tmp_path / "x.pt", {"x": np.arange(4, dtype=">i4")})
    assert np.array_equal(load_state(tmp_path / "x.pt")["x"], np.arange(4))


def is_equal(one: Any, two: Any) -> bool:
    """Whether what was read is what was written; tuples come back as lists."""
    if isinstance(one, dict):
        return type(two) is dict and list(one) == list(two) and all(is_equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(two) is list and len(one) == len(two) and all(map(is_equal, one, two))
    if isinstance(one, torch.Tensor):
        whole = [torch.empty(value.shape, dtype=value.dtype).copy_(value.detach()).flatten() for value in (one, two)]
        is_kind = type(two) is torch.Tensor and (one.dtype, one.shape) == (two.dtype, two.shape)
        return is_kind and torch.equal(*(value.view(torch.uint8) for value in whole))
    if isinstance(one, np.ndarray):
        return type(two) is np.ndarray and (one.dtype, one.shape) == (two.dtype, two.shape) and bool((one == two).all())
    return type(one) is type(two) and repr(one) == repr(two)


def change(tensor: torch.Tensor, way: str) -> torch.Tensor:
    """A view of a tensor, or another kind of it, where there is one."""
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "part": lambda: tensor[1:],
        "steps": lambda: tensor[::2],
        "turned": lambda: tensor.transpose(-1, -2),
        "expanded": lambda: tensor.unsqueeze(0).expand(40, *tensor.shape),
        "conjugated": lambda: tensor.conj(),
        "negated": lambda: tensor.conj().imag,
        "parameter": lambda: nn.Parameter(tensor),
        "own": lambda: tensor.as_subclass(OwnTensor),
        "meta": lambda: tensor.to("meta"),
        "sparse": lambda: tensor.to_sparse(),
    }
    try:
        return ways[way]()
    except (IndexError, RuntimeError):
        return tensor


DTYPES = [*safe_state.DTYPES, torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2]
WAYS = ["part", "steps", "turned", "expanded", "conjugated", "negated", "parameter", "own", "meta", "sparse"]
TENSORS = st.builds(
    lambda shape, dtype, ways: reduce(change, ways, torch.arange(math.prod(shape)).reshape(shape).to(dtype)),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(sorted(DTYPES, key=str)),
    st.lists(st.sampled_from(WAYS), max_size=3),
)
ARRAYS = st.builds(
    lambda shape, kind: np.arange(math.prod(shape)).reshape(shape).astype(kind),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from("?bBhHiIlLefdgFDGO"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.integers(2**1990, 2**2010) | st.floats() | st.text() | TENSORS
KEYS = st.text(max_size=3) | st.integers() | st.sampled_from(["__array__", "__unsigned__"])
STATES = st.recursive(
    LEAVES | ARRAYS | st.binary(max_size=2),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=3) | st.tuples(inside),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, STATES, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_written_is_read_again_as_it_was(state: dict[Any, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.pt")
        try:
            save_state(path, state)
        except TypeError:
            assert not list(Path(folder).iterdir())
            return
        assert is_equal(state, load_state(path))


def test_tensors_of_one_memory_come_back_as_such(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    save_state(tmp_path / "x.pt", {"all": flat, "part": flat[4:8]})
    again = load_state(tmp_path / "x.pt")
    again["all"][5] = -1
    assert again["part"][1] == -1
