"""Whole sessions on the pretend GPU: what is saved there resumes there, bit for bit."""

from pathlib import Path

import pytest

from slm_lab.audit.difference import find_difference
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.results.folder import RunFolder
from test.experiment.test_exactness import ARC, GAME, NAME, NORMALIZED, RECURRENT, Case, train
from test.gpu.pretend import pretend_gpu

SHORT = {"max_frame": 240}
META = {"device": "cuda:0", "rigorous_eval": 1, "eval_frequency": 120}
CASES = {
    "PPO": Case("PPO", env={**NORMALIZED, **SHORT}, meta=META),
    "Reinforce, dropout": Case("Reinforce", ARC, SHORT, meta=META),
    "ActorCritic, recurrent": Case("ActorCritic", RECURRENT, SHORT, meta=META),
    "SIL": Case("SIL", env=SHORT, meta=META),
    "DoubleDQN": Case("DoubleDQN", env=SHORT, meta=META),
    "DQN, Atari": Case(
        "DQN",
        GAME,
        {"name": "ALE/Pong-v5", "num_envs": 2, "max_frame": 120},
        meta={**META, "rigorous_eval": 0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_session_resumes_exactly(name: str, tmp_path: Path) -> None:
    spec = CASES[name].spec
    with pretend_gpu():
        whole = train(spec, tmp_path / "whole")
        stopped = train(spec, tmp_path / "stopped", stops=(spec.env.max_frame * 5 // 8,))
    assert find_difference(whole, stopped, NAME) is None
    # a session that learned, on the device: its generators are saved with it
    state = load_state(RunFolder(whole, NAME).resume_file(0, 0))["agent"]
    assert state["algorithm"]["opt_step"] > 0
    assert state["cuda_generator"] is not None
