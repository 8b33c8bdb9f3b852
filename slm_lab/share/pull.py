"""Downloading runs: verified, resumable, and without overwriting local files."""

import functools
import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import ShareError, UnreadableError, nearest
from slm_lab.lib.io import lock_file, storage_errors
from slm_lab.lib.unit import format_size
from slm_lab.results.folder import match_names
from slm_lab.share.manifest import BadRunError, Manifest, find_origin, read_manifest
from slm_lab.share.published import describe_published
from slm_lab.share.run_files import is_page, read_file
from slm_lab.share.safe_path import is_safe
from slm_lab.share.store import DATA, Store, StoredFile
from slm_lab.share.view import show_transfer

MAX_SIZE = 5_000_000_000
MAX_RUNS = 10_000
NUM_READERS = 8
# beside the runs: what is not whole yet
PARTIAL = ".pull"


@dataclass(frozen=True)
class SharedRun:
    """A run at a store; without a manifest its upload has not finished, or it is not a run."""

    name: str
    manifest: Manifest | None
    problem: str = ""


@dataclass(frozen=True)
class Pulled:
    """A downloaded run."""

    path: Path
    num_fetched: int
    num_bytes: int
    # files that are here with other content, and stay so
    kept: tuple[str, ...]


def find_names(store: Store, pattern: str = "") -> list[str]:
    """Names of the runs at a store that match a pattern: a name, a glob, or a part of names."""
    names = [name for name in islice(store.list_folders(DATA), MAX_RUNS + 1) if is_safe(name)]
    if len(names) > MAX_RUNS:
        raise ShareError(f"{store.name}: more than {MAX_RUNS:,} runs; give a more specific name")
    return match_names(names, pattern)


def require_names(store: Store, pattern: str) -> list[str]:
    """The same; raises without a match."""
    if names := find_names(store, pattern):
        return names
    hint = nearest(pattern, find_names(store))
    raise ShareError(f"{store.name} has no run named like '{pattern}'{hint} (`slm-lab list --hub` shows its runs)")


def list_runs(store: Store, pattern: str = "") -> list[SharedRun]:
    """The runs at a store with their results."""
    names = find_names(store, pattern)
    # a few requests each, most of which is waiting
    with ThreadPoolExecutor(NUM_READERS) as pool:
        return list(pool.map(functools.partial(_look, store), names))


def _look(store: Store, name: str, to_fetch: bool = False) -> SharedRun:
    """One run with its manifest, or one built for it; for a download it has hashes and needs no score."""
    place = store.url(f"{DATA}/{name}")
    try:
        manifest = read_manifest(store, name) or describe_published(store, name, to_fetch)
    except (BadRunError, UnreadableError) as error:
        return SharedRun(name, None, str(error))
    except OSError as error:
        return SharedRun(name, None, f"{place} cannot be read ({error.strerror})")
    if manifest is None:
        return SharedRun(name, None, f"{place} has no manifest.json: its upload has not ended; push it again")
    return SharedRun(name, manifest)


def pull_runs(
    pattern: str, store: Store, data_dir: Path, max_size: int = MAX_SIZE
) -> tuple[list[Pulled], dict[str, str]]:
    """Download the runs that match a pattern into a data folder; also returns the problems of the others, by name."""
    names = require_names(store, pattern)
    manifests = []
    problems: dict[str, str] = {}
    for name in names:
        run = _look(store, name, to_fetch=True)
        if run.manifest is None:
            problems[name] = run.problem
        else:
            manifests.append(_without_pages(run.manifest))
    total = sum(manifest.size for manifest in manifests)
    if total > max_size:
        raise ShareError(
            f"'{pattern}' matches {len(names)} runs of {format_size(total)}, more than the "
            f"limit of {format_size(max_size)}; give a more specific name, or --max-size"
        )
    pulled = []
    for manifest in manifests:
        try:
            with storage_errors(data_dir):
                pulled.append(pull_run(manifest, store, data_dir))
        except BadRunError as error:
            problems[manifest.name] = str(error)
    if problems and not pulled:
        raise BadRunError("; ".join(problems.values()))
    return pulled, problems


