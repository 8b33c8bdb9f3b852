"""Updates of torch's CUDA build on the null GPU, which must be preloaded: test_null.py runs this file."""

import ctypes

import pytest
import torch

from slm_lab.agent.algorithm.base import Metrics
from test.gpu.measure import build, train

# the first updates compile and capture
NUM_UPDATE = 4
# what the null GPU was asked, as runtime.cpp has it
FIELDS = "launch", "graph_launch", "graph_kernel", "sync", "upload", "download", "copy", "unsafe"
# Waits and calls of an update at most: launches, graphs and copies together.
MOST: dict[tuple[str, bool], tuple[int, int]] = {
    ("ppo", False): (18, 2208),
    ("ppo", True): (3, 71),
    ("dqn", False): (2, 58),
    ("dqn", True): (2, 29),
    ("sac", False): (4, 339),
    ("sac", True): (2, 73),
    ("crossq", False): (4, 369),
    ("crossq", True): (2, 71),
    ("ppo_conv", False): (6, 1571),
    ("ppo_conv", True): (3, 54),
    ("ppo_2048_envs", False): (482, 65628),
    ("ppo_2048_envs", True): (3, 266),
    # most are of the convolutions that take cuDNN's place
    ("ppo_atari", False): (34, 135098),
    ("ppo_atari", True): (3, 177),
}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in MOST))
def test_updates_are_launched(name: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cuda.get_device_name() == "Null GPU"
    # cuDNN finds no device; torch has convolutions of its own
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    null = ctypes.CDLL(None)
    null.nullgpu_counts.restype = ctypes.POINTER(ctypes.c_long * len(FIELDS))
    agent, env = build(name, torch.device("cuda", 0), is_compiled)
    update = agent.update
    counts: list[dict[str, int]] = []

    def counted_update(frame: int) -> Metrics | None:
        null.nullgpu_clear()
        row = update(frame)
        if row is not None:
            counts.append(dict(zip(FIELDS, null.nullgpu_counts().contents, strict=True)))
        return row

    monkeypatch.setattr(agent, "update", counted_update)
    train(agent, env, NUM_UPDATE)
    print(name, is_compiled, counts[-1])
    assert not any(count["unsafe"] for count in counts)
    steps = agent.context.guard.steps
    assert all((step.graph is not None) == is_compiled for step in steps)
    last = counts[-1]
    assert (last["graph_launch"] >= len(steps)) == is_compiled
    num_call = last["launch"] + last["graph_launch"] + last["upload"] + last["download"] + last["copy"]
    most_wait, most_call = MOST[name, is_compiled]
    assert last["sync"] <= most_wait, last
    assert num_call <= most_call, last
