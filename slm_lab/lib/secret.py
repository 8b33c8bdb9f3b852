"""Keeps secrets out of logs and files: reads `.env`, and masks what is or looks like a secret."""

import codecs
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import BinaryIO

from dotenv.parser import parse_stream

from slm_lab.lib.errors import LabError

ENV_FILE = Path(".env")
MASK = "[secret]"
# shorter values would turn up in ordinary text
MIN_LENGTH = 8
MAX_ENV_BYTES = 1_000_000
# of a path that is shown
MAX_PATH = 200
# characters of a file that are searched at once, and those that two such pieces share, more than any token has
PIECE = 1 << 20
OVERLAP = 1 << 16
# How parts of a name end that make it a secret's, but for digits. KEY comes after all kinds of words (OPENAIKEY), so
# the ordinary ones are listed instead. What ends too many other words (COMPASS) has to be a part of its own.
_SECRET_ENDS = (
    *("CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD"),
    *("PASSWORD", "SECRET", "SECRETS", "TOKEN"),
)
_SECRET_PARTS = frozenset({"PASS", "PAT"})
_ORDINARY = frozenset(
    {
        *("DONKEY", "HICKEY", "HOCKEY", "HOTKEY", "JOCKEY", "LACKEY", "LATCHKEY", "LOWKEY"),
        *("MICKEY", "MONKEY", "SMOKEY", "TURKEY", "TURNKEY", "WHISKEY"),
    }
)
# last parts of names that tell where a secret is, or what it is called, or that are about a keyboard
_PLACES = frozenset({"BINDING", "BINDINGS", "DIR", "ENDPOINT", "FILE", "NAME", "PATH", "URI", "URL"})
_SEPARATOR = re.compile(r"[\W_]+")
# where a word begins in a part such as secretKey or APIKeyId
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")


def _token(start: str, rest: str) -> str:
    """A token that is not within a word; a pattern that begins with letters is searched faster than one with `\\b`."""
    return rf"{start}(?<!\w{start}){rest}"


# Characters of a password in a URL, which may stand there as they are, up to the next @. Not those where a text in
# quotes ends, as in JSON, nor where the next URL begins, so that each character is looked at by one URL alone. Groups
# are not possessive: Python before 3.11.5 matches such groups wrongly.
_UP_TO_AT = r"[^\s\0:@\"']*+(?:(?!://|[\"'][,:;)\]}>])[:\"'][^\s\0:@\"']*+)*@++"
_URL_PASSWORD = (
    # no drive and no address in brackets, whose colon is not that of a password
    r"://(?![A-Za-z]:/|\[[0-9A-Fa-f:.]*+\])[^\s\0/:@\"'<>{}]*+:"
    # no port, nor what a template leaves to be filled in, such as {password}
    r"(?!\d{1,5}\\?[/\"'<>{}]|\$?\{++[^\s\0{}]*+\}++[@/]|<[^\s\0<>]*+>[@/])"
    # up to the last @ before white space, since there may be one in the password, which is not empty
    rf"@*+(?=[^\s\0@])(?:{_UP_TO_AT})+"
)
# How tokens of well-known services look. Text comes from anyone, so the time of each is linear in it: none that may
# still fail looks beyond where the next one could begin.
SHAPES = {
    "Hugging Face": _token("hf_", "[A-Za-z0-9]{16,}"),
    "GitHub": _token("gh", "[pousr]_[A-Za-z0-9]{20,}"),
    "GitHub, fine-grained": _token("github_pat_", r"\w{20,}"),
    "GitLab": _token("glpat-", r"[\w-]{16,}"),
    "OpenAI and others": _token("sk-", r"[A-Za-z0-9][\w-]{18,}"),
    "AWS": _token("A", r"(?:KIA|SIA)[0-9A-Z]{16}\b"),
    "Slack": _token("xox", r"[abeprs]-[\w-]{10,}"),
    "Google": _token("AIza", r"[\w-]{30,}"),
    "PyPI": _token("pypi-", r"[\w-]{20,}"),
    "JSON web token": _token("eyJ", r"(?=[\w-]{8})\w*+(?:-(?!eyJ[\w-]{8})\w*+)*\.[\w-]{8,}+\.[\w-]{8,}"),
    "authorization header": _token("[Bb]", r"(?i:earer\s+)[A-Za-z0-9._~+/=-]{12,}"),
    "password in a URL": _URL_PASSWORD,
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
}
_SHAPE = re.compile("|".join(f"(?:{shape})" for shape in SHAPES.values()))


def get_setting(name: str, env_file: Path = ENV_FILE) -> str | None:
    """A variable of the environment, or of `.env` in the working folder; None if it is empty in both."""
    return os.environ.get(name) or read_env_file(env_file).get(name) or None


def full_environment() -> dict[str, str]:
    """The environment plus `.env`; an empty variable counts as not set."""
    return {**read_env_file(), **{name: value for name, value in os.environ.items() if value}}


