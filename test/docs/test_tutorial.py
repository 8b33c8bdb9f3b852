"""Tutorials are followed word by word: their files are written, their commands run, their output looked for."""

import re
import shlex
from pathlib import Path

import pytest

from slm_lab.results.folder import RunFolder
from slm_lab.results.run import Run
from test.cli import command

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def shorten(text: str, sessions: int) -> str:
    """The same with a moment of training, in episodes short enough to be evaluated after it."""
    text = re.sub(r"(max_frame[=:] ?)\d+", r"\g<1>800", text)
    text = text.replace("env.max_frame=800", "env.max_frame=800 -s env.max_t=50")
    return re.sub(r"(max_session[=:] ?)\d+", rf"\g<1>{sessions}", text)


def check_output(shown: str, got: str) -> None:
    """Lines begin as shown, in this order; those without a number are as shown. A short run has too little to judge."""
    found = [line.split() for line in got.splitlines() if line.strip()]
    place = 0
    for words in (line.split() for line in shown.splitlines() if line.strip() and not line.startswith("Doctor")):
        is_fixed = not re.search(r"\d", " ".join(words))
        fits = [i for i in range(place, len(found)) if (found[i] == words if is_fixed else found[i][0] == words[0])]
        assert fits, f"{' '.join(words)!r} is not in:\n{got}"
        place = fits[0] + 1


def leave_empty_curve(run: Run) -> None:
    """In place of all graphs, which take seconds."""
    curve = RunFolder(run.path, run.name).graph_file("trial_graph_mean_returns_vs_frames", run.trial)
    curve.parent.mkdir(exist_ok=True)
    curve.touch()


@pytest.mark.usefixtures("inline", "undrawn")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_word_by_word(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr("slm_lab.results.conclude.plot_run", leave_empty_curve)
    text = page.read_text()
    # a comparison needs several sessions
    sessions = 2 if page.stem == "compare" else 1
    for name, body in re.findall(r"`(\w+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(shorten(body, sessions))
    num_command, num_output, got = 0, 0, ""
    for kind, body in BLOCK.findall(text):
        if kind == "bash":
            for line in shorten(body, sessions).splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "slm-lab"
                capsys.readouterr()
                assert command.call(monkeypatch, *words) == 0, capsys.readouterr().err
                got = capsys.readouterr().out
                num_command += 1
        elif kind == "text":
            check_output(body, got)
            num_output += 1
    assert num_command >= 3
    assert num_output
