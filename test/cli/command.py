"""`slm-lab` called within a test's own process."""

import sys

import pytest

from slm_lab.cli.main import main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command; its exit code."""
    monkeypatch.setattr(sys, "argv", ["slm-lab", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
