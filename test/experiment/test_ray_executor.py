"""Sessions on a Ray cluster: the same bits as local ones, whatever happens to the nodes."""

import csv
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.executor import Executor, LocalExecutor, Resources, SessionTask, load_ray, run_tasks
from slm_lab.experiment.launch import start
from slm_lab.experiment.messages import SessionEnd, SessionResult
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import lock_file, write_text, write_yaml
from slm_lab.results.folder import RunFolder, previous_file
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.schema import Spec

ray = pytest.importorskip("ray", reason="ray is not installed: uv sync --group ray")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed: uv sync --group ray")
remote = pytest.importorskip("slm_lab.experiment.ray_executor")

# one cluster for all tests of this file, and it is slow to start
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]
STORE = 100_000_000

ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 3},
    "DQN": {"name": "DQN", "training_start_step": 100, "training_frequency": 32},
}
MEMORIES: dict[str, dict[str, Any]] = {
    "PPO": {"name": "OnPolicyBatchReplay"},
    "DQN": {"name": "Replay", "batch_size": 16, "max_size": 2000},
}


def make_spec(algorithm: str, max_frame: int, **meta: Any) -> Spec:
    raw = {
        "name": f"ray_{algorithm.lower()}",
        "agent": {
            "algorithm": ALGORITHMS[algorithm],
            "memory": MEMORIES[algorithm],
            "net": {"type": "MLPNet", "hid_layers": [16], "optim_spec": {"name": "Adam", "lr": 3e-3}},
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": max_frame},
        "meta": {"log_frequency": 500, "compile": False, "final_eval": 2, "device": "cpu", **meta},
    }
    return parse_spec(raw)[0]


def make_tasks(spec: Spec, path: Path, trial: int = 0) -> list[SessionTask]:
    write_yaml(RunFolder(path, spec.name).trial_spec_file(trial), dump_spec(spec))
    return [SessionTask(path, spec.name, trial, session) for session in range(spec.meta.max_session)]


def run(
    executor: Executor, tasks: list[SessionTask], on_idle: Callable[[], None] = lambda: None
) -> list[SessionResult]:
    ends = run_tasks(executor, tasks, on_idle=on_idle)
    assert [end.error for end in ends] == [""] * len(tasks)
    return [end.result for end in ends if end.result is not None]


def follow(executor: Executor, is_enough: Callable[[], bool]) -> None:
    """Let a session run until something is true."""
    while not is_enough():
        for event in executor.poll(0.2):
            assert event.end is None, event.end


def end(executor: Executor, task: SessionTask) -> SessionEnd:
    while True:
        for event in executor.poll(0.2):
            if event.end is not None:
                assert event.key == task.key
                return event.end


def rows(folder: RunFolder, task: SessionTask) -> list[dict[str, str]]:
    with folder.table_file(task.trial, task.session, "train").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in ("wall_t", "fps")} for row in csv.DictReader(file)]


