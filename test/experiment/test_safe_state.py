"""States from anyone: only tensors within their own bytes and plain data are read, and only as much as the file has."""

import struct
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.faults.hostile_states import CANARY, archive, build_payloads, end_long, save, tensor, write_files
from slm_lab.experiment import safe_state
from slm_lab.experiment.checkpoint import load_state, save_state
from slm_lab.experiment.safe_state import BadStateError, read_state
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


@pytest.mark.parametrize(
    "value", [b"bytes", {1, 2}, 1 + 2j, 2**3000, {(1, 2): 3}, {None: 1}, torch.zeros(1).to_sparse()]
)
def test_what_could_not_be_read_again_is_not_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a state"):
        save_state(tmp_path / "x.pt", {"deep": {"inside": value}})
    assert not list(tmp_path.iterdir())


def test_tensors_of_one_memory_come_back_as_such(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    save_state(tmp_path / "x.pt", {"all": flat, "part": flat[4:8]})
    again = load_state(tmp_path / "x.pt")
    again["all"][5] = -1
    assert again["part"][1] == -1
