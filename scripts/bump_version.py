"""Work out the next version from the commits since the last release and write it down."""

import argparse
import datetime
import enum
import re
import subprocess
import sys
from pathlib import Path

from check_commit_message import HEADER, subject_line

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"^(\d+)\.(\d+)\.(\d+)$")
CITED_VERSION = re.compile(r"^version: .*$", re.M)
PROJECT_VERSION = re.compile(r'(?P<before>^\[project\]\n(?:(?!\[).*\n)*?version = ")(?P<version>[^"]+)(?=")', re.M)
UNRELEASED = re.compile(r"^## (?:Unreleased|\[Unreleased\])[ \t]*$", re.M | re.I)
BREAKING_FOOTER = re.compile(r"^BREAKING[ -]CHANGE: ", re.M)


class Bump(enum.IntEnum):
    """How far a set of commits moves the version, in rising order."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


def bump_of(message: str) -> Bump:
    """Return how far one commit message moves the version."""
    header = HEADER.match(subject_line(message))
    if BREAKING_FOOTER.search(message) or (header and header["breaking"]):
        return Bump.MAJOR
    if header is None:
        return Bump.NONE
    return {"feat": Bump.MINOR, "fix": Bump.PATCH, "perf": Bump.PATCH}.get(header["type"], Bump.NONE)


def next_version(version: str, messages: list[str]) -> str:
    """Return the version that follows once these commits are released."""
    parts = VERSION.match(version)
    if parts is None:
        raise ValueError(f"version must read MAJOR.MINOR.PATCH, got {version!r}")
    major, minor, patch = (int(part) for part in parts.groups())
    bump = max((bump_of(message) for message in messages), default=Bump.NONE)
    # Semantic versioning promises nothing before 1.0, so a break there moves the minor number.
    if bump is Bump.MAJOR and major == 0:
        bump = Bump.MINOR
    match bump:
        case Bump.MAJOR:
            return f"{major + 1}.0.0"
        case Bump.MINOR:
            return f"{major}.{minor + 1}.0"
        case Bump.PATCH:
            return f"{major}.{minor}.{patch + 1}"
        case _:
            return version


def read_version(pyproject: str) -> str:
    """Return the version in the [project] table."""
    found = PROJECT_VERSION.search(pyproject)
    if found is None:
        raise ValueError("pyproject.toml has no version in its [project] table")
    return found["version"]


def write_version(pyproject: str, version: str) -> str:
    """Return pyproject text with the [project] version replaced and all else untouched."""
    read_version(pyproject)
    return PROJECT_VERSION.sub(lambda found: found["before"] + version, pyproject, count=1)


def release_changelog(changelog: str, version: str, date: datetime.date) -> str:
    """Return the changelog with its unreleased notes under the new version and an empty heading on top."""
    if UNRELEASED.search(changelog) is None:
        raise ValueError("changelog has no '## Unreleased' heading")
    return UNRELEASED.sub(lambda found: f"{found[0].rstrip()}\n\n## {version} - {date.isoformat()}", changelog, count=1)


def last_tag(root: Path) -> str | None:
    """Return the nearest release tag behind HEAD, if there is one."""
    done = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def messages_since(root: Path, tag: str | None) -> list[str]:
    """Return the full messages of the commits after the tag, or of all commits."""
    span = "HEAD" if tag is None else f"{tag}..HEAD"
    done = subprocess.run(
        ["git", "log", "-z", "--format=%B", span], cwd=root, capture_output=True, text=True, check=True
    )
    return [message for message in done.stdout.split("\0") if message.strip()]


def main(argv: list[str], root: Path = ROOT) -> int:
    """Bump the version, or only print it with --dry-run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the next version and change nothing")
    dry_run: bool = parser.parse_args(argv).dry_run

    pyproject_path, changelog_path = root / "pyproject.toml", root / "docs" / "CHANGELOG.md"
    pyproject = pyproject_path.read_text(encoding="utf-8")
    tag = last_tag(root)
    # Counting from the tag keeps a second run before tagging from bumping twice.
    released = tag.removeprefix("v") if tag else read_version(pyproject)
    version = next_version(released, messages_since(root, tag))

    if dry_run:
        print(version)
        return 0
    if version == released:
        print(f"nothing to release since {tag or 'the first commit'}")
        return 0
    if version == read_version(pyproject):
        print(f"already at {version}; commit and tag it as v{version}")
        return 0
    changelog = release_changelog(changelog_path.read_text(encoding="utf-8"), version, datetime.date.today())
    pyproject_path.write_text(write_version(pyproject, version), encoding="utf-8")
    changelog_path.write_text(changelog, encoding="utf-8")
    citation = root / "CITATION.cff"
    cited = CITED_VERSION.sub(f"version: {version}", citation.read_text(encoding="utf-8"))
    citation.write_text(cited, encoding="utf-8")
    print(f"{released} -> {version}; commit as 'chore: release {version}' and tag v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
