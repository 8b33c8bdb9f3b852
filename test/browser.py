"""A browser for the pages of reports and of `slm-lab ui`."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

# five seconds, its own, are too few on a busy machine
expect.set_options(timeout=30_000)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


# a module at a time: as long as it is open, its event loop runs, and no other can be started
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser found: none of {', '.join(BROWSERS)} is on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Shown:
    """A page in the browser, with what it complained about and asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def curves(self, chart: str) -> dict[str, int]:
        """The curves of a chart and how many points each has."""
        paths = self.page.locator(f'[data-chart="{chart}"] path.curve')
        found: dict[str, int] = paths.evaluate_all(
            "all => Object.fromEntries(all.map(one => [one.dataset.curve, one.getAttribute('d').split('L').length]))"
        )
        return found

    def click(self, toggle: str) -> None:
        """Press a button of the legend."""
        self.page.locator(f'[data-toggle="{toggle}"]').click()

    def text(self, selector: str = "body") -> str:
        """What is to be read, on one line."""
        return " ".join(self.page.inner_text(selector).split())