def assert_equal(one: Any, two: Any, where: str) -> None:
    """Equal contents: the bytes of a saved state also tell which of its keys are one object, which loading changes."""
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_equal(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for index, pair in enumerate(zip(one, two, strict=True)):
            assert_equal(*pair, f"{where}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, two), where
    else:
        assert one == two or (one != one and two != two), where


def assert_same(one: SessionTask, two: SessionTask) -> None:
    """Tables, models, replay files and the state that a continuation begins with, bit for bit."""
    here, there = (RunFolder(task.folder, task.name) for task in (one, two))
    assert len(rows(here, one)) > 1
    assert rows(here, one) == rows(there, two)
    states = [load_state(folder.resume_file(one.trial, one.session)) for folder in (here, there)]
    for key in ("agent", "env", "obs", "rows", "frame", "best_model"):
        assert_equal(states[0][key], states[1][key], key)
    names = [here.model_file(one.trial, one.session, which).name for which in ("last", "best")]
    for which, chunks in states[0]["rows"].items():
        prefix = here.replay_prefix(one.trial, one.session, which).name
        names += [f"{prefix}_{first}-{end}.pt" for first, end in chunks]
    for name in names:
        assert (here.path / "model" / name).read_bytes() == (there.path / "model" / name).read_bytes(), name


def assert_same_result(one: SessionResult, two: SessionResult) -> None:
    assert replace(one, wall_t=two.wall_t, phases=two.phases) == two
    assert one.is_done


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that only manages, and a node with room for two sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=2, object_store_memory=STORE)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def executor(cluster: Any) -> Iterator[Any]:
    executor = remote.RayExecutor(cluster.address)
    yield executor
    executor.close()


# --- files, without a cluster


@pytest.mark.parametrize(
    "name",
    [
        "info/x_t0_s1_session_df_train.csv",
        "model/x_t0_s1_ckpt-last_resume.pt",
        "model/x_t0_s1_replay-main_0-10.pt",
        "log/x_t0_s1.log",
        "log/x_t0_s1/events.out.tfevents.1",
    ],
)
def test_files_of_the_session_pass(name: str) -> None:
    assert remote.is_session_file(name, "x_t0_s1")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x_t0_spec.yaml",
        "info/x_t0_s10_session_df_train.csv",
        "info/x_t0_s2_session_df_train.csv",
        "model/.x_t0_s1.lock",
        "model/x_t0_s1",
        "/model/x_t0_s1_a",
        "../model/x_t0_s1_a",
        "model/../../x_t0_s1_a",
        "model/x_t0_s1/../../../a",
        "log/x_t0_s1/..",
        "log/x_t0_s1/a/b",
        "model/x_t0_s1_\\..\\a",
        "model/x_t0_s1_a\0",
        "report/x_t0_s1_a",
    ],
)
def test_hostile_and_foreign_names_are_refused(name: str) -> None:
    assert not remote.is_session_file(name, "x_t0_s1")


def test_another_environment_is_refused() -> None:
    here = remote.describe_code()
    remote.check_same_code(here, dict(here), "node1")
    with pytest.raises(LabError, match=r"node1: torch is 1\.0 there and .* here; install the same"):
        remote.check_same_code(here, {**here, "torch": "1.0"}, "node1")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The far end without Ray, and without a session that would write."""
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path))
    host = remote.SessionHost(SessionTask(Path("/elsewhere"), "x", 0, 1))
    yield host
    host.close()


def read_all(host: Any) -> tuple[dict[str, bytes], frozenset[str]]:
    replays = host._take_snapshot()
    return {
        sent.name: b"".join(host.read(index, offset) for offset in range(0, sent.size, remote.CHUNK_BYTES))
        for index, sent in enumerate(host.files)
    }, replays


def test_the_far_end_takes_files_of_its_session_alone(host: Any) -> None:
    host.write("x_t0_spec.yaml", b"a")
    host.write("info/x_t0_s1_a.csv", b"12")
    host.write("info/x_t0_s1_a.csv", b"3")
    assert (host.folder.path / "info/x_t0_s1_a.csv").read_bytes() == b"123"
    for name in ("../a", "x_t1_spec.yaml", "info/x_t0_s2_a.csv"):
        with pytest.raises(remote.TransferError):
            host.write(name, b"a")


def test_only_what_has_changed_comes_back(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHUNK_BYTES", 4)
    root = host.folder.path
    write_text(root / "info/x_t0_s1_a.csv", "0123456789")
    write_text(root / "model/x_t0_s1_replay-main_0-1.pt", "row")
    write_text(root / "model/x_t0_s2_other.pt", "of another session")
    replay = "model/x_t0_s1_replay-main_0-1.pt"
    assert read_all(host) == ({"info/x_t0_s1_a.csv": b"0123456789", replay: b"row"}, {replay})
    assert read_all(host) == ({}, {replay})
    with (root / "info/x_t0_s1_a.csv").open("a") as file:
        file.write("a")
    assert read_all(host)[0] == {"info/x_t0_s1_a.csv": b"0123456789a"}


def test_a_snapshot_does_not_change_while_it_is_read(host: Any) -> None:
    root = host.folder.path
    table, model = root / "info/x_t0_s1_a.csv", root / "model/x_t0_s1_m.pt"
    write_text(table, "1")
    write_text(model, "old")
    host._take_snapshot()
    with table.open("a") as file:
        file.write("2")
    write_text(model, "new")
    contents = {sent.name: host.read(index, 0) for index, sent in enumerate(host.files)}
    assert contents == {"info/x_t0_s1_a.csv": b"1", "model/x_t0_s1_m.pt": b"old"}
    assert read_all(host)[0] == {"info/x_t0_s1_a.csv": b"12", "model/x_t0_s1_m.pt": b"new"}


def test_a_checkpoint_written_meanwhile_starts_the_snapshot_anew(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    last = host.folder.resume_file(0, 1)
    old, new = (last.with_name(f"x_t0_s1_replay-main_{rows}.pt") for rows in ("0-1", "1-2"))
    write_text(last, "needs 0-1")
    write_text(old, "row")
    list_files = remote.list_files
    done: list[bool] = []

    def save_in_between(folder: Path, prefix: str) -> Any:
        found = list_files(folder, prefix)
        if not done:
            done.append(True)
            write_text(new, "row")
            os.replace(last, previous_file(last))
            write_text(last, "needs 1-2")
        return found

    monkeypatch.setattr(remote, "list_files", save_in_between)
    contents, replays = read_all(host)
    names = [f"model/{path.name}" for path in (last, previous_file(last), old, new)]
    assert set(contents) == set(names)
    assert contents[names[0]] == b"needs 1-2"
    assert replays == set(names[2:])


class FakeNode:
    """Answers calls for files at once."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.read = self
        self.sent = [remote.SentFile(name, len(data)) for name, data in files.items()]

    def remote(self, index: int, offset: int) -> bytes:
        return list(self.files.values())[index][offset : offset + 3]

    def fetch(self, root: Path, replays: set[str], lost_after: int | None = None) -> list[int]:
        """Bring all files into a run folder; how large the pieces were."""
        one = remote._Remote(SessionTask(root, "x", 0, 1), actor=self)
        steps = remote.fetch_files(one, self.sent, frozenset(replays))
        sizes: list[int] = []
        with suppress(StopIteration):
            data = next(steps)
            while True:
                sizes.append(len(data))
                if len(sizes) == lost_after:
                    steps.throw(ray.exceptions.RayActorError())
                data = steps.send(data)
        return sizes


