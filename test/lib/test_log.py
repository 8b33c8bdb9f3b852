"""Log lines have the form people grep for, and a traceback shows no values."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.lib.log import console_to, log_to, setup_console


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    setup_console("INFO")


def test_a_line_has_time_level_and_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    with log_to(tmp_path / "log/demo.log", "INFO"):
        logger.info("Session 0 done")
        logger.debug("not shown")
    logger.info("only on the console")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| INFO \| Session 0 done", lines[0])
    assert len(lines) == 2
    assert out == ""
    assert (tmp_path / "log/demo.log").read_text().splitlines() == lines[:1]


def test_the_console_is_set_up_anew_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    setup_console("WARNING")
    logger.info("a")
    logger.warning("b")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("| WARNING | b")


def test_a_live_display_takes_the_lines_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    taken: list[str] = []
    with console_to(taken.append):
        logger.info("a")
    logger.info("b")
    assert [line.split(" | ")[-1] for line in taken] == ["a\n"]
    assert capsys.readouterr().err.endswith("| INFO | b\n")


def test_a_traceback_shows_no_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    with log_to(tmp_path / "demo.log", "INFO"):
        try:
            token = "hf_" + "secret"
            int(token[:0] or "x")
        except ValueError:
            logger.exception("failed")
    for text in (capsys.readouterr().err, (tmp_path / "demo.log").read_text()):
        assert "ValueError" in text
        assert "hf_secret" not in text


def test_a_log_line_has_no_colour_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    with log_to(tmp_path / "demo.log", "INFO"):
        logger.error("x")
    assert "\x1b" not in capsys.readouterr().err + (tmp_path / "demo.log").read_text()
