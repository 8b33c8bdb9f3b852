"""Checks paths from elsewhere: they must stay below their folder, on any system."""

import re

from slm_lab.lib.errors import ShareError
from slm_lab.spec.reader import printable

MAX_PART = 200
MAX_PATH = 600
MAX_DEPTH = 6
# separators, wildcards and marks of streams of other systems
_FORBIDDEN = re.compile(r'[\\:*?"<>|]')
_RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{digit}" for name in ("com", "lpt") for digit in "0123456789")}


def check_path(path: str) -> str:
    """The path, if it is relative, plain and stays below its folder."""
    problem = find_problem(path)
    if problem is not None:
        raise ShareError(f"the path '{printable(path, 120)}' is refused: {problem}")
    return path


def is_safe(path: str) -> bool:
    """Whether a path may be used."""
    return find_problem(path) is None


def find_problem(path: str) -> str | None:
    """What is wrong with a path; None if it is safe."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not text"
    parts = path.split("/")
    if not path or path.startswith("/"):
        return "it is not below the run's folder"
    if ".." in parts or "." in parts or "" in parts:
        return "it leaves the run's folder or is not in its plain form"
    if len(encoded) > MAX_PATH or len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_PART for part in parts):
        return "it is too long"
    if _FORBIDDEN.search(path) or not path.isprintable():
        return "it has a character that is not for names"
    if any(part.startswith(".") for part in parts):
        return "it is hidden"
    if any(part.endswith((".", " ")) or part.startswith(" ") for part in parts):
        return "it begins or ends with a space, or ends with a dot"
    if any(part.split(".")[0].lower() in _RESERVED for part in parts):
        return "it is a device on some systems"
    return None
