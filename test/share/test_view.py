"""Sizes as people write and read them, and a bar that is only drawn on a terminal."""

import io

import pytest
from loguru import logger
from rich.console import Console

from slm_lab.lib.log import setup_console
from slm_lab.lib.unit import format_size, parse_size
from slm_lab.share.view import show_transfer


@pytest.mark.parametrize(
    ("num", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (5.7e6, "5.7 MB"), (2e15, "2000 TB")]
)
def test_sizes_are_shown(num: float, text: str) -> None:
    assert format_size(num) == text


@pytest.mark.parametrize(("text", "num"), [("500MB", 500_000_000), ("2 GB", 2_000_000_000), ("1.5kb", 1500), ("7", 7)])
def test_sizes_are_read(text: str, num: int) -> None:
    assert parse_size(text) == num


def test_a_bar_is_drawn_on_a_terminal_alone() -> None:
    setup_console("INFO")
    for is_terminal in (True, False):
        out = io.StringIO()
        with show_transfer("demo", 100, Console(file=out, force_terminal=is_terminal, width=100)) as advance:
            advance(60)
            logger.info("a line above it")
            advance(40)
        assert ("demo" in out.getvalue()) is is_terminal
        assert ("a line above it" in out.getvalue()) is is_terminal
