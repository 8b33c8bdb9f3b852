"""Files that are either complete or absent: atomic writes, unique folders, locks."""

import json
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from slm_lab.lib.errors import RunFolderError, StorageError, UnreadableError
from slm_lab.lib.system import O_BINARY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, is_alive, lock_shared

# of a text that is read whole: a table of a session has some hundred bytes per row
MAX_BYTES = 500_000_000
# Numbers that YAML 1.1 takes for text: 1e6, 5e-4, 1.e3
EXPONENT_FLOAT = re.compile(r"^[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")
CACHE_VARIABLE = "SLM_LAB_CACHE"
# the process that writes a temporary file
_WRITER = re.compile(r"\.(\d+)-[0-9a-f]+\.tmp$")
# what has not grown for so long is no longer written
ORPHAN_SECONDS = 3600.0
LOCK_TRIES = 100


def cache_folder() -> Path:
    """The cache folder of the lab: set by the variable, otherwise the platform's."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(folder))
    # The XDG specification says to ignore a path that is not absolute; nor is "~" one when the user has no home.
    candidates = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"), tempfile.gettempdir())
    root = next(folder for folder in candidates if os.path.isabs(folder))
    return Path(root) / "slm_lab"


def temporary_name(path: Path) -> Path:
    """A temporary name beside a file until it is complete; `remove_orphans` knows its form."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a complete file once it is safe on disk."""
    # Windows does not flush what is open for reading only
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into an error of one line."""
    try:
        yield
    except (StorageError, UnreadableError):
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write bytes and wait until they are on disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes, previous: Path | None = None) -> None:
    """Write a file atomically: temporary file, flush, rename; the old file stays until the new one is safe.

    It then stays under the name `previous`, if there is one.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    # opened outside the try: a name that is taken belongs to another writer and is not ours to remove
    try:
        file = temporary.open("xb")
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        with storage_errors(path):
            with file:
                write_all(file, data)
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


class AppendFile:
    """A file that grows by complete lines: a line that does not fit on the disk leaves no partial one."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        """Open a file, with only its first `keep` bytes if given."""
        self.path = path
        with storage_errors(path):
            # unbuffered, so that closing has nothing left to write
            self._file = os.fdopen(_open_plain(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
            if keep is not None and self.size > keep:
                self._file.truncate(keep)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def write(self, text: str) -> None:
        """Append text, all or nothing."""
        data = text.encode()
        with storage_errors(self.path):
            size = self.size
            try:
                append(self._file, data)
            except OSError:
                with suppress(OSError):
                    self._file.truncate(size)
                raise

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()


def _open_plain(path: Path, flags: int) -> int:
    """Open or create a file in place; a run may come from anyone, so this follows no link and waits for no pipe."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_BINARY, 0o666)
    except OSError:
        if path.is_symlink():
            raise RunFolderError(f"{path} is a link, so writes would go elsewhere; delete it") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise RunFolderError(f"{path} is a pipe or device, not a file; delete it")


def append(file: RawIOBase, data: bytes) -> None:
    """Write all bytes, in as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically, readable by people; a number that is not finite becomes null, for JSON has none."""
    write_text(path, json.dumps(to_finite(data), indent=2, allow_nan=False) + "\n")


def to_finite(data: object) -> Any:
    if isinstance(data, dict):
        return {key: to_finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [to_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_yaml(path: Path, data: object) -> None:
    """Write YAML atomically, keys in their own order."""
    write_text(path, dump_yaml(data))


def dump_yaml(data: object) -> str:
    """YAML text, keys in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, and floats that every YAML reader takes as floats."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    flow = all(not isinstance(item, (list, dict)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _represent_float(dumper: yaml.SafeDumper, data: float) -> yaml.ScalarNode:
    text = yaml.SafeDumper.represent_float(dumper, data).value
    # 1e-05 without a dot is a string to YAML 1.1
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e", 1)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


# Text such as 1e6 is a number to YAML 1.2 and to our reader, so it needs quotes
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT_FLOAT, list("-+0123456789."))
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(tuple, lambda dumper, data: _represent_list(dumper, list(data)))
_Dumper.add_representer(float, _represent_float)


def open_file(path: Path, more_flags: int = 0) -> BinaryIO:
    """Open a file for reading; a run may come from anyone, so this waits for no pipe and reads no device."""
    more_flags |= O_NONBLOCK | O_NOCTTY | O_BINARY
    # the opener's descriptor is closed even if it is a folder's
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | more_flags))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise UnreadableError(f"{path}: not a regular file, but a pipe or device")


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file of a run or a spec; raises FileNotFoundError as usual."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > max_bytes:
                raise UnreadableError(f"{path}: larger than {max_bytes:,} bytes")
            return file.read()
    except (FileNotFoundError, UnreadableError):
        raise
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror})") from None


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of a run or a spec, which is always UTF-8."""
    return read_bytes(path, max_bytes).decode()


def create_run_folder(data_dir: Path, name: str) -> Path:
    """Create `data_dir/name_YYYY_MM_DD_HHMMSS`; runs started in the same second get different folders."""
    stamp = datetime.now().strftime("%Y_%m_%d_%H%M%S")
    with storage_errors(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True)
    for attempt in range(10_000):
        folder = data_dir / (f"{name}_{stamp}" if attempt == 0 else f"{name}_{stamp}_{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{folder}: cannot be created ({error.strerror or error}); see --data-dir") from None
        return folder
    raise FileExistsError(f"too many runs named {name}_{stamp} in {data_dir}")


def remove_orphans(folder: Path) -> None:
    """Delete temporary files of killed writes, but not those of a living process."""
    for path in folder.rglob(".*.tmp"):
        writer = _WRITER.search(path.name)
        # one that cannot be looked at or deleted does no harm
        with suppress(OSError):
            status = path.lstat()
            if writer is None or not stat.S_ISREG(status.st_mode):
                continue
            # the number of its writer may be another process's by now, in a container soon
            if time.time() - status.st_mtime > ORPHAN_SECONDS or not _is_writing(int(writer[1])):
                path.unlink()


def _is_writing(process: int) -> bool:
    """Whether a process other than this one may still write."""
    return process != os.getpid() and is_alive(process)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; does not change the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_BINARY)
    except OSError:
        return False  # it ended in this moment, or the file is none of ours
    try:
        is_free = lock_shared(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return _is_held(path) if is_free is None else not is_free


def _is_held(path: Path) -> bool:
    """The same on Windows, where the lock itself has to be tried."""
    try:
        with FileLock(path, timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False


@contextmanager
def lock_file(path: Path, wait: float) -> Iterator[None]:
    """Hold a lock that the system frees when the process ends for any reason; its holder may remove the file."""
    # a lock without the system's would outlive a killed process
    lock = FileLock(path, timeout=wait, poll_interval=0.05, fallback_to_soft=False)
    with storage_errors(path):
        _acquire(lock, path)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock, path: Path) -> None:
    for attempt in range(LOCK_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # as it is: only the lock is ours, not what the file may hold
            os.close(_open_plain(path, os.O_RDWR))
            lock.acquire()
            return
        except Timeout:
            raise RunFolderError(f"another process is using {path.parent.parent}; wait for it or stop it") from None
        except (FileExistsError, FileNotFoundError):
            # its folder may have been removed in this moment
            if attempt + 1 == LOCK_TRIES:
                raise
