"""The manifest of a shared run: its files with their hashes, and its results; everything read is checked."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from slm_lab.lib.errors import ShareError, UnreadableError
from slm_lab.lib.io import to_finite
from slm_lab.results.folder import is_search
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
_Text = Annotated[str, AfterValidator(lambda text: printable(text, 200))]
# JSON has no number for it
_Score = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


class BadRunError(ShareError):
    """A problem of a single shared run."""


class ManifestError(BadRunError):
    """An invalid manifest."""


@dataclass(frozen=True)
class Summary:
    """A summary of a run and its results."""

    spec: _Text
    algorithm: _Text
    env: _Text
    # train or search
    kind: _Text
    is_complete: bool
    frame: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    # the score of each session that counts
    values: Annotated[tuple[_Score, ...], Field(max_length=1000)]

    @property
    def score(self) -> float:
        """Their mean, as `Run.spread` has it: of the sessions that have one; NaN without any."""
        known = [value for value in self.values if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Manifest:
    """A shared run."""

    name: str
    # equal for two copies of one run; empty where there is no manifest, as in repos of the published SLM-Lab
    identity: str
    summary: Summary
    files: tuple[StoredFile, ...]
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """The content of the file; equal runs give equal bytes."""
        return (json.dumps(to_finite(asdict(self)), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


_READER = TypeAdapter(Manifest)


def summarize(run: Run) -> Summary:
    """The results of a run."""
    if is_search(run.path):
        is_complete = any((run.path / "info").glob("*_search.json"))
    else:
        # runs of the published lab have metrics only at their end
        is_complete = run.metrics is not None and run.metrics.is_complete is not False
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
    """The files that identify a run: its spec and provenance, which never change."""
    specs = sorted((path for path in paths if re.fullmatch(r"[^/]+_spec\.(yaml|json)", path)), key=len)
    return [*specs[:1], *(path for path in paths if re.fullmatch(r"info/[^/]+_provenance\.json", path))]


def read_manifest(store: Store, name: str) -> Manifest | None:
    """The manifest of a shared run; None without one: its upload has not finished."""
    try:
        data = store.read(f"{DATA}/{name}/{MANIFEST}", MAX_BYTES)
    except (TooLargeError, UnreadableError) as error:
        raise ManifestError(str(error)) from None
    return None if data is None else parse_manifest(data, name)


def parse_manifest(data: bytes, name: str) -> Manifest:
    """A manifest from elsewhere, fully checked."""
    try:
        manifest = _READER.validate_json(data, strict=True)
    except ValidationError:
        raise ManifestError(f"{name}: {MANIFEST} there is damaged, so nothing of the run is used") from None
    if manifest.format != FORMAT:
        raise ManifestError(f"{name}: {MANIFEST} has another format; update the lab")
    if manifest.name != name:
        raise ManifestError(f"{name}: {MANIFEST} there is that of '{printable(manifest.name)}'; was it moved?")
    check_files(name, manifest.files)
    for file in manifest.files:
        problem = find_problem(file.path) or (None if belongs(file.path) else "it is none of a run's files")
        if problem is not None:
            raise ManifestError(f"{name}: the path '{printable(file.path, 120)}' is refused: {problem}")
        if not (_SHA256.fullmatch(file.sha256) and _SHA1.fullmatch(file.git_sha1)):
            raise ManifestError(f"{name}: {MANIFEST} there is damaged: '{file.path}' has no hash")
    return manifest


def check_files(name: str, files: Sequence[StoredFile]) -> None:
    """Refuse too many files, impossible sizes, and names that are equal on some systems."""
    if len(files) > MAX_FILES:
        raise ManifestError(f"{name}: it lists more than {MAX_FILES:,} files, too many for a run")
    if not all(0 <= file.size <= MAX_NUMBER for file in files):
        raise ManifestError(f"{name}: {MANIFEST} there is damaged: it has an impossible size")
    if len({file.path.casefold() for file in files}) < len(files):
        raise ManifestError(f"{name}: {MANIFEST} lists a file twice")


def find_missing(store: Store, name: str, files: Sequence[StoredFile]) -> list[StoredFile]:
    """Files of a run that are missing or different in a store."""
    lead = f"{DATA}/{name}/"
    held = {stored.path.removeprefix(lead): stored for stored in store.list_files(f"{DATA}/{name}")}
    return [file for file in files if file.path not in held or not held[file.path].has_content_of(file)]


def has_run(store: Store, name: str) -> bool:
    """Whether a run is completely shared: its manifest, and all files in it."""
    try:
        manifest = read_manifest(store, name)
    except (MissingStoreError, ManifestError):
        return False
    return manifest is not None and not find_missing(store, name, manifest.files)
