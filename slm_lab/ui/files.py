"""The files of a run that may be downloaded: an allow-list, and no links."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.io import open_file
from slm_lab.lib.system import O_NOFOLLOW
from slm_lab.share.run_files import belongs, find_files
from slm_lab.spec.reader import printable
from slm_lab.ui.places import Place

MAX_LOG_BYTES = 100_000
CHUNK = 1 << 18
# what the pages show themselves; everything else is only downloaded
SHOWN = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}


def list_files(place: Place) -> list[Document]:
    """Every file of a run that can be downloaded, with its size."""
    found = []
    for path in find_files(place.path, with_checkpoints=True)[0]:
        # a run that trains replaces its checkpoints
        with suppress(FileNotFoundError):
            if path.isprintable():
                found.append({"path": path, "size": (place.path / path).lstat().st_size})
    return found


def open_run_file(place: Place, path: str, data_dir: Path) -> tuple[BinaryIO, int]:
    """A file of a run, open for reading, and its size; refused if it is none, or a link leads to it."""
    refusal = RunFolderError(f"{place.id} has no file '{printable(path, 100)}' to download")
    if not belongs(path):
        raise refusal
    file = place.path / path
    # links are refused one by one, and what is opened is in the data folder
    if any(part.is_symlink() for part in (place.path, file.parent, file)) or not _is_inside(file, data_dir):
        raise refusal
    try:
        opened = open_file(file, O_NOFOLLOW)
    except (LabError, OSError):
        raise refusal from None
    status = os.fstat(opened.fileno())
    if not stat.S_ISREG(status.st_mode):
        opened.close()
        raise refusal
    return opened, status.st_size


def _is_inside(file: Path, data_dir: Path) -> bool:
    return file.resolve().is_relative_to(data_dir)


def read_part(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` up to `end`; closes the file."""
    with file:
        file.seek(start)
        while start < end and (chunk := file.read(min(CHUNK, end - start))):
            start += len(chunk)
            yield chunk


def list_logs(place: Place) -> list[str]:
    """The names of a run's logs, that of the run first, then by length and name."""
    paths = [path for path in find_files(place.path, with_checkpoints=True)[0] if path.startswith("log/")]
    return sorted(paths, key=lambda path: (len(path), path))


def read_log(place: Place, path: str, data_dir: Path) -> str:
    """The end of a log, in whole lines."""
    if not path.startswith("log/"):
        raise RunFolderError(f"{place.id} has no log '{printable(path, 100)}'")
    file, size = open_run_file(place, path, data_dir)
    data = b"".join(read_part(file, max(size - MAX_LOG_BYTES, 0), size))
    text = data.decode(errors="replace")
    return text.partition("\n")[2] if size > MAX_LOG_BYTES else text
