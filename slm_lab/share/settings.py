"""Where runs are shared: HF_REPO, HF_TOKEN and HF_ENDPOINT, from the environment or `.env`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slm_lab.lib.errors import ShareError
from slm_lab.lib.secret import get_setting, redact

# leads the name of a model repo, which holds one agent
HUB_PREFIX = "hub:"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class ShareSettings:
    """Where to share."""

    repo: str
    token: str | None = None
    endpoint: str | None = None
    # a model repo of the hub, rather than a dataset repo
    is_model: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether runs are shared in a folder of this machine."""
        return not self.is_model and is_folder(self.repo)


def is_folder(repo: str) -> bool:
    """Whether a repo is a path, not USER/NAME on the hub."""
    return repo.startswith(("/", ".", "~")) or Path(repo).is_dir()


def is_repo(repo: str) -> bool:
    """Whether a repo is USER/NAME, as on the hub."""
    return _REPO.fullmatch(repo) is not None


def get_repo() -> str | None:
    """The value of HF_REPO; None if it is not set."""
    return get_setting("HF_REPO")


def read_settings(repo: str | None = None) -> ShareSettings:
    """The settings, with another repo if given; `hub:USER/NAME` is a model repo."""
    repo = repo or get_repo()
    is_model = repo is not None and repo.startswith(HUB_PREFIX)
    if repo is not None and is_model:
        repo = repo.removeprefix(HUB_PREFIX)
        if not is_repo(repo):
            raise ShareError(f"'{redact(repo)[:100]}' is not OWNER/NAME of a model repo, as in hub:me/cartpole")
    if repo is None:
        raise ShareError(
            "HF_REPO is not set, so there is no place to share runs: set HF_REPO=USER/NAME (a dataset repo of the "
            "Hugging Face hub) or HF_REPO=/a/folder into the environment or .env; see docs/SHARING.md"
        )
    if not is_model and not is_folder(repo) and not is_repo(repo):
        raise ShareError(f"HF_REPO: '{redact(repo)[:100]}' is neither USER/NAME nor a path (it starts with / ~ or .)")
    endpoint, token = get_setting("HF_ENDPOINT"), get_setting("HF_TOKEN")
    if endpoint is not None:
        _check_endpoint(endpoint)
        # a `.env` may come with somebody else's folder, and name a server that collects tokens
        if token is not None and bool(os.environ.get("HF_ENDPOINT")) != bool(os.environ.get("HF_TOKEN")):
            raise ShareError(
                "HF_ENDPOINT and HF_TOKEN come from two places, the environment and .env; a token is sent only to a "
                "server that is named beside it, so set both in one of them"
            )
    return ShareSettings(repo, token, endpoint, is_model)


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        host, scheme = parts.hostname or "", parts.scheme
    except ValueError:
        host, scheme = "", ""
    is_here = host in ("localhost", "127.0.0.1", "::1")
    if not host or not (scheme == "https" or (scheme == "http" and is_here)):
        raise ShareError(f"HF_ENDPOINT: '{redact(endpoint)[:100]}' does not start with https://")
