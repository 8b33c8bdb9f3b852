"""`slm-lab doctor --gpu`, on the pretend GPU."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from slm_lab.agent.algorithm.base import Metrics
from slm_lab.agent.algorithm.sac import SoftActorCritic
from slm_lab.agent.compile.capture import CapturedFunction
from slm_lab.agent.learn.gradient import Loss
from slm_lab.audit import gpu
from test.cli.command import call
from test.gpu.graphs import pretend_graphs
from test.gpu.pretend import CUDA, pretend_gpu

# algorithm, memory, net, env
SMALL: gpu.Case = (
    {"name": "SoftActorCritic", "training_start_step": 16, "training_iter": 1},
    {**gpu.REPLAY, "batch_size": 16},
    {**gpu.MLP, "hid_layers": [16]},
    gpu.PENDULUM,
)


@pytest.fixture
def small_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pretend GPU, and short checks of a small SAC alone."""
    monkeypatch.setattr(gpu, "CASES", {"SAC": SMALL})
    monkeypatch.setattr(gpu, "COMPILED", ("SAC",))
    monkeypatch.setattr(gpu, "SWEPT", ())
    monkeypatch.setattr(gpu, "NUM_WARM", 1)
    monkeypatch.setattr(gpu, "NUM_UPDATE", 1)
    monkeypatch.setattr(gpu, "SPEED_SECONDS", 0.01)
    # whatever is installed here
    monkeypatch.setattr("slm_lab.experiment.compilation._find_machine_obstacle", lambda agent: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pretend_gpu(), pretend_graphs():
        yield


def run_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = call(monkeypatch, "doctor", "--gpu")
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", gpu.CASES)
def test_every_case_has_the_numbers_of_the_cpu(name: str) -> None:
    with pretend_gpu():
        assert gpu.compare(CUDA, gpu.CASES[name], False).endswith("of the CPU's")


@pytest.mark.usefixtures("small_checks")
def test_updates_as_one_launch_are_those_of_plain_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ({**gpu.HORIZON, "training_epoch": 2}, {"name": "OnPolicyBatchReplay"}, SMALL[2], gpu.CARTPOLE)
    assert gpu.compare_updates(CUDA, case).endswith("of plain calls")
    monkeypatch.setattr(CapturedFunction, "__call__", lambda self, inputs: [self.launch(), *self.results][1:])
    with pytest.raises(gpu.CheckFailedError, match="is rounding"):
        gpu.compare_updates(CUDA, case)


@pytest.mark.usefixtures("small_checks")
def test_a_good_gpu_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, (device, *checks, playground, end) = run_doctor(monkeypatch, capsys)
    assert code == 0
    assert device.startswith("ok      device                      Pretend GPU, sm_80, 40.0 of 40.0 GB free, torch ")
    assert [line[:36].split() for line in checks] == [
        ["ok", "SAC:", "numbers"],
        ["ok", "SAC:", "numbers,", "compiled"],
        ["ok", "SAC:", "repeat,", "compiled"],
        ["ok", "SAC:", "waits,", "compiled"],
        ["ok", "SAC:", "speed"],
    ]
    assert "losses within 0.0e+00, steps within 0.0e+00 of the CPU's" in checks[0]
    assert "per update" in checks[3]
    assert "GPU compiled" in checks[4]
    assert playground.startswith("skipped Playground")
    assert end == "The GPU does what the CPU does"


@pytest.mark.usefixtures("small_checks")
def test_a_bad_gpu_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It has errors of a percent, other numbers each time, and waits; what raises does not end the checks."""
    calc_loss, gather, number = SoftActorCritic.calc_critic_loss, SoftActorCritic.gather, count()

    def calc_wrong(self: SoftActorCritic, batch: Any, *rest: Any) -> Loss:
        loss, report = calc_loss(self, batch, *rest)
        return Loss(loss * 1.01 if batch.reward.is_cuda else loss, report)

    def gather_other(self: SoftActorCritic, *args: Any) -> Metrics:
        return {**gather(self, *args), "loss": float(next(number))}

    def fail(*_: Any) -> str:
        raise RuntimeError("no kernel image is available\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(SoftActorCritic, "calc_critic_loss", calc_wrong)
    monkeypatch.setattr(SoftActorCritic, "gather", gather_other)
    monkeypatch.setattr(gpu, "MAX_STEP_WAIT", 0)
    monkeypatch.setattr(gpu, "measure_speed", fail)
    code, (_, numbers, _, repeat, waits, speed, _, end) = run_doctor(monkeypatch, capsys)
    assert code == 1
    assert numbers.startswith("FAILED  SAC: numbers")
    assert numbers.endswith("at most 0.001 and 0.01 is rounding")
    assert repeat.endswith("the same seed gave other numbers in update 1: loss")
    assert "1 per step" in waits
    assert waits.endswith("at most 0 and 4 are needed")
    assert speed == "FAILED  SAC: speed                  RuntimeError: no kernel image is available"
    assert end == "4 check(s) failed"


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert call(monkeypatch, "doctor", "--gpu") == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: --gpu: torch finds no GPU here: torch ")
    assert error.count("\n") == 1
