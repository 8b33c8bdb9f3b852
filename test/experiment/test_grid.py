"""Experiment files: which runs they stand for, that only new work is done, and what is written."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.api import run_experiment
from slm_lab.audit.difference import find_difference
from slm_lab.experiment import grid_run
from slm_lab.experiment.executor import Event, SessionTask
from slm_lab.experiment.grid import build_cells
from slm_lab.experiment.grid_run import GridResult
from slm_lab.lib.errors import LabError, RunFolderError, SpecError
from slm_lab.lib.io import lock_file, write_yaml
from slm_lab.spec.grid import parse_experiment
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from test.tiny import InlineExecutor

SHORT = {
    "env.max_frame": 600,
    "env.max_t": 60,
    "meta.log_frequency": 200,
    "meta.final_eval": 2,
    "meta.rigorous_eval": 0,
}


class Counting(InlineExecutor):
    """Remembers what was trained; `num_left` sessions from now on the machine fails."""

    def __init__(self, trained: list[tuple[str, int]], num_left: int = 10_000) -> None:
        super().__init__()
        self.trained, self.num_left = trained, num_left

    def poll(self, timeout: float) -> list[Event]:
        if not self.num_left:
            raise KeyboardInterrupt
        self.num_left -= 1
        task: SessionTask = self.waiting[0]
        self.trained.append((task.folder.name, task.session))
        return super().poll(timeout)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The sessions that were trained, by the name of their folder and their number."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(grid_run, "build_executor", lambda *_: Counting(found))
    return found


def inline_spec(spec: Spec) -> dict[str, Any]:
    content: dict[str, Any] = dump_spec(spec)[spec.name]
    return content


@pytest.fixture
def experiment(tiny_spec: Callable[..., Spec]) -> dict[str, Any]:
    """Two algorithms on two envs with two seeds."""
    specs = [{"spec": inline_spec(tiny_spec(name))} for name in ("PPO", "Reinforce")]
    return {"name": "grid", "specs": specs, "envs": ["CartPole-v1", "Acrobot-v1"], "seeds": 2, "set": dict(SHORT)}


def run(experiment: dict[str, Any], place: Path) -> GridResult:
    return run_experiment(experiment, data_dir=place)


@pytest.mark.usefixtures("undrawn")
def test_only_what_is_new_is_trained(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_run, "build_executor", lambda *_: Counting(trained, 3))
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path)
    monkeypatch.setattr(grid_run, "build_executor", lambda *_: Counting(trained))
    result = run(experiment, tmp_path)
    assert (result.num_before, result.num_trained) == (3, 5)
    assert len(trained) == len(set(trained)) == 8
    # once more: nothing to do
    result = run(experiment, tmp_path)
    assert (result.num_before, result.num_trained, len(trained)) == (8, 0, 8)
    # a seed more, and an env more
    result = run({**experiment, "seeds": 3, "envs": [*experiment["envs"], "MountainCar-v0"]}, tmp_path)
    assert (result.num_before, result.num_trained) == (8, 10)
    assert {session for name, session in trained[8:] if "mountaincar" not in name} == {2}
    # a longer budget continues every session
    longer = {**experiment, "seeds": 3, "set": {**SHORT, "env.max_frame": 800}}
    assert run(longer, tmp_path).num_trained == 12
    whole = run({**longer, "name": "whole"}, tmp_path)
    for title, one in whole.runs.items():
        other = tmp_path / "grid" / one.path.name
        assert [find_difference(one.path, other, one.name, session) for session in range(3)] == [None] * 3, title


def test_the_end_has_tables_figures_and_a_page(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    result = run(experiment, tmp_path)
    assert result.exit_code == 0
    assert result.labels == ["PPO", "PPO", "REINFORCE", "REINFORCE"]
    files = result.files
    assert files is not None
    with files.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], row["env"], row["sessions"]) for row in rows] == [
        (algorithm, env, "2") for env in ("CartPole-v1", "Acrobot-v1") for algorithm in ("PPO", "REINFORCE")
    ]
    assert files.aggregates is not None
    assert {"CartPole-v1", "Acrobot-v1"} == set(files.aggregates.scales) | set(files.aggregates.left_out)
    names = {path.name.split("_multi")[0] for path in files.figures}
    assert names == {"CartPole-v1", "Acrobot-v1", "all"}
    assert {path.suffix for path in files.figures} == {".png", ".pdf"}
    assert all(path.stat().st_size > 5000 for path in files.figures)
    assert "Over all envs" in files.page.read_text()
    # each run is one like any other
    assert all((one.path / "report.html").exists() for one in result.runs.values())


def cells(experiment: dict[str, Any], place: Path) -> dict[str, Spec]:
    found = build_cells(parse_experiment(experiment, "x"), place / "x.yaml", place / "data", {})
    return {f"{cell.folder.path.name}|{cell.label}": cell.spec for cell in found}


def test_specs_by_name_by_file_and_inline(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    write_yaml(tmp_path / "mine.yaml", dump_spec(tiny_spec(name="one")) | dump_spec(tiny_spec("DQN", name="two")))
    experiment = {
        "specs": [
            "ppo_cartpole",
            "mine.yaml:one",
            {"spec": "mine.yaml:two", "label": "Mine, wide", "set": {"agent.net.hid_layers": [99]}},
        ],
        "envs": ["CartPole-v1", {"name": "Acrobot-v1", "set": {"env.max_frame": 700}}],
        "runs": [{"spec": inline_spec(tiny_spec("Reinforce")), "label": "alone", "seeds": 7}],
        "seeds": 3,
        "set": {"env.max_frame": 900},
    }
    found = cells(experiment, tmp_path)
    assert list(found) == [
        "ppo_cartpole_cartpole|ppo_cartpole",
        "ppo_cartpole_acrobot|ppo_cartpole",
        "one_cartpole|one",
        "one_acrobot|one",
        "mine_wide_cartpole|Mine, wide",
        "mine_wide_acrobot|Mine, wide",
        "alone_cartpole|alone",
    ]
    assert [spec.env.max_frame for spec in found.values()] == [900, 700, 900, 700, 900, 700, 900]
    assert [spec.meta.max_session for spec in found.values()] == [3] * 6 + [7]
    assert dump_spec(found["mine_wide_acrobot|Mine, wide"])["two_acrobot"]["agent"]["net"]["hid_layers"] == [99]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specs": []}, r"has 1 error:\n  specs: give at least one spec"),
        ({"specs": ["ppo_cartpoll"]}, "no shipped spec is called 'ppo_cartpoll'; did you mean 'ppo_cartpole'"),
        ({"seed": 3}, "unknown key; did you mean 'seeds'"),
        ({"seeds": 0}, "seeds: .*greater than 0|seeds: .*> 0"),
        ({"envs": ["CartPole-v9"]}, "no env 'CartPole-v9' is registered"),
        ({"set": {"agent.algorithm.gama": 1}}, "did you mean 'gamma'"),
        ({"specs": ["ppo_cartpole", {"spec": "ppo_cartpole"}]}, "is there twice; give the runs different labels"),
        ({"name": "../up"}, "name"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=message):
        run({"specs": ["ppo_cartpole"], "envs": ["CartPole-v1"], **change}, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"set": {"agent.algorithm.gama": 1}},
            "ppo_cartpole on CartPole-v1: experiment.set.agent.algorithm.gama=1: unknown key; did you mean 'gamma'?",
        ),
        (
            {"specs": ["ppo_cartpole", {"spec": "a2c_gae_cartpole", "set": {"agent.algorithm.lam": 2}}]},
            "a2c_gae_cartpole on CartPole-v1: experiment.specs[1].set.agent.algorithm.lam=2: less than or equal to 1 ",
        ),
        (
            {"envs": ["CartPole-v1", {"name": "Acrobot-v1", "set": {"gama": 1}}]},
            "ppo_cartpole on Acrobot-v1: experiment.envs[1].set.gama: spec 'ppo_cartpole' in ",
        ),
        (
            {"envs": [{"name": "Acrobot-v1", "set": {"env.num_envs.x": 1}}]},
            "ppo_cartpole on Acrobot-v1: experiment.envs[0].set.env.num_envs.x: 'num_envs' is a number and has ",
        ),
        (
            {"runs": [{"spec": "ppo_cartpole", "label": "mine", "set": {"env.num_envs": 0}}]},
            "mine: experiment.runs[0].set.env.num_envs=0: greater than 0 expected, got 0",
        ),
        (
            {"set": {"env.num_envs": 10**8}},
            " with experiment.seeds=4, experiment.set.env.num_envs=100000000, experiment.envs[0].name=CartPole-v1 has ",
        ),
    ],
)
def test_a_key_that_the_file_sets_is_named_by_its_place_there(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    write_yaml(path, {"experiment": {"specs": ["ppo_cartpole"], "envs": ["CartPole-v1"], **change}})
    with pytest.raises(LabError) as caught:
        run_experiment(path, data_dir=tmp_path / "data")
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "-s " not in str(caught.value).replace("e.g. -s ", "")


def test_a_key_of_the_command_line_is_named_as_it_is_typed(tmp_path: Path) -> None:
    experiment = parse_experiment({"specs": ["ppo_cartpole"], "set": {"env.num_envs": 0}}, "x")
    with pytest.raises(SpecError, match=r"ppo_cartpole: -s env\.num_envs=-1: greater than 0 expected, got -1$"):
        build_cells(experiment, tmp_path / "x.yaml", tmp_path, {"env.num_envs": -1})


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_begun_keeps_its_spec(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    run(experiment, tmp_path)
    with pytest.raises(
        RunFolderError, match=r"PPO on CartPole-v1: .* was trained with agent\.algorithm\.gamma 0\.99, "
    ):
        run({**experiment, "set": {**SHORT, "agent.algorithm.gamma": 0.9}}, tmp_path)
    write_yaml(tmp_path / "both.yaml", {"experiment": experiment, "other": {}})
    with pytest.raises(SpecError, match="beside `experiment`"):
        run_experiment(tmp_path / "both.yaml", data_dir=tmp_path)
    write_yaml(tmp_path / "specs.yaml", {"other": {}})
    with pytest.raises(SpecError, match="is no experiment: the key `experiment` is missing"):
        run_experiment(tmp_path / "specs.yaml", data_dir=tmp_path)
    assert len(trained) == 8


@pytest.mark.usefixtures("undrawn")
def test_a_label_stays_with_its_spec(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    """The folder is named by label and env: another spec in it would overwrite the first one's results."""
    one, two = (entry["spec"] for entry in experiment["specs"])
    single = {**experiment, "envs": ["CartPole-v1"], "seeds": 1}
    run({**single, "specs": [{"spec": {**one, "name": "one"}, "label": "A"}]}, tmp_path)
    with pytest.raises(RunFolderError, match="has a run of another spec, one"):
        run({**single, "specs": [{"spec": {**two, "name": "two"}, "label": "A"}]}, tmp_path)
    assert len(trained) == 1


