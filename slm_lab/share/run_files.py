"""Which files belong to a run: an allow-list, for what is sent and for what is fetched."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slm_lab.lib.errors import ShareError
from slm_lab.lib.io import open_file
from slm_lab.lib.secret import redact, search_file
from slm_lab.share.safe_path import is_safe

CARD = "README.md"
_KINDS = (
    re.compile(r"[^/]+_spec\.(yaml|json)"),
    re.compile(r"[^/]+_(trial|experiment)_metrics(_scalar)?\.json"),
    # copies that the published SLM-Lab puts beside the spec
    re.compile(r"[^/]+_graph(_[^/]+)?\.png"),
    re.compile(r"[^/]+_experiment_df\.csv"),
    re.compile(r"README\.md"),
    re.compile(r"info/[^/]+\.(csv|json)"),
    re.compile(r"info/[^/]+_study\.log"),
    re.compile(r"graph/[^/]+\.png"),
    re.compile(r"log/[^/]+\.log"),
    re.compile(r"model/[^/]+_model\.pt"),
    re.compile(r"video/[^/]+\.(mp4|gif)"),
)
# What a browser runs. It is sent for people to look at, and never fetched: pages of others would run their scripts
# here, and the lab's own pages would load the script beside them.
_PAGE = re.compile(r"report\.html|graph/[^/]+\.(svg|html)|graph/plotly\.min\.js")
# what a run continues from
_CHECKPOINTS = (re.compile(r"model/[^/]+_resume\.pt"), re.compile(r"model/[^/]+_replay-[^/]+\.pt"))
_TEXT = (".yaml", ".json", ".csv", ".html", ".md", ".log", ".svg")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RunFile:
    """A file of a run by its content."""

    # from the run's folder, with slashes
    path: str
    size: int
    # empty where it is not known, as of files without a manifest
    sha256: str
    # as git names content: by it the hub knows small files
    git_sha1: str

    def has_content_of(self, wanted: "RunFile") -> bool:
        """Whether this file, whose hashes are known, is what another says: by the hashes that are known of that."""
        pairs = ((self.sha256, wanted.sha256), (self.git_sha1, wanted.git_sha1))
        return self.size == wanted.size and all(known in ("", own) for own, known in pairs)


def belongs(path: str, with_checkpoints: bool = True) -> bool:
    """Whether a path is that of a run's file."""
    kinds = (*_KINDS, _PAGE, *_CHECKPOINTS) if with_checkpoints else (*_KINDS, _PAGE)
    return is_safe(path) and any(kind.fullmatch(path) for kind in kinds)


def is_page(path: str) -> bool:
    """Whether a file is a page or script, which every machine writes for itself."""
    return _PAGE.fullmatch(path) is not None


def find_files(folder: Path, with_checkpoints: bool) -> tuple[list[str], int]:
    """The files of a run that are shared, and how many bytes of checkpoints are left out."""
    chosen, left_out = [], 0
    for path in _walk(folder):
        if belongs(path, with_checkpoints):
            chosen.append(path)
        elif belongs(path):
            left_out += (folder / path).stat().st_size
    return sorted(chosen), left_out


def _walk(folder: Path, lead: str = "", depth: int = 0) -> Iterator[str]:
    """Regular files, not what links point to."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_file(follow_symlinks=False):
                yield f"{lead}{item.name}"
            elif item.is_dir(follow_symlinks=False) and depth < 1:
                yield from _walk(Path(item.path), f"{lead}{item.name}/", depth + 1)


def read_file(folder: Path, path: str) -> RunFile:
    """A file's size and hashes."""
    size = (folder / path).stat().st_size
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    count = 0
    with open_file(folder / path) as file:
        while chunk := file.read(_CHUNK):
            count += len(chunk)
            sha256.update(chunk)
            sha1.update(chunk)
    if count != size:
        raise ShareError(f"{folder / path} changes while it is read; push the run once it has ended")
    return RunFile(path, size, sha256.hexdigest(), sha1.hexdigest())


def refuse_secrets(folder: Path, path: str) -> None:
    """The last guard: a file that holds a secret is not sent."""
    is_text = path.endswith(_TEXT)
    with open_file(folder / path) as file:
        found = search_file(file, is_text)
    if found is not None:
        line, kind = found
        where = f"{redact(path)} line {line}" if is_text else redact(path)
        raise ShareError(
            f"{where} holds {kind}, so it is not sent; take it out of the file, and replace the secret, since it has "
            "been written down"
        )