def contents(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def old_run(root: Path) -> dict[str, str]:
    for name in ("ckpt-last_resume.pt", "ckpt-prev_resume.pt", "replay-main_0-1.pt", "replay-main_1-2.pt"):
        write_text(root / "model" / f"x_t0_s1_{name}", "old")
    write_text(root / "model" / "x_t0_s10_replay-main_0-1.pt", "of another session")
    return contents(root)


def test_files_come_in_pieces_and_rows_that_nobody_needs_go(tmp_path: Path) -> None:
    old = old_run(tmp_path)
    prefix = "model/x_t0_s1_"
    new = {f"{prefix}ckpt-last_resume.pt": "newer", f"{prefix}replay-main_1-3.pt": "", "log/x_t0_s1.log": "l"}
    node = FakeNode({name: text.encode() for name, text in new.items()})
    held = {f"{prefix}replay-main_1-2.pt", f"{prefix}replay-main_1-3.pt"}
    assert node.fetch(tmp_path, held) == [3, 2, 1]
    del old[f"{prefix}replay-main_0-1.pt"]
    assert contents(tmp_path) == old | new


def test_rows_are_in_place_before_the_checkpoint_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    monkeypatch.setattr(remote, "move_into_place", lambda _, path: moved.append(path.name.removeprefix("x_t0_s1_")))
    names = ["ckpt-best_net_model.pt", "ckpt-last_resume.pt", "ckpt-prev_resume.pt", "replay-main_0-1.pt"]
    FakeNode({f"model/x_t0_s1_{name}": b"new" for name in names}).fetch(tmp_path, set())
    assert moved == [names[3], names[2], names[1], names[0]]


def test_a_node_lost_while_it_sends_changes_nothing(tmp_path: Path) -> None:
    old = old_run(tmp_path)
    node = FakeNode(
        {f"model/x_t0_s1_{name}": b"new and longer" for name in ("replay-main_1-3.pt", "ckpt-last_resume.pt")}
    )
    for lost_after in (1, 3, 6, 9):
        with pytest.raises(ray.exceptions.RayActorError):
            node.fetch(tmp_path, set(), lost_after)
        assert contents(tmp_path) == old


@pytest.mark.parametrize("name", ["../x_t0_s1_a", "model/../../x_t0_s1_a", "x_t0_spec.yaml", "model/x_t0_s2_a"])
def test_a_hostile_node_writes_nothing(name: str, tmp_path: Path) -> None:
    old = old_run(tmp_path / "run")
    with pytest.raises(remote.TransferError, match="refused"):
        FakeNode({"model/x_t0_s1_a": b"1", name: b"2"}).fetch(tmp_path / "run", set())
    assert contents(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_node_that_sends_more_than_it_said_is_refused(tmp_path: Path) -> None:
    node = FakeNode({"model/x_t0_s1_a": b"123456"})
    node.sent = [remote.SentFile("model/x_t0_s1_a", 5)]
    with pytest.raises(remote.TransferError, match="2 were missing"):
        node.fetch(tmp_path, set())
    assert contents(tmp_path) == {}


def attend(task: SessionTask) -> Any:
    """All that is done for a session, on nodes that exist only in what the test answers."""
    executor = remote.RayExecutor.__new__(remote.RayExecutor)
    executor.resources, executor.is_own, executor.events = Resources(), False, []
    executor.code, executor.host = remote.describe_code(), MagicMock()
    return executor._attend(remote._Remote(task))


def test_a_session_that_loses_every_node_is_given_up(tmp_path: Path) -> None:
    steps = attend(SessionTask(tmp_path, "x", 0, 1))
    next(steps)
    for _ in range(3):
        steps.throw(ray.exceptions.RayActorError())
    with pytest.raises(StopIteration) as end:
        steps.throw(ray.exceptions.NodeDiedError("gone"))
    assert end.value.value.error == "lost its node 4 times: NodeDiedError: gone"
    assert end.value.value.reason == "failed"


def test_trouble_of_ray_itself_ends_one_session_and_not_the_run(tmp_path: Path) -> None:
    steps = attend(SessionTask(tmp_path, "x", 0, 1))
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.throw(ray.exceptions.RaySystemError("no disk"))
    assert "no disk" in end.value.value.error


def test_a_node_without_the_lab_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    steps = attend(SessionTask(tmp_path, "x", 0, 1))
    next(steps)
    missing = ModuleNotFoundError("No module named 'slm_lab'")
    steps.throw(ray.exceptions.RayTaskError("describe", "ModuleNotFoundError: No module named 'slm_lab'", missing))
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert "cannot load this lab (ModuleNotFoundError: No module named 'slm_lab')" in end.value.value.error
    assert end.value.value.reason == "input"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "join the cluster with `ray start --address=HOST:PORT`"),
        ("locl", "give HOST:PORT, auto or local; did you mean 'local'?"),
        ("host:", "give HOST:PORT"),
        ("127.0.0.1:1", "nobody answers there"),
        ("127.0.0.1:99999", "nobody answers there"),
    ],
)
def test_a_wrong_address_is_told_at_once(address: str, message: str) -> None:
    with pytest.raises(LabError, match=re.escape(message)):
        load_ray(address)