def pull_run(manifest: Manifest, store: Store, data_dir: Path) -> Pulled:
    """Download one run into a temporary folder, and move it into place when it is complete and verified."""
    manifest = _without_pages(manifest)
    target = data_dir / manifest.name
    partial = data_dir / PARTIAL / manifest.name
    lock = partial.with_name(f"{manifest.name}.lock")
    _refuse_links([target, partial.parent, partial, lock])
    wanted, kept = _compare(manifest, target)
    if not wanted and not partial.exists():
        # nothing to write, as in a folder that may only be read
        return Pulled(target, 0, 0, tuple(kept))
    # two processes that fetch into the same files would take each other's for wrong
    with lock_file(lock, wait=0):
        wanted, kept = _compare(manifest, target)
        if wanted:
            _clear(partial, partial / DATA / manifest.name, wanted)
            fetch_files(wanted, manifest.name, store, partial)
            _move(wanted, partial / DATA / manifest.name, target)
        shutil.rmtree(partial, ignore_errors=True)
        # Windows keeps a file that is open; others may still fetch into the folder, or remove it just now
        with suppress(OSError):
            lock.unlink(missing_ok=True)
            partial.parent.rmdir()
    return Pulled(target, len(wanted), sum(file.size for file in wanted), tuple(kept))


def _without_pages(manifest: Manifest) -> Manifest:
    return replace(manifest, files=tuple(file for file in manifest.files if not is_page(file.path)))


def _compare(manifest: Manifest, target: Path) -> tuple[list[StoredFile], list[str]]:
    """The files that are missing locally, and those with different content."""
    wanted: list[StoredFile] = []
    kept: list[str] = []
    for file in manifest.files:
        place = target / file.path
        if not os.path.lexists(place):
            wanted.append(file)
        elif place.is_symlink() or not _matches(target, file.path, file):
            kept.append(file.path)
    if set(find_origin([file.path for file in manifest.files])) & set(kept):
        raise BadRunError(
            f"{target} is not the same run as {manifest.name} at the store, so it stays unchanged; rename it, or "
            "pull with another --data-dir"
        )
    return wanted, kept


def _matches(folder: Path, path: str, file: StoredFile) -> bool:
    place = folder / path
    # a file of another size need not be read
    return place.is_file() and place.stat().st_size == file.size and read_file(folder, path).has_content_of(file)


def fetch_files(wanted: Sequence[StoredFile], name: str, store: Store, folder: Path) -> None:
    """Download and verify files of a run; they keep the store's paths below the folder."""
    size = sum(file.size for file in wanted)
    folder.mkdir(parents=True, exist_ok=True)
    if size > (free := shutil.disk_usage(folder).free):
        raise ShareError(f"{name} needs {format_size(size)}, and {folder} has {format_size(free)} left")
    _refuse_other_sizes(wanted, name, store)
    logger.info(f"Downloading {name}: {len(wanted)} files of {format_size(size)}")
    with show_transfer(name, size) as advance:
        for file in wanted:
            path = f"{DATA}/{name}/{file.path}"
            # of an earlier attempt
            if not _matches(folder, path, file):
                (folder / path).unlink(missing_ok=True)
                store.download(path, folder)
            if not _matches(folder, path, file):
                (folder / path).unlink()
                raise BadRunError(_describe_difference(file, name, store, "SHA-256 differs"))
            advance(file.size)


def _refuse_other_sizes(wanted: Sequence[StoredFile], name: str, store: Store) -> None:
    """Compare sizes before a download: a file larger than its manifest says could fill the disk."""
    sizes = {file.path: file.size for file in store.list_files(f"{DATA}/{name}", with_hashes=False)}
    for file in wanted:
        found = sizes.get(f"{DATA}/{name}/{file.path}")
        if found != file.size:
            difference = "it is missing or a link" if found is None else f"{found:,} bytes for {file.size:,}"
            raise BadRunError(_describe_difference(file, name, store, difference))


def _describe_difference(file: StoredFile, name: str, store: Store, difference: str) -> str:
    return (
        f"{name}: {file.path} at {store.name} is not what its manifest says ({difference}), so it is not used; push "
        "the run again from where it is whole"
    )


def _clear(partial: Path, run: Path, wanted: Sequence[StoredFile]) -> None:
    """Remove files of an earlier attempt that belong to another state of the run, and links and pipes."""
    known = {run / file.path for file in wanted}
    for place in partial.rglob("*"):
        mode = place.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or (
            stat.S_ISREG(mode) and place.is_relative_to(run) and place not in known
        ):
            place.unlink()


def _move(files: Sequence[StoredFile], run: Path, target: Path) -> None:
    try:
        # a folder that is not there yet appears whole
        os.rename(run, target)
    except OSError:
        for file in files:
            place = target / file.path
            _refuse_links([*place.parents][: file.path.count("/") + 1])
            place.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(place):
                logger.warning(f"{place} appeared in the meantime and is kept")
            else:
                os.replace(run / file.path, place)


def _refuse_links(places: Sequence[Path]) -> None:
    """Refuse to write through a link, which may lead out of the data folder."""
    for place in places:
        if place.is_symlink():
            raise BadRunError(f"{place} is a link, and nothing is written through links; remove it, or use --data-dir")
