"""Every rule finds its planted fault and nothing else; runs that went well are left alone.

The tables are made up after real ones: the levels of columns, their noise and their courses are those of shipped specs.
"""

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from slm_lab.cli import run as run_command
from slm_lab.cli.doctor import app
from slm_lab.experiment.launch import Options
from slm_lab.experiment.trial import TrialResult
from slm_lab.results.doctor import MIN_ROWS, RULES, Finding, diagnose
from slm_lab.results.metrics import Array
from slm_lab.results.run import Run, read_run

ROOT = Path(__file__).parents[2]
NUM_ROW = 400
SEEDS = range(5)
# from, to, relative noise; a course between two positive values is geometric
Course = tuple[float, float, float]

# columns of runs that went well, as they were logged
PPO: dict[str, Course] = {
    "entropy": (0.68, 0.25, 0.05),
    "explained_var": (0.3, 0.9, 0.1),
    "val_loss": (40.0, 8.0, 0.3),
    "clip_frac": (0.15, 0.035, 0.2),
    "kl": (0.005, 0.0013, 0.3),
    "grad_norm": (0.2, 0.45, 0.2),
}
# normalisers settle: their steps become smaller as they have seen more
SETTLED = {"obs_norm_shift": (0.3, 0.0015, 0.4), "reward_norm_std": (1.2, 6.0, 0.005)}
# returns are all alike in the end: nothing is left to explain, and the little there is is explained badly
SOLVED = PPO | {"explained_var": (0.3, -8.0, 0.5), "val_loss": (40.0, 1e-6, 0.5)}
DQN: dict[str, Course] = {"q": (40.0, 100.0, 0.02), "td_error": (1.0, 0.3, 0.2), "grad_norm": (5.0, 1.0, 0.3)}


def make_table(
    seed: int,
    columns: Mapping[str, Course],
    score: tuple[float, float],
    *,
    noise: float = 0.02,
    middle: float = 0.25,
    width: float = 0.05,
    best: float = math.inf,
    episode: tuple[float, float] = (100.0, 100.0),
    num_row: int = NUM_ROW,
) -> dict[str, Array]:
    """A session that learns along an S-shaped course, with scores that wander about it and stop at the best."""
    generator = np.random.default_rng(seed)
    x = np.linspace(0, 1, num_row)
    middle += generator.normal(0, 0.02)
    course = 1 / (1 + np.exp((middle - x) / width))
    course = (course - course[0]) / (course[-1] - course[0])
    # a mean over the last 100 episodes wanders rather than jumps
    steps = generator.normal(0, noise * abs(score[1] - score[0]), num_row)
    wander = np.zeros(num_row)
    for row in range(1, num_row):
        wander[row] = 0.9 * wander[row - 1] + math.sqrt(1 - 0.9**2) * steps[row]
    frame = 500.0 * np.arange(1, num_row + 1)
    length = episode[0] + (episode[1] - episode[0]) * course
    table = {
        "total_reward": np.minimum(score[0] + (score[1] - score[0]) * course + wander, best),
        "frame": frame,
        "epi": np.floor(np.cumsum(500 / length)),
        "opt_step": frame / 10,
    }
    for name, (start, end, relative) in columns.items():
        level = start * (end / start) ** course if start > 0 and end > 0 else start + (end - start) * course
        table[name] = level + relative * np.abs(level) * generator.normal(0, 1, num_row)
        if start >= 0 and end >= 0:
            table[name] = np.abs(table[name])
    # nothing is trained before the first batch is full
    for name in columns:
        table[name][0] = math.nan
    return table


