"""The plugins of docs/EXTENDING.md: their specs are checked by what their configs say, as those of built-ins are."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slm_lab.agent.registry import ALGORITHMS
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import ALGORITHM_SPECS

PAGE = Path(__file__).parents[2] / "docs" / "EXTENDING.md"
RECURRENT = {"type": "RecurrentNet", "optim_spec": {"name": "Adam", "lr": 0.001}}
MLP = {"type": "MLPNet", "hid_layers": [8], "optim_spec": {"name": "Adam", "lr": 0.001}}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The specs of the page, with its algorithms registered while the tests run."""
    known = set(ALGORITHMS)
    files = dict(re.findall(r"`(my_\w+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
    for name in ("my_algorithm.py", "my_td3.py"):
        path = tmp_path_factory.mktemp("plugin") / name
        path.write_text(files[name])
        runpy.run_path(str(path))
    yield yaml.safe_load(files["my_specs.yaml"])
    for name in set(ALGORITHMS) - known:
        del ALGORITHMS[name], ALGORITHM_SPECS[name]


def test_plugins_are_as_short_as_the_page_says() -> None:
    blocks = dict(re.findall(r"`(my_\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
    assert len(blocks["my_td3.py"].splitlines()) <= 80


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("my_td3_pendulum", {}, None),
        ("my_td3_pendulum", {"net": {**MLP, "update_type": "polyak", "polyak_coef": 0.01}}, None),
        ("my_td3_pendulum", {"critic_net": {**MLP, "hid_layers": [16, 16]}}, None),
        ("my_td3_pendulum", {"net": RECURRENT}, "RecurrentNet"),
        ("my_algorithm_cartpole", {"net": {**MLP, "polyak_coef": 0.01}}, "has no target net"),
        ("my_algorithm_cartpole", {"net": RECURRENT}, "RecurrentNet"),
    ],
)
def test_specs_of_plugins_are_checked_by_their_configs(
    specs: dict[str, Any], name: str, changes: dict[str, Any], problem: str | None
) -> None:
    raw = {"name": name, **specs[name], "agent": {**specs[name]["agent"], **changes}}
    if problem is None:
        assert parse_spec(raw)[0].agent.algorithm.name == specs[name]["agent"]["algorithm"]["name"]
        return
    with pytest.raises(SpecError, match=problem):
        parse_spec(raw)
