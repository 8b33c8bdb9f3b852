"""The next version follows from the commits since the last release."""

import datetime
import os
import subprocess
import tomllib
from pathlib import Path

import bump_version
import pytest
from bump_version import Bump, bump_of, main, next_version, read_version, release_changelog, write_version

PYPROJECT = """\
[build-system]
requires = ["hatchling"]

[project]
name = "demo"
version = "0.1.0" # the release
dependencies = ["numpy>=2"]

[tool.other]
version = "9.9.9"
"""
CHANGELOG = """\
# Changelog

## Unreleased

- A new thing.

## 0.1.0 - 2026-01-01

- First release.
"""


@pytest.mark.parametrize(
    ("message", "bump"),
    [
        ("feat: add", Bump.MINOR),
        ("feat(spec): add", Bump.MINOR),
        ("fix: repair", Bump.PATCH),
        ("perf(net): speed up", Bump.PATCH),
        ("docs: explain", Bump.NONE),
        ("chore: tidy", Bump.NONE),
        ("no header at all", Bump.NONE),
        ("chore!: drop Python 3.10", Bump.MAJOR),
        ("fix: repair\n\nBREAKING CHANGE: specs need a seed", Bump.MAJOR),
        ("fix: repair\n\nBREAKING-CHANGE: specs need a seed", Bump.MAJOR),
        ("fix: say BREAKING CHANGE: inside a line", Bump.PATCH),
        ("fix: repair\n\nfeat: not a header down here", Bump.PATCH),
    ],
)
def test_bump_of_one_message(message: str, bump: Bump) -> None:
    assert bump_of(message) is bump


@pytest.mark.parametrize(
    ("version", "messages", "expected"),
    [
        ("1.2.3", [], "1.2.3"),
        ("1.2.3", ["docs: a", "test: b"], "1.2.3"),
        ("1.2.3", ["fix: a", "docs: b"], "1.2.4"),
        ("1.2.3", ["fix: a", "feat: b", "fix: c"], "1.3.0"),
        ("1.2.3", ["feat: b", "fix!: a"], "2.0.0"),
        ("0.2.3", ["fix!: a"], "0.3.0"),
        ("0.9.9", ["fix: a"], "0.9.10"),
    ],
)
def test_next_version(version: str, messages: list[str], expected: str) -> None:
    assert next_version(version, messages) == expected


def test_next_version_refuses_other_version_forms() -> None:
    with pytest.raises(ValueError, match=r"MAJOR\.MINOR\.PATCH"):
        next_version("1.2", ["fix: a"])


def test_write_version_touches_the_project_table_only() -> None:
    assert read_version(PYPROJECT) == "0.1.0"
    assert write_version(PYPROJECT, "0.2.0") == PYPROJECT.replace("0.1.0", "0.2.0")


def test_write_version_never_falls_through_to_another_table() -> None:
    with pytest.raises(ValueError, match="no version"):
        write_version('[project]\nname = "demo"\n\n[tool.other]\nversion = "9.9.9"\n', "1.0.0")


def test_the_projects_own_version_is_found() -> None:
    text = (bump_version.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert read_version(text) == tomllib.loads(text)["project"]["version"]


@pytest.mark.parametrize("heading", ["## Unreleased", "## [Unreleased]"])
def test_changelog_notes_move_under_the_new_version(heading: str) -> None:
    released = release_changelog(
        CHANGELOG.replace("## Unreleased", heading), version="0.2.0", date=datetime.date(2026, 2, 3)
    )
    assert released.startswith(f"# Changelog\n\n{heading}\n\n## 0.2.0 - 2026-02-03\n\n- A new thing.\n\n## 0.1.0")
    assert released.count("- A new thing.") == 1


def test_changelog_without_the_heading_is_refused() -> None:
    with pytest.raises(ValueError, match="Unreleased"):
        release_changelog("# Changelog\n", version="0.2.0", date=datetime.date(2026, 2, 3))


def git(root: Path, *args: str) -> None:
    """Run git apart from the user's own settings and from any surrounding repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "demo", f"GIT_{role}_EMAIL": "demo@example.com"}
    subprocess.run(["git", *args], cwd=root, env=environment, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit and no tag."""
    # A git hook exports these, and they would aim the script at the surrounding repository.
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "docs" / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.1.0\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "feat: start")
    return tmp_path


def run(root: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run the script on a repository and return what it prints."""
    assert main(list(args), root=root) == 0
    return capsys.readouterr().out.strip()


def test_dry_run_prints_and_changes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, capsys, "--dry-run") == "0.2.0"
    assert (repository / "pyproject.toml").read_text(encoding="utf-8") == PYPROJECT
    assert (repository / "docs" / "CHANGELOG.md").read_text(encoding="utf-8") == CHANGELOG


def test_only_commits_after_the_last_version_tag_count(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "tag", "v0.1.0")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "docs: explain")
    git(repository, "tag", "very-old-idea")
    assert run(repository, capsys, "--dry-run") == "0.1.0"
    assert "nothing to release" in run(repository, capsys)
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "fix: repair")
    assert run(repository, capsys, "--dry-run") == "0.1.1"


def test_a_second_run_before_tagging_bumps_once(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "tag", "v0.1.0")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "fix: repair\n\nBREAKING CHANGE: specs need a seed")
    assert run(repository, capsys).startswith("0.1.0 -> 0.2.0")
    changelog = (repository / "docs" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "already at 0.2.0" in run(repository, capsys)
    assert read_version((repository / "pyproject.toml").read_text(encoding="utf-8")) == "0.2.0"
    assert (repository / "docs" / "CHANGELOG.md").read_text(encoding="utf-8") == changelog
    assert changelog.count("## 0.2.0 - ") == 1
    assert (repository / "CITATION.cff").read_text(encoding="utf-8") == "cff-version: 1.2.0\nversion: 0.2.0\n"


def test_a_changelog_that_cannot_be_released_leaves_the_version_alone(repository: Path) -> None:
    (repository / "docs" / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Unreleased"):
        main([], root=repository)
    assert (repository / "pyproject.toml").read_text(encoding="utf-8") == PYPROJECT
