"""A port to serve on, opened before anything says that it is served."""

import socket

from slm_lab.lib.errors import LabError


def open_port(host: str, port: int) -> socket.socket:
    """Listen on a port of an address; 0 for any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # Python repeats the address behind the reason
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise LabError(f"--port {port}: cannot listen on {host} ({reason}); give another one") from None


def write_address(opened: socket.socket) -> str:
    """The address of an open port, as browsers take it."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