# --- on a cluster


@pytest.mark.slow
def test_a_trial_is_the_same_as_a_local_one(executor: Any, cluster: Any, tmp_path: Path) -> None:
    spec = make_spec("PPO", 3000, max_session=2)
    here, there = make_tasks(spec, tmp_path / "here"), make_tasks(spec, tmp_path / "there")
    for results in zip(run(LocalExecutor(), here), run(executor, there), strict=True):
        assert_same_result(*results)
    for one, two in zip(here, there, strict=True):
        assert_same(one, two)
    names = [
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "here", tmp_path / "there")
    ]
    assert names[0] == names[1]
    # the cluster is still there, and so is its next user
    assert not ray.is_initialized()
    again = remote.RayExecutor(cluster.address)
    (result,) = run(again, [replace(there[0])])
    assert result.is_done


@pytest.mark.slow
def test_a_lost_node_costs_only_the_time_since_the_checkpoint(executor: Any, cluster: Any, tmp_path: Path) -> None:
    here, there = [], []
    for trial, algorithm in enumerate(("PPO", "DQN")):
        spec = make_spec(algorithm, 24_000, checkpoint_frequency=1000)
        here += make_tasks(spec, tmp_path / "here", trial)
        there += make_tasks(spec, tmp_path / "there", trial)
    whole = run(LocalExecutor(), here)
    (node,) = cluster.worker_nodes
    lost: list[int] = []

    def lose_node() -> None:
        files = [RunFolder(task.folder, task.name).resume_file(task.trial, task.session) for task in there]
        if not lost and all(file.exists() for file in files):
            lost.extend(load_state(file)["frame"] for file in files)
            cluster.add_node(num_cpus=2, object_store_memory=STORE)
            cluster.remove_node(node, allow_graceful=False)

    for results in zip(whole, run(executor, there, lose_node), strict=True):
        assert_same_result(*results)
    assert lost
    assert max(lost) < 24_000
    for one, two in zip(here, there, strict=True):
        assert_same(one, two)
        log = RunFolder(two.folder, two.name).log_file(two.trial, two.session).read_text()
        assert "continues at frame" in log
        assert ": exact" in log


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_a_stopped_session_continues_locally(algorithm: str, executor: Any, tmp_path: Path) -> None:
    spec = make_spec(algorithm, 20_000)
    (here,), (there,) = make_tasks(spec, tmp_path / "here"), make_tasks(spec, tmp_path / "there")
    (whole,) = run(LocalExecutor(), [here])
    table = RunFolder(tmp_path / "there", spec.name).table_file(0, 0, "train")
    executor.submit(there)
    follow(executor, table.exists)
    executor.stop(there.key)
    outcome = end(executor, there)
    assert outcome.result is not None, outcome.error
    assert not outcome.result.is_done
    assert 0 < outcome.result.frame < 20_000
    # its last files came before its end was told
    assert load_state(RunFolder(tmp_path / "there", spec.name).resume_file(0, 0))["frame"] == outcome.result.frame
    (rest,) = run(LocalExecutor(), [there])
    assert_same_result(whole, rest)
    assert_same(here, there)


