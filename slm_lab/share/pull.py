"""Fetching runs: verified, resumable, and never over what is here."""

import functools
import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import ShareError, UnreadableError, nearest
from slm_lab.lib.io import lock_file, storage_errors
from slm_lab.lib.unit import format_size
from slm_lab.share.manifest import BadRunError, Manifest, find_origin, local_file, read_manifest
from slm_lab.share.published import describe_published
from slm_lab.share.run_files import RunFile, is_page, read_file
from slm_lab.share.safe_path import is_safe
from slm_lab.share.store import DATA, Store
from slm_lab.share.view import TransferView

MAX_SIZE = 5_000_000_000
MAX_RUNS = 10_000
NUM_READERS = 8
# beside the runs: what is not whole yet
PARTIAL = ".pull"


@dataclass(frozen=True)
class SharedRun:
    """A run at a store; without a manifest its upload has not ended, or what is there is no run."""

    name: str
    manifest: Manifest | None
    problem: str = ""


@dataclass(frozen=True)
class Pulled:
    """A run that is here now."""

    path: Path
    num_fetched: int
    num_bytes: int
    # files that are here with other content, and stay so
    kept: tuple[str, ...]


def find_names(store: Store, pattern: str = "") -> list[str]:
    """Names of the runs at a store that a pattern means: a name, a glob, or a part of names."""
    names = [name for name in islice(store.list_folders(DATA), MAX_RUNS + 1) if is_safe(name)]
    if len(names) > MAX_RUNS:
        raise ShareError(f"{store.name}: more than {MAX_RUNS:,} runs; give a fuller name")
    if pattern in names:
        return [pattern]
    if any(char in pattern for char in "*?["):
        return sorted(name for name in names if fnmatchcase(name, pattern))
    return sorted(name for name in names if pattern in name)


def list_runs(store: Store, pattern: str = "") -> list[SharedRun]:
    """The runs at a store with what they came to."""
    names = find_names(store, pattern)
    # a few requests each, most of which is waiting
    with ThreadPoolExecutor(NUM_READERS) as pool:
        return list(pool.map(functools.partial(_look, store), names))


def _look(store: Store, name: str, to_fetch: bool = False) -> SharedRun:
    """One run with its manifest, or with one made for it; to be fetched, it has hashes and needs no score."""
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
    """Fetch the runs that a pattern means into a data folder; also what is wrong with those that cannot be, by name."""
    names = find_names(store, pattern)
    if not names:
        hint = nearest(pattern, find_names(store))
        raise ShareError(f"{store.name} has no run named like '{pattern}'{hint} (`slm-lab list --hub` shows its runs)")
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
            f"'{pattern}' means {len(names)} runs of {format_size(total)}, and at most {format_size(max_size)} are "
            "fetched at once; give a fuller name, or --max-size"
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
    """Fetch one run: into a folder beside, then into place when all is whole and verified."""
    manifest = _without_pages(manifest)
    target = data_dir / manifest.name
    partial = data_dir / PARTIAL / manifest.name
    lock = partial.with_name(f"{manifest.name}.lock")
    _refuse_links(data_dir, [target, partial.parent, partial, lock])
    wanted, kept = _compare(manifest, target)
    if not wanted and not partial.exists():
        # nothing to write, as in a folder that may only be read
        return Pulled(target, 0, 0, tuple(kept))
    # two who fetch into the same files would take each other's for wrong
    with lock_file(lock, wait=0):
        wanted, kept = _compare(manifest, target)
        fetched = _fetch(wanted, manifest.name, store, data_dir)
        _move(wanted, partial, target, data_dir)
        lock.unlink(missing_ok=True)
        # others may still fetch into it, or remove it just now
        with suppress(OSError):
            partial.parent.rmdir()
    return Pulled(target, len(wanted), fetched, tuple(kept))


def _without_pages(manifest: Manifest) -> Manifest:
    return replace(manifest, files=tuple(file for file in manifest.files if not is_page(file.path)))


