"""Products of matrices in compiled code: the same numbers from either library."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from slm_lab.agent.compile.engine import CompiledFunction
from slm_lab.lib import runtime
from test.agent.algorithm.test_compiled import NUM_TRACED, NUM_UPDATE, compare, trace_alone

ZEN_5 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model name\t: AMD EPYC 9R45
flags\t\t: fpu avx2 avx512f avx512dq

processor\t: 1
vendor_id\t: AuthenticAMD
"""
OTHERS = {
    "Zen 4": ZEN_5.replace("26", "25"),
    "without AVX-512": ZEN_5.replace("avx512f avx512dq", ""),
    "Intel": ZEN_5.replace("AuthenticAMD", "GenuineIntel"),
    "ARM": "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\n",
}


@pytest.fixture
def products() -> Iterator[Any]:
    module = importlib.import_module("slm_lab.agent.compile.products")
    module.prefers_onednn.cache_clear()
    yield module
    module.prefers_onednn.cache_clear()


@pytest.fixture
def onednn(products: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where oneDNN is faster, and for products of every size."""
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "MIN_SIZE", 1)


@pytest.mark.parametrize("name", ["Zen 5", *OTHERS])
def test_the_library_depends_on_the_processor(
    name: str, products: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text({"Zen 5": ZEN_5, **OTHERS}[name])
    monkeypatch.setattr(runtime, "CPU_FILE", file)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert products.prefers_onednn() is (name == "Zen 5")
    assert len(products.build_decompositions()) == (2 if name == "Zen 5" else 1)
    assert (runtime.processor_name() == "AMD EPYC 9R45") is (name != "ARM")


def test_small_products_stay_with_mkl(products: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    multiply = products.build_decompositions()[torch.ops.aten.mm.default]
    called: list[tuple[int, ...]] = []
    monkeypatch.setattr(products, "multiply", lambda left, right: called.append((*left.shape, right.shape[1])))
    for rows, inner, columns in ((127, 128, 128), (128, 128, 128), (4, 256, 256), (256, 3136, 512)):
        multiply(torch.zeros(rows, inner), torch.zeros(inner, columns))
    multiply(torch.zeros(256, 256, dtype=torch.bfloat16), torch.zeros(256, 256, dtype=torch.bfloat16))
    assert called == [(128, 128, 128), (256, 3136, 512)]


@pytest.mark.usefixtures("onednn")
def test_machine_code_multiplies_tensors_of_any_strides() -> None:
    """Activations, weights as they are and transposed, and the gradient of weights, which has both transposed."""
    generator = torch.Generator().manual_seed(0)
    left, right, bias = (torch.randn(shape, generator=generator) for shape in ((24, 40), (40, 12), (12,)))

    def calc(state: Any, args: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        left, right, turned_left, turned_right, bias = args
        return {
            "plain": left @ right,
            "weights": left @ turned_right.t(),
            "both": turned_left.t() @ turned_right.t(),
            "left": turned_left.t() @ right,
            "result": (left @ right).t() * 2,
            "added": torch.relu(torch.addmm(bias, left, right)),
            "part": left[:, 10:30] @ right[5:25],
        }

    args = (left, right, left.t().contiguous(), right.t().contiguous(), bias)
    calculate = CompiledFunction(calc, [], writes=False)
    for _ in range(2):
        found, wanted = calculate(*args), calc(None, args)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("name", ["ppo-mlp", "double_dqn-mlp", "sac-mlp", "crossq-mlp", "tqc-mlp"])
def test_traced_updates_equal_plain_ones(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    compare(lab, name, NUM_TRACED)


@pytest.mark.slow
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("name", ["ppo-mlp", "double_dqn-mlp", "sac-mlp", "crossq-mlp", "tqc-mlp", "ppo-conv"])
def test_compiled_updates_equal_plain_ones(lab, name: str) -> None:
    compare(lab, name, NUM_UPDATE)
