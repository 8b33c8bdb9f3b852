"""Seeds that do not repeat, and facts about the machine that name nobody."""

import getpass
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slm_lab.lib.errors import LabError
from slm_lab.lib.runtime import (
    add_working_folder_to_path,
    derive_seed,
    git_sha,
    import_modules,
    machine_facts,
    num_cores,
    package_versions,
)

# --- seeds


def test_a_seed_is_the_same_in_every_process() -> None:
    # recorded once; a change would change every result of the lab
    assert [derive_seed(0, 1), derive_seed(1, 0), derive_seed(7, 3, 101)] == [3733530104, 2744964368, 3038271729]


def test_different_keys_give_different_seeds() -> None:
    keys = [*itertools.product(range(1, 7), repeat=4), *itertools.product(range(1, 30), repeat=2)]
    seeds = {derive_seed(*key) for key in keys}
    # 2,137 keys in 2**32 values: a repeat by chance has odds of 1 in 1,900
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_the_order_of_the_key_counts() -> None:
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(0, 1) != derive_seed(1)


def test_neighbouring_keys_share_no_bits() -> None:
    for pairs in (
        [((0, i), (0, i + 1)) for i in range(1000)],
        [((i, 5), (i + 1, 5)) for i in range(1000)],
        [((3, i, 1), (3, i, 2)) for i in range(1000)],
    ):
        differing = [(derive_seed(*one) ^ derive_seed(*other)).bit_count() for one, other in pairs]
        # of 32 bits half differ; the mean of 1,000 has a standard error of sqrt(8/1000) = 0.09
        assert abs(np.mean(differing) - 16) < 0.5


def test_a_trailing_zero_makes_another_key() -> None:
    assert derive_seed(5) != derive_seed(5, 0)
    assert derive_seed(0) != derive_seed(0, 0, 0)


def test_a_large_number_is_a_key_of_its_own() -> None:
    assert derive_seed(2**32) != derive_seed(0, 1)


# --- facts


def test_the_facts_hold_no_host_or_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.uname()
    fake = os.uname_result((real.sysname, "secret-host", real.release, real.version, real.machine))
    monkeypatch.setattr(os, "uname", lambda: fake)
    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})
    for variable in ("USER", "LOGNAME", "HOSTNAME"):
        monkeypatch.setenv(variable, "secret-name")
    monkeypatch.setenv("HOME", "/home/secret-name")
    assert platform.node() == "secret-host"
    assert getpass.getuser() == "secret-name"
    text = json.dumps([machine_facts(), package_versions(), git_sha()])
    assert "secret" not in text
    assert "/home" not in text
    assert str(Path.cwd()) not in text


def test_the_facts_tell_what_can_change_a_result() -> None:
    facts = machine_facts()
    assert set(facts) == {"platform", "processor", "cores"}
    assert facts["processor"]
    versions = package_versions()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__
    assert {"slm-lab", "torch", "gymnasium"} <= set(versions)


def test_only_the_cores_that_may_be_used_are_counted() -> None:
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    script += "from slm_lab.lib.runtime import num_cores; print(num_cores())"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"
    assert num_cores() >= 1


def test_the_commit_is_a_hash_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha = git_sha()
    assert sha is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", sha)
    # the ceiling keeps git from finding a checkout above the folder
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_sha(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_sha() is None


def test_modules_beside_the_user_can_be_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    add_working_folder_to_path()
    add_working_folder_to_path()
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def commit_code(folder: Path) -> None:
    """A repository with one commit."""
    git(folder, "init")
    (folder / "code.py").write_text("1")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")


def test_a_commit_with_changes_is_marked(tmp_path: Path) -> None:
    commit_code(tmp_path)
    clean = git_sha(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "data").write_text("what is not part of the code does not count")
    assert git_sha(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert git_sha(tmp_path) == f"{clean}-dirty"


def test_the_commit_of_somebody_elses_repository_is_not_ours(tmp_path: Path) -> None:
    commit_code(tmp_path)
    assert git_sha(tmp_path) is not None
    installed = tmp_path / ".venv" / "site-packages" / "slm_lab"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    assert git_sha(installed) is None


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("unfinished", "def reset(:", r"invalid syntax \(unfinished\.py, line 1\)$"),
        ("leaving", "import sys; sys.exit(0)", "it exits the process when it is imported: SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    name: str, code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(f"{name}.py").write_text(f"{code}\n")
    with pytest.raises(LabError, match=rf"^--import {name}: {problem}"):
        import_modules([name])
