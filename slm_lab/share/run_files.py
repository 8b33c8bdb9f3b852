"""Which files belong to a run: an allow-list for uploads and downloads."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from slm_lab.lib.errors import ShareError
from slm_lab.lib.io import open_file
from slm_lab.lib.secret import redact, search_file
from slm_lab.share.safe_path import is_safe
from slm_lab.share.store import StoredFile

CARD = "README.md"
# how files of weights and states end, in this version and in others
_STATE = r"\.(pt|safetensors|json)"
_MODEL = re.compile(rf"model/[^/]+_model{_STATE}")
# what a run resumes from
_CHECKPOINT = re.compile(rf"model/[^/]+_(resume|replay-[^/]+){_STATE}")
# What a browser runs. It is sent for people to look at, and never fetched: pages of others would run their scripts
# here, and the lab's own pages would load the script beside them.
_PAGE = re.compile(r"report\.html|graph/[^/]+\.(svg|html)|graph/plotly\.min\.js")
_KINDS = (
    _MODEL,
    _PAGE,
    re.compile(r"[^/]+_spec\.(yaml|json)"),
    re.compile(r"[^/]+_(trial|experiment)_metrics(_scalar)?\.json"),
    # copies that the published SLM-Lab puts beside the spec
    re.compile(r"[^/]+_graph(_[^/]+)?\.png"),
    re.compile(r"[^/]+_experiment_df\.csv"),
    re.compile(re.escape(CARD)),
    re.compile(r"info/[^/]+\.(csv|json)"),
    re.compile(r"info/[^/]+_study\.log"),
    re.compile(r"graph/[^/]+\.png"),
    re.compile(r"log/[^/]+\.log"),
    re.compile(r"video/[^/]+\.(mp4|gif)"),
)
_TEXT = (".yaml", ".json", ".csv", ".html", ".md", ".log", ".svg")
_CHUNK = 1 << 20


def belongs(path: str, with_checkpoints: bool = True) -> bool:
    """Whether a path is a file of a run."""
    is_known = any(kind.fullmatch(path) for kind in _KINDS) or (with_checkpoints and is_checkpoint(path))
    return is_known and is_safe(path)


def is_model(path: str) -> bool:
    """Whether a file has the weights of an agent."""
    return _MODEL.fullmatch(path) is not None


def is_checkpoint(path: str) -> bool:
    """Whether a file is needed to resume a run."""
    return _CHECKPOINT.fullmatch(path) is not None


def is_page(path: str) -> bool:
    """Whether a file is a page or script, which every machine writes itself."""
    return _PAGE.fullmatch(path) is not None


def find_files(folder: Path, with_checkpoints: bool) -> tuple[list[str], int]:
    """The files of a run to share, and the bytes of checkpoints left out."""
    found = sorted(path for path in _walk(folder) if belongs(path))
    if with_checkpoints:
        return found, 0
    left_out = sum((folder / path).stat().st_size for path in found if is_checkpoint(path))
    return [path for path in found if not is_checkpoint(path)], left_out


def _walk(folder: Path, lead: str = "") -> Iterator[str]:
    """Regular files; links are skipped."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_file(follow_symlinks=False):
                yield f"{lead}{item.name}"
            elif item.is_dir(follow_symlinks=False) and not lead:
                yield from _walk(Path(item.path), f"{item.name}/")


def read_file(folder: Path, path: str) -> StoredFile:
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
        raise ShareError(f"{folder / path} changed while it was read; push the run when it has ended")
    return StoredFile(path, size, sha256.hexdigest(), sha1.hexdigest())


def refuse_secrets(folder: Path, path: str) -> None:
    """The last guard: refuse to upload a file that contains a secret."""
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
