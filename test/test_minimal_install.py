"""The install without torch, in a fresh environment: what belongs to a laptop works, training says what it lacks."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from test.tiny import make_tiny_spec

ROOT = Path(__file__).parents[1]
# what the package is built from, and the templates of remote runs
SENT = ("pyproject.toml", "README.md", "LICENSE", "slm_lab", ".dstack")
# what uv says when it cannot reach packages, which is no fault of the project
UNREACHABLE = ("failed to fetch", "error sending request", "dns error", "connection", "timed out", "network")

# Every command that promises to work without torch; RUN is a finished run in data/. More are added here.
COMMANDS = [
    ["spec", "check", "ppo_cartpole"],
    ["run-remote", "--gpu", "ppo_cartpole", "train", "--dry-run"],
    ["list"],
    ["plot", "-f", "RUN"],
    ["report", "RUN"],
    ["doctor", "RUN"],
    ["compare", "RUN", "RUN"],
    ["push", "RUN"],
    ["list", "--hub"],
    ["pull", "RUN", "--data-dir", "pulled"],
    ["bench", "status"],
    ["bench", "plan", "--filter", "classic"],
]

# One interpreter for them all: importing is most of the cost.
DRIVER = """
import contextlib, io, json, sys
from slm_lab.cli.main import main

for package in ("torch", "gymnasium", "optuna", "dstack"):
    try:
        __import__(package)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{package} is in the minimal install")
for words in json.loads(sys.argv[1]):
    sys.argv = ["slm-lab", *words]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words} ended with {end.code}")
    if not out.getvalue():
        sys.exit(f"{words} said nothing")
import slm_lab

assert len(slm_lab.read("latest").df["frame"]) == 3
"""


def clean_environment() -> dict[str, str]:
    """Without what leads to the packages of this environment."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "HF_TOKEN", "HF_REPO")
    return {name: value for name, value in os.environ.items() if name not in dropped}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with its own environment, made as the docs say."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("no uv here: pip install uv")
    folder = tmp_path_factory.mktemp("project")
    for name in SENT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    sync = [uv, "sync", "--no-default-groups", "--python", sys.executable]
    # what was fetched before is enough, where it is
    for words in ([*sync, "--offline"], sync):
        ran = subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
        if not ran.returncode:
            return folder
    if any(word in ran.stderr.lower() for word in UNREACHABLE):
        pytest.skip(f"packages cannot be fetched here: {ran.stderr.strip().splitlines()[-1]}")
    pytest.fail(ran.stderr)


@pytest.fixture(scope="module")
def run(project: Path) -> str:
    """A short run, trained by the full install; the name of its folder."""
    return start(make_tiny_spec(), Options(data_dir=project / "data")).folder.name


def call(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = project / ".venv" / "bin" / "slm-lab"
    return subprocess.run(
        [program, *words], cwd=project, env=clean_environment(), capture_output=True, text=True, check=False
    )


def test_what_belongs_to_a_laptop_works_without_torch(project, run) -> None:
    commands = [[run if word == "RUN" else word for word in command] for command in COMMANDS]
    words = [project / ".venv" / "bin" / "python", "-c", DRIVER, json.dumps(commands)]
    (project / "shared").mkdir()
    environ = {**clean_environment(), "HF_REPO": "./shared"}
    ran = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (project / "pulled" / run / "info").is_dir()


def test_help_names_the_commands(project) -> None:
    ran = call(project, "--help")
    assert ran.returncode == 0
    assert "run-remote" in ran.stdout


@pytest.mark.parametrize("words", [["run"], ["run", "ppo_cartpole", "search"]])
def test_training_says_in_one_line_what_to_install(words, project) -> None:
    ran = call(project, *words)
    assert ran.returncode == 2
    # whichever is imported first
    line = r"Error: this command needs (torch|gymnasium); run `uv sync`, or `pip install '.\[ml\]'`\n"
    assert re.fullmatch(line, ran.stderr)


def test_submitting_says_what_to_install(project) -> None:
    environ = {**clean_environment(), "PATH": "/usr/bin:/bin"}
    program = project / ".venv" / "bin" / "slm-lab"
    words = [program, "run-remote", "ppo_cartpole", "--no-upload-hf"]
    ran = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: dstack is not installed; run `uv sync --no-default-groups --group remote`")
