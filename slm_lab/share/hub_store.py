"""A dataset or model repo on the Hugging Face hub, or on a server with its protocol."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
    RepoFile,
    RepoFolder,
    get_token,
    is_offline_mode,
    set_client_factory,
)
from huggingface_hub import logging as hub_logging
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars
from loguru import logger

from slm_lab.lib.errors import ShareError
from slm_lab.lib.secret import redact
from slm_lab.share.hub_client import LabClient, retry
from slm_lab.share.store import MAX_LISTED, MissingStoreError, StoredFile, TooLargeError

T = TypeVar("T")
HUB = "https://huggingface.co"
TOKENS_PAGE = f"{HUB}/settings/tokens"
Kind = Literal["dataset", "model"]


class HubStore:
    """Files of a repo."""

    def __init__(
        self,
        repo: str,
        token: str | None = None,
        endpoint: str | None = None,
        is_private: bool = False,
        attempts: int = 5,
        timeout: float = 30.0,
        kind: Kind = "dataset",
    ) -> None:
        self.name = repo
        self.kind = kind
        self.endpoint = (endpoint or HUB).rstrip("/")
        # `hf auth login` leaves a token that is meant for the hub itself alone
        self.token = token or (get_token() if self.endpoint == HUB else None)
        self.is_private = is_private
        self.attempts = attempts
        self.api = HfApi(endpoint=self.endpoint, token=self.token or False, library_name="slm-lab")
        set_client_factory(partial(LabClient, timeout))
        # it would warn of what is tried again, with signed addresses
        hub_logging.set_verbosity_error()
        disable_progress_bars()

    @property
    def root_url(self) -> str:
        """The repo's page."""
        return f"{self.endpoint}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"

    def url(self, folder: str) -> str:
        """The folder's page."""
        return f"{self.root_url}/tree/main/{quote(folder)}" if folder else self.root_url

    def check_write(self) -> None:
        """Check write access to the repo, and create it if it is missing."""
        if not self.token:
            raise ShareError(
                f"{self.name}: uploading needs a token: set HF_TOKEN in the environment or in .env "
                f"({TOKENS_PAGE}, with write access)"
            )
        try:
            self._call("reach the repo", lambda: self.api.auth_check(self.name, repo_type=self.kind, write=True))
        except MissingStoreError:
            self._call(
                "make the repo",
                lambda: self.api.create_repo(self.name, repo_type=self.kind, private=self.is_private, exist_ok=True),
            )
            logger.info(f"Created the {'private' if self.is_private else 'public'} {self.kind} repo {self.name}")

    def is_public(self) -> bool:
        """Whether the repo can be read without a token."""
        try:
            self._call("look at the repo", lambda: self.api.repo_info(self.name, repo_type=self.kind, token=False))
        except MissingStoreError:
            return False
        return True

    def list_folders(self, folder: str) -> Iterator[str]:
        """Folders in a folder."""
        for item in self._list(folder, is_recursive=False):
            if isinstance(item, RepoFolder):
                yield item.path.rpartition("/")[2]

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """Files with the hub's hashes: SHA-256 for large files, git's for small ones."""
        for item in self._list(folder, is_recursive=True):
            if isinstance(item, RepoFile):
                if item.lfs is not None:
                    yield StoredFile(item.path, item.lfs.size, sha256=item.lfs.sha256)
                else:
                    yield StoredFile(item.path, item.size, git_sha1=item.blob_id)

    def _list(self, folder: str, is_recursive: bool) -> list[RepoFile | RepoFolder]:
        def fetch() -> list[RepoFile | RepoFolder]:
            tree = self.api.list_repo_tree(self.name, folder, recursive=is_recursive, repo_type=self.kind)
            return list(islice(tree, MAX_LISTED + 1))

        try:
            items = self._call("list files", fetch)
        except FileNotFoundError:
            return []
        if len(items) > MAX_LISTED:
            raise ShareError(f"{self.name}: {folder} has more than {MAX_LISTED:,} files; that is not a folder of runs")
        return items

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file."""

        def fetch() -> bytes:
            with tempfile.TemporaryDirectory() as made:
                found = self.api.hf_hub_download(self.name, path, repo_type=self.kind, local_dir=made, dry_run=True)
                if found.file_size is None or found.file_size > max_size:
                    raise TooLargeError(f"{self.name}: {path} is larger than {max_size:,} bytes")
                return Path(self.api.hf_hub_download(self.name, path, repo_type=self.kind, local_dir=made)).read_bytes()

        try:
            return self._call("read", fetch)
        except FileNotFoundError:
            return None

    def download(self, path: str, folder: Path) -> None:
        """Download a file."""
        try:
            self._call(
                f"fetch {path.rpartition('/')[2]}",
                lambda: self.api.hf_hub_download(self.name, path, repo_type=self.kind, local_dir=folder),
            )
        except FileNotFoundError:
            raise ShareError(f"{self.url(path)} is missing") from None

    def upload(self, files: Mapping[str, Path], message: str) -> None:
        """Upload files in one commit; large ones that already arrived are skipped."""

        def send() -> None:
            with ExitStack() as stack:
                # Other servers do not speak the hub's own protocol for large files: open files go by plain HTTP, one
                # after the other, since two files of the same content are sent through one handle.
                additions = [
                    CommitOperationAdd(path, source if self.endpoint == HUB else stack.enter_context(source.open("rb")))
                    for path, source in files.items()
                ]
                num_threads = 5 if self.endpoint == HUB else 1
                self.api.create_commit(
                    self.name, additions, commit_message=message, repo_type=self.kind, num_threads=num_threads
                )

        self._call("send files", send)

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """Call the hub, and turn errors into one line; a missing file or folder is a `FileNotFoundError`."""
        if is_offline_mode():
            raise ShareError(f"{self.name}: cannot {what}: HF_HUB_OFFLINE is set; unset it")
        try:
            return retry(function, what, self.name, self.attempts)
        except (HFValidationError, OSError, RuntimeError, ValueError) as error:
            refusal = next((cause for cause in (error, error.__cause__) if isinstance(cause, HfHubHTTPError)), None)
            if refusal is None:
                raise ShareError(f"{self.name}: cannot {what}: {_first_line(error)}") from None
            raise self._describe(refusal, what) from None

    def _describe(self, error: HfHubHTTPError, what: str) -> Exception:
        status = error.response.status_code
        # a repo without a commit has no revision either
        if isinstance(error, (RemoteEntryNotFoundError, RevisionNotFoundError)):
            return FileNotFoundError(what)
        if status == 403:
            verb = "read" if what.startswith(("list", "read", "fetch")) else "write"
            return ShareError(
                f"{self.name}: the token in HF_TOKEN may not {verb} here (403); give it {verb} access to this repo, or "
                "set HF_REPO to one of yours"
            )
        if isinstance(error, RepositoryNotFoundError) or status == 404 or (status == 401 and not self.token):
            hint = f"; check HF_REPO (USER/NAME of a {self.kind} repo)"
            if not self.token:
                hint = " or is private; check HF_REPO, or set HF_TOKEN"
            return MissingStoreError(f"{self.root_url} does not exist{hint}")
        if status == 401:
            return ShareError(
                f"{self.name}: the hub does not accept the token in HF_TOKEN (401); make a new one at {TOKENS_PAGE}"
            )
        return ShareError(f"{self.name}: cannot {what}: the hub answered {status}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in redact(str(error)).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
