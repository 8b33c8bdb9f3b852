"""Which runs, searches and experiments there are below a data folder, and whether their files have changed."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import is_locked
from slm_lab.results.folder import PUBLISHED_SUFFIX, SPEC_SUFFIX, SUBFOLDERS
from slm_lab.spec.reader import printable

Kind = Literal["run", "search", "experiment"]


@dataclass(frozen=True)
class Place:
    """A folder below the data folder; its id is its path from there."""

    id: str
    path: Path
    kind: Kind
    # the id of its experiment, if it is one of its runs
    parent: str = ""


def find_places(data_dir: Path) -> dict[str, Place]:
    """All places by id; links, hidden folders and names with control characters are skipped."""
    places: dict[str, Place] = {}
    for folder in _list_folders(data_dir):
        name = folder.name
        if (kind := _find_kind(folder)) is not None:
            places[name] = Place(name, folder, kind)
            continue
        runs = [child for child in _list_folders(folder) if _find_kind(child) is not None]
        if runs:
            places[name] = Place(name, folder, "experiment")
            places |= {f"{name}/{run.name}": Place(f"{name}/{run.name}", run, "run", name) for run in runs}
    return places


def _list_folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as items:
            found = [item.name for item in items if item.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path / name for name in sorted(found) if name.isprintable() and not name.startswith(".")]


def _find_kind(path: Path) -> Kind | None:
    try:
        with os.scandir(path) as items:
            names = [item.name for item in items]
    except OSError:
        return None
    if not any(name.endswith((SPEC_SUFFIX, PUBLISHED_SUFFIX)) for name in names):
        return None
    info = path / "info"
    if "info" not in names or info.is_symlink():
        return "run"
    # as in results.folder.is_search
    with suppress(OSError), os.scandir(info) as items:
        return "search" if any(item.name.endswith(("_study.log", "_search.json")) for item in items) else "run"
    return "run"


def is_experiment_running(path: Path) -> bool:
    """Whether a process trains the runs of an experiment."""
    lock = path / ".lock"
    return not lock.is_symlink() and is_locked(lock / "grid")


def refuse_links(path: Path) -> None:
    """Refuse a run that holds a link, which may lead out of the data folder."""
    for item in _walk(path):
        if item.is_symlink():
            shown = printable(os.path.relpath(item.path, path), 200)
            raise RunFolderError(f"{shown} is a link, so the run is not read; replace it with its target")


def _walk(path: Path) -> Iterator[os.DirEntry[str]]:
    for folder in (path, *(path / name for name in SUBFOLDERS)):
        if folder != path and folder.is_symlink():
            # the folder above has yielded the link
            continue
        try:
            with os.scandir(folder) as items:
                yield from items
        except OSError:
            continue


def sign(place: Place) -> tuple[int, ...]:
    """Sizes and times of what a run writes to while it trains; equal as long as nothing has changed."""
    numbers: list[int] = []
    for folder in (place.path, place.path / "info"):
        try:
            numbers.append(folder.stat(follow_symlinks=False).st_mtime_ns)
        except OSError:
            numbers.append(0)
    try:
        with os.scandir(place.path / "info") as items:
            for item in items:
                if item.name.endswith(("_session_df_train.csv", "_session_df_eval.csv", "_study.log")):
                    status = item.stat(follow_symlinks=False)
                    numbers += [status.st_size, status.st_mtime_ns]
    except OSError:
        pass
    return tuple(numbers)


def find_age(place: Place) -> float:
    """When a run was last written to, in seconds since 1970; 0 if that is unknown."""
    newest = 0.0
    with suppress(OSError), os.scandir(place.path / "info") as items:
        names = [item.path for item in items if item.name.endswith("_session_df_train.csv")]
        newest = max((os.lstat(name).st_mtime for name in names), default=0.0)
    if not newest:
        with suppress(OSError):
            newest = place.path.lstat().st_mtime
    return newest
