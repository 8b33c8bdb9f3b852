"""Requests to the hub, with a time limit each, and retries in one place."""

from collections.abc import Callable
from typing import Any, TypeVar

import httpx2
from loguru import logger
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from slm_lab.lib.errors import ShareError

T = TypeVar("T")
BUSY = {
    408: "it took too long (408)",
    425: "it is too early (425)",
    429: "too many requests (429)",
    500: "the server failed (500)",
    502: "the server failed (502)",
    503: "the server is busy (503)",
    504: "the server took too long (504)",
}
# a server that asks to wait longer is not waited for
LONGEST_WAIT = 120.0
_BACKOFF = wait_exponential_jitter(initial=1.0, max=30.0)


class TransientError(Exception):
    """A temporary failure: the server is busy, or the connection was cut."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        # seconds that the server asks to wait
        self.retry_after = retry_after


class LabClient(httpx2.Client):
    """The HTTP client for huggingface_hub, which by itself would wait without limit, and as long as a server asks."""

    def __init__(self, timeout: float) -> None:
        super().__init__(follow_redirects=True)
        self.longest = timeout

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        """Send a request; a temporary failure raises an error that huggingface_hub does not catch."""
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            kind: min(limits.get(kind) or self.longest, self.longest) for kind in ("connect", "read", "write", "pool")
        }
        try:
            response = super().send(request, **kwargs)
        except httpx2.TransportError as error:
            raise describe(error) from None
        if response.status_code in BUSY:
            response.close()
            raise TransientError(BUSY[response.status_code], _read_retry_after(response))
        return response


def describe(error: httpx2.TransportError) -> TransientError:
    """What happened to a connection, in a few words."""
    if isinstance(error, httpx2.TimeoutException):
        return TransientError("no answer in time")
    if isinstance(error, httpx2.ConnectError):
        return TransientError("no connection; is the network up, and HF_ENDPOINT right if you set it?")
    return TransientError("the connection was cut")


def _read_retry_after(response: httpx2.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return 0.0  # none, or a date


def find_transient(error: BaseException | None) -> TransientError | None:
    """The temporary failure behind an error; None if it has another cause."""
    while error is not None:
        if isinstance(error, TransientError):
            return error
        if isinstance(error, httpx2.TransportError):
            return describe(error)  # while an answer was read
        error = error.__cause__
    return None


def retry(function: Callable[[], T], what: str, where: str, attempts: int) -> T:
    """Call a function, and retry after temporary failures."""

    def cause(state: RetryCallState) -> TransientError:
        found = find_transient(state.outcome.exception() if state.outcome else None)
        assert found is not None, "only these are tried again"
        return found

    def warn(state: RetryCallState) -> None:
        logger.warning(
            f"Cannot {what}: {cause(state).reason}; trying again in {state.upcoming_sleep:.1f} s "
            f"({state.attempt_number}/{attempts})"
        )

    def give_up(state: RetryCallState) -> T:
        asked = cause(state).retry_after
        later = f", which asks to wait {asked:,.0f} s" if asked else ""
        raise ShareError(
            f"{where}: cannot {what}: {cause(state).reason}{later} (tried {state.attempt_number} times); nothing is "
            "lost, run the same command again later to resume"
        ) from None

    retrying = Retrying(
        retry=retry_if_exception(lambda error: find_transient(error) is not None),
        stop=lambda state: state.attempt_number >= attempts or cause(state).retry_after > LONGEST_WAIT,
        wait=lambda state: cause(state).retry_after or _BACKOFF(state),
        before_sleep=warn,
        retry_error_callback=give_up,
    )
    return retrying(function)
