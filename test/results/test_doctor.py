"""Every rule finds its planted fault and nothing else; runs that went well are left alone.

The tables are made up after real ones: the levels of columns, their noise and their courses are those of shipped specs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
from slm_lab.lib.array import Array
from slm_lab.results.conclude import Conclusion
from slm_lab.results.doctor import RULES, Symptom, find_symptoms
from slm_lab.results.evidence import MIN_ROWS
from slm_lab.results.metrics import SessionFile, TrialMetrics
from slm_lab.results.run import Run, read_run
from test.results.sample import write_run

ROOT = Path(__file__).parents[2]
MADE = yaml.safe_load(Path(__file__).with_name("doctor_runs.yaml").read_text())
HEALTHY, PLANTED = MADE["healthy"], MADE["planted"]
NUM_ROW = 400
SEEDS = range(5)
Columns = Mapping[str, Sequence[float]]
PPO: dict[str, Any] = MADE["columns"]["PPO"]
DQN: dict[str, Any] = MADE["columns"]["DQN"]


def make_table(
    seed: int,
    columns: Columns,
    score: tuple[float, float],
    *,
    noise: float = 0.02,
    middle: float = 0.25,
    width: float = 0.05,
    best: float = math.inf,
    episode: tuple[float, float] = (100.0, 100.0),
    num_row: int = NUM_ROW,
    fall: float = 0.0,
    drift: float = 0.0,
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
    reward = np.minimum(score[0] + (score[1] - score[0]) * course + wander, best)
    table = {
        "total_reward": reward - fall * np.clip((x - 0.6) / 0.2, 0, 1),
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
        table[name][0] = math.nan
    if drift:
        table["reward_norm_std"] *= np.exp(drift * x)
    return table


def make_run(
    tables: list[dict[str, Array]],
    *,
    name: str = "PPO",
    env: str = "CartPole-v1",
    random_return: float | None = 23.68,
    gamma: float = 0.99,
    phases: Mapping[str, float] | None = None,
    algorithm: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    algorithm = {"name": name, "gamma": gamma, **(algorithm or {})}
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
        TrialMetrics(random_return=random_return),
        {session: SessionFile(phases=dict(phases)) for session in range(len(tables))},
        {},
        (),
    )


def merge(parts: Sequence[str | Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, Any]:
    """Later parts change earlier ones; what is None is left out."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= known[part] if isinstance(part, str) else part
    return {key: value for key, value in merged.items() if value is not None}


def build(entry: Mapping[str, Any], seed: int = 0) -> Run:
    """A run of the file."""
    tables = []
    for group, first in (("sessions", 100 * seed), ("others", 100 * seed + 50)):
        own = dict(entry.get(group, {"count": 0, "columns": []}))
        count, columns = own.pop("count"), merge(own.pop("columns"), MADE["columns"])
        tables += [make_table(first + index, columns, **own) for index in range(count)]
    return make_run(tables, **merge(entry.get("run", ()), MADE["runs"]))


def plant(name: str, seed: int = 0) -> Run:
    """A run with a fault."""
    return build(PLANTED[name], seed)


def warnings_of(run: Run) -> list[str]:
    return [symptom.title for symptom in find_symptoms(run) if symptom.level == "warn"]


# --- runs that went well, and planted faults


@pytest.mark.parametrize("make", HEALTHY)
@pytest.mark.parametrize("seed", SEEDS)
def test_runs_that_went_well_are_left_alone(make: str, seed: int) -> None:
    assert warnings_of(build(HEALTHY[make], seed)) == []


