"""Rows on other machines: so many at once, nothing submitted twice, nothing forgotten, failures under a new name."""

from pathlib import Path

import pytest

from slm_lab.benchmark.matrix import select_rows
from slm_lab.benchmark.remote import Cloud, RemoteRun, load_remote, remote_file, run_remote
from slm_lab.lib.errors import LabError
from slm_lab.remote.task import TaskRequest

ROWS = select_rows(["cartpole-v1"])
PONG = select_rows(["pong ppo"])


class FakeCloud:
    """Runs that last two looks, unless their end is given."""

    def __init__(self, ends: dict[str, str] | None = None) -> None:
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

    def as_cloud(self) -> Cloud:
        return Cloud(self.submit, self.find_status, self.fetched.append, lambda seconds: None)


def test_rows_run_so_many_at_once_until_all_are_done(tmp_path: Path) -> None:
    cloud = FakeCloud()
    runs = run_remote(ROWS, {}, tmp_path, 3, 1, cloud.as_cloud())
    assert len(runs) == len(ROWS) == 8
    assert {run.status for run in runs.values()} == {"done"}
    assert cloud.most_at_once == 3
    assert sorted(cloud.fetched) == sorted(row.spec_name for row in ROWS)
    # nothing is submitted a second time while its result is on the way
    assert run_remote(ROWS, {}, tmp_path, 3, 1, cloud.as_cloud()) == runs
    assert len(cloud.requests) == 8


def test_a_failure_gets_a_new_name_and_then_is_given_up(tmp_path: Path) -> None:
    cloud = FakeCloud(
        {"ppo-cartpole-arc": "failed", "a2c-gae-cartpole-arc": "failed", "a2c-gae-cartpole-arc-2": "failed"}
    )
    rows = [row for row in ROWS if row.algorithm in ("PPO", "A2C")]
    runs = run_remote(rows, {}, tmp_path, 10, 1, cloud.as_cloud())
    assert runs["CartPole-v1 PPO"] == RemoteRun("ppo-cartpole-arc-2", 2, "done")
    assert runs["CartPole-v1 A2C"] == RemoteRun("a2c-gae-cartpole-arc-2", 2, "given up")


def test_a_stop_forgets_nothing(tmp_path: Path) -> None:
    cloud = FakeCloud()

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_remote(ROWS[:2], {}, tmp_path, 10, 1, Cloud(cloud.submit, cloud.find_status, cloud.fetched.append, stop))
    assert len(load_remote(tmp_path)) == 2
    runs = run_remote(ROWS[:2], {}, tmp_path, 10, 1, cloud.as_cloud())
    assert {run.status for run in runs.values()} == {"done"}
    assert len(cloud.requests) == 2


def test_a_row_that_was_noted_but_never_sent_is_sent(tmp_path: Path) -> None:
    cloud = FakeCloud()

    def refuse(request: TaskRequest) -> None:
        raise LabError("no capacity at all")

    with pytest.raises(LabError, match="no capacity"):
        run_remote(ROWS[:1], {}, tmp_path, 1, 1, Cloud(refuse, cloud.find_status, cloud.fetched.append))
    runs = run_remote(ROWS[:1], {}, tmp_path, 1, 1, cloud.as_cloud())
    (run,) = runs.values()
    assert (run.name, run.attempt, run.status) == ("reinforce-cartpole-arc", 1, "done")


def test_games_ask_for_a_gpu_and_fill_placeholders(tmp_path: Path) -> None:
    cloud = FakeCloud()
    run_remote([*PONG, ROWS[0]], {}, tmp_path, 10, 0, cloud.as_cloud())
    pong, cartpole = cloud.requests
    assert pong.gpu
    assert "env=ALE/Pong-v5" in pong.changes
    assert not cartpole.gpu
    assert pong.upload


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    remote_file(tmp_path).write_text("[1]")
    with pytest.raises(LabError, match="damaged"):
        load_remote(tmp_path)
