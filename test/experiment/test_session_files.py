"""The files of a session between machines: only its own, whole or not at all, in an order that survives a kill."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slm_lab.experiment import ray_host, session_files
from slm_lab.experiment.executor import SessionTask
from slm_lab.experiment.ray_host import SessionHost, check_same_code, describe_code
from slm_lab.experiment.session_files import SentFile, TransferError, fetch_files, is_session_file
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_text
from slm_lab.results.folder import RunFolder, previous_file

OWN = (
    "info/x_t0_s1_session_df_train.csv",
    "model/x_t0_s1_ckpt-last_resume.safetensors",
    "model/x_t0_s1_replay-main_0-10.pt",
    "log/x_t0_s1.log",
    "log/x_t0_s1/events.out.tfevents.1",
)
CHECKPOINTS = ("ckpt-last_resume.safetensors", "ckpt-prev_resume.safetensors")
FOREIGN = (
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
)


def test_only_files_of_the_session_pass() -> None:
    assert [name for name in (*OWN, *FOREIGN) if is_session_file(name, "x_t0_s1")] == list(OWN)


def test_another_environment_is_refused() -> None:
    here = describe_code()
    check_same_code(here, dict(here), "node1")
    with pytest.raises(LabError, match=r"node1: torch is 1\.0 there and .* here; install the same"):
        check_same_code(here, {**here, "torch": "1.0"}, "node1")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The far end without Ray, and without a session that would write."""
    monkeypatch.setattr(ray_host.tempfile, "tempdir", str(tmp_path))
    host = SessionHost(SessionTask(Path("/elsewhere"), "x", 0, 1))
    yield host
    host.close()


def read_all(host: Any) -> tuple[dict[str, bytes], frozenset[str]]:
    replays = host._take_snapshot()
    return {
        sent.name: b"".join(host.read(index, offset) for offset in range(0, sent.size, ray_host.CHUNK_BYTES))
        for index, sent in enumerate(host.files)
    }, replays


def test_the_far_end_takes_files_of_its_session_alone(host: Any) -> None:
    host.write("x_t0_spec.yaml", b"a")
    host.write("info/x_t0_s1_a.csv", b"12")
    host.write("info/x_t0_s1_a.csv", b"3")
    assert (host.folder.path / "info/x_t0_s1_a.csv").read_bytes() == b"123"
    for name in ("../a", "x_t1_spec.yaml", "info/x_t0_s2_a.csv"):
        with pytest.raises(TransferError):
            host.write(name, b"a")


def test_only_what_has_changed_comes_back(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_host, "CHUNK_BYTES", 4)
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


def test_a_checkpoint_written_meanwhile_starts_the_snapshot_again(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    last = host.folder.resume_file(0, 1)
    old, new = (last.with_name(f"x_t0_s1_replay-main_{rows}.pt") for rows in ("0-1", "1-2"))
    write_text(last, "needs 0-1")
    write_text(old, "row")
    list_files = ray_host.list_files
    done: list[bool] = []

    def save_in_between(folder: Path, prefix: str) -> Any:
        found = list_files(folder, prefix)
        if not done:
            done.append(True)
            write_text(new, "row")
            os.replace(last, previous_file(last))
            write_text(last, "needs 1-2")
        return found

    monkeypatch.setattr(ray_host, "list_files", save_in_between)
    contents, replays = read_all(host)
    names = [f"model/{path.name}" for path in (last, previous_file(last), old, new)]
    assert set(contents) == set(names)
    assert contents[names[0]] == b"needs 1-2"
    assert replays == set(names[2:])


class LostError(Exception):
    """A node is gone."""


class FakeNode:
    """Answers calls for files at once, three bytes at a time."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.sent = [SentFile(name, len(data)) for name, data in files.items()]

    def read(self, index: int, offset: int) -> bytes:
        return list(self.files.values())[index][offset : offset + 3]

    def fetch(self, root: Path, replays: set[str], lost_after: int | None = None) -> list[int]:
        """Bring all files into a run folder; how large the pieces were."""
        steps = fetch_files(RunFolder(root, "x"), (0, 1), self.sent, frozenset(replays), self.read)
        sizes: list[int] = []
        with suppress(StopIteration):
            data = next(steps)
            while True:
                sizes.append(len(data))
                if len(sizes) == lost_after:
                    steps.throw(LostError())
                data = steps.send(data)
        return sizes


def contents(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def old_run(root: Path) -> dict[str, str]:
    for name in (
        "ckpt-last_resume.safetensors",
        "ckpt-prev_resume.safetensors",
        "replay-main_0-1.pt",
        "replay-main_1-2.pt",
    ):
        write_text(root / "model" / f"x_t0_s1_{name}", "old")
    write_text(root / "model" / "x_t0_s10_replay-main_0-1.pt", "of another session")
    return contents(root)


def test_files_come_in_pieces_and_rows_that_nobody_needs_go(tmp_path: Path) -> None:
    old = old_run(tmp_path)
    prefix = "model/x_t0_s1_"
    new = {
        f"{prefix}ckpt-last_resume.safetensors": "newer",
        f"{prefix}replay-main_1-3.pt": "",
        "log/x_t0_s1.log": "l",
    }
    node = FakeNode({name: text.encode() for name, text in new.items()})
    held = {f"{prefix}replay-main_1-2.pt", f"{prefix}replay-main_1-3.pt"}
    assert node.fetch(tmp_path, held) == [3, 2, 1]
    del old[f"{prefix}replay-main_0-1.pt"]
    assert contents(tmp_path) == old | new


def test_rows_are_in_place_before_the_checkpoint_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    monkeypatch.setattr(
        session_files, "move_into_place", lambda _, path: moved.append(path.name.removeprefix("x_t0_s1_"))
    )
    names = [
        "ckpt-best_net_model.pt",
        "ckpt-last_resume.safetensors",
        "ckpt-prev_resume.safetensors",
        "replay-main_0-1.pt",
    ]
    FakeNode({f"model/x_t0_s1_{name}": b"new" for name in names}).fetch(tmp_path, set())
    assert [name.removeprefix("x_t0_s1_") for name in moved] == [names[3], names[2], names[1], names[0]]


def test_a_node_lost_while_it_sends_changes_nothing(tmp_path: Path) -> None:
    old = old_run(tmp_path)
    node = FakeNode(
        {f"model/x_t0_s1_{name}": b"new and longer" for name in ("replay-main_1-3.pt", "ckpt-last_resume.safetensors")}
    )
    for lost_after in (1, 3, 6, 9):
        with pytest.raises(LostError):
            node.fetch(tmp_path, set(), lost_after)
        assert contents(tmp_path) == old


@pytest.mark.parametrize("name", ["../x_t0_s1_a", "model/../../x_t0_s1_a", "x_t0_spec.yaml", "model/x_t0_s2_a"])
def test_a_hostile_node_writes_nothing(name: str, tmp_path: Path) -> None:
    old = old_run(tmp_path / "run")
    with pytest.raises(TransferError, match="refused"):
        FakeNode({"model/x_t0_s1_a": b"1", name: b"2"}).fetch(tmp_path / "run", set())
    assert contents(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_node_that_sends_more_than_it_said_is_refused(tmp_path: Path) -> None:
    node = FakeNode({"model/x_t0_s1_a": b"123456"})
    node.sent = [SentFile("model/x_t0_s1_a", 5)]
    with pytest.raises(TransferError, match="2 were missing"):
        node.fetch(tmp_path, set())
    assert contents(tmp_path) == {}
