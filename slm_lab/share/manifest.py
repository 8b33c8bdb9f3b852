"""The list of a shared run's files with their hashes, and what the run came to; read with suspicion."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slm_lab.lib.errors import ShareError, UnreadableError
from slm_lab.lib.io import to_finite
from slm_lab.results.folder import is_search
from slm_lab.results.metrics import calc_spread
from slm_lab.results.run import Run
from slm_lab.share.run_files import belongs
from slm_lab.share.safe_path import find_problem
from slm_lab.share.store import DATA, MissingStoreError, Store, StoredFile, TooLargeError
from slm_lab.spec.reader import printable

MANIFEST = "manifest.json"
FORMAT = 1
MAX_FILES = 20_000
MAX_BYTES = 10_000_000
# of bytes and frames that any run can have
MAX_NUMBER = 10**15
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


class BadRunError(ShareError):
    """What is wrong with one shared run, and with no other."""


class ManifestError(BadRunError):
    """A manifest that cannot be believed."""


@dataclass(frozen=True)
class Summary:
    """What a run is and came to, in short."""

    spec: str
    algorithm: str
    env: str
    # train or search
    kind: str
    is_complete: bool
    frame: int
    # the score of each session that counts
    values: tuple[float, ...]

    @property
    def score(self) -> float:
        """Their mean; NaN where there is none."""
        return calc_spread(self.values).mean if self.values else math.nan


@dataclass(frozen=True)
class Manifest:
    """A shared run."""

    name: str
    # equal for two copies of one run; empty where there is no manifest, as in repos of the published SLM-Lab
    identity: str
    summary: Summary
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """The file; the same for the same run."""
        data = {
            "format": FORMAT,
            "name": self.name,
            "identity": self.identity,
            "summary": asdict(self.summary),
            "files": [asdict(file) for file in self.files],
        }
        return (json.dumps(to_finite(data), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def summarize(run: Run) -> Summary:
    """What a run came to."""
    if is_search(run.path):
        is_complete = any((run.path / "info").glob("*_search.json"))
    else:
        # runs of the published lab have metrics only at their end
        is_complete = bool(run.metrics.get("is_complete", bool(run.metrics)))
    return Summary(
        run.name,
        run.label,
        run.env_name,
        "search" if is_search(run.path) else "train",
        is_complete,
        run.frame,
        tuple(float(score) for score in run.scores),
    )


def find_origin(paths: Sequence[str]) -> list[str]:
    """The files that tell one run from another: its spec and where it comes from; they never change."""
    specs = sorted((path for path in paths if re.fullmatch(r"[^/]+_spec\.(yaml|json)", path)), key=len)
    return [*specs[:1], *(path for path in paths if re.fullmatch(r"info/[^/]+_provenance\.json", path))]


def read_manifest(store: Store, name: str) -> Manifest | None:
    """The manifest of a shared run; None where it has none, so that its upload has not ended."""
    try:
        data = store.read(f"{DATA}/{name}/{MANIFEST}", MAX_BYTES)
    except (TooLargeError, UnreadableError) as error:
        raise ManifestError(str(error)) from None
    return None if data is None else parse_manifest(data, name)


def parse_manifest(data: bytes, name: str) -> Manifest:
    """A manifest from elsewhere, whose every word is checked."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise ManifestError(f"{name}: {MANIFEST} is of another format; update the lab")
        files = tuple(_parse_file(file) for file in content["files"][: MAX_FILES + 1])
        manifest = Manifest(str(content["name"]), str(content["identity"]), _parse_summary(content["summary"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise ManifestError(f"{name}: {MANIFEST} there is damaged, so nothing of the run is used") from None
    check_files(name, files)
    if manifest.name != name:
        raise ManifestError(f"{name}: {MANIFEST} there is that of '{printable(manifest.name)[:80]}'; was it moved?")
    return manifest


def check_files(name: str, files: Sequence[StoredFile]) -> None:
    """Refuse more files than a run has, and names that some systems take for one."""
    if len(files) > MAX_FILES:
        raise ManifestError(f"{name}: it lists more than {MAX_FILES:,} files, which no run has")
    paths = [file.path.casefold() for file in files]
    if len(set(paths)) < len(paths):
        raise ManifestError(f"{name}: {MANIFEST} lists a file twice")


def _parse_file(raw: Any) -> StoredFile:
    path, size, sha256, git_sha1 = (raw[key] for key in ("path", "size", "sha256", "git_sha1"))
    if not (isinstance(path, str) and isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_NUMBER):
        raise ValueError("no file")
    if not (_SHA256.fullmatch(sha256) and _SHA1.fullmatch(git_sha1)):
        raise ValueError("no hash")
    if (problem := find_problem(path)) is not None:
        raise ManifestError(f"the path '{printable(path)[:120]}' is refused: {problem}")
    if not belongs(path):
        raise ManifestError(f"the path '{printable(path)[:120]}' is refused: it is none of a run's files")
    return StoredFile(path, size, sha256, git_sha1)


def _parse_summary(raw: Mapping[str, Any]) -> Summary:
    texts = [printable(str(raw[key]))[:200] for key in ("spec", "algorithm", "env", "kind")]
    values = tuple(float("nan") if value is None else float(value) for value in raw["values"][:1000])
    frame = int(raw["frame"])
    if not 0 <= frame <= MAX_NUMBER:
        raise ValueError("no frame")
    return Summary(texts[0], texts[1], texts[2], texts[3], raw["is_complete"] is True, frame, values)


def find_missing(store: Store, name: str, files: Sequence[StoredFile]) -> list[StoredFile]:
    """Files of a run that a store does not hold as they should be."""
    lead = f"{DATA}/{name}/"
    held = {stored.path.removeprefix(lead): stored for stored in store.list_files(f"{DATA}/{name}")}
    return [file for file in files if file.path not in held or not held[file.path].has_content_of(file)]


def has_run(store: Store, name: str) -> bool:
    """Whether a run is shared in full: its manifest is there, and all files that it names."""
    try:
        manifest = read_manifest(store, name)
    except (MissingStoreError, ManifestError):
        return False
    return manifest is not None and not find_missing(store, name, manifest.files)
