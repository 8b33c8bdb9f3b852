"""Searches: suggestions, early stopping, sessions that are earned, faults, continuation, outcome."""

import csv
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from slm_lab.cli import search as search_command
from slm_lab.experiment import search as search_module
from slm_lab.experiment import search_result, search_run
from slm_lab.experiment.executor import Event, Key, SessionTask
from slm_lab.experiment.messages import Progress, SessionEnd, SessionResult
from slm_lab.experiment.options import Options
from slm_lab.experiment.search import Search, estimate_frames, find_rungs
from slm_lab.experiment.search_run import Probe, advise, start_search, validate
from slm_lab.experiment.search_view import show_values
from slm_lab.experiment.study import Study
from slm_lab.lib.errors import LabError, RunFolderError, SpecError
from slm_lab.lib.io import lock_file, write_text, write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.results.run import read_run
from slm_lab.results.search_trial import TrialRow, calc_importance, rank, read_journal
from slm_lab.spec.loading import dump_spec, load_spec
from slm_lab.spec.schema import SearchScheduler, Spec
from slm_lab.spec.search_space import Dimension, read_dimensions
from test.cli.command import call
from test.tiny import make_tiny_spec

Capture = pytest.CaptureFixture[str]
LR, GAMMA = "agent.net.optim_spec.lr", "agent.algorithm.gamma"
ROW = 10_000
EXAMPLE = Path(__file__).parents[2] / "docs/examples/search_cartpole.yaml"


def make_spec(**meta: Any) -> Spec:
    """A search of which sessions have 9 rows."""
    scheduler = SearchScheduler(grace_period=10_000)
    changes = {"max_trial": 16, "log_frequency": ROW, "search_scheduler": scheduler} | meta
    return load_spec(EXAMPLE).spec.replace(meta=changes, env={"max_frame": 90_000})


def learn(spec: Spec, session: int, frame: int) -> float:
    """What a session would have: the nearer the learning rate to 1e-3, the faster."""
    lr = spec.agent.net.optim_spec.lr
    speed = math.exp(-abs(math.log10(lr) + 3))
    return 20 + 480 * speed * frame / spec.env.max_frame + session


class Killed(BaseException):
    """The driver is gone."""


