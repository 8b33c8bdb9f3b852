"""The server of `slm-lab ui`, which listens on this machine's own address."""

import secrets
import socket
from pathlib import Path

import uvicorn

from slm_lab.lib.port import write_address
from slm_lab.ui.app import build_app
from slm_lab.ui.guard import Access
from slm_lab.ui.library import Library
from slm_lab.ui.watcher import Watcher

HOST = "127.0.0.1"


class LabServer(uvicorn.Server):
    """A server that ends the streams of events first: they would keep it waiting for ever."""

    def __init__(self, config: uvicorn.Config, watcher: Watcher) -> None:
        super().__init__(config)
        self.watcher = watcher

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then everything else."""
        self.watcher.end_streams()
        await super().shutdown(sockets)


def build_server(data_dir: Path, has_control: bool) -> tuple[LabServer, Access]:
    """A server for a data folder, and the secrets of this start."""
    access = Access(secrets.token_urlsafe(32) if has_control else None)
    library = Library(data_dir)
    watcher = Watcher(library)
    config = uvicorn.Config(
        build_app(library, watcher, access),
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        # a download may be under way
        timeout_graceful_shutdown=3,
    )
    return LabServer(config, watcher), access


def write_link(opened: socket.socket, access: Access) -> str:
    """The address to open in a browser, with the token if there is one."""
    return f"{write_address(opened)}/" + (f"?token={access.token}" if access.token is not None else "")
