"""The rows of a replay on disk: written once, deleted when no checkpoint needs them, read back to the bit."""

import itertools
from pathlib import Path

import pytest
import torch

from slm_lab.agent.memory.replay import Replay, Setting
from slm_lab.experiment.checkpoint import replay_files
from slm_lab.experiment.checkpoint.replay_files import ReplayFiles
from slm_lab.lib.errors import CheckpointError
from slm_lab.spec.memory import ReplaySpec
from test.agent.conftest import build_step

CPU = torch.device("cpu")
NUM_ENVS = 2
CAPACITY = 20


def build() -> Replay:
    spec = ReplaySpec(batch_size=8, max_size=CAPACITY * NUM_ENVS)
    generator = torch.Generator().manual_seed(0)
    return Replay(spec, Setting(NUM_ENVS, (1,), torch.float32, (), torch.int64, 0.9, CPU, generator))


def add(replay: Replay, count: int) -> None:
    """Rows whose observation and reward are the number of the row."""
    for row in range(replay.head, replay.head + count):
        obs = torch.full((NUM_ENVS, 1), float(row))
        replay.add(build_step(obs, "." * NUM_ENVS, action=[row] * NUM_ENVS, reward=[row] * NUM_ENVS, next_obs=obs + 1))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayFiles:
    replay = build()
    # six rows to a file
    monkeypatch.setattr(replay_files, "CHUNK_BYTES", 6 * replay.row_bytes)
    return ReplayFiles(tmp_path / "run_replay-memory", replay)


def names(files: ReplayFiles) -> list[str]:
    return sorted(path.name.removeprefix("run_replay-memory_") for path in files.prefix.parent.iterdir())


def read(files: ReplayFiles, chunks: list[list[int]]) -> Replay:
    """The memory as another process would find it."""
    copy = build()
    other = ReplayFiles(files.prefix, copy)
    other.load(chunks)
    copy.load_state_dict(files.replay.state_dict())
    return copy


def assert_same(one: Replay, two: Replay) -> None:
    assert one.head == two.head
    rows, others = (replay.rows(replay.held_first, replay.head) for replay in (one, two))
    assert rows.keys() == others.keys()
    for name, field in rows.items():
        assert torch.equal(field, others[name]), name


def test_a_checkpoint_writes_what_is_new_and_the_last_file_again(files: ReplayFiles) -> None:
    add(files.replay, 8)
    assert files.save() == [[0, 6], [6, 8]]
    files.clean()
    written = (files.prefix.parent / "run_replay-memory_0-6.safetensors").stat().st_mtime_ns
    add(files.replay, 2)
    chunks = files.save()
    assert chunks == [[0, 6], [6, 10]]
    files.clean()
    # the checkpoint before this one still finds its own
    assert names(files) == ["0-6.safetensors", "6-10.safetensors", "6-8.safetensors"]
    assert (files.prefix.parent / "run_replay-memory_0-6.safetensors").stat().st_mtime_ns == written
    assert_same(read(files, chunks), files.replay)


def test_files_that_are_full_are_written_on_the_way(files: ReplayFiles) -> None:
    for _ in range(15):
        add(files.replay, 1)
        files.flush()
    assert names(files) == ["0-6.safetensors", "6-12.safetensors"]
    # so a checkpoint has one file to write, however long ago the last one was
    before = set(names(files))
    chunks = files.save()
    assert set(names(files)) - before == {"12-15.safetensors"}
    assert_same(read(files, chunks), files.replay)


def test_overwritten_rows_leave_the_disk(files: ReplayFiles) -> None:
    for _ in range(57):
        add(files.replay, 1)
        files.flush()
        if files.replay.head % 5 == 0:
            files.save()
            files.clean()
    chunks = files.save()
    files.clean()
    # 20 rows are held: 37 to 56
    assert chunks[0][0] <= 37 < chunks[0][1]
    assert chunks[-1][1] == 57
    assert all(one[1] == two[0] for one, two in itertools.pairwise(chunks))
    oldest = min(int(name.partition("-")[0]) for name in names(files))
    # what the last two checkpoints need, and not more
    assert oldest >= 30
    assert_same(read(files, chunks), files.replay)


def test_more_rows_than_are_held_between_two_checkpoints(files: ReplayFiles) -> None:
    add(files.replay, 4)
    files.save()
    add(files.replay, 50)
    chunks = files.save()
    assert chunks[0][0] == 34
    assert_same(read(files, chunks), files.replay)


def test_samples_go_on_as_if_nothing_had_happened(files: ReplayFiles) -> None:
    add(files.replay, 33)
    copy = read(files, files.save())
    for replay in (files.replay, copy):
        replay.generator.manual_seed(3)
    add(files.replay, 3)
    add(copy, 3)
    one, two = files.replay.sample(0), copy.sample(0)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, two, strict=True))


def test_a_damaged_file_is_found(files: ReplayFiles) -> None:
    add(files.replay, 8)
    chunks = files.save()
    path = files.prefix.parent / "run_replay-memory_0-6.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        read(files, chunks)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(files, chunks)