@pytest.mark.slow
def test_what_has_no_room_waits_and_may_never_start(executor: Any, tmp_path: Path) -> None:
    spec = make_spec("PPO", 3000)
    executor.resources = Resources(cpu=64)
    (task,) = make_tasks(spec, tmp_path)
    executor.submit(task)
    assert executor.poll(0.2) == []
    executor.stop(task.key)
    assert end(executor, task).error == "not started"
    assert not (tmp_path / "info").exists()


@pytest.mark.slow
def test_a_session_that_fails_is_not_tried_again(executor: Any, tmp_path: Path) -> None:
    spec = make_spec("PPO", 3000)
    (task,) = make_tasks(spec, tmp_path)
    broken = RunFolder(tmp_path, spec.name).resume_file(0, 0)
    write_text(broken, "no checkpoint")
    executor.submit(task)
    outcome = end(executor, task)
    assert outcome.reason == "input"
    assert "no good checkpoint is left" in outcome.error
    # neither is one that another process trains
    with lock_file(RunFolder(tmp_path, spec.name).lock_file(0, 0), 0):
        executor.submit(task)
        assert "another process is using" in end(executor, task).error


@pytest.mark.slow
def test_a_run_starts_and_ends_a_ray_of_its_own(tmp_path: Path) -> None:
    if ray.is_initialized():
        ray.shutdown()
    old = signal.getsignal(signal.SIGTERM)
    began = time.time()
    result = start(make_spec("PPO", 3000), Options(data_dir=tmp_path, ray_address="local"))
    assert result.exit_code == 0
    assert result.results[0].is_done
    assert result.metrics is not None
    assert result.metrics["is_complete"]
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is old
    # nothing stays where the session ran
    left = [path for path in Path(remote.tempfile.gettempdir()).glob("slm_lab_*") if path.stat().st_mtime > began]
    assert left == []
