"""A model repo: one agent of a run with its card at the top, and the run itself below `data/`.

Reading one checks hashes and runs nothing: `agent.slm` is numbers and JSON.
"""

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter, ValidationError

from slm_lab.lib.errors import ShareError
from slm_lab.lib.io import cache_folder, storage_errors
from slm_lab.lib.unit import format_size
from slm_lab.share.manifest import ManifestError, check_files
from slm_lab.share.opening import open_store
from slm_lab.share.run_files import CARD, read_file
from slm_lab.share.settings import HUB_PREFIX, read_settings
from slm_lab.share.store import Store, StoredFile
from slm_lab.spec.reader import printable

AGENT = "agent.slm"
SPEC = "spec.yaml"
VIDEO = "replay.mp4"
CURVE = "learning_curve.png"
MODEL = "model.json"
FILES = (CARD, AGENT, SPEC, VIDEO, CURVE)
FORMAT = 1
MAX_BYTES = 100_000
# nets of millions of weights have tens of megabytes
MAX_AGENT_BYTES = 2_000_000_000
# of a SHA-256 that pins an agent: fewer digits could be met by chance
MIN_PIN = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIN = re.compile(rf"[0-9a-f]{{{MIN_PIN},64}}")
_Text = Annotated[str, AfterValidator(lambda text: printable(text, 200))]


@dataclass(frozen=True)
class ModelManifest:
    """What is at the top of a model repo, by its hashes; written last, so a repo that has one is complete."""

    # the folder of the run below data/
    run: _Text
    # of the run, as in its own manifest
    identity: _Text
    frame: int
    files: tuple[StoredFile, ...]
    format: int = FORMAT

    def find(self, path: str) -> StoredFile | None:
        """A file by its path."""
        return next((file for file in self.files if file.path == path), None)

    def to_bytes(self) -> bytes:
        """The content of the file; equal models give equal bytes."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


_READER = TypeAdapter(ModelManifest)


def read_model(store: Store) -> ModelManifest | None:
    """The manifest of a model repo, fully checked; None without one: it holds no model, or its upload has not ended."""
    data = store.read(MODEL, MAX_BYTES)
    if data is None:
        return None
    try:
        manifest = _READER.validate_json(data, strict=True)
    except ValidationError:
        raise ManifestError(f"{store.name}: {MODEL} there is damaged, so nothing of it is used") from None
    if manifest.format != FORMAT:
        raise ManifestError(f"{store.name}: {MODEL} has another format; update the lab")
    check_files(store.name, manifest.files)
    for file in manifest.files:
        if file.path not in FILES or not _SHA256.fullmatch(file.sha256):
            raise ManifestError(f"{store.name}: {MODEL} is refused: '{printable(file.path, 120)}' is none of its files")
    return manifest


def fetch_agent(source: str) -> Path:
    """The agent of `hub:OWNER/NAME`, verified, in the cache; `@` and digits of its SHA-256 pin which one."""
    place, _, pin = source.partition("@")
    if "@" in source and not _PIN.fullmatch(pin):
        raise ShareError(f"'{printable(source, 120)}': after @ come {MIN_PIN} to 64 digits of the agent's SHA-256")
    settings = read_settings(place)
    store = open_store(settings)
    manifest = read_model(store)
    file = None if manifest is None else manifest.find(AGENT)
    if file is None:
        raise ShareError(f"{store.root_url} holds no agent ({MODEL} is missing); make one with `slm-lab push --model`")
    if not file.sha256.startswith(pin):
        raise ShareError(
            f"{place}: its agent is {file.sha256[:12]}..., not {pin}: it was replaced; look at {store.root_url} before "
            "you use the new one"
        )
    folder = cache_folder() / "hub" / place.removeprefix(HUB_PREFIX).replace("/", "--")
    target = folder / f"{file.sha256[:16]}-{AGENT}"
    if not _is_same(target, file):
        _download(store, file, target)
    return target


def _is_same(path: Path, file: StoredFile) -> bool:
    """Whether a file in the cache has the content of a manifest."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    return read_file(path.parent, path.name).sha256 == file.sha256


def _download(store: Store, file: StoredFile, target: Path) -> None:
    if file.size > MAX_AGENT_BYTES:
        raise ShareError(f"{store.name}: {AGENT} has {format_size(file.size)}, too much for an agent")
    # compared before the download: a larger file could fill the disk
    sizes = {held.path: held.size for held in store.list_files("", with_hashes=False)}
    if sizes.get(AGENT) != file.size:
        raise _describe_difference(store)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            store.download(AGENT, Path(made))
            if read_file(Path(made), AGENT).sha256 != file.sha256:
                raise _describe_difference(store)
            os.replace(Path(made) / AGENT, target)


def _describe_difference(store: Store) -> ManifestError:
    return ManifestError(
        f"{store.name}: {AGENT} there is not what {MODEL} says, so it is not used; push the model again from its run"
    )
