"""Transfer the files of one session between machines without a shared disk."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_lab.lib.io import move_into_place, temporary_name
from slm_lab.results.folder import RunFolder, previous_file

CHUNK_BYTES = 8_000_000
# folders of a run in which a session writes
FOLDERS = ("info", "model", "log", "video")
# inode, time and size: different after a change
Mark = tuple[int, int, int]


class TransferError(Exception):
    """A node has sent something that is not a file of its session."""


@dataclass(frozen=True)
class SentFile:
    """A file on a node that can be read now."""

    name: str
    size: int


def is_session_file(name: str, prefix: str) -> bool:
    """Whether a path relative to the run folder is a file of this session; never one outside the folder."""
    parts = name.split("/")
    if len(parts) not in (2, 3) or parts[0] not in FOLDERS:
        return False
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        return False
    if len(parts) == 3:
        # TensorBoard has a folder for each session
        return parts[1] == prefix
    # with the separator, because session 1 is a prefix of session 10
    return parts[1].startswith((f"{prefix}_", f"{prefix}."))


def list_files(folder: Path, prefix: str) -> dict[str, Mark]:
    """The files of a session by their paths relative to the run folder, with their marks."""
    found = {}
    for top in FOLDERS:
        for path in (folder / top).rglob("*"):
            name = path.relative_to(folder).as_posix()
            if is_session_file(name, prefix) and (mark := mark_of(path)) is not None and path.is_file():
                found[name] = mark
    return found


def mark_of(path: Path) -> Mark | None:
    """The mark of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def is_replay(name: str, prefix: str) -> bool:
    """Whether a file of a session holds rows of its memory."""
    return name.startswith(f"model/{prefix}_replay-")


def read_files(folder: RunFolder, trial: int, session: int) -> Iterator[tuple[str, bytes]]:
    """The spec and the files of a session, in pieces."""
    spec = folder.trial_spec_file(trial)
    names = [spec.name] if spec.exists() else []
    for name in [*names, *list_files(folder.path, folder.prefix(trial, session))]:
        with (folder.path / name).open("rb") as file:
            # at least one piece, even of an empty file
            yield name, file.read(CHUNK_BYTES)
            while data := file.read(CHUNK_BYTES):
                yield name, data


def fetch_files(
    folder: RunFolder,
    key: tuple[int, int],
    files: list[SentFile],
    replays: frozenset[str],
    read: Callable[[int, int], Any],
) -> Generator[Any, bytes, None]:
    """Fetch files of a session: under temporary names until all are there, in case the node is lost.

    This generator yields what `read` returns for the index of a file and an offset, and is sent the bytes.
    """
    root, prefix = folder.path, folder.prefix(*key)
    staged: list[tuple[Path, Path]] = []
    try:
        for index, sent in enumerate(files):
            if not is_session_file(sent.name, prefix):
                raise TransferError(f"refused {sent.name!r}: not a file of session {key[1]}")
            path = root / sent.name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(path)
            staged.append((temporary, path))
            with temporary.open("xb") as file:
                while (missing := sent.size - file.tell()) > 0:
                    data = yield read(index, file.tell())
                    if not 0 < len(data) <= missing:
                        raise TransferError(f"{sent.name}: {len(data)} bytes came, {missing} were missing")
                    file.write(data)
        resume = folder.resume_file(*key)
        # replay rows, then the previous checkpoint, then the last one: even if this process is killed in between, the
        # run can resume
        order = {previous_file(resume): 1, resume: 2}
        staged.sort(key=lambda pair: 0 if _is_replay_path(pair[1], prefix) else order.get(pair[1], 3))
        while staged:
            move_into_place(*staged[0])
            del staged[0]
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)
    for name in list_files(root, prefix):
        if is_replay(name, prefix) and name not in replays:
            (root / name).unlink(missing_ok=True)


def _is_replay_path(path: Path, prefix: str) -> bool:
    return is_replay(f"{path.parent.name}/{path.name}", prefix)
