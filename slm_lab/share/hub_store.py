"""A dataset repo of the Hugging Face hub, or of a server that speaks as it does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status
from loguru import logger

from slm_lab.lib.errors import ShareError
from slm_lab.lib.secret import redact
from slm_lab.share.hub_client import LabClient, describe, lab_client
from slm_lab.share.patience import Patience, TransientError
from slm_lab.share.store import MAX_LISTED, MissingStoreError, OnBytes, StoredFile, TooLargeError, Upload

T = TypeVar("T")
HUB = "https://huggingface.co"
_TYPE = "dataset"


class HubStore:
    """Files of a dataset repo, used inside a `with`."""

    def __init__(
        self,
        repo: str,
        token: str | None = None,
        endpoint: str | None = None,
        patience: Patience | None = None,
        is_private: bool = False,
    ) -> None:
        self.repo = repo
        self.endpoint = (endpoint or HUB).rstrip("/")
        # a token that `hf auth login` left is the user's too, but only meant for the hub itself
        self.token = token or (get_token() if self.endpoint == HUB else None)
        self.patience = patience or Patience()
        self.is_private = is_private
        self.api = HfApi(endpoint=self.endpoint, token=self.token or False, library_name="slm-lab")
        self.stack = ExitStack()

    def __enter__(self) -> "HubStore":
        self.stack.enter_context(lab_client(self.patience))
        # other servers do not speak the hub's own protocol for large files; the client cannot be told per call
        has_xet = not constants.HF_HUB_DISABLE_XET
        if self.endpoint != HUB and has_xet:
            constants.HF_HUB_DISABLE_XET = True
            self.stack.callback(setattr, constants, "HF_HUB_DISABLE_XET", False)
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    @property
    def name(self) -> str:
        """The repo."""
        return self.repo

    @property
    def root_url(self) -> str:
        """The repo's page."""
        return f"{self.endpoint}/datasets/{self.repo}"

    def url(self, folder: str) -> str:
        """The folder's page."""
        return f"{self.root_url}/tree/main/{quote(folder)}" if folder else self.root_url

    def check_write(self) -> None:
        """The token may write to the repo, which is made if it is missing."""
        if not self.token:
            raise ShareError(
                f"{self.repo}: sending needs a token: set HF_TOKEN in the environment or in .env "
                "(https://huggingface.co/settings/tokens, with write access)"
            )
        try:
            self._call(
                "reach the repo", lambda: self.api.auth_check(self.repo, repo_type=_TYPE, write=True), may_miss=True
            )
        except _MissingError:
            self._call(
                "make the repo",
                lambda: self.api.create_repo(self.repo, repo_type=_TYPE, private=self.is_private, exist_ok=True),
            )
            logger.info(f"Made the {'private' if self.is_private else 'public'} dataset repo {self.repo}")

    def is_public(self) -> bool:
        """Whether the repo can be read without a token."""
        stranger = HfApi(endpoint=self.endpoint, token=False, library_name="slm-lab")

        def look() -> bool:
            try:
                stranger.repo_info(self.repo, repo_type=_TYPE)
            except HfHubHTTPError as error:
                if error.response.status_code not in (401, 403, 404):
                    raise
                return False
            return True

        return self._call("look at the repo", look)

    def list_folders(self, folder: str) -> Iterator[str]:
        """Folders in a folder."""
        for item in self._list(folder, is_recursive=False):
            if isinstance(item, RepoFolder):
                yield item.path.rpartition("/")[2]

    def list_files(self, folder: str, with_hashes: bool = True) -> Iterator[StoredFile]:
        """Files with the hash that the hub has: of large ones the content's, of small ones git's."""
        for item in self._list(folder, is_recursive=True):
            if isinstance(item, RepoFile):
                if item.lfs is not None:
                    yield StoredFile(item.path, item.lfs.size, sha256=item.lfs.sha256)
                else:
                    yield StoredFile(item.path, item.size, git_sha1=item.blob_id)

    def _list(self, folder: str, is_recursive: bool) -> list[RepoFile | RepoFolder]:
        def fetch() -> list[RepoFile | RepoFolder]:
            tree = self.api.list_repo_tree(self.repo, folder, recursive=is_recursive, repo_type=_TYPE)
            return list(islice(tree, MAX_LISTED + 1))

        try:
            items = self._call("list files", fetch, may_miss=True)
        except _MissingError as error:
            if error.is_entry:
                return []
            raise self._describe_missing() from None
        if len(items) > MAX_LISTED:
            raise ShareError(f"{self.repo}: {folder} holds more than {MAX_LISTED:,} files; that is no folder of runs")
        return items

    def read(self, path: str, max_size: int) -> bytes | None:
        """A small file."""

        def fetch() -> bytes:
            data = b""
            with self._stream(path, 0) as response:
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > max_size:
                        raise TooLargeError(f"{self.repo}: {path} is larger than {max_size:,} bytes")
            return data

        try:
            return self._call("read", fetch, may_miss=True)
        except _MissingError as error:
            if error.is_entry:
                return None
            raise self._describe_missing() from None

    def download(self, path: str, target: Path, size: int, on_bytes: OnBytes) -> None:
        """Fetch a file, going on where the last attempt was cut."""

        def fetch() -> None:
            done = target.stat().st_size if target.exists() else 0
            if done >= size > 0:
                return
            with self._stream(path, done) as response, target.open("ab") as file:
                if done and response.status_code != 206:
                    # the server begins anew, so do we
                    on_bytes(-done)
                    file.truncate(0)
                    done = 0
                # as it comes: pieces of a fixed size would be lost when the line is cut
                for chunk in response.iter_bytes():
                    done += len(chunk)
                    if done > size:
                        raise ShareError(f"{self.repo}: {path} is larger than the {size:,} bytes it should have")
                    file.write(chunk)
                    on_bytes(len(chunk))

        self._call(f"fetch {path.rpartition('/')[2]}", fetch)

    def _stream(self, path: str, start: int) -> "_Streamed":
        headers = build_hf_headers(token=self.token or False, library_name="slm-lab") | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        return _Streamed(hf_hub_url(self.repo, path, repo_type=_TYPE, endpoint=self.endpoint), headers)

    def upload(self, files: Sequence[Upload], message: str, on_bytes: OnBytes) -> None:
        """Send large files on their own, then all in one commit."""
        additions = [CommitOperationAdd(file.path, str(file.source)) for file in files]
        total, sent = sum(file.size for file in files), 0

        def count(num: int) -> None:
            nonlocal sent
            # a file that is sent again does not count twice
            num = min(num, total - sent)
            sent += num
            on_bytes(num)

        def send_large() -> None:
            self.api.preupload_lfs_files(self.repo, additions, repo_type=_TYPE, free_memory=False, num_threads=2)

        def commit() -> None:
            self.api.create_commit(self.repo, additions, commit_message=message, repo_type=_TYPE)

        client = get_session()
        if isinstance(client, LabClient):
            client.on_upload = count
        try:
            self._call("send files", send_large)
            self._call("commit", commit)
        finally:
            if isinstance(client, LabClient):
                client.on_upload = None
        on_bytes(total - sent)

    def _call(self, what: str, function: Callable[[], T], may_miss: bool = False) -> T:
        """Try, and say in one line what went wrong; `may_miss`: a missing repo or file is the caller's to judge."""
        try:
            return self.patience.call(what, self.repo, function)
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status == 404:
                if may_miss:
                    # a repo without a commit has no revision either
                    raise _MissingError(isinstance(error, (EntryNotFoundError, RevisionNotFoundError))) from None
                raise self._describe_missing() from None
            raise self._describe_refusal(status, what, error) from None
        except (HFValidationError, OfflineModeIsEnabled) as error:
            raise ShareError(f"{self.repo}: {_first_line(error)}") from None
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error.__cause__, HfHubHTTPError):
                raise self._describe_refusal(error.__cause__.response.status_code, what, error.__cause__) from None
            raise ShareError(f"{self.repo}: cannot {what}: {_first_line(error)}") from None

    def _describe_missing(self) -> ShareError:
        hint = "" if self.token else ", or it is private: then set HF_TOKEN"
        return MissingStoreError(f"{self.root_url} does not exist{hint}; check HF_REPO (USER/NAME of a dataset repo)")

    def _describe_refusal(self, status: int, what: str, error: HfHubHTTPError) -> ShareError:
        if status == 401 and not self.token:
            return ShareError(f"{self.root_url} does not exist or is private; check HF_REPO, or set HF_TOKEN")
        if status == 401:
            return ShareError(
                f"{self.repo}: the hub does not accept the token in HF_TOKEN (401); make a new one at "
                "https://huggingface.co/settings/tokens"
            )
        if status == 403:
            verb = "read" if what.startswith(("list", "read", "fetch")) else "write"
            return ShareError(
                f"{self.repo}: the token in HF_TOKEN may not {verb} here (403); give it {verb} access to this repo, or "
                "set HF_REPO to one of yours"
            )
        return ShareError(f"{self.repo}: cannot {what}: the hub answered {status}: {_first_line(error)}")


class _MissingError(Exception):
    """There is no such repo, or no such file or folder in it."""

    def __init__(self, is_entry: bool) -> None:
        super().__init__()
        self.is_entry = is_entry


class _Streamed:
    """A response that is read piece by piece; a line that is cut is a passing failure."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.stack = ExitStack()
        self.url = url
        self.headers = headers

    def __enter__(self) -> httpx2.Response:
        response = self.stack.enter_context(get_session().stream("GET", self.url, headers=self.headers))
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        return response

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.stack.close()
        if isinstance(error, httpx2.TransportError):
            raise TransientError(describe(error)) from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in redact(str(error)).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