@pytest.mark.usefixtures("undrawn")
def test_a_second_spec_of_an_algorithm_leaves_the_first_ones_folder(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    one = {**experiment["specs"][0]["spec"], "name": "one"}
    single = {**experiment, "envs": ["CartPole-v1"], "seeds": 1}
    run({**single, "specs": [{"spec": one}]}, tmp_path)
    result = run({**single, "specs": [{"spec": one}, {"spec": {**one, "name": "two"}}]}, tmp_path)
    assert (result.num_before, result.num_trained) == (1, 1)
    assert result.labels == ["one", "two"]


@pytest.mark.usefixtures("undrawn")
def test_sessions_with_a_condition_grow_unless_it_has_stopped_them(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    single = {**experiment, "specs": experiment["specs"][:1], "envs": ["CartPole-v1"], "seeds": 1}

    def run_with(name: str, max_frame: int, threshold: float) -> GridResult:
        stop = {"total_reward": f">= {threshold:.0f}", "for": "1 row"}
        return run({**single, "name": name, "set": {**SHORT, "env.max_frame": max_frame, "meta.stop": stop}}, tmp_path)

    assert [run_with("never", frame, 1e9).num_trained for frame in (600, 600, 800)] == [1, 0, 1]
    assert [run_with("at_once", frame, 0.0).num_trained for frame in (600, 600, 800)] == [1, 0, 0]


@pytest.mark.usefixtures("undrawn")
def test_nothing_is_written_while_another_process_runs_the_experiment(
    experiment: dict[str, Any], trained: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(experiment, tmp_path)
    monkeypatch.setattr(grid_run, "LOCK_SECONDS", 0.1)
    specs = sorted((tmp_path / "grid").glob("*/*_spec.yaml"))
    before = [spec.read_bytes() for spec in specs]
    assert before
    with lock_file(tmp_path / "grid" / ".lock" / "grid", 0), pytest.raises(RunFolderError, match="another process"):
        run({**experiment, "envs": ["CartPole-v1"], "set": {**SHORT, "env.max_frame": 5000}}, tmp_path)
    assert [spec.read_bytes() for spec in specs] == before


def test_keys_are_set_in_order_and_for_one_env_alone(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    """A mapping replaces what an earlier layer set below it, and is never shared between runs."""
    spec = {**inline_spec(tiny_spec()), "name": "one"}
    experiment = {
        "specs": [{"spec": spec, "set": {"env.kwargs": {"a": 2}}}],
        "envs": ["Acrobot-v1", {"name": "CartPole-v1", "set": {"env.kwargs.b": 3}}],
        "set": {"env.kwargs.c": 1, "env.kwargs": {"c": 0}},
    }
    parsed = parse_experiment(experiment, "x")
    found = build_cells(parsed, tmp_path / "x.yaml", tmp_path, {"env.kwargs.c": 7})
    assert [cell.spec.env.kwargs for cell in found] == [{"a": 2, "c": 7}] * 2
    later = {**experiment, "specs": [{"spec": spec, "set": {}}]}
    parsed = parse_experiment({**later, "set": {"env.kwargs": {"c": 0}}}, "x")
    found = build_cells(parsed, tmp_path / "x.yaml", tmp_path, {})
    assert [cell.spec.env.kwargs for cell in found] == [{"c": 0}, {"c": 0, "b": 3}]
