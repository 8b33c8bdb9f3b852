"""Which device a session gets."""

import pytest
import torch

from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import SpecError


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto", 3) == torch.device("cpu")
    assert pick_device("cpu", 3) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecError, match=f"^meta.device: '{name}' asked for, but torch finds no GPU"):
        pick_device(name, 0)


def test_sessions_are_spread_over_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [pick_device("auto", session).index for session in range(4)] == [0, 1, 0, 1]
    assert pick_device("cuda:1", 0) == torch.device("cuda", 1)
    assert pick_device("cpu", 1) == torch.device("cpu")