class FakeExecutor:
    """Sessions that learn at once: each poll brings all of them a row further."""

    def __init__(
        self,
        num_slot: int = 1,
        curve: Callable[[Spec, int, int], float] = learn,
        error_at: Callable[[Key, int], str | None] = lambda key, frame: None,
        kill_after: int | None = None,
    ) -> None:
        self.num_slot = num_slot
        self.curve = curve
        self.error_at = error_at
        self.kill_after = kill_after
        self.num_poll = 0
        self.frames: dict[Key, int] = {}
        self.tasks: dict[Key, SessionTask] = {}
        self.specs: dict[Key, Spec] = {}
        self.running: list[Key] = []
        self.stopped: list[Key] = []
        self.most = 0
        self.started: list[Key] = []

    def submit(self, task: SessionTask) -> None:
        folder = RunFolder(task.folder, task.name)
        self.tasks[task.key] = task
        self.specs[task.key] = load_spec(folder.trial_spec_file(task.trial), task.name).spec
        self.started.append(task.key)
        table = folder.table_file(*task.key, "train")
        # a session goes on from what it has
        self.frames[task.key] = ROW * (len(table.read_text().splitlines()) - 1) if table.exists() else 0
        self.running.append(task.key)
        self.most = max(self.most, len(self.running))

    def poll(self, timeout: float) -> list[Event]:
        self.num_poll += 1
        if self.kill_after is not None and self.num_poll > self.kill_after:
            raise Killed
        events = []
        for key in self.running[: self.num_slot]:
            task = self.tasks[key]
            folder = RunFolder(task.folder, task.name)
            spec = self.specs[key]
            if key in self.stopped:
                events.append(Event(key, end=self._end(key, False)))
                continue
            error = self.error_at(key, self.frames[key])
            if error is not None:
                self.running.remove(key)
                events.append(Event(key, end=SessionEnd(key[1], error=error)))
                continue
            if self.frames[key] < spec.env.max_frame:
                self.frames[key] += ROW
                events.append(Event(key, progress=self._row(folder, spec, key)))
            if self.frames[key] >= spec.env.max_frame:
                events.append(Event(key, end=self._end(key, True)))
        return events

    def _row(self, folder: RunFolder, spec: Spec, key: Key) -> Progress:
        frame = self.frames[key]
        path = folder.table_file(*key, "train")
        score = self.curve(spec, key[1], frame)
        lines = path.read_text() if path.exists() else "total_reward,total_reward_ma,frame,opt_step\n"
        write_text(path, lines + f"{score},{score},{frame},{frame}\n")
        return Progress(key[1], frame, total_reward=score, total_reward_ma=score, fps=1.0)

    def _end(self, key: Key, is_done: bool) -> SessionEnd:
        self.running.remove(key)
        result = SessionResult(key[1], is_done, self.frames[key], {})
        folder = RunFolder(self.tasks[key].folder, self.tasks[key].name)
        model = folder.model_file(*key, "best")
        model.parent.mkdir(exist_ok=True)
        model.write_bytes(b"weights")
        return SessionEnd(key[1], result)

    def stop(self, key: Key) -> None:
        self.stopped.append(key)

    def close(self) -> None:
        self.running.clear()


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and pages take seconds, which a few tests of them are enough for."""
    if request.function is not test_the_graphs_are_drawn:
        monkeypatch.setattr(search_result, "plot_search", lambda *arguments: [])
    if "report" not in request.function.__name__:
        monkeypatch.setattr(search_result, "write_search_report", lambda *arguments: None)


def make_folder(path: Path, spec: Spec) -> RunFolder:
    folder = RunFolder(path, spec.name)
    write_yaml(folder.spec_file, dump_spec(spec))
    return folder


def search(spec: Spec, path: Path, executor: FakeExecutor | None = None, keep: int = 3) -> Any:
    folder = make_folder(path, spec)
    return Search(spec, folder, executor or FakeExecutor(), Options(keep=keep)).run()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A search that nothing has interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_result, "plot_search", lambda *arguments: [])
        patch.setattr(search_result, "write_search_report", lambda *arguments: None)
        return search(make_spec(), tmp_path_factory.mktemp("whole"))


def values_of(result: Any) -> dict[int, dict[str, Any]]:
    return {row.trial: row.values for row in result.rows}


# --- suggestions


def test_suggestions_repeat_from_the_seed(tmp_path: Path, whole: Any) -> None:
    again = search(make_spec(), tmp_path / "again")
    other = search(make_spec(seed=1), tmp_path / "other")
    assert values_of(whole) == values_of(again)
    assert values_of(whole) != values_of(other)
    assert len({json.dumps(values) for values in values_of(whole).values()}) == 16


def test_a_search_finds_what_is_good(tmp_path: Path) -> None:
    result = search(make_spec(max_trial=30), tmp_path)
    assert result.best is not None
    assert 3e-4 < result.best.values[LR] < 3e-3
    # later suggestions are nearer to it than those at random
    far = [abs(math.log10(row.values[LR]) + 3) for row in sorted(result.rows, key=lambda row: row.trial)]
    assert np.mean(far[15:]) < np.mean(far[:10])


# --- early stopping


@pytest.mark.timeout(60)
def test_a_pipe_for_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.log")
    with pytest.raises(LabError, match=r"study\.log: not a regular file"):
        Study(tmp_path / "study.log", "x", [], 0, 4)


def test_rungs_are_powers_below_the_last_frame() -> None:
    assert find_rungs(make_spec()) == [10_000, 30_000]
    assert find_rungs(make_spec(search_scheduler=None)) == []
    assert find_rungs(make_spec(search_scheduler=SearchScheduler(grace_period=20_000, reduction_factor=2))) == [
        20_000,
        40_000,
        80_000,
    ]


def test_weak_trials_are_stopped_at_rungs_and_the_best_is_done(tmp_path: Path) -> None:
    executor = FakeExecutor(num_slot=2)
    result = search(make_spec(), tmp_path, executor)
    assert executor.most == 2
    assert len(result.rows) == 16
    assert result.count("stopped") >= 8
    assert result.best is not None
    speeds = {row.trial: -abs(math.log10(row.values[LR]) + 3) for row in result.rows}
    assert max(speeds.values()) == speeds[result.best.trial]
    for row in result.rows:
        if row.state == "stopped":
            assert max(row.rungs) in (10_000, 30_000)
            assert row.score == row.rungs[max(row.rungs)]


def test_without_a_scheduler_every_trial_has_all_sessions(tmp_path: Path) -> None:
    executor = FakeExecutor(num_slot=4)
    result = search(make_spec(search_scheduler=None, max_trial=3, max_session=2), tmp_path, executor)
    assert result.count("done") == 3
    assert sorted(executor.started) == [(trial, session) for trial in range(3) for session in range(2)]
    # the score is the mean over sessions
    best = result.best
    assert best is not None
    scores = read_run(tmp_path, best.trial).scores
    assert best.score == pytest.approx(np.mean(scores))
    assert len(scores) == 2


def test_survivors_earn_sessions(tmp_path: Path) -> None:
    executor = FakeExecutor(num_slot=2)
    scheduler = SearchScheduler(grace_period=10_000, sessions=(1, 2, 4))
    result = search(make_spec(search_scheduler=scheduler, max_trial=9), tmp_path, executor)
    sessions: dict[int, int] = {}
    for trial, _ in executor.started:
        sessions[trial] = sessions.get(trial, 0) + 1
    for row in result.rows:
        # a trial that was stopped at the first rung had one session, at the second two, one that is done four
        assert sessions[row.trial] == ({1: 1, 2: 2}[len(row.rungs)] if row.state == "stopped" else 4)
    assert set(sessions.values()) == {1, 2, 4} or set(sessions.values()) == {1, 4}


def test_a_rung_waits_for_all_sessions_of_a_trial(tmp_path: Path) -> None:
    scheduler = SearchScheduler(grace_period=10_000, sessions=(2,))
    result = search(make_spec(search_scheduler=scheduler, max_trial=1), tmp_path, FakeExecutor(num_slot=1))
    (row,) = result.rows
    lr = row.values[LR]
    speed = math.exp(-abs(math.log10(lr) + 3))
    assert row.rungs[10_000] == pytest.approx(20 + 480 * speed / 9 + 0.5)


# --- faults


def test_a_trial_that_crashes_is_failed_with_its_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    def crash(key: Key, frame: int) -> str | None:
        return "Traceback ...\nDivergenceError: loss is not finite" if key[0] == 2 and frame == 0 else None

    result = search(make_spec(max_trial=6), tmp_path, FakeExecutor(error_at=crash))
    failed = [row for row in result.rows if row.state == "failed"]
    assert [row.trial for row in failed] == [2]
    assert failed[0].error.endswith("DivergenceError: loss is not finite")
    assert math.isnan(failed[0].score)
    assert result.count("done", "stopped") == 5
    with (tmp_path / "ppo_cartpole_bad_lr_experiment_df.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["state"] == "failed"]
    assert row["error"] == "DivergenceError: loss is not finite"
    assert row["total_reward_ma"] == ""


def test_a_trial_without_a_score_is_failed_and_never_the_best(tmp_path: Path) -> None:
    def curve(spec: Spec, session: int, frame: int) -> float:
        lr = spec.agent.net.optim_spec.lr
        return math.nan if lr > 1e-4 else -500.0 + 100 * lr

    result = search(make_spec(max_trial=8), tmp_path, FakeExecutor(curve=curve))
    assert result.count("failed") >= 1
    assert all("no episode has ended" in row.error for row in result.rows if row.state == "failed")
    assert result.best is None or result.best.score < -400


def test_values_that_clash_fail_their_trial_only(tmp_path: Path) -> None:
    # each of them is valid alone
    spec = make_spec(max_trial=12, search_scheduler=None, max_session=1)
    keys = ("agent.algorithm.clip_vloss", "agent.algorithm.normalize_v_targets")
    space = {f"{key}__choice": [False, True] for key in keys}
    result = search(spec.model_copy(update={"search": space}), tmp_path)
    clashing = [row.trial for row in result.rows if row.values == dict.fromkeys(keys, True)]
    assert clashing
    assert [row.trial for row in sorted(result.rows, key=lambda row: row.trial) if row.state == "failed"] == clashing


def test_who_goes_on_is_what_the_pruner_of_optuna_says(tmp_path: Path) -> None:
    spec = make_spec(search_scheduler=SearchScheduler(grace_period=10, reduction_factor=3))
    ours = read_study(tmp_path, spec)
    theirs = optuna.create_study(direction="maximize", pruner=optuna.pruners.SuccessiveHalvingPruner(10, 3))
    generator = np.random.default_rng(0)
    seen = []
    for _ in range(40):
        number, _ = ours.ask()
        trial = theirs.ask()
        for frame in (10, 30, 90):
            score = float(generator.normal())
            trial.report(score, frame)
            goes_on = ours.report(number, frame, score)
            seen.append(goes_on)
            assert goes_on == (not trial.should_prune())
            if not goes_on:
                ours.stop(number)
                theirs.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            ours.finish(number, score)
            theirs.tell(trial, score)
    assert 20 < seen.count(False) < 40


def test_a_kill_at_any_entry_of_the_journal_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(max_trial=3)
    append = JournalFileBackend.append_logs
    left = math.inf

    def count(backend: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        nonlocal left
        if left < 1:
            raise Killed
        left -= 1
        append(backend, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", count)
    whole = search(spec, tmp_path / "whole")
    entries = RunFolder(tmp_path / "whole", spec.name).study_file.read_text().splitlines()
    assert len(entries) > 12
    for number in range(len(entries)):
        left = number
        with pytest.raises(Killed):
            search(spec, tmp_path / str(number))
        left = math.inf
        rows = sorted(search(spec, tmp_path / str(number)).rows, key=lambda row: row.trial)
        assert [row.trial for row in rows] == list(range(3))
        assert not any(row.state in ("running", "failed") for row in rows)
        # between two values of a trial the sampler sees the first of them, so that the second may be another
        is_between = all(json.loads(entry)["op_code"] == 5 for entry in entries[number - 1 : number + 1])
        assert is_between or rows == sorted(whole.rows, key=lambda row: row.trial), number


def test_a_rung_without_a_score_is_passed_and_judges_nobody(tmp_path: Path) -> None:
    def curve(spec: Spec, session: int, frame: int) -> float:
        return math.nan if frame <= 10_000 else float(frame)

    result = search(make_spec(max_trial=2), tmp_path, FakeExecutor(curve=curve))
    assert [list(row.rungs) for row in result.rows] == [[30_000], [30_000]]


class StoppingExecutor(FakeExecutor):
    """Ctrl-C comes just before the first rung."""

    def poll(self, timeout: float) -> list[Event]:
        if self.num_poll == 0:
            signal.raise_signal(signal.SIGINT)
        return super().poll(timeout)


def test_a_trial_earns_no_sessions_while_the_search_stops(tmp_path: Path, capsys: Capture) -> None:
    executor = StoppingExecutor(num_slot=2)
    spec = make_spec(search_scheduler=SearchScheduler(grace_period=10_000, sessions=(1, 2)))
    result = search(spec, tmp_path, executor)
    assert result.stop_code == 130
    search_command._show(result)
    assert f"Resume with:\n  slm-lab run search@{tmp_path}\n" in capsys.readouterr().out
    search_command._show(replace(result, folder=Path("my runs")), ["my_env"])
    assert "Resume with:\n  slm-lab run 'search@my runs' --import my_env\n" in capsys.readouterr().out
    assert executor.started == [(0, 0), (1, 0)]
    assert result.count("running") == 2
    assert executor.num_poll < 15
    again = search(spec, tmp_path)
    assert not again.count("running", "failed")


def test_a_session_that_a_stop_reaches_first_does_not_fail_its_trial(tmp_path: Path) -> None:
    class Batch(FakeExecutor):
        """The batch system stops sessions and driver at once."""

        def poll(self, timeout: float) -> list[Event]:
            if self.num_poll == 5:
                signal.raise_signal(signal.SIGTERM)
                self.stopped += self.running
            return super().poll(timeout)

    result = search(make_spec(max_trial=2), tmp_path, Batch())
    assert (result.stop_code, result.count("failed"), result.count("running")) == (143, 0, 1)


def test_one_driver_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "LOCK_SECONDS", 0.1)
    with (
        lock_file(tmp_path / "model" / ".search.lock", 1),
        pytest.raises(RunFolderError, match="another process is using"),
    ):
        search(make_spec(max_trial=1), tmp_path)


def read_study(path: Path, spec: Spec) -> Study:
    folder = RunFolder(path, spec.name)
    dimensions = [Dimension(LR, "loguniform", (1e-5, 1e-2)), Dimension(GAMMA, "uniform", (0.9, 0.999))]
    return Study(folder.study_file, spec.name, dimensions, 0, 16, spec.meta.search_scheduler)


def test_half_a_line_of_the_journal_is_cut_off(tmp_path: Path) -> None:
    spec = make_spec(max_trial=4)
    search(spec, tmp_path)
    journal = RunFolder(tmp_path, spec.name).study_file
    rows = read_study(tmp_path, spec).read_rows()
    journal.write_bytes(journal.read_bytes() + b'{"op_code":4,"worker')
    study = read_study(tmp_path, spec)
    assert study.read_rows() == rows
    assert study.ask()[0] == 4
    assert len(read_study(tmp_path, spec).read_rows()) == 5


def test_a_damaged_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    spec = make_spec(max_trial=4)
    search(spec, tmp_path)
    journal = RunFolder(tmp_path, spec.name).study_file
    whole = journal.read_bytes().splitlines(keepends=True)
    damages = [b"garbage", b"[1]", b"\xff\xfe\x00", b"{}", b'{"op_code": 99}', b'{"op_code": "x"}', b"[" * 9999]
    variants = [[*whole[:at], damage + b"\n", *whole[at:]] for damage in damages for at in (1, 3, len(whole))]
    others: tuple[Any, ...] = ("x", None, -7, math.nan, [], {})
    # every value of the first entries, one after the other, is something else
    for at, entry in enumerate(json.loads(line) for line in whole[:8]):
        for key, other in itertools.product(entry, others):
            variants.append([*whole[:at], json.dumps(entry | {key: other}).encode() + b"\n", *whole[at + 1 :]])
    errors = []
    for lines in variants:
        journal.write_bytes(b"".join(lines))
        # what is not refused is read as it stands
        with suppress(RunFolderError):
            read_study(tmp_path, spec).reopen()
            continue
        with pytest.raises(RunFolderError) as caught:
            read_study(tmp_path, spec).reopen()
        errors.append(str(caught.value))
    assert len(errors) > 100
    assert all(error.startswith(f"{journal} is damaged (") and "\n" not in error for error in errors)
    journal.write_bytes(b"".join([*whole[:2], b"garbage\n", *whole[2:]]))
    with pytest.raises(RunFolderError, match=r"damaged \(ValueError: line 3 is no entry of a search\), so the search"):
        search(spec, tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        "total_reward,total_reward_ma,frame,opt_step\n1,1,nan,1\n",
        "total_reward,total_reward_ma,frame,opt_step\n1,1,1e999,1\n",
        "total_reward,total_reward_ma,frame,opt_step\n1,1,__import__('os'),1\n",
        "frame,frame\n1,2\n",
        'total_reward\n"' + "x" * 200_000,
        "\x00\n\x00\n",
    ],
)
def test_a_search_survives_a_damaged_table(tmp_path: Path, table: str) -> None:
    spec = make_spec(max_trial=4)
    with pytest.raises(Killed):
        search(spec, tmp_path, FakeExecutor(kill_after=10))
    folder = RunFolder(tmp_path, spec.name)
    files = [folder.table_file(trial, 0, "train") for trial in (0, 1)]
    assert all(file.exists() for file in files)
    for file in files:
        file.write_text(table)
    assert len(search(spec, tmp_path).rows) == 4


def test_the_journal_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "plain-looking")
    spec = make_spec(max_trial=4)
    (tmp_path / "info").mkdir()
    study = read_study(tmp_path, spec)
    study.fail(study.ask()[0], "ValueError: refused plain-looking")
    assert "plain-looking" not in RunFolder(tmp_path, spec.name).study_file.read_text()
    assert study.read_rows()[0].reason == "ValueError: refused [secret]"


def test_a_finished_search_has_nothing_left_to_do(tmp_path: Path) -> None:
    spec = make_spec(max_trial=4)
    first = search(spec, tmp_path)
    executor = FakeExecutor()
    again = search(spec, tmp_path, executor)
    assert executor.started == []
    assert again.rows == first.rows


# --- outcome


def test_the_best_spec_is_the_spec_with_the_values_of_the_best_trial(tmp_path: Path) -> None:
    spec = make_spec(max_trial=8, max_session=4)
    result = search(spec, tmp_path)
    assert result.best is not None
    assert result.best_spec is not None
    best = load_spec(result.best_spec).spec
    assert best.agent.net.optim_spec.lr == result.best.values[LR]
    assert best.agent.algorithm.model_dump()["gamma"] == result.best.values[GAMMA]
    assert (best.meta.max_session, best.meta.compile, best.search) == (4, "auto", {})
    facts = json.loads((tmp_path / "info/ppo_cartpole_bad_lr_search.json").read_text())
    assert facts["best_trial"] == result.best.trial
    assert facts["trials"]["done"] + facts["trials"]["stopped"] == 8


def test_weights_of_the_best_trials_are_kept(tmp_path: Path) -> None:
    spec = make_spec(max_trial=4, search_scheduler=None, max_session=1)
    result = search(spec, tmp_path / "two", keep=2)
    kept = {int(path.name.split("_t")[1].split("_")[0]) for path in (tmp_path / "two/model").glob("*_ckpt*")}
    assert kept == {row.trial for row in result.rows[:2]}
    search(spec, tmp_path / "all", keep=-1)
    assert len(list((tmp_path / "all/model").glob("*_ckpt*"))) == 4


def test_the_graphs_are_drawn(tmp_path: Path) -> None:
    result = search(make_spec(max_trial=8), tmp_path)
    assert [path.name for path in result.graphs] == [
        "ppo_cartpole_bad_lr_experiment_graph.png",
        "ppo_cartpole_bad_lr_parallel_coordinates.png",
        "ppo_cartpole_bad_lr_multi_trial_graph_mean_returns_vs_frames.png",
        "ppo_cartpole_bad_lr_multi_trial_graph_mean_returns_ma_vs_frames.png",
    ]
    assert all(path.stat().st_size > 2000 for path in result.graphs)


def read_report(path: Path) -> dict[str, Any]:
    """What a page shows."""
    block = path.read_text().partition('id="data">')[2].partition("</script>")[0]
    data: dict[str, Any] = json.loads(block)
    return data


def test_a_search_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    spec = make_spec(max_trial=8)
    result = search(spec, tmp_path / "one")
    assert result.report == tmp_path / "one" / "report.html"
    data = read_report(result.report)
    shown = data["search"]
    assert data["title"] == f"Search: {spec.agent.name} on CartPole-v1"
    # all trials, best first, with what they were given and came to
    table = shown["trials"]
    assert table["head"][:5] == ["trial", "state", "score", "frames", "sessions"]
    assert set(table["head"][5:]) == {"optim_spec.lr", "gamma"}
    assert [row[0] for row in table["rows"]] == [str(row.trial) for row in result.rows]
    best = table["rows"][0]
    assert best[1] == "done"
    assert float(best[2]) == pytest.approx(result.best.score, abs=0.01)
    assert best[3] == "90,000"
    lr = best[table["head"].index("optim_spec.lr")]
    assert float(lr) == pytest.approx(result.best.values[LR], rel=1e-3)
    assert {row[1] for row in table["rows"]} == {"done", "stopped early"}
    assert dict(shown["importance"]) == pytest.approx(result.importance)
    # a line per trial across both keys to the score, whose highest is that of the best trial that is done
    assert [axis["name"] for axis in shown["parallel"]["axes"]][-1] == "score"
    assert len(shown["parallel"]["lines"]) == 8
    assert [line["trial"] for line in shown["parallel"]["lines"] if line["is_best"]] == [best[0]]
    # the curve is that of the best trial
    (run,) = data["runs"]
    curves = data["envs"][0]["charts"][0]["raw"]
    assert curves[0]["x"][-1] == 90_000
    assert run["score"]["mean"] == pytest.approx(result.best.score)
    assert run["commands"] == []
    validate = dict(shown["commands"])["Validate"]
    assert validate == f"slm-lab run {result.best_spec} train --seed {spec.meta.seed + 1}"
    # the same by the command, and the page says so
    result.report.unlink()
    assert call(monkeypatch, "report", str(tmp_path / "one")) == 0
    assert capsys.readouterr().out == f"Report   {result.report}\n"
    assert read_report(result.report) == data


def test_a_search_without_a_winner_has_a_report(tmp_path: Path) -> None:
    spec = make_spec(max_trial=2)
    result = search(spec, tmp_path, FakeExecutor(error_at=lambda key, frame: "ValueError: <b>no</b>"))
    data = read_report(result.report)
    assert data["runs"] == []
    assert data["problems"] == ["no trial is done, so there is no best one"]
    assert [row[1] for row in data["search"]["trials"]["rows"]] == ["failed", "failed"]
    assert data["search"]["trials"]["rows"][0][-1] == "ValueError: <b>no</b>"
    assert data["search"]["parallel"] is None
    assert "Validate" not in dict(data["search"]["commands"])


def test_a_search_that_has_not_ended_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with pytest.raises(Killed):
        search(make_spec(), tmp_path, FakeExecutor(kill_after=3))
    assert call(monkeypatch, "report", str(tmp_path)) == 2
    assert f"slm-lab run search@{tmp_path}" in capsys.readouterr().err


def make_row(trial: int, values: dict[str, Any], score: float) -> TrialRow:
    return TrialRow(trial, "done", values, score, {})


def test_importance_names_what_the_ranking_follows() -> None:
    generator = np.random.default_rng(0)
    dimensions = [
        Dimension("a.peak", "uniform", (0, 1)),
        Dimension("a.noise", "uniform", (0, 1)),
        Dimension("a.kind", "choice", ("x", "y")),
    ]
    rows = []
    for trial in range(30):
        peak, noise, kind = generator.random(), generator.random(), str(generator.choice(["x", "y"]))
        # best in the middle, which a correlation would not see
        score = -abs(peak - 0.5) + 0.05 * (kind == "y")
        rows.append(make_row(trial, {"a.peak": peak, "a.noise": noise, "a.kind": kind}, score))
    shares = calc_importance(rows, dimensions)
    assert next(iter(shares)) == "a.peak"
    assert shares["a.peak"] > 0.7
    assert shares["a.noise"] < 0.2
    assert calc_importance(rows[:5], dimensions) == {}


def test_the_ranking_puts_what_is_done_before_what_was_stopped() -> None:
    rows = [
        TrialRow(0, "stopped", {}, 90.0, {10: 90.0}),
        TrialRow(1, "failed", {}, math.nan, {}, "no"),
        TrialRow(2, "done", {}, 50.0, {10: 1.0, 30: 2.0}),
        TrialRow(3, "stopped", {}, 20.0, {10: 30.0, 30: 20.0}),
        TrialRow(4, "done", {}, 60.0, {}),
    ]
    assert [row.trial for row in rank(rows)] == [4, 2, 3, 0, 1]


def test_advice_on_the_number_of_trials_and_the_time() -> None:
    lines = advise(make_spec(max_trial=4), 2, Probe(1000.0, 500.0))
    assert "2.0 trials per key" in lines[1]
    assert "-s meta.max_trial=8" in lines[1]
    assert "one in 3 trials continues at each of the frames 10,000, 30,000" in lines[2]
    # 4 trials of 90,000 frames at 1,000 a second on 2 slots, and the start of each
    assert "at most 3m08s" in lines[3]
    assert not any("per key" in line for line in advise(make_spec(), 2, None))


def test_frames_of_a_search() -> None:
    assert estimate_frames(make_spec(search_scheduler=None, max_trial=3, max_session=2)) == (540_000, 540_000)
    most, expected = estimate_frames(make_spec(max_trial=9))
    assert most == 810_000
    # nine to the first rung, three to the second, one to the end
    assert expected == 9 * 10_000 + 3 * 20_000 + 60_000


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (
            {"search_scheduler": SearchScheduler(grace_period=90_000)},
            r"grace_period: 90,000 is not below env.max_frame 90,000",
        ),
        ({"log_frequency": 20_000}, r"log_frequency: 20,000 is above .*grace_period 10,000"),
    ],
)
def test_trials_that_cannot_be_compared_are_refused(meta: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        start_search(make_spec(**meta), Options(data_dir=tmp_path))
    assert not list(tmp_path.iterdir())


# --- real sessions


@pytest.mark.usefixtures("inline")
def test_a_killed_driver_leaves_a_search_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    spec = make_tiny_spec(
        env={"max_frame": 4000},
        meta={"max_trial": 2, "search_scheduler": {"grace_period": 1000}, "checkpoint_frequency": 500},
        search={"agent.algorithm.gamma__uniform": [0.9, 0.99]},
    )
    # a search that has just begun
    folder = make_folder(tmp_path / "data" / "tiny_2026_01_01_120000", spec)
    (folder.path / "info").mkdir()
    folder.study_file.touch()
    words = [sys.executable, "-m", "slm_lab.cli", "run", "search@latest"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    while not any(tmp_path.glob("data/*/info/*_session_df_train.csv")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "run", "search@latest", "--keep", "1") == 0
    out = capsys.readouterr().out
    with next(folder.path.glob("*_experiment_df.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(int(row["trial"]) for row in rows) == [0, 1]
    assert {row["state"] for row in rows} <= {"done", "stopped"}
    assert "Validate slm-lab run" in out
    kept = {path.name.split("_t")[1][0] for path in folder.path.glob("model/*_ckpt-best*")}
    assert kept == {rows[0]["trial"]}


def test_what_is_no_search_is_not_continued_as_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "run", make_spec())
    with pytest.raises(RunFolderError, match="is no search; resume it with train@"):
        search_run.resume_search("run", Options(data_dir=tmp_path))


def test_a_winner_is_needed_for_a_proof(tmp_path: Path) -> None:
    result = search(make_spec(max_trial=1), tmp_path, FakeExecutor(error_at=lambda key, frame: "broken"))
    assert result.best is None
    assert result.exit_code == 1
    with pytest.raises(LabError, match="no winner to validate"):
        validate(result, 2, Options())


def test_values_are_named_apart() -> None:
    values = {
        "agent.net.actor_optim_spec.lr": 1e-3,
        "agent.net.critic_optim_spec.lr": 0.002,
        "agent.algorithm.gamma": 1,
    }
    assert show_values(values) == "actor_optim_spec.lr 0.001, critic_optim_spec.lr 0.002, gamma 1"


# --- the session that is tried before a search

DEADLY = """
import os
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Deadly(CartPoleEnv):
    def step(self, action):
        os.kill(os.getpid(), 11)