def make_run(
    tables: list[dict[str, Array]],
    *,
    name: str = "PPO",
    env: str = "CartPole-v1",
    random_return: float | None = 23.68,
    gamma: float = 0.99,
    phases: Mapping[str, float] | None = None,
    **settings: Any,
) -> Run:
    algorithm = {"name": name, "gamma": gamma}
    net = {"optim_spec": {"name": "Adam", "lr": 0.001}, "actor": {}, "critic": {}}
    env_spec = {"name": env, "normalize_reward": False, "clip_reward": None, "reward_scale": 1.0} | settings
    phases = phases or {"act": 20.0, "env": 30.0, "update": 40.0, "save": 1.0}
    return Run(
        Path("data/made_up"),
        "made_up",
        0,
        {"agent": {"algorithm": algorithm, "net": net}, "env": env_spec, "meta": {"compile": "auto"}},
        dict(enumerate(tables)),
        {},
        {} if random_return is None else {"random_return": random_return},
        {session: {"phases": phases} for session in range(len(tables))},
        {},
        (),
    )


def warnings_of(run: Run) -> list[str]:
    return [finding.title for finding in diagnose(run) if finding.level == "warn"]


def sessions(seed: int, count: int, *args: Any, **kwargs: Any) -> list[dict[str, Array]]:
    return [make_table(100 * seed + session, *args, **kwargs) for session in range(count)]


# --- runs that went well


def ppo_cartpole(seed: int) -> Run:
    return make_run(sessions(seed, 4, SOLVED, (22, 500), best=500, episode=(22, 500)))


def ppo_cartpole_solved_at_once(seed: int) -> Run:
    return make_run(sessions(seed, 1, SOLVED, (22, 500), best=500, middle=0.04, width=0.01, episode=(22, 500)))


def a2c_cartpole(seed: int) -> Run:
    columns = {name: course for name, course in SOLVED.items() if name not in ("clip_frac", "kl")}
    tables = sessions(seed, 4, columns, (22, 500), best=500, middle=0.5, episode=(22, 500))
    return make_run(tables, name="ActorCritic")


def reinforce_cartpole(seed: int) -> Run:
    columns = {"entropy": (0.65, 0.4, 0.05), "grad_norm": (0.24, 0.1, 0.3)}
    return make_run(sessions(seed, 4, columns, (22, 480), noise=0.04, best=500), name="Reinforce")


def ppo_acrobot(seed: int) -> Run:
    columns = PPO | {"entropy": (1.05, 0.1, 0.05)}
    tables = sessions(seed, 4, columns, (-490, -83), middle=0.08, width=0.02)
    return make_run(tables, env="Acrobot-v1", random_return=-497.08)


def ppo_pendulum(seed: int) -> Run:
    columns = PPO | {"entropy": (1.4, -0.8, 0.1), "clip_frac": (0.34, 0.08, 0.2), "kl": (0.055, 0.008, 0.3)}
    return make_run(sessions(seed, 4, columns, (-1200, -160)), env="Pendulum-v1", random_return=-1207.6, gamma=0.95)


def ppo_pendulum_normalised(seed: int) -> Run:
    columns = PPO | SETTLED | {"entropy": (1.4, -0.8, 0.1), "reward_norm_std": (40.0, 30.0, 0.005)}
    tables = sessions(seed, 2, columns, (-1200, -160))
    return make_run(tables, env="Pendulum-v1", random_return=-1207.6, gamma=0.95, normalize_reward=True)


def ppo_lunar(seed: int) -> Run:
    columns = PPO | {"entropy": (1.3, 0.6, 0.05), "kl": (0.018, 0.005, 0.3), "clip_frac": (0.2, 0.06, 0.2)}
    tables = sessions(seed, 4, columns, (-180, 250), noise=0.03)
    return make_run(tables, env="LunarLander-v3", random_return=-192.0)


def ppo_halfcheetah(seed: int) -> Run:
    columns = PPO | SETTLED
    columns |= {"entropy": (-3.9, -7.9, 0.02), "clip_frac": (0.61, 0.5, 0.05), "kl": (0.033, 0.02, 0.3)}
    tables = sessions(seed, 1, columns, (-280, 5300), num_row=100, width=0.08)
    return make_run(tables, env="HalfCheetah-v5", random_return=-282.5, normalize_reward=True, clip_reward=10.0)


def dqn_cartpole(seed: int) -> Run:
    return make_run(sessions(seed, 4, DQN, (22, 500), best=500, episode=(22, 500)), name="DQN")


