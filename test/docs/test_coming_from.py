"""The pages for people who come from elsewhere: the lab's files, commands and code on them are run."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from test.cli import command
from test.share.local_hub import WRITER, serve_hub

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "coming_from").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
SECTIONS = ("## The same task", "## Names", "## What th")


def shorten(text: str) -> str:
    """The same with a moment of training."""
    text = re.sub(r"(max_frame[=:] ?|env__max_frame=)\d+", r"\g<1>2048", text)
    text = re.sub(r"(keep_checkpoints=)\d+", r"\g<1>1024", text)
    return re.sub(r"(max_session[=:] ?|max_trial=)\d+", r"\g<1>2", text)


@pytest.mark.usefixtures("inline", "undrawn")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_lab_does_on_the_page_runs(page, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_REPO", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    text = page.read_text()
    for name, body in re.findall(r"`(my_\w+\.yaml)`:\n.*?^```yaml\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(shorten(body))
    num_command = num_script = 0
    with serve_hub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        for kind, body in BLOCK.findall(text):
            if kind == "bash":
                for line in shorten(body).splitlines():
                    program, *words = shlex.split(line, comments=True)
                    assert program == "slm-lab"
                    assert command.call(monkeypatch, *words) == 0, capsys.readouterr().err
                    num_command += 1
            elif kind == "python":
                (tmp_path / "script.py").write_text(shorten(body))
                runpy.run_path(str(tmp_path / "script.py"))
                num_script += 1
    assert num_command >= 2
    assert num_script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_the_task_the_names_and_both_sides(page) -> None:
    text = page.read_text()
    assert all(text.count(section) for section in SECTIONS)
    assert re.search(r"^## What .* does differently$", text, re.M)
    assert re.search(r"^## What .* does better$", text, re.M)
    # the others' commands and code are not ours to run
    assert {kind for kind, _ in BLOCK.findall(text)} >= {"bash", "python"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "slm_lab"], ids=lambda page: page.stem)
def test_spec_keys_in_the_tables_exist(page) -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "SPEC.md").read_text(), re.M))
    lines = page.read_text().split("## Names")[1].split("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    # names without a dot belong to the section that stands before them
    named = [key for row in rows for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)[`:]", row.split("|")[-2])]
    assert len(named) > 15
    assert not [key for key in named if not known.issuperset(key.split("."))]