def _fetch(wanted: Sequence[RunFile], name: str, store: Store, data_dir: Path) -> int:
    """Fetch files into the folder beside; returns how many bytes came now, and not in an earlier attempt."""
    partial = data_dir / PARTIAL / name
    needed = sum(file.size for file in wanted)
    if needed > (free := shutil.disk_usage(data_dir).free):
        raise ShareError(f"{name} needs {format_size(needed)}, and {data_dir} has {format_size(free)} left")
    _clear(partial, wanted)
    if wanted:
        logger.info(f"Fetching {name}: {len(wanted)} files of {format_size(needed)}")
    fetched = 0
    with TransferView(name, needed) as view:
        for file in wanted:
            place = local_file(partial, file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            _refuse_links(data_dir, [place.parent, place, part_of(place)])
            if place.exists() and _matches(partial, file):
                view.advance(file.size)
                continue
            fetch_file(file, name, store, place, view)
            fetched += file.size
    return fetched


def part_of(place: Path) -> Path:
    """Where a file is while it is not whole."""
    return place.with_name(f"{place.name}.part")


def _compare(manifest: Manifest, target: Path) -> tuple[list[RunFile], list[str]]:
    """The files that are not here, and those that are here with other content."""
    wanted: list[RunFile] = []
    kept: list[str] = []
    for file in manifest.files:
        place = local_file(target, file.path)
        if not os.path.lexists(place):
            wanted.append(file)
        elif not place.is_file() or place.is_symlink() or not _matches(target, file):
            kept.append(file.path)
    if set(find_origin([file.path for file in manifest.files])) & set(kept):
        raise BadRunError(
            f"{target} is another run than {manifest.name} at the store, so nothing is fetched into it; rename it, or "
            "pull with another --data-dir"
        )
    return wanted, kept


def _matches(folder: Path, file: RunFile) -> bool:
    place = local_file(folder, file.path)
    return place.stat().st_size == file.size and read_file(folder, file.path).has_content_of(file)


def fetch_file(file: RunFile, name: str, store: Store, place: Path, view: TransferView) -> None:
    """Fetch and verify a file; what was fetched in an earlier attempt is used, unless it turns out to be wrong."""
    part = part_of(place)
    for _ in range(2):
        begun = part.exists()
        if begun:
            if part.stat().st_size > file.size:
                part.unlink()
            else:
                view.advance(part.stat().st_size)
        if not part.exists():
            part.touch()
        store.download(f"{DATA}/{name}/{file.path}", part, file.size, view.advance)
        got = read_file(part.parent, part.name)
        if got.has_content_of(file):
            os.replace(part, place)
            return
        view.advance(-got.size)
        part.unlink()
        if not begun:
            break
    raise BadRunError(
        f"{name}: {file.path} at {store.name} is not what its manifest says (SHA-256 differs), so it is not used; "
        "push the run again from where it is whole"
    )


def _clear(partial: Path, wanted: Sequence[RunFile]) -> None:
    """Remove what an earlier attempt fetched of another state of the run, and pipes, which would be waited for."""
    whole = [local_file(partial, file.path) for file in wanted]
    known = {*whole, *map(part_of, whole)}
    for place in partial.rglob("*"):
        is_plain = stat.S_ISREG(mode := place.lstat().st_mode)
        if not stat.S_ISDIR(mode) and not (is_plain and place in known):
            place.unlink()


def _move(files: Sequence[RunFile], partial: Path, target: Path, data_dir: Path) -> None:
    if not files:
        return
    try:
        # a folder that is not there yet appears whole
        os.rename(partial, target)
    except OSError:
        for file in files:
            place = local_file(target, file.path)
            _refuse_links(data_dir, [*place.parents][: len(file.path.split("/"))])
            place.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(place):
                logger.warning(f"{place} has come meanwhile and is kept")
            else:
                os.replace(local_file(partial, file.path), place)
        shutil.rmtree(partial)


def _refuse_links(data_dir: Path, places: Sequence[Path]) -> None:
    """Nothing is written through a link, which may lead out of the data folder."""
    for place in places:
        if place != data_dir and place.is_symlink():
            raise BadRunError(f"{place} is a link, and nothing is fetched through one; remove it, or use --data-dir")
