"""The doctor on runs that were really trained: shipped specs that go well, and the same with a planted fault.

Slow: minutes on a free core. `-m slow -n 0 -s` prints what was found in each; docs/DOCTOR.md has it as a table.
"""

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from slm_lab.experiment.launch import Options, start
from slm_lab.spec.loading import load_spec

Array = np.ndarray[Any, Any]
SLOW_ENV, DRIFTING_ENV = "SlowCartPole-v0", "DriftingCartPole-v0"
STEP_SECONDS = 0.01


class SlowCartPole(CartPoleEnv):
    """Takes ten milliseconds for each step."""

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        return super().step(action)


class DriftingCartPole(gym.ObservationWrapper[Array, Any, Array]):
    """All that it observes grows with the number of observations, as from a sensor that warms up and never settles."""

    def __init__(self) -> None:
        super().__init__(CartPoleEnv())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.count = 0

    def observation(self, observation: Array) -> Array:
        self.count += 1
        return (observation + 1e-3 * self.count).astype(np.float32)


TRAINED = yaml.safe_load(Path(__file__).with_name("doctor_runs.yaml").read_text())["trained"]
HEALTHY, PLANTED = TRAINED["healthy"], TRAINED["planted"]
# one session in this process, with rows enough for a short run
SHORT = {"meta.max_session": 1, "meta.compile": False, "env.num_workers": 0, "meta.log_frequency": 200}


def find(case: dict[str, Any], data_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Train a case; the levels of what was found, by title, shown as it goes."""
    if SLOW_ENV not in gym.registry:
        gym.register(SLOW_ENV, lambda **_: SlowCartPole(), max_episode_steps=500)
        gym.register(DRIFTING_ENV, lambda **_: DriftingCartPole(), max_episode_steps=500)
    spec = load_spec(case["spec"], None, SHORT | case["changes"]).spec
    concluded = start(spec, Options(data_dir, "WARNING")).conclusion
    assert concluded is not None
    with capsys.disabled():
        sys.stdout.write(f"\n{case['spec']}: score {concluded.run.scores}\n")
        sys.stdout.writelines(f"  {one.level} {one.title}: {one.seen}\n" for one in concluded.symptoms)
    return {symptom.title: symptom.level for symptom in concluded.symptoms}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find(HEALTHY[name], tmp_path, capsys)
    assert {title for title, level in found.items() if level == "warn"} <= set(HEALTHY[name].get("finds", ()))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PLANTED[name]["finds"]) <= set(find(PLANTED[name], tmp_path, capsys))
