"""Disks that are full, read-only or gone: one plain line, the last checkpoint whole, and the run goes on exactly."""

import errno
import io as streams
import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from loguru import logger

from bench.faults.specs import NAME
from bench.faults.specs import make_spec as make_small_spec
from slm_lab.audit.difference import find_difference
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment import disk
from slm_lab.experiment.build import build_session_agent
from slm_lab.experiment.checkpoint import replay_files
from slm_lab.experiment.checkpoint.state import load_latest, load_state, save_state
from slm_lab.experiment.control import Session
from slm_lab.experiment.disk import DiskNeed, estimate_disk
from slm_lab.experiment.launch import resume, start
from slm_lab.experiment.messages import Progress
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained
from slm_lab.experiment.trial import TrialResult
from slm_lab.lib import io
from slm_lab.lib.errors import LabError, StorageError
from slm_lab.lib.io import AppendFile
from slm_lab.lib.log import log_to, setup_console
from slm_lab.results.folder import RunFolder, previous_file
from slm_lab.results.run import load_run
from slm_lab.spec.schema import Spec

ROOT = Path(__file__).parents[2]
FULL = OSError(errno.ENOSPC, "No space left on device")


def make_spec(algorithm: str = "DQN", max_frame: int = 600, max_size: int = 2000, **meta: Any) -> Spec:
    memory = {"name": "Replay", "batch_size": 16, "max_size": max_size} if algorithm == "DQN" else None
    meta = {"checkpoint_frequency": 200, "rigorous_eval": None, **meta}
    return make_small_spec(algorithm, env={"max_frame": max_frame}, meta=meta, memory=memory)


def train(spec: Spec, path: Path, on_progress: Callable[[Progress], None] = lambda _: None) -> RunFolder:
    folder = RunFolder(path, NAME)
    Session(spec, folder, 0, 0, on_progress, lambda: False).run()
    return folder


def assert_no_half_files(path: Path) -> None:
    for file in path.rglob("*"):
        if not file.is_file() or file.suffix == ".lock":
            continue
        assert not file.name.endswith(".tmp"), file
        # a log may be open and still without a line
        assert file.stat().st_size or file.suffix == ".log", file
        if file.suffix == ".safetensors":
            load_state(file)
        elif file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix == ".yaml":
            yaml.safe_load(file.read_text())
        elif file.suffix == ".csv":
            assert file.read_text().endswith("\n")
        elif file.suffix == ".html":
            assert file.read_text().rstrip().endswith("</html>")


