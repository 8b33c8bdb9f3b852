"""The HTTP client that huggingface_hub uses while runs are shared: it times out, counts, and leaves retries to us."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from huggingface_hub import logging as hub_logging
from huggingface_hub import set_client_factory
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook

from slm_lab.share.patience import Patience, TransientError
from slm_lab.share.store import OnBytes

BUSY = {
    408: "it took too long (408)",
    425: "it is too early (425)",
    429: "too many requests (429)",
    500: "the server failed (500)",
    502: "the server failed (502)",
    503: "the server is busy (503)",
    504: "the server took too long (504)",
}


class _Counted(httpx2.SyncByteStream):
    """A body that tells how much of it has gone."""

    def __init__(self, stream: httpx2.SyncByteStream, on_bytes: OnBytes) -> None:
        self.stream = stream
        self.on_bytes = on_bytes

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.stream:
            yield chunk
            self.on_bytes(len(chunk))

    def close(self) -> None:
        self.stream.close()


class LabClient(httpx2.Client):
    """Raises `TransientError` for what may pass, which huggingface_hub's own endless waits do not know."""

    on_upload: OnBytes | None = None
    longest: float = 30.0

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        """Send a request."""
        if request.method == "PUT" and self.on_upload is not None and isinstance(request.stream, httpx2.SyncByteStream):
            request.stream = _Counted(request.stream, self.on_upload)
        # some calls of huggingface_hub ask for no limit at all
        limits = request.extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
        request.extensions["timeout"] = {what: limit or self.longest for what, limit in limits.items()}
        try:
            response = super().send(request, **kwargs)
        except httpx2.TransportError as error:
            raise TransientError(describe(error)) from None
        if response.status_code in BUSY:
            response.close()
            raise TransientError(BUSY[response.status_code], read_retry_after(response))
        return response


def describe(error: httpx2.TransportError) -> str:
    """What happened to a connection, in a few words."""
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx2.ConnectError):
        return "no connection; is the network up, and HF_ENDPOINT right if you set it?"
    return "the connection was cut"


def read_retry_after(response: httpx2.Response) -> float | None:
    """Seconds that a server asks to wait; None where it gives none, or a date."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return None


@contextmanager
def lab_client(patience: Patience) -> Iterator[None]:
    """Let huggingface_hub use the lab's client for a while; it has one for the whole process."""

    def build() -> httpx2.Client:
        client = LabClient(event_hooks={"request": [hf_request_event_hook]}, follow_redirects=True)
        client.longest = patience.timeout
        return client

    verbosity = hub_logging.get_verbosity()
    set_client_factory(build)
    hub_logging.set_verbosity_error()
    disable_progress_bars()
    try:
        yield
    finally:
        set_client_factory(default_client_factory)
        hub_logging.set_verbosity(verbosity)
        enable_progress_bars()
