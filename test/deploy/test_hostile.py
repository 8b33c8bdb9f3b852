"""Files that pretend to be an agent: one line each, nothing runs, and memory stays bounded."""

import copy
import json
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slm_lab
from bench.faults.hostile_states import CANARY, SYSTEM, entry, header
from bench.faults.hostile_states import save as save_by_torch
from slm_lab.deploy.agent_file import write_agent
from slm_lab.deploy.contract import describe_agent
from slm_lab.experiment.checkpoint.state import encode_state, load_state
from slm_lab.lib.errors import LabError
from test.deploy.agents import build

MEGABYTE = 10**6
Change = Callable[[dict[str, Any]], None]


def set_in(*path: Any, value: Any) -> Change:
    """Put a value deep into a state."""

    def change(state: dict[str, Any]) -> None:
        node = state
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def drop(*path: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        node = state
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def nest(depth: int) -> Any:
    space: Any = {"type": "Discrete", "dtype": "int64", "n": 2, "start": 0}
    for _ in range(depth):
        space = {"type": "Tuple", "parts": [space]}
    return space


def bury(depth: int) -> Any:
    """Lists within lists."""
    return [] if depth == 0 else [bury(depth - 1)]


BOX = {"type": "Box", "dtype": "float32", "shape": [6], "low": -1.0, "high": 1.0}
SPEC = ("contract", "spec")
# a file whose hash matches, with something wrong in it
CHANGES: dict[str, Change] = {
    "no contract": drop("contract"),
    "contract of another format": set_in("contract", "format", value="other"),
    "contract of the future": set_in("contract", "version", value=99),
    "version that is no number": set_in("contract", "version", value=[]),
    "no spec": drop("contract", "spec"),
    "spec that is a list": set_in(*SPEC, value=[1, 2]),
    "spec of an unknown algorithm": set_in(*SPEC, "agent", "algorithm", "name", value="os.system"),
    "spec of a net that is code": set_in(*SPEC, "agent", "net", "type", value="__import__('os')"),
    "spec with a flood of layers": set_in(*SPEC, "agent", "net", "hid_layers", value=[1] * 1_000_000),
    "spec with many layers": set_in(*SPEC, "agent", "net", "hid_layers", value=[4] * 15_000),
    "spec with layers of a terabyte": set_in(*SPEC, "agent", "net", "hid_layers", value=[10**6, 10**6]),
    "spec with layers beyond all numbers": set_in(*SPEC, "agent", "net", "hid_layers", value=[2**62, 2**62]),
    "spec with endless recurrent layers": set_in(
        *SPEC,
        "agent",
        "net",
        value={"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 4, "rnn_num_layers": 10**9},
    ),
    "spec of other layers": set_in(*SPEC, "agent", "net", "hid_layers", value=[16, 17]),
    "spec of lists in lists": set_in(*SPEC, "env", "kwargs", value={"deep": bury(100)}),
    "score that is a text": set_in("contract", "score", value="nine"),
    "score with numbers as texts": set_in(
        "contract",
        "score",
        value={"mean": "5", "low": None, "high": None, "session": None, "num_session": 1, "kind": "", "meaning": ""},
    ),
    "score without a mean": set_in("contract", "score", value={"mean": None, "low": 1.0, "high": 2.0}),
    "name that is a path": set_in("contract", "name", value="../../etc/passwd"),
    "no spaces": drop("contract", "observation"),
    "space of no kind": set_in("contract", "observation", "type", value="Graph"),
    "space of a module": set_in("contract", "observation", "type", value="package.module:Space"),
    "space of a terabyte": set_in("contract", "observation", "shape", value=[10**12]),
    "space of many large parts": set_in(
        "contract", "observation", value={"type": "Tuple", "parts": [{**BOX, "shape": [2**22]}] * 1000}
    ),
    "space of another shape": set_in("contract", "observation", "shape", value=[7]),
    "space of a size below zero": set_in("contract", "observation", "shape", value=[-6]),
    "space with bounds that are no numbers": set_in("contract", "observation", "low", value="nan"),
    "space with bounds the wrong way": set_in("contract", "observation", value={**BOX, "low": 2.0}),
    "space of objects": set_in("contract", "observation", "dtype", value="object"),
    "space nested deep": set_in("contract", "observation", value=nest(100)),
    "space without parts": set_in("contract", "action", value={"type": "Dict", "parts": []}),
    "parts of the same name": set_in(
        "contract", "observation", value={"type": "Dict", "parts": [{**BOX, "name": "a"}, {**BOX, "name": "a"}]}
    ),
    "other actions than the net has": set_in("contract", "action", "n", value=6),
    "billions of actions": set_in("contract", "action", "n", value=2**40),
    "mask that does not fit": set_in("contract", "action_mask", value=[2, 2]),
    "frame stack of none": set_in("contract", "frame_stack", value=0),
    "no weights": set_in("net", value={}),
    "weights missing": drop("net", "actor.head.weight"),
    "weights too many": set_in("net", "more", value=torch.zeros(3)),
    "weights of another shape": set_in("net", "actor.head.weight", value=torch.zeros(5, 17)),
    "weights of another type": set_in("net", "actor.head.weight", value=torch.zeros(5, 16, dtype=torch.float64)),
    "weights that are no tensors": set_in("net", "actor.head.weight", value=[1, 2, 3]),
    "weights that are not numbers": set_in("net", "actor.head.weight", value=torch.full((5, 16), torch.nan)),
    "normaliser missing": set_in("obs_normalizer", value=None),
    "normaliser of another size": set_in("obs_normalizer", "mean", value=np.zeros(5)),
    "normaliser that is not a number": set_in("obs_normalizer", "var", value=np.full(6, np.nan)),
    "normaliser of a variance below zero": set_in("obs_normalizer", "var", value=np.full(6, -1.0)),
    "secret in the spec": set_in(*SPEC, "env", "kwargs", value={"token": "hf_" + "a" * 34}),
}


def zip_of(data: bytes) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../agent.slm", data)
    return buffer.getvalue()


# bytes that are no file of ours
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "cut in its header": lambda data: data[:100],
    "cut in its weights": lambda data: data[:-40],
    "more behind its end": lambda data: data + bytes(64),
    "a bit of the header flipped": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "a bit of the weights flipped": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "hash of another file": lambda data: data.replace(b"slm-agent", b"slm-Agent"),
    "header of an exabyte": lambda data: struct.pack("<Q", 10**18) + data[8:],
    "header of 200 MB": lambda data: struct.pack("<Q", 200 * MEGABYTE) + b"{" + b" " * 1000,
    "header of lists in lists": lambda data: header(b"[" * 200_000),
    "tensor without its bytes": lambda data: header({"x": entry([10**10], 0, 4 * 10**10)}),
    "plain pickle that runs a command": lambda data: pickle.dumps(SYSTEM, 2),
    "archive of torch with a pickle": lambda data: save_by_torch({"x": torch.zeros(4)}),
    "zip with a path that leads out": zip_of,
    "JSON alone": lambda data: json.dumps({"format": "slm-agent"}).encode(),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that can be read."""
    path = tmp_path_factory.mktemp("good") / "agent.slm"
    trained = build("PPO", "vector")
    write_agent(path, trained, describe_agent(trained))
    return path


def refuse(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The line by which a file is refused; it ran nothing and took little memory."""
    monkeypatch.chdir(path.parent)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LabError) as caught:
        slm_lab.load_agent(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000, "kB of memory"
    assert not (path.parent / CANARY).exists()
    text = str(caught.value)
    assert len(text) < 1500
    return text


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_file_is_refused(name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = copy.deepcopy(load_state(good))
    CHANGES[name](state)
    path = tmp_path / "agent.slm"
    path.write_bytes(encode_state(state))
    text = refuse(path, monkeypatch)
    # a spec may have several mistakes, a line each
    assert "\n" not in text or "spec in" in text


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused(name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.slm"
    path.write_bytes(DAMAGES[name](good.read_bytes()))
    assert "\n" not in refuse(path, monkeypatch)


def test_a_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be read" in refuse(tmp_path / "agent.slm", monkeypatch)


def test_there_are_enough_of_them() -> None:
    assert len(CHANGES) + len(DAMAGES) >= 50


@pytest.mark.parametrize("name", ["package.module:Env", "canary_module:Env-v0"])
def test_the_module_of_an_env_is_never_imported(
    name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary_module.py").write_text(f"import os; os.system('touch {CANARY}')")
    monkeypatch.chdir(tmp_path)
    state = copy.deepcopy(load_state(good))
    state["contract"]["spec"]["env"] |= {"name": name, "wrappers": [{"name": name, "kwargs": {}}]}
    (tmp_path / "agent.slm").write_bytes(encode_state(state))
    assert slm_lab.load_agent("agent.slm").spec.env.name == name
    assert not (tmp_path / CANARY).exists()