class Disk:
    """A disk that is full from the n-th write on; remembers what was written to it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.full_at: int | None = None
        patch.setattr(io, "write_all", self._watch(io.write_all))
        patch.setattr(io, "append", self._watch(io.append))

    def _watch(self, write: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
        def watched(file: Any, data: bytes) -> None:
            self.names.append(kind_of(str(file.name)))
            if self.full_at is not None and len(self.names) > self.full_at:
                # as a full disk does it: a part of the data is there
                file.write(data[: len(data) // 2])
                raise FULL
            write(file, data)

        return watched

    def fill(self, full_at: int | None) -> None:
        self.names, self.full_at = [], full_at


def kind_of(name: str) -> str:
    """A file without what differs from run to run; graphs are all of one kind."""
    if Path(name).parent.name == "graph":
        return "graph"
    return re.sub(r"\d+", "#", re.sub(r"\.\d+-[0-9a-f]+\.tmp$", "", Path(name).name))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, DiskNeed]:
    """A run as the command leaves it, and what it was said to take on disk."""
    told: list[DiskNeed] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slm_lab.experiment.launch.check_disk", lambda need, _: told.append(need))
        result = start(make_spec(max_frame=2000), Options(data_dir=tmp_path_factory.mktemp("data")))
    return RunFolder(result.folder, NAME), told[0]


@pytest.fixture
def copied(finished: tuple[RunFolder, DiskNeed], tmp_path: Path) -> RunFolder:
    """The same, for a test to spoil."""
    return RunFolder(Path(shutil.copytree(finished[0].path, tmp_path / "run")), NAME)


# --- every place that writes

# raw writes that no full disk can turn into half a file of a run, each with the reason
RAW_WRITES = {
    "slm_lab/lib/io.py",  # the mechanism itself
    "slm_lab/lib/terminal.py",  # the streams of the process itself
    "slm_lab/lib/runtime.py",  # a setting of the system
    "slm_lab/agent/compile/engine.py",  # a lock of the compiler's cache, empty
    "slm_lab/experiment/video.py",  # a temporary name, taken before ffmpeg writes
    "slm_lab/experiment/search_run.py",  # the journal of a search, empty at first
    "slm_lab/experiment/study.py",  # cuts half an entry off the journal
    "slm_lab/experiment/ray_host.py",  # into a temporary folder, before the session begins
    "slm_lab/experiment/session_files.py",  # temporary names, moved into place when whole
    # parts of downloads, moved into place when whole and verified; what is made to be sent, in temporary folders
    "slm_lab/share/folder_store.py",
    "slm_lab/share/push.py",
    "slm_lab/share/model_push.py",
    "slm_lab/audit/chaos.py",  # output of its own processes, outside of any run
    "slm_lab/ui/jobs.py",  # the same
    "slm_lab/ui/drafts.py",  # a text to check, in a temporary folder
}


# methods of paths; the functions of lib.io have the same names
RAW = re.compile(r"""\bopen\([^()]*["'][rwxab+]*[wxa+][b+]*["']|\.(write_text|write_bytes|touch|to_csv|dump)\(""")


def test_files_are_written_by_one_mechanism() -> None:
    raw = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "slm_lab").rglob("*.py")
        if RAW.search(path.read_text()) and not path.is_relative_to(ROOT / "slm_lab" / "remote")
    }
    assert raw <= RAW_WRITES
    # and the search for them finds some
    assert "slm_lab/lib/io.py" in raw


# --- full disks


def run_on(disk_: Disk, full_at: int | None, action: Callable[[], TrialResult]) -> tuple[int, str]:
    """An exit code and what was told, as the command would give them."""
    disk_.fill(full_at)
    try:
        result = action()
    except LabError as error:
        return 2, str(error)
    return result.exit_code, " ".join(result.failures.values())


