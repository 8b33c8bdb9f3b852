"""Build the wheel, install it into fresh environments, and use it as a newcomer would.

For every Python to be had here, with the oldest and the newest torch that the `ml` extra allows: train, list, report,
load the agent. `--page` writes the results to docs/INSTALL.md.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "INSTALL.md"
BLOCK = re.compile(r"(?<=<!-- wheel -->\n).*?(?=<!-- end of wheel -->)", re.S)
PYTHONS = ("3.11", "3.12", "3.13")
TORCH_RANGE = re.compile(r"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)")
# what would lead a fresh environment back to the packages or settings of this one
DROPPED_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "HF_REPO", "HF_TOKEN")

LOAD = """
import gymnasium as gym
import slm_lab

agent = slm_lab.load_agent("agent.slm")
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=0)
for _ in range(5):
    obs, *_ = env.step(agent.act(obs))
"""


class Step(NamedTuple):
    """One thing to try in an environment: words for `slm-lab`, or a program."""

    name: str
    words: tuple[str, ...] = ()
    program: str = ""


TRAIN = ("run", "ppo_cartpole", "train", "-s", "env.max_frame=4000", "-s", "meta.max_session=2")
STEPS = (
    Step("help", ("--help",)),
    Step("specs", ("spec", "check", "ppo_cartpole")),
    Step("envs", ("env", "check", "LunarLander-v3", "--steps", "50")),
    Step("envs", ("env", "check", "Hopper-v5", "--steps", "50")),
    Step("envs", ("env", "check", "ALE/Pong-v5", "--steps", "50")),
    Step("train", (*TRAIN, "-s", "meta.compile=false")),
    # its warning that compiling failed is looked for in the output
    Step("compile", ("run", "ppo_cartpole", "dev", "-s", "env.max_frame=2000", "-s", "meta.compile=true")),
    Step("report", ("list",)),
    Step("report", ("doctor", "latest")),
    Step("report", ("report", "latest")),
    Step("export", ("export", "latest", "-o", "agent.slm")),
    Step("load_agent", program=LOAD),
)
FAILED_COMPILING = "Compiling failed"
NOT_TRIED = "not tried"


@dataclass
class Row:
    """What came of one environment: versions, and the line of the first failure by step."""

    python: str
    torch: str
    how: str
    failures: dict[str, str]

    def cells(self) -> list[str]:
        """The row of the table."""
        names = dict.fromkeys(step.name for step in STEPS)
        return [self.python, self.torch, self.how, *(self.failures.get(name, "ok") for name in names)]


def read_torch_versions() -> tuple[str, str]:
    """The oldest and the newest minor version of torch that the `ml` extra allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = next(line for line in project["optional-dependencies"]["ml"] if line.startswith("torch"))
    match = TORCH_RANGE.fullmatch(given)
    if match is None:
        raise SystemExit(f"pyproject.toml: '{given}' is not torch>=A.B,<C.D")
    major, low, _, high = map(int, match.groups())
    return f"{major}.{low}", f"{major}.{high - 1}"


