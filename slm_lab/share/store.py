"""The interface of a place to share runs: a repo on the Hugging Face hub, or a folder."""

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
    """The repo or folder does not exist."""


class TooLargeError(ShareError):
    """A file that is too large for its kind."""


@dataclass(frozen=True)
class StoredFile:
    """A file by its content; an unknown hash is empty."""

    # from the root of a store or of a run, with slashes
    path: str
    size: int
    sha256: str = ""
    # as git names content: the hub knows small files by it, and large ones by SHA-256
    git_sha1: str = ""

    def has_content_of(self, other: "StoredFile") -> bool:
        """Whether the sizes and all hashes known for both agree; at least one must be known."""
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
        """The address of one of its folders, for people."""

    def check_write(self) -> None:
        """Raise without write access; create the place if it is missing."""

    def is_public(self) -> bool:
        """Whether anyone with its address can read it."""

    def list_folders(self, folder: str) -> Iterator[str]:
        """Names of the folders in a folder; empty if it does not exist."""

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """All files below a folder; empty if it does not exist. Hashes that take time may be left out."""

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file; None if it does not exist."""

    def download(self, path: str, folder: Path) -> None:
        """Download a file into a local folder, under the same path."""

    def upload(self, files: Mapping[str, Path], message: str) -> None:
        """Upload local files to paths of the store in one step, replacing existing ones."""
