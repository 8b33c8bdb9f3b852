"""Rows whose faults stand in the tests already, each a case there: they are run and counted here."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from bench.faults.row import ROOT, Batch, Row, Verdict

TEST_SECONDS = 3600.0


def run_tests(files: tuple[str, ...], chosen: str, folder: Path) -> Iterator[Verdict]:
    """Run tests of some files, chosen by words of their names; a verdict for each case."""
    report = folder / "report.xml"
    missing = [file for file in files if not (ROOT / file).exists()]
    if missing:
        raise FileNotFoundError(f"needs {', '.join(missing)}")
    words = ["-n0", "-q", "-m", "", "-k", chosen, f"--junitxml={report}", f"--basetemp={folder / 'tests'}", *files]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS
    )
    if not report.exists():
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-500:]}{ran.stderr[-500:]}")
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        problems = [found for kind in ("failure", "error") if (found := case.find(kind)) is not None]
        note = (problems[0].get("message") or "failed").splitlines()[0] if problems else ""
        yield Verdict(str(case.get("name")), not problems, note)


def plan(files: tuple[str, ...], chosen: str, count: int, few: str, quick: bool) -> list[Batch]:
    """All cases, or those whose names have some words."""
    if quick:
        return [Batch("a few tests", 1, partial(run_tests, files, few))]
    return [Batch("tests", count, partial(run_tests, files, chosen))]


def make_row(
    name: str, fault: str, passes: str, files: tuple[str, ...], chosen: str, count: int, few: str, note: str = ""
) -> Row:
    """A row of tests."""
    where = f"The cases are in {', '.join(f'`{file}`' for file in files)}."
    return Row(name, fault, passes, partial(plan, files, chosen, count, few), f"{where} {note}".strip())


NAN = make_row(
    "nan",
    "NaN or Inf in reward, observation, target, log-probability and gradient, for each algorithm",
    "training stops within one update, names the tensor and the frame, saves no bad weight, and leaves a bundle of "
    "less than 50 MB that reproduces the failure; a search counts the trial as failed",
    ("test/experiment/test_fault.py",),
    "what_an_env_gives or what_an_update_computes or no_env_has_looked_at or diverges",
    33,
    "what_an_update_computes and PPO-target",
    "The DQN family has no log-probabilities, so it has fewer cases.",
)
DISK = make_row(
    "disk_full",
    "no space from the n-th write on, for every write of a run; a small disk that fills up; one that becomes read-only",
    "the last checkpoint survives and resumes to the same bits, the message is one line, no empty or partial file",
    ("test/experiment/test_storage.py",),
    "full or fill or read_only or cut_short or checkpoint_that_fails or one_mechanism",
    8,
    "one_mechanism",
    "One case covers every single write of a run, about a hundred.",
)
HUB = make_row(
    "hostile_hub",
    "manifests and listings with `../../x`, links, reserved names, false sizes, and endless listings",
    "nothing is written outside the run folder; the limits hold",
    ("test/share/test_safety.py",),
    "unsafe or none_of_a_runs_files or hostile or huge or without_end or names_of_folders or link",
    35,
    "hostile",
)
HUB_FAULTS = make_row(
    "hub_faults",
    "401, 403, 429, 500, 503, time-out, stall and cut connections, at every step of a push and a pull",
    "temporary failures are retried with growing pauses, cut transfers resume, the exit code is not 0, local data stay "
    "unchanged",
    ("test/share/test_hub.py", "test/share/test_commands.py"),
    "survive or fails or cut or stall or wait or token or refusal or no_server or missing_repo or whole",
    25,
    "stall",
)
SHELL = make_row(
    "shell",
    "`-s 'x=1; touch pwned'`, backticks, quotes, newlines and options as values of run-remote",
    "each arrives as one word in the shell that dstack uses; nothing runs",
    ("test/remote/test_task.py",),
    "shell or replace or mistakes",
    15,
    "a_shell_hands and train",
)
