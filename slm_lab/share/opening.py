"""From settings to a store; apart, since the hub's client takes a moment to load."""

from pathlib import Path

from slm_lab.share.folder_store import FolderStore
from slm_lab.share.hub_store import HubStore
from slm_lab.share.settings import ShareSettings


def open_store(
    settings: ShareSettings, is_private: bool = False, attempts: int = 5, timeout: float = 30.0
) -> HubStore | FolderStore:
    """The store that the settings mean; how often and how long to try matters for the hub alone."""
    if settings.is_folder:
        return FolderStore(Path(settings.repo))
    return HubStore(settings.repo, settings.token, settings.endpoint, is_private, attempts, timeout)
