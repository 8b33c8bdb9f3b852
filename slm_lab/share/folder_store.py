"""A folder as a place to share runs, e.g. on a shared disk."""

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from slm_lab.lib.errors import ShareError, UnreadableError
from slm_lab.lib.io import move_into_place, open_file, read_bytes, temporary_name
from slm_lab.lib.system import O_NOFOLLOW
from slm_lab.share.run_files import read_file
from slm_lab.share.safe_path import check_path, is_safe
from slm_lab.share.store import MAX_LISTED, MissingStoreError, StoredFile


class FolderStore:
    """Files below a root; links are not followed, since they may lead anywhere."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()
        self.name = self.root_url = str(self.root)

    def url(self, folder: str) -> str:
        """The path of a folder."""
        return str(self._at(folder)) if folder else self.root_url

    def check_write(self) -> None:
        """Create the folder if it is missing, but not the disk it is on."""
        if not self.root.exists() and not self.root.parent.exists():
            raise ShareError(f"HF_REPO is the folder {self.root}, but there is no {self.root.parent}; is it mounted?")
        try:
            self.root.mkdir(exist_ok=True)
        except OSError as error:
            raise ShareError(f"HF_REPO: the folder {self.root} cannot be created ({error.strerror})") from None
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise ShareError(f"HF_REPO: no permission to write to the folder {self.root}; ask its owner")

    def is_public(self) -> bool:
        """Everyone with access to the disk can read its files."""
        return True

    def list_folders(self, folder: str) -> Iterator[str]:
        """Folders, without links."""
        yield from sorted(item.name for item in self._scan(folder) if item.is_dir(follow_symlinks=False))

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """Files, without links, with their hashes."""
        for item in self._scan(folder):
            path = f"{folder}/{item.name}"
            if not is_safe(path):
                continue
            if item.is_file(follow_symlinks=False):
                if with_hashes:
                    yield read_file(self.root, path)
                else:
                    yield StoredFile(path, item.stat(follow_symlinks=False).st_size)
            elif item.is_dir(follow_symlinks=False):
                yield from self.list_files(path, with_hashes)

    def _scan(self, folder: str) -> list["os.DirEntry[str]"]:
        self._check_there()
        if not self._at(folder).is_dir() or self._has_link(folder):
            return []
        try:
            with os.scandir(self._at(folder)) as items:
                return list(islice(items, MAX_LISTED))
        except OSError as error:
            raise UnreadableError(f"{self.url(folder)} cannot be read ({error.strerror})") from None

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file."""
        self._check_there()
        if self._has_link(path):
            return None
        try:
            return read_bytes(self._at(path), max_size)
        except FileNotFoundError:
            return None

    def download(self, path: str, folder: Path) -> None:
        """Copy a file out."""
        if self._has_link(path):
            raise ShareError(f"{self.url(path)} is a link, which is not followed")
        target = folder / check_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # a link that is put there meanwhile is not followed either
            with open_file(self._at(path), O_NOFOLLOW) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        except UnreadableError:
            raise
        except OSError as error:
            raise ShareError(f"{self.url(path)} cannot be copied ({error.strerror}); pull again to resume") from None

    def upload(self, files: Mapping[str, Path], message: str) -> None:
        """Copy files in, each under a temporary name until it is complete."""
        for path, source in files.items():
            target = self._at(path)
            if self._has_link(path):
                raise ShareError(f"{target} is a link or behind one; the lab writes nothing through links")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = temporary_name(target)
                try:
                    shutil.copyfile(source, temporary)
                    move_into_place(temporary, target)
                finally:
                    temporary.unlink(missing_ok=True)
            except OSError as error:
                raise ShareError(f"{target} cannot be written ({error.strerror}); push again to resume") from None

    def _at(self, path: str) -> Path:
        return self.root / check_path(path)

    def _check_there(self) -> None:
        if not self.root.is_dir():
            raise MissingStoreError(f"HF_REPO is the folder {self.root}, which does not exist; is its disk mounted?")

    def _has_link(self, path: str) -> bool:
        places = [self.root / path, *(self.root / path).parents]
        return any(place.is_symlink() for place in places[: path.count("/") + 1])
