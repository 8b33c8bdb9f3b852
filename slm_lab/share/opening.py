"""From settings to a store; a separate module, since importing the hub's client takes a moment."""

from pathlib import Path

from slm_lab.share.folder_store import FolderStore
from slm_lab.share.hub_store import HubStore, Kind
from slm_lab.share.settings import ShareSettings


def open_store(
    settings: ShareSettings, is_private: bool = False, attempts: int = 5, timeout: float = 30.0
) -> HubStore | FolderStore:
    """The store of the settings; attempts and time limit only apply to the hub."""
    if settings.is_folder:
        return FolderStore(Path(settings.repo))
    kind: Kind = "model" if settings.is_model else "dataset"
    return HubStore(settings.repo, settings.token, settings.endpoint, is_private, attempts, timeout, kind)
