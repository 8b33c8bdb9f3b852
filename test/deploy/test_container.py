"""The Dockerfile, as far as it can be checked without a Docker engine."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from check_wheel import PYTHONS

from slm_lab.cli.main import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


class Instruction(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    rest: str


def read_dockerfile() -> list[Instruction]:
    """The instructions, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in lines if line.strip()]


INSTRUCTIONS = read_dockerfile()


def find(name: str) -> list[str]:
    """What stands behind every instruction of a name."""
    return [one.rest for one in INSTRUCTIONS if one.name == name]


def list_context() -> set[str]:
    """Files at the top of the clone that reach the build: what .dockerignore does not leave out."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = set()
    for path in ROOT.iterdir():
        is_out = False
        for rule in rules:
            if fnmatch(path.name, rule.removeprefix("!")):
                is_out = not rule.startswith("!")
        if not is_out:
            kept.add(path.name)
    return kept


def test_every_instruction_is_known_and_the_last_stage_starts_afresh() -> None:
    assert {one.name for one in INSTRUCTIONS} == KNOWN
    assert INSTRUCTIONS[0].name == "FROM"
    builds, image = find("FROM")
    assert builds == f"{image} AS build"
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)
    assert version is not None
    assert version[1] in PYTHONS


def test_only_what_the_package_is_built_from_reaches_the_build() -> None:
    copied = [shlex.split(rest) for rest in find("COPY")]
    sources = {word for words in copied if not words[0].startswith("--from") for word in words[:-1]}
    assert sources == list_context()
    assert sources == {"pyproject.toml", "README.md", "LICENSE", "slm_lab"}
    # what the build's metadata names is among them
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= sources


def test_the_extras_exist_and_torch_is_the_build_for_the_cpu() -> None:
    command = find("RUN")[1]
    extras = re.search(r"slm_lab-\*\.whl\)\[([\w,]+)\]", command)
    assert extras is not None
    assert set(extras[1].split(",")) == {"ml", "serve"} <= set(PROJECT["optional-dependencies"])
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in command
    assert all("--no-cache-dir" in run for run in find("RUN"))


def test_it_runs_the_lab_without_rights_and_listens_where_it_says() -> None:
    (user,) = find("USER")
    assert user == "1000"
    assert INSTRUCTIONS.index(Instruction("USER", user)) > max(
        index for index, one in enumerate(INSTRUCTIONS) if one.name in ("RUN", "COPY")
    )
    (entry,), (command,) = find("ENTRYPOINT"), find("CMD")
    words: list[str] = json.loads(entry) + json.loads(command)
    assert words[0] == "slm-lab"
    lab: Any = typer.main.get_command(app)
    _, parser, rest = lab.resolve_command(None, words[1:])
    given = parser.make_context("slm-lab", rest).params
    assert (given["host"], given["port"], given["where"]) == ("0.0.0.0", 8000, "/agent/agent.slm")
    assert find("EXPOSE") == [str(given["port"])]
    assert find("STOPSIGNAL") == ["SIGTERM"]


def test_the_health_check_asks_what_the_server_answers() -> None:
    (check,) = find("HEALTHCHECK")
    program = json.loads(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    ast.parse(program[2])
    assert ":8000/health'" in program[2]
    assert '"/health"' in (ROOT / "slm_lab" / "deploy" / "server.py").read_text()


def test_the_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint here; .ci/run fetches it")
    ran = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_the_wheel_builds_from_the_copied_files_alone(tmp_path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in list_context():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    words = ["uv", "build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", str(tmp_path / "wheels")]
    subprocess.run(words, cwd=source, check=True)
    (wheel,) = (tmp_path / "wheels").glob("slm_lab-*.whl")
    assert "slm_lab/deploy/server.py" in zipfile.ZipFile(wheel).namelist()
