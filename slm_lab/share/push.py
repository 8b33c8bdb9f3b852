"""Uploading a run: only missing files, and never over another run."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import ShareError
from slm_lab.lib.unit import format_size
from slm_lab.results.folder import is_running
from slm_lab.results.run import read_run
from slm_lab.share.card import write_card
from slm_lab.share.manifest import MANIFEST, Manifest, find_missing, find_origin, read_manifest, summarize
from slm_lab.share.run_files import CARD, find_files, read_file, refuse_secrets
from slm_lab.share.safe_path import check_path
from slm_lab.share.store import DATA, Store, StoredFile
from slm_lab.share.view import show_transfer

# of one commit, so that a cut costs little and the bar moves
MAX_BATCH_FILES = 100
MAX_BATCH_BYTES = 50_000_000


def push_run(path: Path, store: Store, with_checkpoints: bool = False) -> str:
    """Upload a run folder to a store and return its URL; files that are already there are skipped."""
    with tempfile.TemporaryDirectory() as made:
        manifest, find, left_out = describe_run(path, with_checkpoints, Path(made))
        store.check_write()
        if left_out:
            logger.info(f"{format_size(left_out)} of checkpoints are not uploaded; --with-checkpoints uploads them too")
        return send(manifest, find, store)


def describe_run(path: Path, with_checkpoints: bool, made: Path) -> tuple[Manifest, Callable[[str], Path], int]:
    """The manifest of a local run, the path of each file, and the bytes left out; writes the card into `made`."""
    name = check_path(path.resolve().name)
    if is_running(path):
        raise ShareError(f"{path} is still training; push it when it has ended")
    run = read_run(path)
    paths, left_out = find_files(path, with_checkpoints)
    paths = [file for file in paths if file != CARD]
    for file in paths:
        refuse_secrets(path, file)
    summary = summarize(run)
    (made / CARD).write_text(write_card(run, summary, paths), encoding="utf-8")
    files = [read_file(path, file) for file in paths]
    by_path = {file.path: file for file in files}
    # what never changes in a run, so that two copies of it are known as one
    identity = "-".join(by_path[file].sha256[:32] for file in find_origin(paths))
    if not identity:
        raise ShareError(f"{path} has no spec file that identifies the run; was it renamed?")
    manifest = Manifest(name, identity, summary, (*files, read_file(made, CARD)))
    return manifest, lambda file: made / CARD if file == CARD else path / file, left_out


def send(manifest: Manifest, find: Callable[[str], Path], store: Store) -> str:
    """Upload the files of a manifest that a store lacks, the manifest last; never over another run."""
    name = manifest.name
    there = read_manifest(store, name)
    _refuse_other(manifest, there, store)
    url = store.url(f"{DATA}/{name}")
    missing = find_missing(store, name, manifest.files)
    if there is not None and there.summary.frame == manifest.summary.frame:
        # what an earlier push sent beside, such as checkpoints, stays part of the run
        kept = {file.path for file in manifest.files}
        rest = tuple(file for file in there.files if file.path not in kept)
        manifest = replace(manifest, files=(*manifest.files, *rest))
    if not missing and there == manifest:
        logger.info(f"{name} is already there, nothing to upload")
        return url
    total = sum(file.size for file in missing)
    skipped = len(manifest.files) - len(missing)
    already = f", {skipped} are there already" if skipped else ""
    place = f"{store.name}/{DATA}/{name}"
    logger.info(f"Uploading {DATA}/{name} to {place}: {len(missing)} files of {format_size(total)}{already}")
    with show_transfer(name, total) as advance, tempfile.TemporaryDirectory() as made:
        for batch in _split(missing):
            store.upload({f"{DATA}/{name}/{file.path}": find(file.path) for file in batch}, f"Add files of {name}")
            advance(sum(file.size for file in batch))
        (Path(made) / MANIFEST).write_bytes(manifest.to_bytes())
        store.upload({f"{DATA}/{name}/{MANIFEST}": Path(made) / MANIFEST}, f"Add {name}")
    if lost := find_missing(store, name, manifest.files):
        raise ShareError(f"{store.name}: {len(lost)} files did not arrive intact, e.g. {lost[0].path}; push again")
    return url


def _refuse_other(manifest: Manifest, there: Manifest | None, store: Store) -> None:
    name, place = manifest.name, store.url(f"{DATA}/{manifest.name}")
    if there is None:
        # an upload that was cut, or nothing
        held = {file.path for file in store.list_files(f"{DATA}/{name}")}
        by_path = {file.path: file for file in manifest.files}
        origin = [by_path[path] for path in find_origin(list(by_path)) if f"{DATA}/{name}/{path}" in held]
        is_other = bool(find_missing(store, name, origin))
    else:
        is_other = there.identity != manifest.identity
    if is_other:
        raise ShareError(
            f"the name is taken: {place} is another run, which is not overwritten; rename the local folder and push it"
        )
    if there is not None and there.summary.frame > manifest.summary.frame:
        raise ShareError(
            f"{place} has gone further ({there.summary.frame:,} frames) than the copy here "
            f"({manifest.summary.frame:,}), which is not sent over it"
        )


def _split(files: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    """Batches, one per commit."""
    batch: list[StoredFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == MAX_BATCH_FILES or size + file.size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch
