"""Commit-msg hook: accept only conventional commit messages with a short subject line."""

import re
import sys
from pathlib import Path

TYPES = ("feat", "fix", "docs", "test", "refactor", "perf", "build", "ci", "chore", "style", "revert")
HEADER = re.compile(
    rf"^(?P<type>{'|'.join(TYPES)})(?:\((?P<scope>[a-z0-9][a-z0-9_./-]*)\))?(?P<breaking>!)?: (?P<subject>\S.*)$"
)
# Git writes these lines itself, so a person cannot be asked to reword them.
GENERATED_PREFIXES = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
MAX_LENGTH = 71


def subject_line(message: str) -> str:
    """Return the first line that is neither blank nor a git comment."""
    for line in message.splitlines():
        if line.strip() and not line.startswith("#"):
            return line.rstrip()
    return ""


def find_problem(message: str) -> str | None:
    """Return one line saying what is wrong with a commit message, or None when it is fine."""
    line = subject_line(message)
    if not line:
        return "commit message is empty"
    if line.startswith(GENERATED_PREFIXES):
        return None
    if HEADER.match(line) is None:
        return f"commit message must read 'type(scope)!: subject' with type one of {', '.join(TYPES)}; got {line!r}"
    if len(line) > MAX_LENGTH:
        return f"commit subject line must stay under {MAX_LENGTH + 1} characters, this one has {len(line)}"
    return None


def main(argv: list[str]) -> int:
    """Check the message file that git hands to the hook."""
    if len(argv) != 1:
        print("usage: check_commit_message.py MESSAGE_FILE", file=sys.stderr)
        return 2
    problem = find_problem(Path(argv[0]).read_text(encoding="utf-8"))
    if problem is None:
        return 0
    print(problem, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
