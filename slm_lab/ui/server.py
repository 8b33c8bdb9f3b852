"""Starts the server on this machine's own address."""

import secrets
import socket
from pathlib import Path

import uvicorn

from slm_lab.lib.errors import LabError
from slm_lab.ui.app import build_app
from slm_lab.ui.guard import Access

HOST = "127.0.0.1"


def open_socket(port: int) -> socket.socket:
    """Listen on a port of the loopback address alone; 0 for any that is free."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
        raise LabError(f"--port {port}: cannot listen there ({reason}); give another one") from None


def build_server(data_dir: Path, has_control: bool) -> tuple[uvicorn.Server, Access]:
    """A server for a data folder, and the secrets of this start."""
    access = Access(secrets.token_urlsafe(32) if has_control else None)
    config = uvicorn.Config(
        build_app(data_dir, access),
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        # streams of events never end by themselves
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config), access


def write_address(opened: socket.socket, access: Access) -> str:
    """The address to open in a browser."""
    port = opened.getsockname()[1]
    return f"http://{HOST}:{port}/" + (f"?token={access.token}" if access.token is not None else "")
