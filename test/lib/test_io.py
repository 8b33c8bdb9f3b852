"""Files are whole or not there: atomic writes, unique folders, locks."""

import errno
import json
import math
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from slm_lab.lib import io
from slm_lab.lib.errors import RunFolderError, StorageError, UnreadableError
from slm_lab.lib.io import (
    AppendFile,
    create_run_folder,
    dump_yaml,
    is_locked,
    lock_file,
    read_bytes,
    read_text,
    remove_orphans,
    write_bytes,
    write_json,
    write_text,
    write_yaml,
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# --- atomic writes


def test_a_write_makes_its_folders_and_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a/b/file.bin"
    write_bytes(path, b"first")
    write_bytes(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_rights_that_the_umask_leaves(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "file"
    with umask(mask):
        write_bytes(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def fail(*_: object) -> NoReturn:
        raise failure

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(failure)):
        write_bytes(path, b"new")
    with pytest.raises(type(failure)):
        write_bytes(tmp_path / "other", b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_the_system_cuts_short_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(path, bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


KILLED_WRITE = """
import os, signal, sys
from pathlib import Path
from slm_lab.lib import io
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
io.write_bytes(Path(sys.argv[1]), b"new")
"""


def test_a_killed_write_leaves_the_old_file_and_an_orphan_that_is_cleaned_up(tmp_path: Path) -> None:
    path = tmp_path / "sub/file.pt"
    write_bytes(path, b"old")
    ran = subprocess.run([sys.executable, "-c", KILLED_WRITE, str(path)], check=False)
    assert ran.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (orphan,) = set(path.parent.iterdir()) - {path}
    assert orphan.name.startswith(".file.pt.")
    assert orphan.name.endswith(".tmp")
    remove_orphans(tmp_path)
    assert list(path.parent.iterdir()) == [path]


def test_a_temporary_name_that_is_taken_is_left_to_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io.secrets, "token_hex", lambda size: "00" * size)
    taken = tmp_path / f".file.{os.getpid()}-00000000.tmp"
    taken.write_bytes(b"another writer's")
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "file", b"new")
    assert taken.read_bytes() == b"another writer's"


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    start = threading.Barrier(4)

    def write(letter: bytes) -> None:
        start.wait()
        for _ in range(5):
            write_bytes(path, letter * 100_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = path.read_bytes()
    assert len(data) == 100_000
    assert len(set(data)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_orphans_are_cleaned_up_in_the_folder_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    run = tmp_path / "run"
    gone = subprocess.Popen(["true"])
    gone.wait()
    for folder in (outside, run / "model"):
        folder.mkdir(parents=True)
        (folder / f".a.{gone.pid}-00.tmp").touch()
        (folder / "kept.tmp").touch()
        (folder / ".kept").touch()
    (run / "link").symlink_to(outside)
    remove_orphans(run)
    assert sorted(path.name for path in (run / "model").iterdir()) == [".kept", "kept.tmp"]
    assert (outside / f".a.{gone.pid}-00.tmp").exists()


def test_what_a_living_process_writes_is_no_orphan(tmp_path: Path) -> None:
    writing = tmp_path / f".a.{os.getppid()}-00.tmp"
    writing.touch()
    remove_orphans(tmp_path)
    assert writing.exists()


def test_an_orphan_whose_number_another_process_has_is_cleaned_up(tmp_path: Path) -> None:
    orphan = tmp_path / f".a.{os.getppid()}-00.tmp"
    orphan.touch()
    old = time.time() - io.ORPHAN_SECONDS - 60
    os.utime(orphan, (old, old))
    remove_orphans(tmp_path)
    assert not orphan.exists()


def test_odd_names_do_not_stop_the_clean_up(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / ".a.99999999999999999999-ab.tmp").touch()
    (tmp_path / f".z.{gone.pid}-ab.tmp").touch()
    # what no write of ours leaves behind
    kept = [tmp_path / name for name in (".b.tmp", f".c.{gone.pid}-ab.tmp", f".d.{gone.pid}-ab.tmp")]
    kept[0].touch()
    kept[1].mkdir()
    kept[2].symlink_to(kept[0])
    remove_orphans(tmp_path)
    assert sorted(tmp_path.iterdir()) == kept


def test_text_json_and_yaml_files_are_readable(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    write_json(tmp_path / "a.json", {"a": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    1\n  ]\n}\n'
    write_yaml(tmp_path / "a.yaml", {"b": {"z": (1, 2), "a": [[1], {"x": 1e-05}]}, "a": 1e6})
    assert (tmp_path / "a.yaml").read_text() == ("b:\n  z: [1, 2]\n  a:\n  - [1]\n  - x: 1.0e-05\na: 1000000.0\n")


def test_json_holds_null_for_what_is_not_a_number(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"score": math.nan, "bounds": (-math.inf, [math.inf, 1.5]), "name": "NaN"})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {
        "score": None,
        "bounds": [None, [None, 1.5]],
        "name": "NaN",
    }


def test_any_yaml_reader_takes_our_floats_as_floats_and_our_text_as_text() -> None:
    data = {"x": [1e-05, 1e22, 2.5e-300, 1.0, -1e16], "y": ["1e6", "1.5", "no", "0x1"]}
    assert yaml.safe_load(dump_yaml(data)) == data
    # YAML 1.2 reads 1e6 as a number, so it must stand in quotes
    assert "'1e6'" in dump_yaml(data)


def test_a_value_used_twice_is_written_twice() -> None:
    shared = {"a": 1}
    assert dump_yaml({"x": shared, "y": shared}) == "x:\n  a: 1\ny:\n  a: 1\n"


# --- folders


RACE = """
import sys, time
from datetime import datetime
from pathlib import Path
from slm_lab.lib import io

class Noon(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 12, 30, 45)

io.datetime = Noon
folder, start = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not start.exists():
    time.sleep(0.001)
made = io.create_run_folder(folder, "demo")
(made / "mine").touch(exist_ok=False)
print(made.name)
"""


def test_eight_processes_in_the_same_second_get_eight_folders(tmp_path: Path) -> None:
    data, start = tmp_path / "data", tmp_path / "start"
    command = [sys.executable, "-c", RACE, str(data), str(start)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        start.touch()
        names = [process.communicate(timeout=60)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
    stamp = "demo_2026_01_02_123045"
    assert sorted(names) == [stamp, *(f"{stamp}_{i}" for i in range(1, 8))]
    assert sorted(path.name for path in data.iterdir()) == sorted(names)


def test_a_run_folder_is_named_by_the_spec_and_the_time(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path / "data", "ppo_cartpole")
    assert folder.parent == tmp_path / "data"
    assert folder.is_dir()
    name, stamp = folder.name[:13], folder.name[13:]
    assert name == "ppo_cartpole_"
    assert [len(part) for part in stamp.split("_")] == [4, 2, 2, 6]


# --- locks


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run/log/.lock"
    with (
        lock_file(path, wait=0),
        pytest.raises(RunFolderError, match="another process is using"),
        lock_file(path, wait=0),
    ):
        pass
    with lock_file(path, wait=0):
        pass


KILLED_HOLDER = """
import sys, time
from pathlib import Path
from slm_lab.lib.io import lock_file
with lock_file(Path(sys.argv[1]), wait=0):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run/log/.lock"
    holder = subprocess.Popen([sys.executable, "-c", KILLED_HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError), lock_file(path, wait=0):
            pass
    finally:
        holder.kill()
        holder.wait()
    with lock_file(path, wait=5):
        pass


def test_a_lock_whose_holder_removes_it_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "pull" / "run.lock"
    inside: list[int] = []

    def enter(number: int) -> None:
        for _ in range(30):
            with lock_file(path, wait=20):
                inside.append(number)
                assert inside == [number]
                inside.remove(number)
                path.unlink()
                with suppress(OSError):
                    path.parent.rmdir()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))


def test_a_lock_leaves_what_its_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("years of work")
    with lock_file(path, wait=0):
        assert is_locked(path)
    assert not is_locked(path)
    assert path.read_text() == "years of work"


# --- files that lead elsewhere


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_link(tmp_path: Path, exists: bool) -> None:
    outside = tmp_path / "thesis.txt"
    if exists:
        outside.write_text("years of work")
    link = tmp_path / "run" / "link"
    link.parent.mkdir()
    link.symlink_to(outside)
    with pytest.raises(RunFolderError, match=r"run/link is a link, .*; delete it"), lock_file(link, wait=0):
        pass
    with pytest.raises(RunFolderError, match=r"run/link is a link, .*; delete it"):
        AppendFile(link)
    assert outside.exists() == exists
    assert not exists or outside.read_text() == "years of work"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [read_text, read_bytes])
def test_only_files_are_read(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("naïve\n", encoding="utf-8")
    assert read(path) in ("naïve\n", "naïve\n".encode())
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(UnreadableError, match=f"{name}: not a regular file, but a pipe or device"):
            read(tmp_path / name)
    with pytest.raises(UnreadableError, match="cannot be read"):
        read(tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UnreadableError, match="large: larger than 500,000,000 bytes"):
        read(tmp_path / "large")


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert not is_locked(pipe)
    with pytest.raises(RunFolderError, match="pipe is a pipe or device"), lock_file(pipe, wait=0):
        pass
    with pytest.raises(StorageError, match="pipe: cannot be written"):
        AppendFile(pipe)
