"""Copies finished runs and the docs from the working repo to the public one, and rewrites links."""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from loguru import logger

from slm_lab.lib.errors import ShareError
from slm_lab.lib.io import read_text, write_text
from slm_lab.share.manifest import Manifest, find_missing, has_run, read_manifest
from slm_lab.share.pull import fetch_files, list_runs, require_names
from slm_lab.share.push import send
from slm_lab.share.run_files import read_file, refuse_secrets
from slm_lab.share.safe_path import is_safe
from slm_lab.share.store import DATA, MissingStoreError, Store

BENCHMARKS = Path("docs/BENCHMARKS.md")
RESULTS = "docs/benchmark/results.json"
README = "README.md"
MAX_README = 10_000_000
_DOC_SUFFIXES = (".md", ".png", ".svg", ".gif", ".jpg", ".json", ".yaml", ".csv", ".mp4")


@dataclass(frozen=True)
class Graduation:
    """Runs to copy, and those that are not, with the reason."""

    runs: tuple[Manifest, ...]
    # these are in the public repo already
    done: tuple[str, ...]
    left_out: dict[str, str]


def plan(pattern: str, source: Store, target: Store) -> Graduation:
    """Runs to copy: finished trainings that the target lacks or has in another state."""
    if source.root_url == target.root_url:
        raise ShareError(f"{target.name}: source and target are the same; name the public repo with --to")
    if pattern:
        require_names(source, pattern)
    runs, done, left_out = [], [], {}
    for run in list_runs(source, pattern):
        if run.manifest is None or (reason := _find_obstacle(run.manifest)):
            left_out[run.name] = run.problem or reason
        elif _is_there(run.manifest, target):
            done.append(run.name)
        else:
            runs.append(run.manifest)
    return Graduation(tuple(runs), tuple(done), left_out)


def _find_obstacle(manifest: Manifest) -> str:
    """Why a run is not copied; empty if it can be."""
    if not manifest.identity:
        return "it has no manifest; pull it, and push it to the public repo"
    if manifest.summary.kind != "train":
        return "it is a search"
    return "" if manifest.summary.is_complete else "it is not complete"


def _is_there(manifest: Manifest, target: Store) -> bool:
    try:
        there = read_manifest(target, manifest.name)
    except MissingStoreError:
        return False  # it is made when the first run comes
    return there == manifest and not find_missing(target, manifest.name, manifest.files)


def copy_run(manifest: Manifest, source: Store, target: Store) -> str:
    """Copy a run: download, verify and upload the files that the target lacks."""
    with tempfile.TemporaryDirectory() as made:
        fetch_files(find_missing(target, manifest.name, manifest.files), manifest.name, source, Path(made))
        return send(manifest, lambda path: Path(made) / DATA / manifest.name / path, target)


def rewrite_links(text: str, source: Store, target: Store, is_there: Callable[[str], bool]) -> str:
    """The text with links to runs in the target rewritten; all others stay."""
    lead = re.escape(source.root_url) + r"(?P<view>/(?:tree|blob|resolve|raw)/main)?" + f"/{DATA}/"

    def change(match: re.Match[str]) -> str:
        if not is_there(match["name"]):
            return match[0]
        return f"{target.root_url}{match['view'] or ''}/{DATA}/{match['name']}"

    return re.sub(lead + r"(?P<name>[^/\s()<>\"'|?#]+)", change, text)


def graduate(graduation: Graduation, source: Store, target: Store, root: Path, may_rewrite: bool) -> list[str]:
    """Copy the runs, upload README.md and docs/ of `root`, and rewrite the links of its benchmark page."""
    target.check_write()
    urls = []
    for manifest in graduation.runs:
        logger.info(f"Copying {manifest.name}")
        urls.append(copy_run(manifest, source, target))

    @cache
    def is_there(name: str) -> bool:
        return is_safe(name) and has_run(target, name)

    def change(text: str) -> str:
        return rewrite_links(text, source, target, is_there) if may_rewrite else text

    send_docs(root, target, change)
    # the page is written from the results, so both have the links
    for page in (root / BENCHMARKS, root / RESULTS):
        if page.is_file() and (changed := change(text := read_text(page))) != text:
            write_text(page, changed)
            logger.info(f"Rewrote the links in {page}")
    return urls


def send_docs(root: Path, target: Store, change: Callable[[str], str]) -> None:
    """Upload the files of README.md and docs/ that differ from those in the target."""
    held = {stored.path: stored for stored in target.list_files("docs")}
    with tempfile.TemporaryDirectory() as made:
        changed: dict[str, Path] = {}
        for path in _find_docs(root):
            folder = root
            if path.endswith(".md") or path == RESULTS:
                folder = Path(made)
                write_text(folder / path, change(read_text(root / path)))
            refuse_secrets(folder, path)
            if path == README:
                is_same_there = target.read(path, MAX_README) == (folder / path).read_bytes()
            else:
                is_same_there = path in held and held[path].has_content_of(read_file(folder, path))
            if not is_same_there:
                changed[path] = folder / path
        if changed:
            logger.info(f"Uploading {len(changed)} files of docs to {target.name}")
            target.upload(changed, "Update docs")


def _find_docs(root: Path) -> Iterator[str]:
    for path in [root / README, *sorted((root / "docs").rglob("*"))]:
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and path.suffix in _DOC_SUFFIXES and is_safe(name):
            yield name