@pytest.mark.parametrize(
    "every_write", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_full_disk_at_any_write_leaves_a_run_that_goes_on_exactly(
    every_write: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Disk(monkeypatch)
    spec = make_spec()
    assert run_on(watched, None, lambda: start(spec, Options(data_dir=tmp_path / "whole")))[0] == 0
    names = list(watched.names)
    kinds = {name: [index for index, each in enumerate(names) if each == name] for name in names}
    # specs, provenance, logs, tables, checkpoints, models, rows of the replay, metrics, graphs, report
    assert len(kinds) >= 12, kinds
    (whole,) = (tmp_path / "whole").iterdir()
    chosen = range(len(names)) if every_write else sorted({at for found in kinds.values() for at in found[-1:]})
    for full_at in chosen:
        data = tmp_path / f"full_{full_at}"
        code, told = run_on(watched, full_at, lambda data=data: start(spec, Options(data_dir=data)))  # type: ignore[misc]
        where = f"write {full_at} of {names[full_at]}: {told}"
        assert "Traceback" not in told, where
        # what is only for people may be missing: a log line, a report
        if code:
            assert "No space left on device" in told, where
            assert "\n" not in told, where
        assert_no_half_files(data)
        runs = list(data.iterdir())
        if not runs:
            continue
        watched.fill(None)
        if every_write:
            assert resume(str(runs[0]), Options()).exit_code == 0, where
        else:
            # without the graphs, which take seconds
            train(spec, runs[0])
        assert find_difference(whole, runs[0], NAME) is None
        shutil.rmtree(data)


def test_a_log_on_a_full_disk_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Disk(monkeypatch)
    setup_console("INFO")
    with log_to(tmp_path / "x.log", "INFO"):
        logger.info("one")
        watched.fill(0)
        logger.info("two")
        logger.info("three")
    errors = capsys.readouterr().err.splitlines()
    assert sum("Lines are missing in the log" in line for line in errors) == 1
    assert [line.rpartition("| ")[2] for line in errors if "INFO" in line] == ["one", "two", "three"]
    assert (tmp_path / "x.log").read_text().endswith("| one\n")
    setup_console("INFO")


def test_a_line_that_is_cut_short_is_taken_back(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "table.csv")
    file.write("a,b\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"table\.csv: cannot be written \(File too large\)"):
            file.write("1234567890,1\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.write("1,2\n")
    file.close()
    assert (tmp_path / "table.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("step", ["write", "first rename", "second rename"])
def test_a_checkpoint_that_fails_leaves_one_that_loads(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x_ckpt-last_resume.safetensors"
    for frame in (1, 2):
        save_state(path, {"frame": frame}, keep_previous=True)
    replace, calls = os.replace, []

    def fail_at_write(*_: Any) -> None:
        raise FULL

    def fail_at_rename(old: Path, new: Path) -> None:
        calls.append(new)
        if len(calls) == (1 if step == "first rename" else 2):
            raise FULL
        replace(old, new)

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(io, "write_all", fail_at_write)
        else:
            patch.setattr(os, "replace", fail_at_rename)
        with pytest.raises(StorageError, match="No space left on device"):
            save_state(path, {"frame": 3}, keep_previous=True)
    assert load_latest(path)[0] == {"frame": 2}
    # until the new one is safe, the one before the last is there too
    if step != "second rename":
        assert load_state(previous_file(path)) == {"frame": 1}
    assert not list(tmp_path.glob(".*"))
    save_state(path, {"frame": 3}, keep_previous=True)
    assert (load_state(path), load_state(previous_file(path))) == ({"frame": 3}, {"frame": 2})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 MB, where the system lets us mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_real_disk_that_fills_up_keeps_the_last_checkpoint(small_disk: Path, tmp_path: Path) -> None:
    whole = train(make_spec(), tmp_path / "whole")
    ballast = small_disk / "ballast"

    def on_progress(progress: Progress) -> None:
        if progress.frame == 300:
            fill(ballast)

    with pytest.raises(StorageError, match="No space left on device"):
        train(make_spec(), small_disk / "run", on_progress)
    ballast.unlink()
    folder = RunFolder(small_disk / "run", NAME)
    assert_no_half_files(folder.path)
    assert load_state(folder.resume_file(0, 0))["frame"] == 200
    train(make_spec(), folder.path)
    assert find_difference(whole.path, folder.path, NAME) is None


def test_a_read_only_folder_is_told_and_can_still_be_played(copied: RunFolder, small_disk: Path) -> None:
    run = str(shutil.copytree(copied.path, small_disk / "run"))
    remount = ["mount", "-o", "remount,{}", str(small_disk)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    try:
        with pytest.raises(LabError, match="Read-only file system"):
            resume(run, Options(), changes={"env.max_frame": 100_000})
        with pytest.raises(LabError, match="Read-only file system"):
            start(make_spec(), Options(data_dir=small_disk))
        load_trained(run)[1].close()
    finally:
        subprocess.run([word.format("rw") for word in remount], check=True)
    assert not load_run(run, small_disk).problems


# --- folders that go away, files that are spoilt


def test_a_folder_that_vanishes_ends_the_session_and_does_not_come_back(tmp_path: Path) -> None:
    def on_progress(progress: Progress) -> None:
        if progress.frame == 300:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(StorageError, match=r"is gone; was the run removed or moved"):
        train(make_spec(), tmp_path / "run", on_progress)
    assert not (tmp_path / "run").exists()


def test_a_data_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(LabError, match="cannot be written"):
        start(make_spec(), Options(data_dir=tmp_path / "data"))
    assert (tmp_path / "data").read_text() == "mine"


def test_spoilt_files_of_a_run_are_told_or_made_again(copied: RunFolder) -> None:
    table, path = copied.table_file(0, 0, "train"), str(copied.path)
    good = table.read_text()
    for garbage in (b"\xff\xfe\x00", b"frame,x\n1", b""):
        table.write_bytes(garbage)
        copied.trial_metrics_file(0).write_bytes(garbage)
        with pytest.raises(LabError):
            load_run(path, copied.path.parent)
    # made again from the checkpoint
    assert resume(path, Options()).exit_code == 0
    assert table.read_text() == good
    json.loads(copied.trial_metrics_file(0).read_text())
    copied.session_metrics_file(0, 0).write_bytes(b"{")
    with pytest.raises(LabError, match="not valid JSON"):
        load_trained(path)
    for spec_file in (copied.spec_file, copied.trial_spec_file(0)):
        spec_file.write_bytes(b"\x00garbage: [")
    with pytest.raises(LabError, match=NAME):
        resume(path, Options())


# --- how much a run takes


def measure(folder: RunFolder, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.path.rglob(pattern) if file.is_file())


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_the_disk_that_a_run_takes_is_foretold(
    algorithm: str, finished: tuple[RunFolder, DiskNeed], tmp_path: Path
) -> None:
    folder, need = finished
    if algorithm == "PPO":
        spec = make_spec("PPO", 2000)
        folder = train(spec, tmp_path)
        env = build_vec_env(build_settings(spec.env, (0,)), 0)
        need = estimate_disk(spec, build_session_agent(spec, env, 0))
        env.close()
    pairs = {
        "checkpoints": (2 * need.checkpoint, measure(folder, "*_resume.safetensors")),
        "models": (2 * need.model, measure(folder, "*_net_model.safetensors")),
        "tables": (need.table, measure(folder, "*.csv")),
        "replay": (need.replay, measure(folder, "*_replay-*.safetensors")),
    }
    if algorithm == "DQN":
        pairs["all"] = (need.total, measure(folder, "*"))
        pattern = r"Estimated disk use: \S+ \S+ \(checkpoints \S+ \S+, models "
        assert re.search(pattern, folder.log_file().read_text())
    for name, (guess, truth) in pairs.items():
        assert truth / 2 <= guess <= truth * 2, (name, guess, truth)
    assert ("replay" in str(need)) == (algorithm == "DQN")


def test_a_run_that_will_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=300_000))
    with pytest.raises(StorageError, match=r"has 300 kB free, which is not enough\. Estimated disk use: \d"):
        start(make_spec(), Options(data_dir=tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_what_a_continued_run_has_already_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = DiskNeed(checkpoint=1_000_000, model=0, replay=0, table=0, num_session=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=3_000_000))
    with pytest.raises(StorageError):
        disk.check_disk(need, tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "x").write_bytes(bytes(5_000_000))
    disk.check_disk(need, tmp_path / "run")


def test_files_of_a_replay_stay_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that is overwritten many times: what is on disk stays below its size and a few files."""
    monkeypatch.setattr(replay_files, "CHUNK_BYTES", 4_000)
    sizes: list[int] = []

    def on_progress(progress: Progress) -> None:
        files = list((tmp_path / "run" / "model").glob("*_replay-*.safetensors"))
        sizes.append(sum(file.stat().st_size for file in files))

    train(make_spec(max_frame=3000, max_size=400, checkpoint_frequency=100), tmp_path / "run", on_progress)
    early, late = max(sizes[8:15]), max(sizes[15:])
    assert late <= 1.2 * early


def test_raw_bytes_are_appended_whatever_a_call_takes() -> None:
    class Slow(streams.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:3]))

    file = Slow()
    io.append(file, b"0123456789")  # type: ignore[arg-type]
    assert file.getvalue() == b"0123456789"
