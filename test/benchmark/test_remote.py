"""Rows on other machines: a few at once, nothing submitted twice, nothing forgotten, failures under a new name."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from slm_lab.benchmark.matrix import Row, load_matrix, select_rows
from slm_lab.benchmark.remote import Cloud, RemoteRun, RemoteRuns, load_remote, name_row, remote_file
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_json
from slm_lab.remote.task import TaskRequest, make_run_name
from test.benchmark.test_benchmark import make_run

ROWS = select_rows(["classic cartpole-v1"])
PONG = select_rows(["atari pong ppo"])


class FakeCloud:
    """Runs that last two looks, unless their end is given."""

    def __init__(self, ends: dict[str, str] | None = None, data: Path | None = None) -> None:
        # finished runs come here
        self.data = data
        self.ends = ends or {}
        self.looks: dict[str, int] = {}
        self.requests: list[TaskRequest] = []
        self.fetched: list[str] = []
        self.most_at_once = 0

    def submit(self, request: TaskRequest) -> None:
        assert request.run_name is not None
        assert request.run_name not in self.looks
        self.requests.append(request)
        self.looks[request.run_name] = 0
        active = sum(self._status(name) == "running" for name in self.looks)
        self.most_at_once = max(self.most_at_once, active)

    def _status(self, name: str) -> str:
        return "running" if self.looks[name] < 2 else self.ends.get(name, "done")

    def find_status(self, name: str) -> str | None:
        if name not in self.looks:
            return None
        self.looks[name] += 1
        return self._status(name)

    def fetch(self, name: str) -> None:
        self.fetched.append(name)
        if self.data is not None:
            row = next(row for row in ROWS if row.spec_name == name)
            make_run(self.data, row, stamp=f"2026_01_01_{len(self.fetched):06d}")

    def as_cloud(self) -> Cloud:
        return Cloud(self.submit, self.find_status, self.fetch, lambda seconds: None)


def run_remote(
    rows: Sequence[Row], data_dir: Path, max_parallel: int, retries: int, cloud: Cloud
) -> dict[str, RemoteRun]:
    return RemoteRuns(data_dir, cloud, TaskRequest("")).run(rows, {}, max_parallel, retries)


def test_rows_run_so_many_at_once_until_all_are_done(tmp_path: Path) -> None:
    cloud = FakeCloud(data=tmp_path)
    runs = run_remote(ROWS, tmp_path, 3, 1, cloud.as_cloud())
    assert len(runs) == len(ROWS) == 8
    assert {run.status for run in runs.values()} == {"done"}
    assert cloud.most_at_once == 3
    assert sorted(cloud.fetched) == sorted(row.spec_name for row in ROWS)
    # nothing is submitted or fetched a second time
    assert run_remote(ROWS, tmp_path, 3, 1, cloud.as_cloud()) == {}
    assert len(cloud.requests) == len(cloud.fetched) == 8


def test_runs_of_other_rows_take_a_place_until_they_end(tmp_path: Path) -> None:
    cloud = FakeCloud()
    others = {row.key: {"name": f"other-{i}", "attempt": 1, "status": "running"} for i, row in enumerate(ROWS[:3])}
    write_json(remote_file(tmp_path), others)
    cloud.looks = {f"other-{i}": 0 for i in range(3)}
    runs = run_remote(PONG, tmp_path, 3, 0, cloud.as_cloud())
    assert [run.status for run in runs.values()] == ["done"]
    assert {run.status for run in load_remote(tmp_path).values()} == {"done"}


def test_a_failure_gets_a_new_name_a_few_times(tmp_path: Path) -> None:
    failing = ("ppo-cartpole-arc", "a2c-gae-cartpole-arc", "a2c-gae-cartpole-arc-2")
    cloud = FakeCloud(dict.fromkeys(failing, "failed"))
    rows = [row for row in ROWS if row.algorithm in ("PPO", "A2C")]
    runs = run_remote(rows, tmp_path, 10, 1, cloud.as_cloud())
    assert runs["CartPole-v1 PPO"] == RemoteRun("ppo-cartpole-arc-2", 2, "done")
    assert runs["CartPole-v1 A2C"] == RemoteRun("a2c-gae-cartpole-arc-2", 2, "failed")
    # asked again, it counts further
    assert run_remote(rows, tmp_path, 10, 1, cloud.as_cloud())["CartPole-v1 A2C"].name == "a2c-gae-cartpole-arc-3"


def test_a_run_that_was_stopped_is_left_alone_and_goes_on_when_asked(tmp_path: Path) -> None:
    cloud = FakeCloud({"ppo-cartpole-arc": "terminated"})
    rows = [row for row in ROWS if row.algorithm == "PPO"]
    (run,) = run_remote(rows, tmp_path, 10, 1, cloud.as_cloud()).values()
    assert (run.name, run.status) == ("ppo-cartpole-arc", "terminated")
    assert len(cloud.requests) == 1
    # the same name, so the same checkpoints
    cloud.looks.clear()
    cloud.ends.clear()
    (run,) = run_remote(rows, tmp_path, 10, 1, cloud.as_cloud()).values()
    assert (run.name, run.status) == ("ppo-cartpole-arc", "done")


def test_a_look_that_fails_is_no_end(tmp_path: Path) -> None:
    cloud = FakeCloud()
    failures = iter([True, True, False, True])

    def look(name: str) -> str | None:
        if next(failures, False):
            raise LabError("the server does not answer")
        return cloud.find_status(name)

    runs = run_remote(ROWS[:1], tmp_path, 1, 0, Cloud(cloud.submit, look, cloud.fetch, lambda seconds: None))
    assert [run.status for run in runs.values()] == ["done"]


def test_names_of_all_rows_differ() -> None:
    names = [name_row(row) for row in load_matrix()]
    names += [make_run_name(f"{name}-2") for name in names]
    assert len(set(names)) == len(names)


def test_a_stop_forgets_nothing(tmp_path: Path) -> None:
    cloud = FakeCloud()

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_remote(ROWS[:2], tmp_path, 10, 1, Cloud(cloud.submit, cloud.find_status, cloud.fetch, stop))
    assert len(load_remote(tmp_path)) == 2
    runs = run_remote(ROWS[:2], tmp_path, 10, 1, cloud.as_cloud())
    assert {run.status for run in runs.values()} == {"done"}
    assert len(cloud.requests) == 2


def test_a_row_that_was_noted_but_never_sent_is_sent(tmp_path: Path) -> None:
    cloud = FakeCloud()

    def refuse(request: TaskRequest) -> None:
        raise LabError("no capacity at all")

    with pytest.raises(LabError, match="no capacity"):
        run_remote(ROWS[:1], tmp_path, 1, 1, Cloud(refuse, cloud.find_status, cloud.fetch))
    runs = run_remote(ROWS[:1], tmp_path, 1, 1, cloud.as_cloud())
    (run,) = runs.values()
    assert (run.name, run.attempt, run.status) == ("reinforce-cartpole-arc", 1, "done")


def test_games_ask_for_a_gpu_and_fill_placeholders(tmp_path: Path) -> None:
    cloud = FakeCloud()
    run_remote([*PONG, ROWS[0]], tmp_path, 10, 0, cloud.as_cloud())
    pong, cartpole = cloud.requests
    assert pong.gpu
    assert "env=ALE/Pong-v5" in pong.changes
    assert not cartpole.gpu
    assert pong.upload


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    remote_file(tmp_path).parent.mkdir()
    remote_file(tmp_path).write_text("[1]")
    with pytest.raises(LabError, match="damaged"):
        load_remote(tmp_path)
