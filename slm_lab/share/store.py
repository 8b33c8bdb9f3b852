"""What a place to share runs can do: a repo of the Hugging Face hub, or a folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slm_lab.lib.errors import ShareError

# told how many bytes have gone, as they go
OnBytes = Callable[[int], None]
# runs are under this folder of a store
DATA = "data"
# a listing that goes on beyond this is refused, not held in memory
MAX_LISTED = 50_000


class MissingStoreError(ShareError):
    """There is no such repo or folder."""


class TooLargeError(ShareError):
    """A file that is larger than one of its kind can be."""


@dataclass(frozen=True)
class StoredFile:
    """A file as a store lists it; of the hashes those that the store knows."""

    # from the store's root, with slashes
    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class Upload:
    """A local file and its path in the store."""

    source: Path
    path: str
    size: int


class Store(Protocol):
    """A place to share runs. Every failure is a `ShareError` that says what to do."""

    @property
    def name(self) -> str:
        """How the store is called, as in HF_REPO."""

    @property
    def root_url(self) -> str:
        """Its address, without a slash at the end."""

    def url(self, folder: str) -> str:
        """Where a person can look at a folder of it."""

    def check_write(self) -> None:
        """Raise unless files can be put here; make the place if it is missing."""

    def is_public(self) -> bool:
        """Whether whoever has its address can read it."""

    def list_folders(self, folder: str) -> Iterator[str]:
        """Names of the folders in a folder; none where there is no such folder."""

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """All files below a folder; none where there is no such folder. Hashes may be left out if they take time."""

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file; None where there is no such file."""

    def download(self, path: str, target: Path, size: int, on_bytes: OnBytes) -> None:
        """Fetch a file of a known size; what `target` already holds of it is not fetched again."""

    def upload(self, files: Sequence[Upload], message: str, on_bytes: OnBytes) -> None:
        """Put files here in one step, in place of those that have their paths."""
