"""The doctor on runs that were really trained: shipped specs that go well, and the same with a planted fault.

Slow: minutes on a free core. `-m slow -n 0 -s` prints what was found in each; docs/DOCTOR.md has it as a table.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from slm_lab.experiment.launch import Options, start
from slm_lab.results.doctor import diagnose
from slm_lab.results.run import Run, read_run
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


@dataclass(frozen=True)
class Case:
    """A spec, what is changed in it, and what is to be found: a planted fault, or what is true of a run cut short."""

    spec: str
    changes: dict[str, Any]
    expected: tuple[str, ...] = ()


# one session in this process, with rows enough for a short run
SHORT = {"meta.max_session": 1, "meta.compile": False, "env.num_workers": 0, "meta.log_frequency": 200}
ACTOR_LR, CRITIC_LR, LR = "agent.net.actor_optim_spec.lr", "agent.net.critic_optim_spec.lr", "agent.net.optim_spec.lr"

# short runs of shipped specs; those that have more to learn when they end are still rising, and that is no false alarm
RISING = ("score still rising",)
HEALTHY: dict[str, Case] = {
    "PPO CartPole": Case("ppo_cartpole", {"env.max_frame": 60_000}, RISING),
    "PPO Acrobot": Case("ppo_acrobot", {"env.max_frame": 40_000}),
    "PPO HalfCheetah": Case("ppo_halfcheetah_1m", {"env.max_frame": 30_000}, RISING),
    "SARSA CartPole": Case("sarsa_boltzmann_cartpole", {"env.max_frame": 60_000}, RISING),
    "REINFORCE CartPole": Case("reinforce_cartpole", {"env.max_frame": 60_000}, RISING),
    "DDQN+PER CartPole": Case("ddqn_per_boltzmann_cartpole", {"env.max_frame": 30_000}, RISING),
    "PPO Pendulum, normalised": Case(
        "ppo_pendulum",
        {
            "env.max_frame": 80_000,
            "env.normalize_obs": True,
            "env.normalize_reward": True,
            "agent.net.lr_scheduler_spec.frame": 80_000,
            "meta.log_frequency": 1000,
        },
    ),
}

PLANTED: dict[str, Case] = {
    "observations that never settle": Case(
        "ppo_cartpole",
        {"env.max_frame": 20_000, "env.name": DRIFTING_ENV, "env.normalize_obs": True},
        ("normaliser drifting",),
    ),
    "a normalised run cut off": Case("ppo_halfcheetah_1m", {"env.max_frame": 30_000}, ("normaliser drifting",)),
    "actor's lr 0.05, no entropy bonus": Case(
        "ppo_acrobot",
        {"env.max_frame": 20_000, ACTOR_LR: 0.05, "agent.algorithm.entropy_coef_spec": 0.0},
        ("entropy collapsed early",),
    ),
    "critic's lr 1e-7": Case("ppo_cartpole", {"env.max_frame": 20_000, CRITIC_LR: 1e-7}, ("values explain nothing",)),
    "lr 1e-2, 20 epochs": Case(
        "ppo_pendulum",
        {"env.max_frame": 12_000, LR: 1e-2, "agent.algorithm.training_epoch": 20},
        ("clip fraction high",),
    ),
    "lr 1e-2, clip 0.5": Case(
        "ppo_cartpole",
        {"env.max_frame": 20_000, ACTOR_LR: 1e-2, "agent.algorithm.clip_eps_spec": 0.5},
        ("score lost again",),
    ),
    "lr 0.03, clip 0.5": Case(
        "ppo_cartpole",
        {"env.max_frame": 20_000, ACTOR_LR: 0.03, "agent.algorithm.clip_eps_spec": 0.5},
        ("KL large",),
    ),
    "gamma 0": Case(
        "ppo_cartpole", {"env.max_frame": 20_000, "agent.algorithm.gamma": 0.0}, ("no better than random",)
    ),
    "lr 1e-7": Case(
        "ppo_cartpole",
        {"env.max_frame": 20_000, ACTOR_LR: 1e-7, CRITIC_LR: 1e-7},
        ("no better than random", "values explain nothing"),
    ),
    "20,000 frames": Case("ppo_cartpole", {"env.max_frame": 20_000}, ("score still rising",)),
    "lr 0.1, targets copied at once": Case(
        "dqn_boltzmann_cartpole",
        {
            "env.max_frame": 12_000,
            LR: 0.1,
            "agent.net.polyak_coef": 1.0,
            "agent.net.clip_grad_val": None,
            "agent.memory.num_step_returns": 1,
        },
        ("Q far above returns", "no better than random"),
    ),
    "lr 0.02, 4 sessions": Case(
        "a2c_gae_cartpole",
        {"env.max_frame": 20_000, ACTOR_LR: 0.02, "meta.max_session": 4},
        ("sessions disagree",),
    ),
    "ten milliseconds per step": Case("ppo_cartpole", {"env.max_frame": 4_000, "env.name": SLOW_ENV}, ("env-bound",)),
}


def train(case: Case, data_dir: Path) -> Run:
    """The run of a case, read back from its folder."""
    if SLOW_ENV not in gym.registry:
        gym.register(SLOW_ENV, lambda **_: SlowCartPole(), max_episode_steps=500)
        gym.register(DRIFTING_ENV, lambda **_: DriftingCartPole(), max_episode_steps=500)
    spec = load_spec(case.spec, None, SHORT | case.changes).spec
    return read_run(start(spec, Options(data_dir, "WARNING")).folder)


def find(case: Case, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Levels of what was found, by title; shown as it goes."""
    run = train(case, data_dir)
    findings = diagnose(run)
    with capsys.disabled():
        sys.stdout.write(f"\n{case.spec}: score {run.scores}\n")
        sys.stdout.writelines(f"  {finding.level} {finding.title}: {finding.seen}\n" for finding in findings)
    return {finding.title: finding.level for finding in findings}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find(HEALTHY[name], tmp_path, capsys)
    assert {title for title, level in found.items() if level == "warn"} <= set(HEALTHY[name].expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PLANTED[name].expected) <= set(find(PLANTED[name], tmp_path, capsys))
