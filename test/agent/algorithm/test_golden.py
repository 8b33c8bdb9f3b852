"""First losses and weights of every algorithm at a fixed seed, as recorded in test/golden/.

A change here is a change of results: it belongs in a commit that says so. To record again:
`SLM_LAB_REGEN=1 python -m pytest -n0 test/agent/algorithm/test_golden.py`, then look at the difference.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from slm_lab.agent.registry import ALGORITHMS
from test.agent.algorithm.conftest import CASES
from test.agent.algorithm.test_offline import write_steps

GOLDEN = Path(__file__).parents[2] / "golden"
VARIABLE = "SLM_LAB_REGEN"
# machines differ in the last bits, and every update spreads them
TOLERANCE = 1e-4
NUM_UPDATE = 5
# algorithms that learn from a file, and whether its actions are discrete
OFFLINE = {"bc": ("BC", False), "bc_discrete": ("BC", True), "iql": ("IQL", False), "td3bc": ("TD3BC", False)}


def measure(lab, case: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the first updates, and sum and absolute sum of every parameter after them."""
    count = 0

    def is_enough(_: Any) -> bool:
        nonlocal count
        count += 1
        return count == NUM_UPDATE

    trained = lab.train(lab.spec(**case), 100_000, until=is_enough)
    weights = {
        f"{module}.{name}": [value.double().sum().item(), value.double().abs().sum().item()]
        for module, net in trained.agent.algorithm.modules.items()
        for name, value in net.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    return {"frame": trained.frame, "metrics": trained.metrics, "weights": weights}


@pytest.mark.parametrize("name", CASES)
def test_golden(lab, name: str) -> None:
    check(name, measure(lab, CASES[name]))


@pytest.mark.parametrize("name", OFFLINE)
def test_golden_offline(lab, name: str, tmp_path: Path) -> None:
    algorithm, is_discrete = OFFLINE[name]
    data = str(write_steps(tmp_path / "steps.safetensors", is_discrete))
    env = "CartPole-v1" if is_discrete else "Pendulum-v1"
    case = {"env": env, "algorithm": {"name": algorithm, "data": data}, "memory": {"name": "Replay", "batch_size": 64}}
    check(name, measure(lab, case))


def check(name: str, measured: dict[str, Any]) -> None:
    """Compare with what was recorded."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get(VARIABLE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(measured, indent=1) + "\n")
    recorded = json.loads(path.read_text())
    assert measured["frame"] == recorded["frame"]
    assert len(recorded["metrics"]) == NUM_UPDATE
    for update, (now, then) in enumerate(zip(measured["metrics"], recorded["metrics"], strict=True)):
        # a value near zero, such as the loss of standardised advantages at ratio 1, is rounding alone
        assert now == pytest.approx(then, rel=TOLERANCE, abs=1e-6), update
    assert measured["weights"].keys() == recorded["weights"].keys()
    for parameter, (total, size) in recorded["weights"].items():
        now_total, now_size = measured["weights"][parameter]
        # a sum of large and opposite weights is only as exact as the weights
        assert now_total == pytest.approx(total, rel=TOLERANCE, abs=TOLERANCE * size), parameter
        assert now_size == pytest.approx(size, rel=TOLERANCE), parameter


def test_every_algorithm_has_a_record() -> None:
    recorded = {case["algorithm"]["name"] for case in CASES.values()} | {algorithm for algorithm, _ in OFFLINE.values()}
    assert recorded == set(ALGORITHMS) - {"Random"}