gym.register("Deadly-v0", entry_point=Deadly)
"""


def test_an_env_that_ends_its_process_does_not_end_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_env.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    env = {"name": "deadly_env:Deadly-v0", "max_t": 20, "max_frame": 20_000}
    reason = "since a session of the spec fails: the process of session 0 was killed by signal 11$"
    with pytest.raises(LabError, match=f"^no trial was started, {reason}"):
        start_search(make_spec().replace(env=env), Options(data_dir=tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def probe(monkeypatch: pytest.MonkeyPatch, *events: Event) -> tuple[Probe | None, list[str]]:
    """What is made of a session that tells these."""

    class Told(FakeExecutor):
        def submit(self, task: SessionTask) -> None:
            assert task.is_probe

        def poll(self, timeout: float) -> list[Event]:
            return list(events)

    monkeypatch.setattr(search_run, "LocalExecutor", lambda count: Told(count))
    return search_run._probe(make_spec(), Options(), 2)


def test_what_a_probe_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, progress = Event((0, 0), notes=["one"]), Event((0, 0), progress=Progress(0, fps=90.0))
    found, told = probe(monkeypatch, notes, progress, Event((0, 0), end=SessionEnd(0, SessionResult(0, False, 1, {}))))
    assert found is not None
    assert (found.fps, told) == (90.0, ["one"])
    # other values may not diverge; a wish to stop is no failure
    for end in (SessionEnd(0, error="loss is nan", reason="diverged"), SessionEnd(0, error="late", reason="killed")):
        assert probe(monkeypatch, notes, Event((0, 0), end=end)) == (None, ["one"])
    with pytest.raises(LabError, match=r"^env.name: no such env$"):
        probe(monkeypatch, Event((0, 0), end=SessionEnd(0, error="env.name: no such env", reason="input")))


def test_the_journal_is_read_without_optuna(tmp_path: Path) -> None:
    """Trials of every state, as the study itself reads them."""
    search = {"agent.net.optim_spec.lr__loguniform": [1e-5, 1e-2], "agent.algorithm.gamma__choice": [0.9, 0.99]}
    dimensions = read_dimensions(make_tiny_spec(search=search))
    study = Study(tmp_path / "study.log", "tiny", dimensions, 0, 6)
    for number in range(6):
        study.ask()
        study.report(number, 200, float(number))
    study.stop(0)
    study.fail(1, "ValueError: lost")
    for number in (2, 3):
        study.report(number, 400, 10.0)
        study.finish(number, 20.0 + number)
    known = study.read_rows()
    with (tmp_path / "study.log").open("a") as file:
        file.write('{"op_code": 7, "trial_id": 99, "step": 1}\n[]\nnonsense\n{"op_code": 5')
    rows = read_journal(tmp_path / "study.log", dimensions)
    assert rows == known
    assert [row.state for row in rows] == ["stopped", "failed", "done", "done", "running", "running"]
