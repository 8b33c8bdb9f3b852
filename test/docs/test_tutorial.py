"""Tutorials are followed word by word: their files are written, their commands run, their output looked for."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
MARK = "=== command"
# One interpreter for all commands: starting it is most of the cost.
DRIVER = f"""
import json, sys
from slm_lab.cli.main import main

for words in json.loads(sys.argv[1]):
    print("{MARK}", flush=True)
    sys.argv = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{{words}} ended with {{end.code}}")
"""


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_word_by_word(page, tmp_path) -> None:
    text = page.read_text()
    # a comparison needs several sessions; one session alone trains in the process itself
    sessions = 2 if page.stem == "compare" else 1
    for name, body in re.findall(r"`(\w+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(shorten(body, sessions))
    commands: list[list[str]] = []
    outputs: dict[int, str] = {}
    for kind, body in BLOCK.findall(text):
        if kind == "bash":
            for line in shorten(body, sessions).splitlines():
                words = shlex.split(line, comments=True)
                assert words[0] == "slm-lab"
                commands.append(words)
        elif kind == "text":
            outputs[len(commands) - 1] = body
    assert len(commands) >= 3
    assert outputs
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "SLM_LAB_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = done.stdout.split(f"{MARK}\n")[1:]
    assert len(got) == len(commands)
    for index, shown in outputs.items():
        check_output(shown, got[index])