def ddqn_lunar(seed: int) -> Run:
    columns = DQN | {"q": (-25.0, 38.0, 0.05)}
    tables = sessions(seed, 4, columns, (-180, 260), episode=(100, 270))
    return make_run(tables, name="DoubleDQN", env="LunarLander-v3", random_return=-192.0)


def sac_pendulum(seed: int) -> Run:
    columns = {
        "q": (-60.0, -13.0, 0.05),
        "entropy": (0.5, -1.0, 0.05),
        "alpha": (0.9, 0.01, 0.1),
        "grad_norm": (3.0, 60.0, 0.3),
    }
    tables = sessions(seed, 2, columns, (-1300, -147), middle=0.08, width=0.02, episode=(200, 200))
    return make_run(tables, name="SoftActorCritic", env="Pendulum-v1", random_return=-1207.6)


def sac_cartpole(seed: int) -> Run:
    columns = {"q": (20.0, 95.0, 0.02), "entropy": (0.6, 0.42, 0.03), "alpha": (0.7, 0.08, 0.1)}
    tables = sessions(seed, 4, columns, (22, 498), best=500, middle=0.5, episode=(22, 498))
    return make_run(tables, name="SoftActorCritic")


def certain_and_good(seed: int) -> Run:
    columns = PPO | {"entropy": (0.6, 0.005, 0.1)}
    return make_run(sessions(seed, 2, columns, (0.5, 1.0), middle=0.1, width=0.02, best=1.0), random_return=0.5)


HEALTHY: tuple[Callable[[int], Run], ...] = (
    ppo_cartpole,
    ppo_cartpole_solved_at_once,
    a2c_cartpole,
    reinforce_cartpole,
    ppo_acrobot,
    ppo_pendulum,
    ppo_pendulum_normalised,
    ppo_lunar,
    ppo_halfcheetah,
    dqn_cartpole,
    ddqn_lunar,
    sac_pendulum,
    sac_cartpole,
    certain_and_good,
)


@pytest.mark.parametrize("make", HEALTHY)
@pytest.mark.parametrize("seed", SEEDS)
def test_runs_that_went_well_are_left_alone(make: Callable[[int], Run], seed: int) -> None:
    assert warnings_of(make(seed)) == []


# --- planted faults


def collapsed(seed: int) -> Run:
    columns = PPO | {"entropy": (0.4, 1e-6, 0.3), "clip_frac": (0.2, 1e-4, 0.3)}
    return make_run(sessions(seed, 4, columns, (22, 28), middle=0.05, width=0.01))


def collapsed_at_the_first_training(seed: int) -> Run:
    columns = PPO | {"entropy": (5e-7, 5e-7, 0.3)}
    return make_run(sessions(seed, 1, columns, (-490, -430)), env="Acrobot-v1", random_return=-497.08)


def dead_critic(seed: int) -> Run:
    columns = PPO | {"explained_var": (-0.005, -0.005, 1.0), "val_loss": (45.0, 73.0, 0.1)}
    return make_run(sessions(seed, 4, columns, (22, 200), episode=(22, 200)))


def harmful_critic_of_one_session(seed: int) -> Run:
    tables = sessions(seed, 4, SOLVED, (22, 500), best=500)
    columns = PPO | {"explained_var": (0.1, -0.4, 0.3), "val_loss": (20.0, 60.0, 0.3)}
    return make_run([*tables[:3], make_table(seed, columns, (22, 370))], name="ActorCritic")


def clipped(seed: int) -> Run:
    columns = PPO | {"clip_frac": (0.5, 0.5, 0.1), "kl": (0.05, 0.05, 0.2)}
    return make_run(sessions(seed, 2, columns, (22, 31)))


def far_steps(seed: int) -> Run:
    columns = PPO | {"clip_frac": (0.25, 0.25, 0.1), "kl": (0.2, 0.4, 0.5)}
    return make_run(sessions(seed, 2, columns, (22, 130)))


