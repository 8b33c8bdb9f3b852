"""A browser for pages of results."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from slm_lab.results.report import write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.run import Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
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


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Shown]]:
    """Opens a page, or the report of runs."""
    context = browser.new_context()

    def show(*what: Run | Path, width: int = 1200) -> Shown:
        runs = [one for one in what if isinstance(one, Run)]
        path = next((one for one in what if isinstance(one, Path)), None)
        if path is None:
            path = runs[0].path / "report.html" if len(runs) == 1 else tmp_path / "report.html"
            write_report(runs, path, compare_runs(runs))
        shown = Shown(context.new_page())
        shown.page.set_viewport_size({"width": width, "height": 900})
        shown.page.goto(path.resolve().as_uri())
        return shown

    yield show
    context.close()
