"""A browser for pages of results."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from slm_lab.results.report import write_report
from slm_lab.results.report_comparison import compare_runs
from slm_lab.results.run import Run
from test.browser import Shown, browser

__all__ = ["browser"]


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
