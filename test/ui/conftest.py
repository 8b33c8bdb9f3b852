"""A server with a few runs, and a browser that looks at it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from slm_lab.lib.port import open_port
from slm_lab.ui.guard import Access
from slm_lab.ui.server import HOST, build_server, write_link
from test.browser import Shown, browser

__all__ = ["browser"]


@dataclass(frozen=True)
class Served:
    """A server that runs in a thread of the test."""

    data_dir: Path
    access: Access
    # with the token, if there is one
    link: str

    @property
    def port(self) -> int:
        return int(self.link.split(":")[2].partition("/")[0])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve(data_dir: Path, has_control: bool = False) -> Iterator[Served]:
    """A server for a data folder."""
    opened = open_port(HOST, 0)
    server, access = build_server(data_dir, has_control)
    thread = threading.Thread(target=lambda: server.run(sockets=[opened]), daemon=True)
    thread.start()
    try:
        yield Served(data_dir, access, write_link(opened, access))
    finally:
        server.should_exit = True
        thread.join(timeout=20)


Look = Callable[..., Shown]


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Opens a page of a server; in the end nothing may have gone wrong, and nothing come from elsewhere."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    shown: list[tuple[Shown, Served]] = []

    def look(served: Served, place: str = "", width: int = 1400) -> Shown:
        page = Shown(context.new_page())
        page.page.set_viewport_size({"width": width, "height": 900})
        if served.access.token is not None:
            page.page.goto(served.link)
        page.page.goto(f"{served.origin}/#/{place}")
        page.page.locator("#main > div").wait_for()
        shown.append((page, served))
        return page

    yield look
    for page, served in shown:
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith(f"{served.origin}/")] == []
    context.close()
