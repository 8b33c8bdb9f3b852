"""Sessions on a Ray cluster: the same bits as local ones, whatever happens to the nodes."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from slm_lab.audit.difference import compare_runs
from slm_lab.experiment import ray_host
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.executor import Executor, LocalExecutor, Resources, SessionTask, load_ray, run_tasks
from slm_lab.experiment.launch import start
from slm_lab.experiment.messages import SessionEnd, SessionResult
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import lock_file, write_text, write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

ray = pytest.importorskip("ray", reason="ray is not installed: uv sync --group ray")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed: uv sync --group ray")
remote = pytest.importorskip("slm_lab.experiment.ray_executor")

# the cluster is slow to start
pytestmark = pytest.mark.timeout(900)
STORE = 100_000_000


def make_spec(algorithm: str, max_frame: int, **meta: Any) -> Spec:
    name = f"ray_{algorithm.lower()}"
    return make_tiny_spec(algorithm, name=name, env={"max_frame": max_frame}, meta={"final_eval": 2, **meta})


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


def assert_same(one: SessionTask, two: SessionTask) -> None:
    """Tables, models and the states that a resumption begins with, bit for bit."""
    comparison = compare_runs(RunFolder(one.folder, one.name), RunFolder(two.folder, two.name), one.key)
    assert comparison.is_same, comparison.describe()
    assert comparison.num_row > 1


def assert_same_result(one: SessionResult, two: SessionResult) -> None:
    assert replace(one, phases=two.phases) == two
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


# --- one session on nodes that exist only in what the test answers


def attend(task: SessionTask) -> Any:
    executor = remote.RayExecutor.__new__(remote.RayExecutor)
    executor.resources, executor.is_own, executor.events = Resources(), False, []
    executor.code, executor.host = ray_host.describe_code(), MagicMock()
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
        ("127.0.0.1:1", "no cluster answers there"),
        ("127.0.0.1:99999", "no cluster answers there"),
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
        assert "resumes at frame" in log
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
    assert result.metrics.is_complete
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is old
    # nothing stays where the session ran
    left = [path for path in Path(ray_host.tempfile.gettempdir()).glob("slm_lab_*") if path.stat().st_mtime > began]
    assert left == []
