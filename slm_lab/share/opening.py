"""From settings to a store; apart, since the hub's client takes a moment to load."""

from pathlib import Path

from slm_lab.share.folder_store import FolderStore
from slm_lab.share.hub_store import HubStore
from slm_lab.share.patience import Patience
from slm_lab.share.settings import ShareSettings


def open_store(
    settings: ShareSettings, patience: Patience | None = None, is_private: bool = False
) -> HubStore | FolderStore:
    """The store that the settings mean, to be used with `with`."""
    if settings.is_folder:
        return FolderStore(Path(settings.repo))
    return HubStore(settings.repo, settings.token, settings.endpoint, patience, is_private)
