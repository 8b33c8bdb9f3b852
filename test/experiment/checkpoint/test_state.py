"""States come back bit for bit, whatever else a file holds is refused in one line, and nothing in it is run."""

import math
import tempfile
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
from safetensors.torch import load_file
from torch import nn

from bench.faults.hostile_states import CANARY, build_states, build_weights, write_files
from slm_lab.experiment.checkpoint import state as state_module
from slm_lab.experiment.checkpoint.state import DTYPES, encode_state, load_latest, load_state, save_state
from slm_lab.experiment.checkpoint.torch_file import load_weights
from slm_lab.lib.errors import CheckpointError

NAME = "x.safetensors"


def again(state: dict[Any, Any], folder: Path) -> dict[Any, Any]:
    """A state as it is read after it was written."""
    save_state(folder / NAME, state)
    return load_state(folder / NAME)


def is_equal(one: Any, two: Any) -> bool:
    """Whether what was read is what was written, to the bit and the type; tuples come back as lists."""
    if isinstance(one, dict):
        return type(two) is dict and list(one) == list(two) and all(is_equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(two) is list and len(one) == len(two) and all(map(is_equal, one, two))
    if isinstance(one, torch.Tensor):
        whole = [torch.empty(value.shape, dtype=value.dtype).copy_(value.detach()).flatten() for value in (one, two)]
        is_kind = type(two) is torch.Tensor and (one.dtype, one.shape) == (two.dtype, two.shape)
        return is_kind and torch.equal(*(value.view(torch.uint8) for value in whole))
    if isinstance(one, np.ndarray):
        is_kind = type(two) is np.ndarray and (one.dtype, one.shape) == (two.dtype, two.shape)
        return is_kind and one.tobytes() == two.tobytes()
    if isinstance(one, np.generic):
        one = one.item()
    return type(one) is type(two) and repr(one) == repr(two)


# --- what is written is read


class OwnTensor(torch.Tensor):
    """A type of someone's own."""


class OwnParameter(nn.Parameter):
    """Becomes a plain tensor once it is detached."""


FLAT = torch.arange(12.0)
COMPLEX = torch.complex(torch.arange(3.0), torch.arange(1.0, 4.0))
NAN_BITS = torch.tensor([0x7FC00001, 0x7F800002, -1], dtype=torch.int32).view(torch.float32)
GOOD: dict[str, Any] = {
    "every type": [torch.ones(3, dtype=kind) for kind in sorted(DTYPES, key=str)],
    "generator": torch.get_rng_state(),
    "bits of NaN": NAN_BITS,
    "views": {"all": FLAT, "part": FLAT[4:8], "matrix": FLAT.view(3, 4).T, "steps": FLAT[::3]},
    "a view of one number": FLAT.bfloat16()[:2][::2],
    "expanded": torch.arange(1.0).expand(1000),
    "conjugated": [COMPLEX.conj(), COMPLEX.conj().imag],
    "parameters": [nn.Parameter(torch.ones(2)), OwnParameter(torch.ones(2))],
    "empty": [torch.zeros(0, 5), torch.zeros(0), np.zeros((0, 3), np.uint8)],
    "single": [torch.tensor(3.0), np.array(3.0), np.float32(0.1), np.int64(7), np.bool_(True)],
    "arrays": [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.array([1, 2**64 - 1], np.uint64)],
    "plain": [None, True, 2**70, -(2**1000), -1.5, -0.0, math.nan, math.inf, 5e-324, "täxt \ud800\n"],
    "tuples": (1, (2, [3])),
    "keys": {1: "one", "1": "text", -5: {2: torch.ones(1)}, "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    "keys that stand for something": {"$tensor": 5, "$items": {"$array": [1]}},
    "empty ones": [{}, [], ()],
    "odd names of tensors": {"\ud800\n": torch.ones(1), "": torch.ones(2), "__metadata__": torch.ones(3)},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_state_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert is_equal({"x": GOOD[name]}, again({"x": GOOD[name]}, tmp_path))


def test_a_tensor_of_the_outermost_level_may_have_any_name(tmp_path: Path) -> None:
    state = {"__metadata__": torch.ones(3), "": torch.ones(2), 5: torch.ones(1)}
    assert is_equal(state, again(state, tmp_path))


def test_an_array_of_another_machine_comes_back_as_one_of_this(tmp_path: Path) -> None:
    assert np.array_equal(again({"x": np.arange(4, dtype=">i4")}, tmp_path)["x"], np.arange(4))


def test_the_same_state_is_the_same_file_and_any_reader_of_safetensors_reads_it(tmp_path: Path) -> None:
    state = {"modules": {"net": {"weight": torch.arange(3.0)}}, "frame": 5, "other": [torch.ones(2, dtype=torch.bool)]}
    assert len({encode_state(state) for _ in range(10)}) == 1
    save_state(tmp_path / NAME, state)
    tensors = load_file(tmp_path / NAME)
    assert tensors.keys() == {"modules.net.weight", "other.0"}
    assert torch.equal(tensors["modules.net.weight"], torch.arange(3.0))


def test_what_is_read_may_be_written_to(tmp_path: Path) -> None:
    state = again({"x": torch.zeros(3), "y": np.zeros(3)}, tmp_path)
    (tmp_path / NAME).unlink()
    state["x"][0] = state["y"][0] = 1
    assert state["x"].sum() == state["y"].sum() == 1


def test_saving_copies_the_tensors_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.zeros(10_000_000, dtype=torch.uint8)
    pointers = []
    monkeypatch.setattr(state_module, "TensorSpec", lambda **spec: pointers.append(spec["data_ptr"]))
    monkeypatch.setattr(state_module, "serialize", lambda *_: b"")
    save_state(tmp_path / NAME, {"x": large, "y": large.numpy()})
    assert pointers == [large.data_ptr()] * 2


def nest(levels: int) -> Any:
    inside: Any = 0
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


UNWRITABLE: dict[str, Any] = {
    "bytes": b"bytes",
    "set": {1, 2},
    "complex number": 1 + 2j,
    "long number": 2**20_000,
    "key of a tuple": {(1, 2): 3},
    "key of None": {None: 1},
    "key of a bool": {True: 1},
    "sparse": torch.zeros(1).to_sparse(),
    "too much": ["x" * 1000] * 10_000,
    "deep": nest(5000),
    "itself": own_tail(),
    "meta": torch.empty(3, device="meta"),
    "lazy": nn.UninitializedParameter(),
    "subclass": torch.ones(2).as_subclass(OwnTensor),
    "nested": ragged(),
    "type that safetensors lacks": torch.ones(2, dtype=torch.complex128),
    "freed": freed(),
    "array of objects": np.array([None]),
    "array with a mask": np.ma.masked_array([1, 2], [False, True]),
    "number that Python lacks": np.longdouble(1),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_could_not_be_read_again_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^a state (cannot|has|is)"):
        save_state(tmp_path / NAME, {"deep": {"inside": UNWRITABLE[name]}})
    assert not list(tmp_path.iterdir())


def change(tensor: torch.Tensor, way: str) -> torch.Tensor:
    """A view of a tensor, or another kind of it, where there is one."""
    try:
        return WAYS[way](tensor)
    except (IndexError, RuntimeError):
        return tensor


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "part": lambda tensor: tensor[1:],
    "steps": lambda tensor: tensor[::2],
    "turned": lambda tensor: tensor.transpose(-1, -2),
    "expanded": lambda tensor: tensor.unsqueeze(0).expand(40, *tensor.shape),
    "conjugated": lambda tensor: tensor.conj(),
    "negated": lambda tensor: tensor.conj().imag,
    "parameter": nn.Parameter,
    "own": lambda tensor: tensor.as_subclass(OwnTensor),
    "meta": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to_sparse(),
}
SHAPES = st.lists(st.integers(0, 3), max_size=3)
TENSORS = st.builds(
    lambda shape, dtype, ways: reduce(change, ways, torch.arange(math.prod(shape)).reshape(shape).to(dtype)),
    SHAPES,
    st.sampled_from([*sorted(DTYPES, key=str), torch.complex128, torch.float8_e5m2]),
    st.lists(st.sampled_from(sorted(WAYS)), max_size=3),
)
ARRAYS = st.builds(
    lambda shape, kind: np.arange(math.prod(shape)).reshape(shape).astype(kind),
    SHAPES,
    st.sampled_from("?bBhHiIlLefdgFDGO"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TENSORS
KEYS = st.text(max_size=3) | st.integers() | st.sampled_from(["$array", "$tensor", "$items"])
STATES = st.recursive(
    LEAVES | ARRAYS | st.binary(max_size=2),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=3) | st.tuples(inside),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, STATES, max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_written_is_read_again_as_it_was(state: dict[Any, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            read = again(state, Path(folder))
        except TypeError:
            assert not list(Path(folder).iterdir())
            return
        assert is_equal(state, read)


# --- what is not a state is refused


def test_each_flipped_bit_and_each_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / NAME
    save_state(path, {"a": torch.arange(5), "b": [np.zeros((0, 3)), {7: 1.5}, "text"], "c": torch.ones(3).bool()})
    data = path.read_bytes()
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        for damaged in (flipped, data[:place]):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                load_state(path)


READERS: dict[str, Callable[[Path], Any]] = {".safetensors": load_state, ".pt": load_weights}
PAYLOADS = {".safetensors": build_states(), ".pt": build_weights()}


@pytest.mark.parametrize(("suffix", "name"), [(suffix, name) for suffix in PAYLOADS for name in PAYLOADS[suffix]])
def test_a_hostile_file_is_refused_in_one_line(
    suffix: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"x{suffix}"
    path.write_bytes(PAYLOADS[suffix][name])
    with pytest.raises(CheckpointError, match=r"refused|damaged") as caught:
        READERS[suffix](path)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == [path]
    assert not Path("/tmp", CANARY).exists()


@pytest.mark.timeout(60)
def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    odd = [path for path in files.values() if not path.is_file() or path.stat().st_size > 10**11]
    assert len(odd) == 10
    for path in odd:
        with pytest.raises(CheckpointError, match=path.name) as caught:
            READERS[path.suffix](path)
        assert "\n" not in str(caught.value)


def test_a_state_larger_than_the_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(tmp_path / NAME, {"x": torch.zeros(2000)})
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    with pytest.raises(CheckpointError, match=r"refused \(it has 8\.\d kB, the memory of this machine 100 B\)"):
        load_state(tmp_path / NAME)


def test_a_checkpoint_of_the_version_before_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "x_ckpt-last_resume.pt").write_bytes(b"of torch")
    with pytest.raises(CheckpointError, match=r"resume\.pt: was written by another version of the lab; resume it"):
        load_latest(tmp_path / "x_ckpt-last_resume.safetensors")