def build_wheel(folder: Path) -> Path:
    """The wheel, built from the source distribution as a release is."""
    subprocess.run(["uv", "build", "--quiet", "--out-dir", str(folder)], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def find_content_problems(names: Sequence[str], tracked: Sequence[str]) -> list[str]:
    """What a wheel lacks of the package's files in git, and what else it has."""
    inside = {name for name in names if not re.match(r"slm_lab-[^/]+\.dist-info/", name)}
    lacks = [f"the wheel lacks {name}" for name in sorted(set(tracked) - inside)]
    return lacks + [f"the wheel has {name}" for name in sorted(inside - set(tracked))]


def check_content(wheel: Path) -> None:
    """Refuse a wheel that holds other files than the package: specs, report page and tables belong, tests do not."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "slm_lab"]
    tracked = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    with zipfile.ZipFile(wheel) as archive:
        problems = find_content_problems(archive.namelist(), tracked)
    if problems:
        raise SystemExit("\n".join(problems))


def find_python(version: str) -> str | None:
    """An interpreter of a version: of uv, on the path, or of pyenv; None if there is none."""
    found = subprocess.run(
        ["uv", "python", "find", "--no-python-downloads", "--no-project", version],
        capture_output=True,
        text=True,
        check=False,
    )
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [found.stdout.strip(), *map(str, sorted(root.glob(f"{version}.*/bin/python")))]
    return next((path for path in candidates if path and _runs(path, version)), None)


def _runs(path: str, version: str) -> bool:
    words = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() == version


@contextmanager
def fresh_folder(base: Path | None, is_kept: bool = False) -> Iterator[Path]:
    """A folder for an environment, which takes gigabytes, so it is deleted afterwards unless it is to be kept."""
    if base is not None:
        base.mkdir(parents=True, exist_ok=True)
    if is_kept:
        yield Path(tempfile.mkdtemp(dir=base))
        return
    with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as made:
        yield Path(made)


def clean_environment() -> dict[str, str]:
    """The variables for a fresh environment."""
    return {name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES}


def install(folder: Path, python: str, wheel: Path | None, torch: str) -> list[list[str]]:
    """The commands that install the package; without a wheel by pip from the clone, as the README says."""
    inside = str(folder / "env" / "bin" / "python")
    if wheel is None:
        pip = [inside, "-m", "pip", "install", "--quiet", f"{ROOT}[ml]"]
        return [[python, "-m", "venv", str(folder / "env")], pip]
    target = f"slm-lab[ml] @ {wheel.as_uri()}"
    uv = ["uv", "pip", "install", "--quiet", "--python", inside, target, f"torch=={torch}.*"]
    # not in the clone, whose settings would pin the packages
    return [["uv", "venv", "--quiet", "--no-project", "--python", python, str(folder / "env")], uv]


def try_out(folder: Path, python: str, wheel: Path | None, torch: str, skipped: Sequence[str] = ()) -> Row:
    """Install into a fresh environment and go through the steps."""
    work = folder / "work"
    work.mkdir()
    how = "pip, from a clone" if wheel is None else "wheel"
    names = dict.fromkeys(step.name for step in STEPS)
    for words in install(folder, python, wheel, torch):
        ran = run_words(words, work)
        if ran.returncode:
            reason = last_line(ran.stderr) or "failed"
            return Row(_version(python), torch, how, dict.fromkeys(names, f"not installed: {reason}"))
    inside = folder / "env" / "bin"
    ran = run_words([str(inside / "python"), "-c", "import torch; print(torch.__version__)"], work)
    row = Row(_version(python), ran.stdout.strip(), how, dict.fromkeys(skipped, NOT_TRIED))
    for step in STEPS:
        if step.name in skipped:
            continue
        words = [str(inside / "slm-lab"), *step.words] if step.words else [str(inside / "python"), "-c", step.program]
        ran = run_words(words, work)
        if ran.returncode or FAILED_COMPILING in ran.stderr + ran.stdout:
            sys.stderr.write(f"{' '.join(words)}\n{ran.stdout}{ran.stderr}")
            row.failures.setdefault(step.name, last_line(ran.stderr) or f"exit code {ran.returncode}")
    return row


def run_words(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, outside the clone."""
    return subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)


def last_line(text: str) -> str:
    """The last line of an output, fit for a cell of a table."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().replace("|", "/") if lines else ""


def _version(python: str) -> str:
    words = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def format_table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table."""
    heads = ["Python", "torch", "installed by", *dict.fromkeys(step.name for step in STEPS)]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Entry of the script; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="versions to try, e.g. 3.12; all by default")
    parser.add_argument("--torch", action="append", help="versions to try, e.g. 2.13; oldest and newest by default")
    parser.add_argument("--skip", action="append", default=[], help="columns to leave out, e.g. compile")
    parser.add_argument("--no-pip", action="store_true", help="leave out pip from the clone")
    parser.add_argument("--folder", type=Path, help="where to put the environments, which take up to 6 GB each")
    parser.add_argument("--keep", action="store_true", help="keep the environments, whose deletion takes minutes")
    parser.add_argument("--page", action="store_true", help="write the results to docs/INSTALL.md")
    given = parser.parse_args()
    if shutil.which("uv") is None:
        raise SystemExit("no uv here: pip install uv")
    rows: list[Row] = []
    with fresh_folder(given.folder) as made:
        wheel = build_wheel(made)
        check_content(wheel)
        for version in given.python or PYTHONS:
            python = find_python(version)
            if python is None:
                sys.stdout.write(f"Python {version}: not here, so not tried\n")
                continue
            tries = [(wheel, torch) for torch in given.torch or read_torch_versions()]
            for one, torch in [*tries, *([] if given.no_pip else [(None, "")])]:
                with fresh_folder(given.folder, given.keep) as folder:
                    rows.append(try_out(folder, python, one, torch, given.skip))
                sys.stdout.write(f"{' | '.join(rows[-1].cells())}\n")
                sys.stdout.flush()
    if given.page:
        table = format_table(rows)
        PAGE.write_text(BLOCK.sub(lambda _: table, PAGE.read_text()))
    return int(not rows or any(cell != NOT_TRIED for row in rows for cell in row.failures.values()))


if __name__ == "__main__":
    sys.exit(main())
