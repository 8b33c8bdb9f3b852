"""`slm-lab` as a user calls it, in a folder of its own, within the test's process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from test.cli import command

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in an empty folder; exit code, output, errors and log."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = command.call(monkeypatch, *arguments)
        return code, *capsys.readouterr()

    return run
