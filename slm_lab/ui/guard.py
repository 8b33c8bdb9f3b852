"""Who may ask for what: the checks that every request passes before anything else sees it.

The lab's server listens on this machine only, but every page in the user's browser can send requests to it. The checks
keep other pages out: by the Host header (a foreign name that resolves to this machine), by Origin and Sec-Fetch-Site
(requests of other pages), and by a header that other pages cannot set.
"""

import hmac
import re
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
CSRF_HEADER = "x-slm-lab-csrf"
MAX_BODY = 1_000_000
_HOST = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.A)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The secrets of one start of the server; without a token nothing can be started or stopped."""

    token: str | None = None
    # sent by the lab's own pages with everything that changes something
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The name of the cookie; servers on other ports share the cookies of this machine, so it is their own."""
        return f"slm_lab_{hmac.digest(self.csrf.encode(), b'cookie', 'sha256').hex()[:12]}"

    def is_token(self, given: str | None) -> bool:
        """Whether a text is the token."""
        return self.token is not None and given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def may_act(self, headers: Headers) -> bool:
        """Whether a request carries the token in its cookie."""
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and self.is_token(cookies[self.cookie].value)


@dataclass(frozen=True)
class RefusedError(Exception):
    """Why a request is refused."""

    status: int
    reason: str


class Guard:
    """Refuses requests that do not come from the lab's own pages, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then let the app answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # the lab has no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            check(scope, self.access)
        except RefusedError as refusal:
            await JSONResponse({"error": refusal.reason}, refusal.status)(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)


def check(scope: Scope, access: Access) -> None:
    """Raise a RefusedError for a request that is not one of the lab's own pages."""
    headers = Headers(scope=scope)
    client = scope.get("client")
    if client is not None and not _is_loopback(client[0]):
        raise RefusedError(403, "only this machine may ask")
    hosts = headers.getlist("host")
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None or match["name"].lower() not in LOOPBACK:
        raise RefusedError(403, f"the Host header is not one of {', '.join(LOOPBACK)}")
    origins = headers.getlist("origin")
    if any(origin != f"http://{hosts[0]}" for origin in origins):
        raise RefusedError(403, "the request comes from another page")
    is_visit = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_visit:
        raise RefusedError(403, "the request comes from another page")
    if scope["method"] in ("GET", "HEAD"):
        return
    if scope["method"] != "POST":
        raise RefusedError(405, "only GET, HEAD and POST are known")
    _check_change(headers, origins, scope["path"], access)


def _check_change(headers: Headers, origins: list[str], path: str, access: Access) -> None:
    """What a request that changes something needs in addition."""
    if not origins:
        raise RefusedError(403, "the request does not say which page it comes from")
    given = headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode(), access.csrf.encode()):
        raise RefusedError(403, f"the header {CSRF_HEADER} is missing or wrong; reload the page")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "the content has to be JSON")
    size = headers.get("content-length", "")
    if not re.fullmatch(r"\d{1,9}", size, re.A):
        raise RefusedError(411, "the content has to come with its length")
    if int(size) > MAX_BODY:
        raise RefusedError(413, f"the content has more than {MAX_BODY:,} bytes")
    if path.startswith("/api/act/"):
        if access.token is None:
            raise RefusedError(403, "runs can be started and stopped with `slm-lab ui --control` only")
        if not access.may_act(headers):
            raise RefusedError(403, "open the link that `slm-lab ui --control` has printed: it has the token")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        # the client of a test has a name
        return address == "testclient"