def read_env_file(path: Path = ENV_FILE) -> Mapping[str, str]:
    """The variables of a `.env` file; empty without a file."""
    try:
        stat = path.stat()
    except OSError:
        return {}
    if not path.is_file():
        return {}
    return _read(path.absolute(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Mapping[str, str]:
    """`changed` and `size` are keys of the cache, so that a changed file is read again."""
    if size > MAX_ENV_BYTES:
        raise LabError(f"{path.name}: {size:,} bytes are too many for a file of variables")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path.name}: cannot be read ({error.__class__.__name__})") from None
    values = {}
    for binding in parse_stream(StringIO(text)):
        if binding.key is None and not binding.error:
            continue  # a comment
        if binding.key is None or binding.value is None or not binding.key.isidentifier():
            # the line itself may be the secret
            raise LabError(f"{path.name}: line {binding.original.line} is not NAME=VALUE, or has a quote left open")
        values[binding.key] = binding.value
    return values


def known_secrets() -> dict[str, str]:
    """Values of secret variables of the environment and of `.env`, by name."""
    try:
        in_file = read_env_file()
    except LabError:
        # said where the file is used; a log line is no place for it
        in_file = {}
    return {
        f"{name} of {place}": value
        for place, variables in ((".env", in_file), ("the environment", os.environ))
        for name, value in variables.items()
        if len(value) >= MIN_LENGTH and _is_secret_name(name) and not _is_path(value)
    }


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    parts = _SEPARATOR.split(name)
    if _HUMP.split(parts[-1])[-1].upper() in _PLACES:
        return False
    # each part as a whole too: passWd is a password, and hotKey is no key
    return any(
        word in _SECRET_PARTS or word.endswith(_SECRET_ENDS)
        for part in parts
        if _bare(part) not in _ORDINARY
        for word in map(_bare, (part, *_HUMP.split(part)))
        if word not in _ORDINARY
    )


def _bare(word: str) -> str:
    return word.upper().rstrip("0123456789")


def _is_path(value: str) -> bool:
    """Variables such as SSL_KEY may hold the path of a key, which is not a secret."""
    return value.startswith(("/", "./", "~/")) and os.path.exists(os.path.expanduser(value))


def redact(text: str) -> str:
    """The text with `[secret]` in place of known secrets and of anything that looks like one."""
    # the longest first: one may be part of another
    for value in sorted(set(known_secrets().values()), key=len, reverse=True):
        if value in text:
            text = text.replace(value, MASK)
    return _SHAPE.sub(MASK, text)


def name_secret(text: str) -> str | None:
    """The kind of secret in a text, without revealing it; None if there is none."""
    for name, value in known_secrets().items():
        if value in text:
            return f"the value of {name}"
    for kind, shape in SHAPES.items():
        if re.search(shape, text):
            return f"what looks like a secret ({kind})"
    return None


def search_file(file: BinaryIO, is_text: bool) -> tuple[int, str] | None:
    """The line and the kind of a secret in a file, read in chunks.

    In binary files only known values count: bytes may look like anything.
    """
    encoding = "utf-8" if is_text else "latin-1"
    patterns = {
        f"the value of {name}": re.compile(re.escape(value.encode().decode(encoding)))
        for name, value in known_secrets().items()
    }
    overlap = max([OVERLAP, *(len(pattern.pattern) for pattern in patterns.values())])
    if is_text:
        patterns |= {f"what looks like a secret ({kind})": re.compile(shape) for kind, shape in SHAPES.items()}
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    # the first character of all pieces but the first is only there to tell where a word begins
    window, start, line = "", 0, 1
    while patterns:
        piece = file.read(PIECE)
        window += decoder.decode(piece, final=not piece)
        for kind, pattern in patterns.items():
            match = pattern.search(window, start)
            # one at the very end may go on, and is seen again with the next piece
            if match is not None and (not piece or match.end() < len(window) or match.start() < len(window) - overlap):
                return line + window.count("\n", 0, match.start()), kind
        if not piece:
            break
        cut = max(len(window) - overlap - 1, 0)
        start = min(cut, 1)
        line += window.count("\n", 0, cut)
        window = window[cut:]
    return None


def find_secret(data: object) -> tuple[str, str] | None:
    """The printable path of the first secret in plain data, and its kind."""
    # one look at all of it, however many texts there are; the character between them is part of no secret
    whole = "\0".join(_walk(data, []))
    starts = [start for value in known_secrets().values() if (start := whole.find(value)) >= 0]
    if (match := _SHAPE.search(whole)) is not None:
        starts.append(match.start())
    if not starts:
        return None
    first, end = min(starts), 0
    trail: list[str] = []
    for text in _walk(data, trail):
        end += len(text) + 1
        if end > first and (kind := name_secret(text)) is not None:
            return _show_path(trail), kind
    return None


def _show_path(trail: list[str]) -> str:
    """A path on one line: its keys may come from anyone, with any length and terminal codes."""
    path = redact("".join(trail).removeprefix("."))
    shown = path if len(path) <= MAX_PATH else f"...{path[3 - MAX_PATH :]}"
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def _walk(node: object, trail: list[str]) -> Iterator[str]:
    """All texts of plain data, including keys; `trail` is the path of the current one."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            trail.append(f".{key}")
            yield str(key)
            yield from _walk(value, trail)
            trail.pop()
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            trail.append(f"[{index}]")
            yield from _walk(value, trail)
            trail.pop()
    elif isinstance(node, str):
        yield node
