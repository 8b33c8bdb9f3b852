"""A replay gives the same bits; what was changed behind the lab's back is named; the run itself is only read."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.faults.specs import NAME
from bench.faults.specs import make_spec as make_small_spec
from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.audit.difference import Comparison, compare_tensors
from slm_lab.audit.verify import Settings, Verdict, Verification
from slm_lab.experiment.checkpoint.state import load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import write_origin
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained
from slm_lab.lib.errors import CheckpointError, RunFolderError
from slm_lab.lib.io import lock_file, write_yaml
from slm_lab.results.folder import RunFolder, previous_file, replay_file
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.schema import Spec
from test.agent.conftest import build_step
from test.cli.command import call


def make_spec(algorithm: str = "PPO", env: dict[str, Any] | None = None, **meta: Any) -> Spec:
    meta = {"checkpoint_frequency": 400, "rigorous_eval": 1, "eval_frequency": 400, **meta}
    return make_small_spec(algorithm, env={"max_frame": 1200, **(env or {})}, meta=meta)


def train(spec: Spec, path: Path, stop: int | None = None) -> RunFolder:
    """A run as the command leaves it, without its graphs."""
    folder = RunFolder(path, NAME)
    path.mkdir(parents=True, exist_ok=True)
    write_yaml(folder.trial_spec_file(0), dump_spec(spec))
    write_origin(spec, folder, Options())
    for session in range(spec.meta.max_session):
        Session(spec, folder, 0, session, lambda _: None, lambda: False, end_frame=stop).run()
    return folder


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_spec(), tmp_path_factory.mktemp("ppo") / "run").path


@pytest.fixture(scope="module")
def dqn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(make_spec("DQN", env={"max_frame": 800}), tmp_path_factory.mktemp("dqn") / "run").path


@pytest.fixture
def copied(ppo_run: Path, tmp_path: Path) -> RunFolder:
    """A run that a test may spoil."""
    return RunFolder(Path(shutil.copytree(ppo_run, tmp_path / "run")), NAME)


@pytest.fixture
def copied_dqn(dqn_run: Path, tmp_path: Path) -> RunFolder:
    """A run with a replay that a test may spoil."""
    return RunFolder(Path(shutil.copytree(dqn_run, tmp_path / "run")), NAME)


def verify(path: Path, **settings: Any) -> Verdict:
    (verdict,) = Verification(str(path), path.parent, Settings(**settings)).run()
    return verdict


def reseal(path: Path, *keys: str) -> None:
    """Flip the lowest bit of the first number of a tensor, and write the file as the lab would."""
    state = load_state(path)
    value: Any = state
    for key in keys:
        value = value[key]
    value.view(-1).view(torch.uint8)[0] ^= 1
    save_state(path, state)


def first_weight(state: dict[str, Any]) -> tuple[str, str]:
    module, weights = next(iter(state["modules"].items()))
    return module, next(iter(weights))


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in [path, *path.rglob("*")]
    }


@pytest.mark.parametrize(("run", "first", "last"), [("ppo_run", 800, 1200), ("dqn_run", 400, 800)])
def test_a_run_is_the_same_between_its_last_two_checkpoints(
    run: str, first: int, last: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(run)
    before = snapshot(path)
    verdict = verify(path)
    assert verdict.is_same, verdict.describe()
    # four rows of training and one evaluation; the checkpoint at the end is not written twice
    assert (verdict.first, verdict.last, verdict.comparison.num_row) == (first, last, 5)
    assert verdict.comparison.num_tensor > 20
    assert verdict.describe()[0].startswith(f"Session 0: identical from frame {first:,} to {last:,} (5 rows, ")
    # not a byte and not a time of change
    assert snapshot(path) == before


def test_a_run_is_the_same_from_its_start(ppo_run: Path) -> None:
    whole = verify(ppo_run, from_start=True)
    assert whole.is_same
    assert (whole.first, whole.last, whole.comparison.num_row) == (0, 1200, 15)
    assert whole.comparison.num_tensor > 20
    part = verify(ppo_run, segment=500)
    assert part.is_same
    # the end is not reached, so there are no weights to compare
    assert (part.last, part.comparison.num_row, part.comparison.num_tensor) == (500, 6, 0)


def test_a_part_with_nothing_to_compare_is_not_verified(copied: RunFolder) -> None:
    verdict = verify(copied.path, segment=50)
    assert not verdict.is_same
    line = verdict.describe()[0]
    assert line == "Session 0: not verified: nothing to compare up to frame 50; the first row is at frame 100"
    copied.table_file(0, 0, "train").unlink()
    assert verify(copied.path, segment=50).describe()[0].endswith("up to frame 50; the run has no rows")


def test_a_run_without_an_earlier_checkpoint_is_replayed_from_its_start(copied_dqn: RunFolder) -> None:
    previous_file(copied_dqn.resume_file(0, 0)).unlink()
    verdict = verify(copied_dqn.path)
    assert verdict.is_same
    assert (verdict.first, verdict.last) == (0, 800)
    assert "no earlier checkpoint" in verdict.comparison.notes[0]


def test_a_stopped_run_is_verified_up_to_where_it_is(tmp_path: Path) -> None:
    folder = train(make_spec(), tmp_path / "run", stop=1000)
    verdict = verify(folder.path)
    assert verdict.is_same, verdict.describe()
    assert (verdict.first, verdict.last) == (800, 1000)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_caught_by_the_hash_before_anything_is_replayed(
    copied_dqn: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied_dqn
    monkeypatch.setattr(Verification, "_replay", lambda *_: pytest.fail("a replay was begun"))
    files = sorted((folder.path / "model").glob("*.safetensors"))
    # checkpoints, models, and the replay's rows up to each checkpoint
    assert len(files) == 6
    for path in files:
        whole = path.read_bytes()
        flip(path)
        verdict = verify(folder.path)
        assert not verdict.is_same
        assert str(verdict.problem).startswith(f"{path}: damaged or not a checkpoint of this lab (")
        path.write_bytes(whole)


def test_what_was_found_is_told_although_another_file_is_damaged(copied: RunFolder) -> None:
    table = copied.table_file(0, 0, "train")
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    copied.table_file(0, 0, "eval").write_text("nothing\nof the kind\n")
    first, second, *_ = verify(copied.path).describe()
    assert "is not a table of a session" in first
    assert second == "row at frame 1,200: nothing there, a row here; 1 row differs"


@pytest.mark.parametrize("which", ["checkpoint", "model"])
def test_a_flipped_bit_in_a_resealed_file_is_named(copied: RunFolder, which: str) -> None:
    path = copied.resume_file(0, 0) if which == "checkpoint" else copied.model_file(0, 0, "last")
    state = load_state(path)
    keys = ["agent", "algorithm", "modules"] if which == "checkpoint" else ["modules"]
    module, name = first_weight(state["agent"]["algorithm"] if which == "checkpoint" else state)
    reseal(path, *keys, module, name)
    verdict = verify(copied.path)
    assert not verdict.is_same
    (difference,) = verdict.comparison.values
    place = "" if which == "checkpoint" else "model last."
    assert difference.name == f"{place}{'.'.join(keys)}.{module}.{name}[0, 0]"
    assert difference.there != difference.here
    assert difference.extent.startswith("1 of ")
    assert difference.extent.endswith("1 bit(s)")
    assert not verdict.comparison.rows


def test_a_flipped_bit_in_the_rows_of_a_replay_is_named(copied_dqn: RunFolder) -> None:
    ((start, end),) = load_state(copied_dqn.resume_file(0, 0))["rows"]["memory"]
    reseal(replay_file(copied_dqn.replay_prefix(0, 0, "memory"), start, end), "rows", "reward")
    (difference,) = verify(copied_dqn.path).comparison.values
    assert difference.name == f"replay memory rows {start:,} to {end:,}, reward[0, 0]"


def write_replay(path: Path, replay: Replay, *ends: int) -> tuple[RunFolder, dict[str, Any]]:
    """The rows of a replay in files that end at these rows, and the checkpoint that lists them."""
    folder = RunFolder(path, NAME)
    prefix = folder.replay_prefix(0, 0, "memory")
    prefix.parent.mkdir(parents=True)
    chunks = list(pairwise((0, *ends)))
    for start, end in chunks:
        save_state(replay_file(prefix, start, end), {"rows": replay.rows(start, end)})
    return folder, {"rows": {"memory": [list(chunk) for chunk in chunks]}}


def compare_written(one: tuple[RunFolder, dict[str, Any]], two: tuple[RunFolder, dict[str, Any]]) -> Comparison:
    comparison = Comparison()
    comparison.compare_replays(one[0], two[0], (one[1], two[1]), (0, 0))
    return comparison


@pytest.fixture
def framed() -> Replay:
    """Ten rows of two envs, each with a stack of frames that is no shift of the one before."""
    rest = (torch.device("cpu"), torch.Generator().manual_seed(0), 3, 0)
    setting = Setting(2, (3, 1, 2), torch.uint8, (), torch.int64, 0.9, *rest)
    replay = Replay(ReplaySpec(batch_size=4, max_size=40), setting)
    for t in range(10):
        stack = torch.full((2, 3, 1, 2), 3 * t, dtype=torch.uint8) + torch.arange(3, dtype=torch.uint8).view(3, 1, 1)
        replay.add(build_step(stack, "..", next_obs=stack + 1))
    return replay


def test_frames_aside_are_compared_however_rows_are_spread_over_files(framed: Replay, tmp_path: Path) -> None:
    one, two = write_replay(tmp_path / "one", framed, 4, 10), write_replay(tmp_path / "two", framed, 7, 10)
    comparison = compare_written(one, two)
    assert comparison.is_same, comparison.describe()
    assert comparison.num_tensor == len(framed.rows(0, 1))
    prefix = two[0].replay_prefix(0, 0, "memory")
    path = prefix.with_name(f"{prefix.name}_0-7.safetensors")
    state = load_state(path)
    # the last frame that is held for row 6 and the last env
    state["rows"]["aside_frame"][-1, 0, 1] ^= 1
    save_state(path, state)
    (difference,) = compare_written(one, two).values
    assert difference.name.startswith("replay memory rows 4 to 7, aside_frame[")
    assert difference.extent.endswith("1 bit(s)")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", ["reward", "aside_frame", "aside_key"])
def test_a_field_of_a_replay_on_one_side_only_is_named(framed: Replay, name: str, side: int, tmp_path: Path) -> None:
    both = write_replay(tmp_path / "one", framed, 10), write_replay(tmp_path / "two", framed, 10)
    prefix = both[side][0].replay_prefix(0, 0, "memory")
    path = prefix.with_name(f"{prefix.name}_0-10.safetensors")
    state = load_state(path)
    del state["rows"][name]
    save_state(path, state)
    difference = next(one for one in compare_written(*both).values if one.name.endswith(f" {name}"))
    assert difference.name == f"replay memory rows 0 to 10, {name}"
    assert [difference.there, difference.here][side] == "nothing"


@pytest.mark.parametrize("side", [0, 1])
def test_a_replay_on_one_side_only_is_named(framed: Replay, side: int, tmp_path: Path) -> None:
    both = write_replay(tmp_path / "one", framed, 10), write_replay(tmp_path / "two", framed, 10)
    del both[side][1]["rows"]["memory"]
    (difference,) = compare_written(*both).values
    assert [difference.there, difference.here][side] == "up to 0"


def test_a_flipped_bit_where_the_replay_begins_spreads(copied: RunFolder) -> None:
    path = previous_file(copied.resume_file(0, 0))
    module, name = first_weight(load_state(path)["agent"]["algorithm"])
    reseal(path, "agent", "algorithm", "modules", module, name)
    verdict = verify(copied.path)
    assert len(verdict.comparison.values) > 3
    # rows before it are untouched
    assert all("frame 8" not in row.name for row in verdict.comparison.rows)


def test_a_changed_cell_of_a_table_is_named(copied: RunFolder) -> None:
    path = copied.table_file(0, 0, "train")
    lines = path.read_text().splitlines()
    cells = lines[10].split(",")
    column = lines[0].split(",").index("loss")
    cells[column] = "0.125"
    lines[10] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    verdict = verify(copied.path)
    (row,) = verdict.comparison.rows
    assert (row.name, row.there) == ("row at frame 1,000, column loss", "0.125")
    path.write_text("\n".join(lines[:-1]) + "\n")
    assert verify(copied.path).comparison.rows[-1].there == "nothing"


def test_other_threads_and_versions_are_named(copied: RunFolder) -> None:
    path = copied.provenance_file
    origin = json.loads(path.read_text())
    origin["versions"]["torch"] = "1.0.0"
    origin["machine"]["processor"] = "abacus"
    del origin["variables"]
    path.write_text(json.dumps(origin))
    verification = Verification(str(copied.path), copied.path, Settings(num_threads=2))
    facts = {fact.name: (fact.there, fact.here) for fact in verification.facts}
    assert facts["threads"] == ("1", "2")
    assert facts["versions.torch"][0] == "1.0.0"
    assert facts["machine.processor"][0] == "abacus"
    assert "variables.OMP_NUM_THREADS" in verification.unknown
    torch.set_num_threads(1)


def test_a_run_without_provenance_says_what_is_not_known(copied: RunFolder) -> None:
    copied.provenance_file.unlink()
    verification = Verification(str(copied.path), copied.path, Settings())
    assert verification.facts == []
    assert {"git_sha", "versions.torch", "machine.processor"} <= set(verification.unknown)


def test_a_run_without_checkpoints_is_compared_by_its_table(copied: RunFolder) -> None:
    shutil.rmtree(copied.path / "model")
    verdict = verify(copied.path)
    assert verdict.is_same
    assert (verdict.last, verdict.comparison.num_row, verdict.comparison.num_tensor) == (1200, 15, 0)
    assert "only tables" in verdict.comparison.notes[0]


def test_an_env_that_cannot_be_rebuilt_is_told(copied: RunFolder) -> None:
    path = previous_file(copied.resume_file(0, 0))
    state = load_state(path)
    state["obs"] = state["obs"] + 1
    save_state(path, state)
    verdict = verify(copied.path)
    assert not verdict.is_same
    assert "resumes statistically" in str(verdict.problem)


def test_a_run_under_way_is_left_alone(copied: RunFolder) -> None:
    with lock_file(copied.lock_file(0, 0), 0), pytest.raises(RunFolderError, match="is training"):
        verify(copied.path)


def test_all_sessions_are_verified_unless_one_is_asked_for(tmp_path: Path) -> None:
    folder = train(make_spec(env={"max_frame": 400}, max_session=2, checkpoint_frequency=200), tmp_path / "run")
    verdicts = list(Verification(str(folder.path), tmp_path, Settings()).run())
    assert [(verdict.session, verdict.is_same) for verdict in verdicts] == [(0, True), (1, True)]
    assert [verdict.session for verdict in Verification(str(folder.path), tmp_path, Settings(session=1)).run()] == [1]
    with pytest.raises(RunFolderError, match="no session 2; it has 0 to 1"):
        Verification(str(folder.path), tmp_path, Settings(session=2))


def test_the_command_says_same_or_what_differs(
    copied: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "verify", str(copied.path)) == 0
    assert capsys.readouterr().out.startswith("Session 0: identical from frame 800 to 1,200 (5 rows, ")
    call(monkeypatch, "verify", str(copied.path), "--threads", "2", "--segment", "300")
    assert "threads: 1 there, 2 here" in capsys.readouterr().out
    torch.set_num_threads(1)
    path = copied.resume_file(0, 0)
    module, name = first_weight(load_state(path)["agent"]["algorithm"])
    reseal(path, "agent", "algorithm", "modules", module, name)
    assert call(monkeypatch, "verify", str(copied.path)) == 1
    out = capsys.readouterr().out
    assert f"agent.algorithm.modules.{module}.{name}[0, 0]" in out
    assert "As far as recorded, this machine is like the one that trained the run" in out


def test_text_of_a_run_cannot_move_the_cursor(
    copied: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = json.loads(copied.provenance_file.read_text())
    origin["machine"]["processor"] = "\x1b[2J"
    copied.provenance_file.write_text(json.dumps(origin))
    table = copied.table_file(0, 0, "train")
    head, row, *rest = table.read_text().splitlines()
    cells = row.split(",")
    cells[head.split(",").index("total_reward")] = "\x1b[3J"
    table.write_text("\n".join([f"{head},\x1b[4J", ",".join(cells), *rest, ""]))
    assert call(monkeypatch, "verify", str(copied.path), "--segment", "300") == 1
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable(), out
    assert all(rf"\x1b[{number}J" in out for number in (2, 3, 4))


@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor(3), torch.tensor(3), True),
        (torch.tensor([True, False]), torch.tensor([True, True]), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16), False),
        (torch.zeros(0, 3), torch.zeros(0, 3), True),
        (torch.zeros(2, 3).t(), torch.zeros(3, 2), True),
    ],
)
def test_tensors_are_compared_by_their_bits(one: torch.Tensor, two: torch.Tensor, is_same: bool) -> None:
    assert (compare_tensors("x", one, two) is None) == is_same


def test_states_differ_by_key_length_type_and_value() -> None:
    pairs: list[tuple[Any, Any, str | None]] = [
        ({"a": 1, "b": [1.5, float("nan")]}, {"a": 1, "b": [1.5, float("nan")]}, None),
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": 1}, {}, "a"),
        ({"a": [1, 2]}, {"a": [1]}, "a"),
        ({"a": {"b": [0, np.arange(3)]}}, {"a": {"b": [0, np.array([0, 1, 3])]}}, "a.b[1][2]"),
    ]
    for one, two, name in pairs:
        comparison = Comparison()
        comparison.compare_states(one, two)
        assert [difference.name for difference in comparison.values] == ([name] if name else [])


# --- checkpoints whose hash matches and whose contents are odd


ODD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rows of nothing": {"rows": {"memory": [[1]]}},
    "rows that end before they begin": {"rows": {"memory": [[5, 1]]}},
    "rows elsewhere": {"rows": {"x/../../x": [[0, 1]]}},
    "head of a replay": {"agent": {"algorithm": {"memory": {"head": "x"}}}},
    "resets of a replay": {"agent": {"algorithm": {"memory": {"reset": torch.ones(9)}}}},
    "rows that are a number": {"rows": 5},
    "rows without a replay": {"rows": {}},
    "frame that is text": {"frame": "x"},
    "frame of a tensor": {"frame": torch.ones(2)},
    "frame that is not there": {"frame": None},
    "format of a tensor": {"format": torch.ones(2)},
    "spec of a tensor": {"spec": {"agent": torch.ones(2)}},
    "agent": {"agent": {}},
    "tracker": {"tracker": {"rows": np.ones(3)}},
    "table of other columns": {"tracker": {"rows": np.ones((2, 3))}},
    "env": {"env": {"episode": "x"}},
    "episodes": {"env": {"finished": "x"}},
    "clock": {"wall_t": "x"},
    "phases": {"phases": 5},
    "best model": {"best_model": {"modules": 5}},
    "evaluation": {"is_eval_due": torch.ones(2)},
}


def merge(state: Any, change: Any) -> Any:
    """A state with some of its innermost values changed; an empty change leaves nothing."""
    if not isinstance(state, dict) or not isinstance(change, dict) or not change:
        return change
    return {**state, **{key: merge(state.get(key), value) for key, value in change.items()}}


def spoil(path: Path, change: dict[str, Any]) -> None:
    state = load_state(path)
    save_state(path, merge(state, change) if change else {"format": state["format"]})


@pytest.mark.parametrize("which", ["last", "previous"])
@pytest.mark.parametrize("name", ["nothing", "rows elsewhere", "rows without a replay", "frame of a tensor", "agent"])
def test_odd_contents_are_told_in_one_line(copied_dqn: RunFolder, name: str, which: str) -> None:
    path = copied_dqn.resume_file(0, 0)
    spoil(path if which == "last" else previous_file(path), ODD[name])
    verdict = verify(copied_dqn.path)
    assert not verdict.is_same
    assert all(line.isprintable() for line in verdict.describe())


# a replay that this run has not got is not asked for
@pytest.mark.parametrize("name", [name for name in ODD if name != "rows elsewhere"])
def test_a_run_with_odd_contents_is_not_continued_with_a_traceback(copied_dqn: RunFolder, name: str) -> None:
    folder = copied_dqn
    path = folder.resume_file(0, 0)
    for file in (path, previous_file(path)):
        spoil(file, ODD[name])
    spec = make_spec("DQN", env={"max_frame": 900})
    with pytest.raises(CheckpointError) as caught:
        Session(spec, folder, 0, 0, lambda _: None, lambda: False).run()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_with_odd_rows_goes_on_from_the_checkpoint_before(copied_dqn: RunFolder) -> None:
    spoil(copied_dqn.resume_file(0, 0), {"rows": 5})
    session = Session(make_spec("DQN", env={"max_frame": 900}), copied_dqn, 0, 0, lambda _: None, lambda: False)
    assert session.run().is_done
    assert session.grade == "exact"


@pytest.mark.parametrize(
    "model",
    [{}, {"modules": 5}, {"modules": {"net": [1]}}, {"modules": {"net": {"x": 5}}}, {"modules": {"net": None}}],
)
def test_a_model_of_odd_contents_is_told_in_one_line(copied_dqn: RunFolder, model: dict[str, Any]) -> None:
    save_state(copied_dqn.model_file(0, 0, "best"), model)
    with pytest.raises(CheckpointError, match="does not fit the spec beside it") as caught:
        load_trained(str(copied_dqn.path))
    assert "\n" not in str(caught.value)


def act(path: Path) -> torch.Tensor:
    """What the agent of a run does first."""
    agent, env, _ = load_trained(str(path))
    env.close()
    return agent.act(np.ones((1, 4), np.float32), agent.init_carry(1), explore=True).extra["value"]


def to_old(state: Any) -> Any:
    """A model as it was handed to torch before models were safetensors."""
    if isinstance(state, dict):
        return {key: to_old(item) for key, item in state.items()}
    return {"__array__": torch.from_numpy(state)} if isinstance(state, np.ndarray) else state


def test_models_with_statistics(tmp_path: Path) -> None:
    folder = train(make_spec(env={"max_frame": 400, "normalize_obs": True}), tmp_path / "run")
    path, value = folder.model_file(0, 0, "best"), act(folder.path)
    state = load_state(path)
    # a run of the version before is played as ever; its files ended in a hash
    path.unlink()
    old = path.with_suffix(".pt")
    torch.save(to_old(state), old)
    old.write_bytes(old.read_bytes() + b"SLMLAB-SHA256:" + bytes(32))
    assert torch.equal(act(folder.path), value)
    torch.save({"modules": [os.system]}, old)
    with pytest.raises(CheckpointError, match=r"refused \(it names posix\.system, which no weights have\)"):
        load_trained(str(folder.path))
    for mean in (np.zeros(3), np.zeros(4, int), "x", None):
        save_state(path, {**state, "obs_normalizer": {**state["obs_normalizer"], "mean": mean}})
        with pytest.raises(CheckpointError, match="does not fit the spec beside it"):
            load_trained(str(folder.path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_table_that_is_no_file_is_told_in_one_line(copied: RunFolder, make: Callable[[Path], None]) -> None:
    for path in (copied.provenance_file, copied.table_file(0, 0, "train")):
        path.unlink()
        make(path)
    verdict = verify(copied.path)
    assert not verdict.is_same
    assert str(verdict.problem).startswith(f"{path}: ")


def test_a_table_with_a_cell_without_end_is_told_in_one_line(copied: RunFolder) -> None:
    path = copied.table_file(0, 0, "train")
    path.write_text("frame,x\n1," + "9" * 200_000 + "\n")
    assert verify(copied.path).problem == f"{path}: is not a table of a session; was it changed?"


def test_frames_aside_cannot_ask_for_memory(framed: Replay, tmp_path: Path) -> None:
    both = write_replay(tmp_path / "one", framed, 10), write_replay(tmp_path / "two", framed, 10)
    path = replay_file(both[0][0].replay_prefix(0, 0, "memory"), 0, 10)
    state = load_state(path)
    state["rows"]["aside_key"][0, 2] = 10**11
    save_state(path, state)
    with pytest.raises(ValueError, match="frames aside"):
        compare_written(*both)
