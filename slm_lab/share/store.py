"""What a place to share runs can do: a repo of the Hugging Face hub, or a folder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slm_lab.lib.errors import ShareError

# runs are under this folder of a store
DATA = "data"
# a longer listing is refused, not held in memory
MAX_LISTED = 50_000


class MissingStoreError(ShareError):
    """There is no such repo or folder."""


class TooLargeError(ShareError):
    """A file that is larger than one of its kind can be."""


@dataclass(frozen=True)
class StoredFile:
    """A file by its content; a hash that is not known is empty."""

    # from the root of a store or of a run, with slashes
    path: str
    size: int
    sha256: str = ""
    # as git names content: the hub knows small files by it, and large ones by SHA-256
    git_sha1: str = ""

    def has_content_of(self, other: "StoredFile") -> bool:
        """Whether size and all hashes that are known of both agree, of which there is at least one."""
        pairs = ((self.sha256, other.sha256), (self.git_sha1, other.git_sha1))
        known = [own == others for own, others in pairs if own and others]
        return self.size == other.size and bool(known) and all(known)


class Store(Protocol):
    """A place to share runs. Every failure is a `ShareError` that says what to do."""

    @property
    def name(self) -> str:
        """The store as HF_REPO names it."""

    @property
    def root_url(self) -> str:
        """Its address, without a slash at the end."""

    def url(self, folder: str) -> str:
        """Where a person can look at one of its folders."""

    def check_write(self) -> None:
        """Raise unless files can be put here; make the place if it is missing."""

    def is_public(self) -> bool:
        """Whether anyone who has its address can read it."""

    def list_folders(self, folder: str) -> Iterator[str]:
        """Names of the folders in a folder; none where there is no such folder."""

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """All files below a folder; none where there is no such folder. Hashes may be left out if they take time."""

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file; None where there is no such file."""

    def download(self, path: str, folder: Path) -> None:
        """Fetch a file into a local folder, below which it has the same path."""

    def upload(self, files: Mapping[str, Path], message: str) -> None:
        """Put local files at paths of the store in one step, in place of what is there."""