@pytest.mark.parametrize("make", PLANTED)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_found_and_nothing_else(make: str, seed: int) -> None:
    assert warnings_of(plant(make, seed)) == [PLANTED[make]["finds"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_that_failed_is_not_judged(seed: int) -> None:
    run = plant("one seed failed", seed)
    (failed,) = [session for session, table in run.tables.items() if table["total_reward"][-1] < 100]
    ended = [session for session in run.tables if session != failed]
    assert (
        warnings_of(
            replace(run, metrics=TrialMetrics(random_return=23.68, session_index=tuple(ended), failed=(failed,)))
        )
        == []
    )


def only(run: Run) -> Symptom:
    """The one symptom that is worth a change."""
    [symptom] = [symptom for symptom in find_symptoms(run) if symptom.level == "warn"]
    return symptom


def test_a_symptom_has_the_number_and_the_session() -> None:
    run = plant("one seed failed")
    end = run.tables[3]["total_reward"][-NUM_ROW // 10 :].mean()
    assert "1 of 4 are far behind" in only(run).seen
    assert only(run).seen.endswith(f": session 3 at {end:.4g}")
    assert "session 3 of 4" in only(plant("harmful critic of one session")).seen
    assert "in all sessions" in only(plant("dead critic")).seen
    assert "session" not in only(plant("collapsed at the first training")).seen
    assert "random play has 23.68" in only(plant("learned nothing")).seen


@pytest.mark.parametrize("make", PLANTED)
def test_keys_are_in_the_advice_and_in_the_reference(make: str) -> None:
    reference = (ROOT / "docs" / "SPEC.md").read_text()
    symptom = only(plant(make))
    assert symptom.keys
    for key in symptom.keys:
        assert key in symptom.advice
        room, *rest = key.split(".")
        name = (rest[1] if room == "agent" else rest[0]).removeprefix("actor_").removeprefix("critic_")
        assert f"| `{name}` |" in reference


def test_the_learning_rate_is_the_one_of_the_actor_where_it_has_its_own() -> None:
    run = plant("clipped")
    assert only(run).keys[0] == "agent.net.optim_spec.lr"
    net = {"actor": {"optim_spec": {"name": "Adam", "lr": 0.05}}}
    own = replace(run, spec={**run.spec, "agent": {**run.spec["agent"], "net": net}})
    assert only(own).keys[0] == "agent.net.actor_optim_spec.lr"


# --- where the lines are drawn


def test_a_high_clip_fraction_is_only_mentioned_while_the_score_is_good() -> None:
    assert [(symptom.level, symptom.title) for symptom in find_symptoms(build(HEALTHY["PPO HalfCheetah"]))] == [
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
    run = plant("drifting observations")
    assert [symptom.level for symptom in find_symptoms(run)] == ["warn"]
    good = {session: table | {"total_reward": 16 * table["total_reward"]} for session, table in run.tables.items()}
    [symptom] = find_symptoms(replace(run, tables=good))
    assert (symptom.level, symptom.title) == ("info", "normaliser drifting")
    assert symptom.meaning.endswith("the score does not suffer from it")


def test_what_drifts_is_named_with_its_number_and_its_keys() -> None:
    symptom = only(plant("drifting observations"))
    assert "obs_norm_shift adds up to 0.5 stds over the last fifth in all sessions" in symptom.seen
    assert symptom.keys == ("env.max_frame", "env.clip_obs", "env.normalize_obs")
    run = plant("drifting rewards of one session")
    std = run.tables[1]["reward_norm_std"]
    symptom = only(run)
    assert symptom.seen == (
        f"reward_norm_std went from {std[320]:.4g} to {std[-1]:.4g} over the last fifth in session 1 of 2"
    )
    assert symptom.keys == ("env.max_frame", "env.normalize_reward", "env.reward_scale")
    assert f"env.reward_scale, about {1 / std[-1]:.2g}" in symptom.advice


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
    run = plant("overestimated")
    assert warnings_of(run) == ["Q far above returns"]
    assert warnings_of(replace(run, spec={**run.spec, "env": {**run.spec["env"], **settings}})) == []


def test_q_within_twice_what_was_reached_passes() -> None:
    def with_q(last: float) -> Run:
        table = make_table(0, DQN | {"q": (40.0, last, 0.001)}, (22, 120), episode=(22, 120))
        return make_run([table], name="DQN")

    # a reward of 1 per step, gamma 0.99: 100
    assert warnings_of(with_q(180.0)) == []
    assert warnings_of(with_q(260.0)) == ["Q far above returns"]


def test_a_collapse_late_in_the_run_is_no_early_one() -> None:
    run = plant("collapsed")
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
    table = build(HEALTHY["PPO CartPole"]).tables[0]
    [symptom] = find_symptoms(make_run([dict(table)], phases=phases))
    assert (symptom.level, symptom.title) == ("info", title)
    assert key in symptom.keys
    # a smoke test of seconds says nothing about the time
    assert find_symptoms(make_run([dict(table)], phases={name: value / 20 for name, value in phases.items()})) == []


def test_a_compiled_run_is_not_told_to_compile() -> None:
    run = make_run([dict(build(HEALTHY["PPO CartPole"]).tables[0])], phases={"update": 90.0, "env": 10.0})
    compiled = replace(run, spec={**run.spec, "meta": {"compile": True}})
    assert "meta.compile" in find_symptoms(run)[0].keys
    assert "meta.compile" not in find_symptoms(compiled)[0].keys


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
@pytest.mark.parametrize("make", PLANTED)
def test_missing_and_broken_data_silence_rules_and_never_raise(make: str) -> None:
    run = plant(make)

    def changed(change: Callable[[dict[str, Array]], Mapping[str, Array]]) -> list[str]:
        tables = {session: change(dict(table)) for session, table in run.tables.items()}
        return warnings_of(replace(run, tables=tables))

    own = [name for name in run.tables[0] if name not in ("frame", "total_reward")]
    for name in own:
        changed(lambda table, name=name: {key: column for key, column in table.items() if key != name})  # type: ignore[misc]
        for value in (math.nan, math.inf, 0.0):
            changed(lambda table, name=name, value=value: table | {name: np.full_like(table[name], value)})  # type: ignore[misc]
    # nothing but the score: what needs a column of the algorithm is silent
    by_score = {"score still rising", "sessions disagree", "score dropped"}
    assert set(changed(lambda table: {name: table[name] for name in ("frame", "total_reward")})) <= by_score
    for count in (0, 1, 2, MIN_ROWS - 1):
        assert changed(lambda table, count=count: {name: column[:count] for name, column in table.items()}) == []  # type: ignore[misc]
    assert changed(lambda table: {name: np.full_like(column, math.nan) for name, column in table.items()}) == []
    # holes: every other row without a value
    changed(
        lambda table: {name: np.where(np.arange(len(column)) % 2, column, math.nan) for name, column in table.items()}
    )
    warnings_of(replace(run, metrics=None, session_metrics={}))
    warnings_of(replace(run, metrics=TrialMetrics(), session_metrics={0: SessionFile()}))
    assert "Q far above returns" not in warnings_of(replace(run, spec={}))
    assert find_symptoms(replace(run, tables={}, session_metrics={})) == []


def test_every_rule_has_a_planted_fault() -> None:
    assert len({entry["finds"] for entry in PLANTED.values()}) == len(RULES) - 1  # what takes the time is no fault


def test_every_rule_is_on_its_page() -> None:
    page = (ROOT / "docs" / "DOCTOR.md").read_text()
    assert all(f"| {entry['finds']} |" in page for entry in PLANTED.values())


# --- the command


def write(run: Run, folder: Path) -> Path:
    """A run as its files."""
    written = write_run(folder, run.tables, name="made_up", spec=run.spec, provenance={}, has_end=False)
    TrialMetrics(random_return=run.random_return).write(folder / "made_up_t0_trial_metrics.json")
    return written.path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_the_command_says_what_was_seen_and_what_to_try(tmp_path: Path) -> None:
    folder = write(plant("one seed failed"), tmp_path / "data" / "a_run")
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
    run = build(HEALTHY["PPO CartPole"])
    well = write(run, tmp_path / "well")
    assert f"No warnings: {len(RULES)} rules looked at 400 rows." in call(str(well))[1]
    tables = {0: {name: column[:7] for name, column in run.tables[0].items()}}
    short = write(replace(run, tables=tables), tmp_path / "short")
    assert "Too short to judge: 7 row(s) with a score, 20 are needed" in call(str(short))[1]
    spec = {**run.spec, "agent": {"name": "BC", "algorithm": {"name": "BC"}}}
    cloned = write(replace(run, tables=tables, spec=spec), tmp_path / "cloned")
    assert "Nothing to judge: BC learns from recorded steps, so its rows have no score" in call(str(cloned))[1]


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
    concluded = None
    if (folder / "info").exists():
        run = read_run(folder)
        concluded = Conclusion(run, TrialMetrics(), tuple(find_symptoms(run)))
    result = TrialResult(folder, 0, [], {}, 0, folder / "curve.png", concluded)
    run_command._conclude(result, Options(), False)
    return capsys.readouterr().out


def test_a_run_ends_with_a_line_of_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(plant("dead critic"), tmp_path / "bad")
    assert f"\nDoctor   values explain nothing: see slm-lab doctor {bad}\n" in conclusion(bad, capsys)
    assert "\nDoctor   no warnings\n" in conclusion(write(build(HEALTHY["PPO CartPole"]), tmp_path / "well"), capsys)
    (tmp_path / "empty").mkdir()
    assert "Doctor" not in conclusion(tmp_path / "empty", capsys)


def with_evals(run: Run, *points: tuple[float, float], final: float | None = None) -> Run:
    """The same with evaluations at shares of each session, and one at its end."""
    evals, metrics = {}, {}
    for session, table in run.tables.items():
        frame = np.array([share for share, _ in points]) * table["frame"][-1]
        evals[session] = {"frame": frame, "total_reward": np.array([value for _, value in points])}
        metrics[session] = SessionFile(final_eval=None if final is None else (final,) * 10)
    return replace(run, eval_tables=evals, session_metrics=metrics)


def titles_of(run: Run) -> list[str]:
    return [symptom.title for symptom in find_symptoms(run)]


def test_a_rise_of_the_lagging_mean_is_none_where_evaluations_are_level() -> None:
    run = plant("cut short")
    assert "score still rising" in titles_of(run)
    assert "score still rising" not in titles_of(with_evals(run, (0.1, 150.0), (0.5, 500.0), final=500.0))
    assert "score still rising" not in titles_of(with_evals(run, (0.5, 500.0), (0.9, 500.0)))
    rising = with_evals(run, (0.1, 50.0), (0.7, 200.0), final=400.0)
    (symptom,) = [symptom for symptom in find_symptoms(rising) if symptom.title == "score still rising"]
    assert symptom.seen.startswith("the score rose by 200 to 400 over the last fifth")
    # one from the first half says nothing about the last fifth, nor does the mean beside a final evaluation
    assert "score still rising" not in titles_of(with_evals(run, (0.1, 50.0), final=500.0))


def test_a_policy_that_evaluates_well_is_better_than_random() -> None:
    run = plant("learned nothing")
    assert "no better than random" in titles_of(run)
    assert "no better than random" not in titles_of(with_evals(run, final=500.0))
    assert "no better than random" in titles_of(with_evals(run, final=9.0))


def test_compiling_is_no_bound_and_not_part_of_the_time() -> None:
    def seen(**phases: float) -> list[str]:
        return [
            f.title
            for f in find_symptoms(
                replace(build(HEALTHY["PPO CartPole"]), session_metrics={0: SessionFile(phases=phases)})
            )
        ]

    assert seen(compile=60.0, act=30.0, env=30.0) == []
    assert seen(compile=60.0, act=30.0, env=5.0) == ["act-bound"]
