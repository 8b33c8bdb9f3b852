"""Every shipped spec builds its agent and trains two updates."""

import math

import pytest

from slm_lab.spec.loading import load_spec, spec_files, spec_names

# what a spec waits for before it trains does not change how it trains
SHORT = {
    "agent.algorithm.training_epoch": 1,
    "agent.algorithm.training_start_step": 16,
    "agent.algorithm.time_horizon": 64,
    "agent.algorithm.training_frequency": 4,
}


@pytest.mark.parametrize("name", [name for path in spec_files() for name in spec_names(path)])
def test_two_updates(lab, name: str) -> None:
    spec = load_spec(name).spec
    known = spec.agent.algorithm.model_fields_set
    short = {path: value for path, value in SHORT.items() if path.rpartition(".")[2] in known}
    spec = load_spec(name, overrides=short).spec
    trained = lab.train(spec, 50_000, until=lambda agent: agent.algorithm.opt_step >= 2)
    assert trained.agent.algorithm.opt_step >= 2
    assert all(math.isfinite(value) for row in trained.metrics for key, value in row.items() if "sil" not in key)
