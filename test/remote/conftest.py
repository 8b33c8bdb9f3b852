"""A stand-in for the dstack program, and an environment with nothing of the user's in it."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

FAKE = """#!{python}
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
words = sys.argv[1:]
stdin = sys.stdin.read() if words[0] == "apply" else ""
names = sorted(name for name in os.environ if name.startswith(("HF_", "WANDB_")))
with (here / "calls.jsonl").open("a") as file:
    file.write(json.dumps([words, stdin, os.getcwd(), names]) + "\\n")
out, err, code = json.loads((here / f"{{words[0]}}.json").read_text())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class FakeDstack:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "dstack"
        program.write_text(FAKE.format(python=sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.answer("run", "Run not found\n", code=1)
        self.answer("apply", "submitted\n")

    def answer(self, command: str, out: str = "", err: str = "", code: int = 0) -> None:
        (self.folder / f"{command}.json").write_text(json.dumps([out, err, code]))

    @property
    def calls(self) -> list[list[Any]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment, without what belongs to the user, and with a home of its own."""
    for name in [name for name in os.environ if name.startswith(("HF_", "WANDB_", "DSTACK_", "SLM_LAB_COMMIT"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return dict(os.environ)


@pytest.fixture
def dstack(tmp_path: Path, environ, monkeypatch: pytest.MonkeyPatch) -> FakeDstack:
    """The stand-in, first on the path."""
    folder = tmp_path / "fake"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeDstack(folder)
