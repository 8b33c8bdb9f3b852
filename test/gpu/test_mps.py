"""Every algorithm and kind of net on a GPU of Apple that is not there: no float64, no mixed devices, same numbers."""

import pytest
import torch

from slm_lab.experiment.compilation import resolve_compile
from slm_lab.lib.device import has_float64, pick_device, to_widest
from slm_lab.lib.errors import SpecError
from test.agent.conftest import Lab
from test.gpu.cases import CASES, ROUNDED
from test.gpu.ledger import DeviceError
from test.gpu.measure import HOST, build, train
from test.gpu.pretend import MPS, pretend_mps

# priorities are drawn in single precision, so other transitions come
PRIORITIZED = ("double_dqn_dueling_per", "rainbow", "sac_discrete", "ddpg", "sil", "ppo_sil")
# observations from the replay are normalised in single precision
NORMALISED = ("sac", "crossq", "td3", "tqc", "xqc")
NUM_UPDATE = 2


@pytest.mark.parametrize("name", CASES)
def test_trains_without_float64(name) -> None:
    host = train(*build(name, HOST), NUM_UPDATE)
    with pretend_mps():
        rows = train(*build(name, MPS), NUM_UPDATE)
    assert [row.keys() for row in rows] == [row.keys() for row in host]
    if name in PRIORITIZED:
        return
    close = {"rel": 1e-3, "abs": 1e-4} if any(part in name for part in ROUNDED) else {"rel": 1e-6, "abs": 1e-6}
    if name in NORMALISED:
        close = {"rel": 0.02, "abs": 0.02}
    for one, two in zip(host, rows, strict=True):
        assert two == pytest.approx(one, nan_ok=True, **close)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.zeros(2, dtype=torch.float64, device=MPS),
        lambda: torch.zeros(2, device=MPS).double(),
        lambda: torch.zeros(2, dtype=torch.float64).to(MPS),
    ],
    ids=["made", "turned", "moved"],
)
def test_the_pretended_device_has_no_float64(ask) -> None:
    with pretend_mps(), pytest.raises(DeviceError, match="mps has no float64"):
        ask()


def test_only_the_host_and_cuda_compute_in_double_precision() -> None:
    with pretend_mps():
        assert to_widest(torch.zeros(2, device=MPS)).dtype is torch.float32
    assert to_widest(torch.zeros(2)).dtype is torch.float64
    assert [has_float64(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [True, True, False]


def test_it_is_chosen_by_name_alone(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps", 1) == torch.device("mps")
    assert pick_device("auto", 0) == HOST
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(SpecError, match=r"^meta.device: 'mps' asked for, but torch finds no GPU of Apple here; use"):
        pick_device("mps", 0)


def test_updates_are_not_compiled_for_it() -> None:
    spec = Lab().spec(**CASES["ppo"]).replace(meta={"device": "mps"})
    with pretend_mps():
        agent, env = build("ppo", MPS)
        env.close()
        resolved, note = resolve_compile(spec.replace(meta={"compile": "auto"}), agent)
    assert resolved.meta.compile is False
    assert "cannot be compiled" in note