def drifting_observations(seed: int) -> Run:
    columns = PPO | {"obs_norm_shift": (0.1, 0.006, 0.3)}
    return make_run(sessions(seed, 2, columns, (22, 31)), normalize_obs=True)


def drifting_rewards_of_one_session(seed: int) -> Run:
    tables = sessions(seed, 2, PPO | SETTLED, (-280, -160))
    tables[1]["reward_norm_std"] *= np.exp(np.linspace(0, 1.6, NUM_ROW))
    return make_run(tables, env="HalfCheetah-v5", random_return=-282.5, normalize_reward=True)


def overestimated(seed: int) -> Run:
    columns = DQN | {"q": (40.0, 900.0, 0.05)}
    return make_run(sessions(seed, 4, columns, (22, 120), episode=(22, 120)), name="DQN")


def overestimated_with_costs(seed: int) -> Run:
    columns = DQN | {"q": (-25.0, 3000.0, 0.05)}
    tables = sessions(seed, 2, columns, (-180, -60), episode=(100, 200))
    return make_run(tables, name="DoubleDQN", env="LunarLander-v3", random_return=-192.0)


def overestimated_softly(seed: int) -> Run:
    columns = {"q": (20.0, 2500.0, 0.05), "entropy": (0.6, 0.5, 0.05), "alpha": (0.5, 0.5, 0.1)}
    tables = sessions(seed, 2, columns, (18, 900), episode=(20, 300))
    return make_run(tables, name="SoftActorCritic", env="Hopper-v5", random_return=16.7)


def cut_short(seed: int) -> Run:
    tables = sessions(seed, 4, PPO, (22, 420), noise=0.01, middle=0.9, width=0.2)
    return make_run(tables)


def cut_short_with_few_rows(seed: int) -> Run:
    tables = sessions(seed, 1, PPO, (-20.4, -14), noise=0.01, middle=0.95, width=0.1, num_row=60)
    return make_run(tables, env="ALE/Pong-v5", random_return=-20.33, clip_reward=1.0)


def learned_nothing(seed: int) -> Run:
    table = sessions(seed, 2, PPO | {"entropy": (0.69, 0.69, 0.005)}, (20, 20.5), noise=1.0)
    return make_run(table)


def never_rewarded(seed: int) -> Run:
    return make_run(sessions(seed, 2, DQN | {"q": (0.01, 0.01, 0.1)}, (0, 0)), name="DQN", random_return=0.0)


def one_seed_failed(seed: int) -> Run:
    tables = sessions(seed, 3, SOLVED, (22, 500), best=500)
    return make_run([*tables, make_table(seed, PPO, (22, 60))])


def two_seeds_failed(seed: int) -> Run:
    good = sessions(seed, 2, DQN | {"q": (-25.0, 38.0, 0.05)}, (-180, 260))
    bad = sessions(seed + 50, 2, DQN | {"q": (-25.0, 5.0, 0.05)}, (-180, -100))
    return make_run(good + bad, name="DoubleDQN", env="LunarLander-v3", random_return=-192.0)


def lost(seed: int) -> Run:
    tables = sessions(seed, 2, PPO, (22, 480), best=500)
    for table in tables:
        fall = np.clip((np.linspace(0, 1, NUM_ROW) - 0.6) / 0.2, 0, 1)
        table["total_reward"] -= 350 * fall
    return make_run(tables)


PLANTED: dict[Callable[[int], Run], str] = {
    collapsed: "entropy collapsed early",
    collapsed_at_the_first_training: "entropy collapsed early",
    dead_critic: "values explain nothing",
    harmful_critic_of_one_session: "values explain nothing",
    clipped: "clip fraction high",
    far_steps: "KL large",
    drifting_observations: "normaliser drifting",
    drifting_rewards_of_one_session: "normaliser drifting",
    overestimated: "Q far above returns",
    overestimated_with_costs: "Q far above returns",
    overestimated_softly: "Q far above returns",
    cut_short: "score still rising",
    cut_short_with_few_rows: "score still rising",
    learned_nothing: "no better than random",
    never_rewarded: "no better than random",
    one_seed_failed: "sessions disagree",
    two_seeds_failed: "sessions disagree",
    lost: "score lost again",
}


@pytest.mark.parametrize("make", PLANTED)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_found_and_nothing_else(make: Callable[[int], Run], seed: int) -> None:
    assert warnings_of(make(seed)) == [PLANTED[make]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_that_failed_is_not_judged(seed: int) -> None:
    run = one_seed_failed(seed)
    (failed,) = [session for session, table in run.tables.items() if table["total_reward"][-1] < 100]
    ended = [session for session in run.tables if session != failed]
    assert warnings_of(replace(run, metrics={**run.metrics, "session_index": ended, "failed": [failed]})) == []


def only(run: Run) -> Finding:
    """The one finding that is worth a change."""
    [finding] = [finding for finding in diagnose(run) if finding.level == "warn"]
    return finding


def test_a_finding_has_the_number_and_the_session() -> None:
    run = one_seed_failed(0)
    end = run.tables[3]["total_reward"][-NUM_ROW // 10 :].mean()
    assert "1 of 4 are far behind" in only(run).seen
    assert only(run).seen.endswith(f": session 3 at {end:.4g}")
    assert "session 3 of 4" in only(harmful_critic_of_one_session(0)).seen
    assert "in all sessions" in only(dead_critic(0)).seen
    assert "session" not in only(collapsed_at_the_first_training(0)).seen
    assert "random play has 23.68" in only(learned_nothing(0)).seen


@pytest.mark.parametrize("make", PLANTED)
def test_keys_are_in_the_advice_and_in_the_reference(make: Callable[[int], Run]) -> None:
    reference = (ROOT / "docs" / "SPEC.md").read_text()
    finding = only(make(0))
    assert finding.keys
    for key in finding.keys:
        assert key in finding.advice
        room, *rest = key.split(".")
        name = (rest[1] if room == "agent" else rest[0]).removeprefix("actor_").removeprefix("critic_")
        assert f"| `{name}` |" in reference


def test_the_learning_rate_is_the_one_of_the_actor_where_it_has_its_own() -> None:
    run = clipped(0)
    assert only(run).keys[0] == "agent.net.optim_spec.lr"
    net = {"actor": {"optim_spec": {"name": "Adam", "lr": 0.05}}}
    own = replace(run, spec={**run.spec, "agent": {**run.spec["agent"], "net": net}})
    assert only(own).keys[0] == "agent.net.actor_optim_spec.lr"


# --- where the lines are drawn


def test_a_high_clip_fraction_is_only_mentioned_while_the_score_is_good() -> None:
    assert [(finding.level, finding.title) for finding in diagnose(ppo_halfcheetah(0))] == [
        ("info", "clip fraction high")
    ]


def test_a_high_clip_fraction_is_held_against_a_score_that_fell() -> None:
    table = make_table(0, PPO | {"clip_frac": (0.5, 0.5, 0.1)}, (22, 480), best=500)
    assert warnings_of(make_run([table])) == []
    # to three quarters of what was gained: no more than other runs are allowed to lose
    fall = np.clip((np.linspace(0, 1, NUM_ROW) - 0.6) / 0.2, 0, 1)
    table["total_reward"] = table["total_reward"] - 0.25 * 458 * fall
    assert warnings_of(make_run([table])) == ["clip fraction high"]
    assert warnings_of(make_run([table | {"clip_frac": np.full(NUM_ROW, 0.1)}])) == []


def test_a_drifting_normaliser_is_only_mentioned_while_the_score_is_good() -> None:
    run = drifting_observations(0)
    assert [finding.level for finding in diagnose(run)] == ["warn"]
    good = {session: table | {"total_reward": 16 * table["total_reward"]} for session, table in run.tables.items()}
    [finding] = diagnose(replace(run, tables=good))
    assert (finding.level, finding.title) == ("info", "normaliser drifting")
    assert finding.meaning.endswith("the score does not suffer from it")


def test_what_drifts_is_named_with_its_number_and_its_keys() -> None:
    finding = only(drifting_observations(0))
    assert "obs_norm_shift adds up to 0.5 stds over the last fifth in all sessions" in finding.seen
    assert finding.keys == ("env.max_frame", "env.clip_obs", "env.normalize_obs")
    run = drifting_rewards_of_one_session(0)
    std = run.tables[1]["reward_norm_std"]
    finding = only(run)
    assert finding.seen == (
        f"reward_norm_std went from {std[320]:.4g} to {std[-1]:.4g} over the last fifth in session 1 of 2"
    )
    assert finding.keys == ("env.max_frame", "env.normalize_reward", "env.reward_scale")
    assert f"env.reward_scale, about {1 / std[-1]:.2g}" in finding.advice


@pytest.mark.parametrize("num_row", [100, 400, 2000])
def test_a_drift_does_not_depend_on_how_often_rows_are_written(num_row: int) -> None:
    def drifting(last_fifth: float) -> Run:
        shift = np.full(num_row, last_fifth / (num_row / 5))
        # a row without a value is as the others
        shift[-3] = math.nan
        return make_run([make_table(0, PPO, (22, 31), num_row=num_row) | {"obs_norm_shift": shift}])

    assert warnings_of(drifting(0.25)) == []
    assert warnings_of(drifting(0.35)) == ["normaliser drifting"]


@pytest.mark.parametrize("settings", [{"normalize_reward": True}, {"reward_scale": 0.1}, {"clip_reward": 1.0}])
def test_q_is_not_judged_where_learning_sees_other_rewards(settings: dict[str, Any]) -> None:
    run = overestimated(0)
    assert warnings_of(run) == ["Q far above returns"]
    assert warnings_of(replace(run, spec={**run.spec, "env": {**run.spec["env"], **settings}})) == []


def test_q_within_twice_what_was_reached_passes() -> None:
    def with_q(last: float) -> Run:
        tables = sessions(0, 1, DQN | {"q": (40.0, last, 0.001)}, (22, 120), episode=(22, 120))
        return make_run(tables, name="DQN")

    # a reward of 1 per step, gamma 0.99: 100
    assert warnings_of(with_q(180.0)) == []
    assert warnings_of(with_q(260.0)) == ["Q far above returns"]


def test_a_collapse_late_in_the_run_is_no_early_one() -> None:
    run = collapsed(0)
    for table in run.tables.values():
        table["entropy"][: NUM_ROW // 2] = 0.6
    assert warnings_of(run) == []


@pytest.mark.parametrize(
    ("phases", "title", "key"),
    [
        ({"env": 80.0, "update": 15.0, "act": 5.0}, "env-bound", "env.num_workers"),
        ({"env": 5.0, "update": 90.0, "act": 5.0}, "update-bound", "meta.compile"),
        ({"env": 10.0, "update": 20.0, "act": 70.0}, "act-bound", "env.num_envs"),
    ],
)
def test_what_takes_the_time_is_told_as_information(phases: dict[str, float], title: str, key: str) -> None:
    table = ppo_cartpole(0).tables[0]
    [finding] = diagnose(make_run([dict(table)], phases=phases))
    assert (finding.level, finding.title) == ("info", title)
    assert key in finding.keys
    # a smoke test of seconds says nothing about the time
    assert diagnose(make_run([dict(table)], phases={name: value / 20 for name, value in phases.items()})) == []


def test_a_compiled_run_is_not_told_to_compile() -> None:
    run = make_run([dict(ppo_cartpole(0).tables[0])], phases={"update": 90.0, "env": 10.0})
    compiled = replace(run, spec={**run.spec, "meta": {"compile": True}})
    assert "meta.compile" in diagnose(run)[0].keys
    assert "meta.compile" not in diagnose(compiled)[0].keys


# --- little data


def test_rows_more_often_than_trainings_hide_no_collapse() -> None:
    columns = PPO | {"entropy": (0.4, 1e-6, 0.3)}
    table = make_table(0, columns, (22, 28), middle=0.05, width=0.01, num_row=100)
    is_empty = np.arange(100) % 5 != 0
    sparse = {name: np.where(is_empty, math.nan, table[name]) for name in columns}
    assert warnings_of(make_run([table | sparse])) == ["entropy collapsed early"]
    # two values are none
    sparse["entropy"][30:50] = math.nan
    sparse["entropy"][[31, 41]] = 1e-6
    assert warnings_of(make_run([table | sparse])) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [*PLANTED, ppo_cartpole])
def test_missing_and_broken_data_silence_rules_and_never_raise(make: Callable[[int], Run]) -> None:
    run = make(0)

    def changed(change: Callable[[dict[str, Array]], Mapping[str, Array]]) -> list[str]:
        tables = {session: change(dict(table)) for session, table in run.tables.items()}
        return warnings_of(replace(run, tables=tables))

    own = [name for name in run.tables[0] if name not in ("frame", "total_reward")]
    for name in own:
        changed(lambda table, name=name: {key: column for key, column in table.items() if key != name})  # type: ignore[misc]
        for value in (math.nan, math.inf, 0.0):
            changed(lambda table, name=name, value=value: table | {name: np.full_like(table[name], value)})  # type: ignore[misc]
    # nothing but the score: what needs a column of the algorithm is silent
    by_score = {"score still rising", "sessions disagree", "score lost again"}
    assert set(changed(lambda table: {name: table[name] for name in ("frame", "total_reward")})) <= by_score
    for count in (0, 1, 2, MIN_ROWS - 1):
        assert changed(lambda table, count=count: {name: column[:count] for name, column in table.items()}) == []  # type: ignore[misc]
    assert changed(lambda table: {name: np.full_like(column, math.nan) for name, column in table.items()}) == []
    # holes: every other row without a value
    changed(
        lambda table: {name: np.where(np.arange(len(column)) % 2, column, math.nan) for name, column in table.items()}
    )
    warnings_of(replace(run, metrics={}, session_metrics={}))
    warnings_of(replace(run, metrics={"random_return": math.nan}, session_metrics={0: {"phases": None}}))
    assert "Q far above returns" not in warnings_of(replace(run, spec={}))
    assert diagnose(replace(run, tables={}, session_metrics={})) == []


def test_every_rule_has_a_planted_fault() -> None:
    assert len(set(PLANTED.values())) == len(RULES) - 1  # what takes the time is no fault


def test_every_rule_is_on_its_page() -> None:
    page = (ROOT / "docs" / "DOCTOR.md").read_text()
    assert all(f"| {title} |" in page for title in PLANTED.values())


# --- the command


def write_run(run: Run, folder: Path) -> Path:
    """A run as its files."""
    (folder / "info").mkdir(parents=True)
    for session, table in run.tables.items():
        prefix = folder / "info" / f"made_up_t0_s{session}_session"
        with prefix.with_name(f"{prefix.name}_df_train.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            for row in zip(*table.values(), strict=True):
                writer.writerow("" if math.isnan(value) else value for value in row)
        prefix.with_name(f"{prefix.name}_metrics.json").write_text(json.dumps(run.session_metrics[session]))
    (folder / "made_up_spec.yaml").write_text(yaml.safe_dump({"made_up": dict(run.spec)}))
    (folder / "made_up_t0_trial_metrics.json").write_text(json.dumps(run.metrics))
    return folder


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_the_command_says_what_was_seen_and_what_to_try(tmp_path: Path) -> None:
    folder = write_run(one_seed_failed(0), tmp_path / "data" / "a_run")
    code, out, err = call(str(folder))
    assert (code, err) == (0, "")
    assert "PPO on CartPole-v1, 4 session(s), 200,000 frames" in out
    assert "WARN  sessions disagree\n      Seen   1 of 4 are far behind" in out
    assert "Try    lower agent.net.optim_spec.lr" in out
    assert "No warnings" not in out
    # by its name in the data folder, and as the newest
    assert call("a_run", "--data-dir", str(tmp_path / "data"))[1] == out
    assert call("--data-dir", str(tmp_path / "data"))[1] == out


def test_the_command_says_that_all_is_well_or_too_short(tmp_path: Path) -> None:
    run = ppo_cartpole(0)
    well = write_run(run, tmp_path / "well")
    assert f"No warnings: {len(RULES)} rules looked at 400 rows." in call(str(well))[1]
    tables = {0: {name: column[:7] for name, column in run.tables[0].items()}}
    short = write_run(replace(run, tables=tables), tmp_path / "short")
    assert "Too short to judge: 7 row(s) with a score, 20 are needed" in call(str(short))[1]


def test_a_bad_folder_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for where, message in (("nowhere", "no run folder 'nowhere'"), (str(tmp_path / "photos"), "has no results")):
        code, out, err = call(where, "--data-dir", str(tmp_path))
        assert (code, out) == (2, "")
        assert err.startswith("Error: ")
        assert message in err
        assert err.count("\n") == 1


def conclusion(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `slm-lab run` prints at its end."""
    run = read_run(folder) if (folder / "info").exists() else None
    result = TrialResult(folder, 0, None, [], {}, 0, folder / "curve.png", run)
    run_command._conclude(result, Options(), False)
    return capsys.readouterr().out


def test_a_run_ends_with_a_line_of_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_run(dead_critic(0), tmp_path / "bad")
    assert f"\nDoctor   values explain nothing: see slm-lab doctor {bad}\n" in conclusion(bad, capsys)
    assert "\nDoctor   no warnings\n" in conclusion(write_run(ppo_cartpole(0), tmp_path / "well"), capsys)
    (tmp_path / "empty").mkdir()
    assert "Doctor" not in conclusion(tmp_path / "empty", capsys)


def with_evals(run: Run, *points: tuple[float, float], final: float | None = None) -> Run:
    """The same with evaluations at shares of each session, and one at its end."""
    evals, metrics = {}, {}
    for session, table in run.tables.items():
        frame = np.array([share for share, _ in points]) * table["frame"][-1]
        evals[session] = {"frame": frame, "total_reward": np.array([value for _, value in points])}
        metrics[session] = {} if final is None else {"final_eval": [final] * 10}
    return replace(run, eval_tables=evals, session_metrics=metrics)


def titles_of(run: Run) -> list[str]:
    return [finding.title for finding in diagnose(run)]


def test_a_rise_of_the_lagging_mean_is_none_where_evaluations_are_level() -> None:
    run = cut_short(0)
    assert "score still rising" in titles_of(run)
    assert "score still rising" not in titles_of(with_evals(run, (0.1, 150.0), (0.5, 500.0), final=500.0))
    assert "score still rising" not in titles_of(with_evals(run, (0.5, 500.0), (0.9, 500.0)))
    rising = with_evals(run, (0.1, 50.0), (0.7, 200.0), final=400.0)
    (finding,) = [finding for finding in diagnose(rising) if finding.title == "score still rising"]
    assert finding.seen.startswith("the score rose by 200 to 400 over the last fifth")
    # one from the first half says nothing about the last fifth, nor does the mean beside a final evaluation
    assert "score still rising" not in titles_of(with_evals(run, (0.1, 50.0), final=500.0))


def test_a_policy_that_evaluates_well_is_better_than_random() -> None:
    run = learned_nothing(0)
    assert "no better than random" in titles_of(run)
    assert "no better than random" not in titles_of(with_evals(run, final=500.0))
    assert "no better than random" in titles_of(with_evals(run, final=9.0))


def test_compiling_is_no_bound_and_not_part_of_the_time() -> None:
    def seen(**phases: float) -> list[str]:
        return [f.title for f in diagnose(replace(ppo_cartpole(0), session_metrics={0: {"phases": phases}}))]

    assert seen(compile=60.0, act=30.0, env=30.0) == []
    assert seen(compile=60.0, act=30.0, env=5.0) == ["act-bound"]


def test_it_needs_no_torch() -> None:
    code = "import sys, slm_lab.cli.doctor; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
