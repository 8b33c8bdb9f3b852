"""A repo that means harm, a folder with links in it, and files that hold secrets."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.errors import RunFolderError, ShareError, UnreadableError
from slm_lab.lib.io import lock_file
from slm_lab.share.folder_store import FolderStore
from slm_lab.share.hub_store import HubStore
from slm_lab.share.manifest import MANIFEST, has_run
from slm_lab.share.pull import list_runs, pull_runs
from slm_lab.share.push import push_run
from slm_lab.share.run_files import belongs
from slm_lab.share.safe_path import is_safe
from test.lib.test_secret import TOKENS
from test.share.conftest import NAME, REPO, read_tree
from test.share.local_hub import LocalHub

HOSTILE = [
    "../evil.json",
    "info/../../evil.json",
    "/etc/evil.json",
    "info\\..\\evil.json",
    "C:/evil.json",
    "C:evil.json",
    "info//evil.json",
    "./evil.json",
    "info/evil\x00.json",
    "info/evil\n.json",
    "info/evil\u202e.json",
    "info/evil\u061c.json",
    "info/evil\U000e0041.json",
    "info/CON.json",
    "info/nul.csv",
    "info/evil.json ",
    "info/.hidden.json",
    "info/" + "a" * 300 + ".json",
    "a/b/c/d/e/f/g.json",
    "info/\ud800.json",
    "",
]
FOREIGN = ["conftest.py", "info/run.sh", "model/evil.pkl", "log/x.py", ".env", "graph/evil.js", "data.zip"]


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_that_leave_are_unsafe(path: str) -> None:
    assert not is_safe(path)


@pytest.mark.parametrize("path", FOREIGN)
def test_what_is_none_of_a_runs_files(path: str) -> None:
    assert not belongs(path)


@pytest.fixture
def shared(hub: LocalHub, store: HubStore, make_run) -> Callable[[Callable[[dict[str, Any]], None]], None]:
    """Changes the manifest of a run that was pushed."""
    push_run(make_run(), store)
    place = hub.repo(REPO) / "data" / NAME / MANIFEST
    whole = place.read_text()

    def change(function: Callable[[dict[str, Any]], None]) -> None:
        content = json.loads(whole)
        function(content)
        place.write_text(json.dumps(content))

    return change


def test_a_hostile_manifest_writes_nothing(shared, store: HubStore, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if "hub" not in path.parts}

    def refuse(words: str, function: Callable[[dict[str, Any]], None]) -> None:
        shared(function)
        with pytest.raises(ShareError, match=words):
            pull_runs(NAME, store, tmp_path / "b")
        assert not has_manifest(store)
        assert not has_run(store, NAME)

    for path in (*HOSTILE, *FOREIGN):
        refuse("is refused", lambda content, path=path: content["files"][0].update(path=path))  # type: ignore[misc]
    refuse("damaged", lambda content: content["files"][0].update(size=-1))
    refuse("damaged", lambda content: content["files"][0].update(size="1"))
    refuse("damaged", lambda content: content["files"][0].update(sha256="x"))
    refuse("damaged", lambda content: content.update(files=None))
    refuse("damaged", lambda content: content.pop("summary"))
    refuse("damaged", lambda content: content["files"][0].update(size=10**400))
    refuse("damaged", lambda content: content["summary"].update(frame=float("inf")))
    refuse("another format", lambda content: content.update(format=99))
    refuse("is that of 'other'", lambda content: content.update(name="other"))
    refuse("more than 20,000 files", lambda content: content.update(files=content["files"] * 2000))
    refuse("lists a file twice", lambda content: content.update(files=content["files"] * 2))
    assert {path for path in tmp_path.rglob("*") if "hub" not in path.parts} == before


def has_manifest(store: HubStore) -> bool:
    """Whether a listing takes the run for one."""
    return any(run.manifest is not None for run in list_runs(store))


def test_a_file_said_to_be_huge_is_refused(shared, store: HubStore, tmp_path: Path) -> None:
    shared(lambda content: content["files"][0].update(size=10**15))
    with pytest.raises(ShareError, match="are fetched at once"):
        pull_runs(NAME, store, tmp_path / "b")
    with pytest.raises(ShareError, match=r"needs 1000 TB, and .* left"):
        pull_runs(NAME, store, tmp_path / "b", max_size=10**16)


def test_a_manifest_without_end(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    (hub.repo(REPO) / "data" / NAME / MANIFEST).write_bytes(b" " * 10_000_001)
    with pytest.raises(ShareError, match="larger than 10,000,000 bytes"):
        pull_runs(NAME, store, tmp_path / "b")
    # it does not hide the others
    assert [run.manifest for run in list_runs(store)] == [None]
    (hub.repo(REPO) / "data" / NAME / MANIFEST).write_bytes(b"[" * 1_000_000)
    with pytest.raises(ShareError, match="damaged"):
        pull_runs(NAME, store, tmp_path / "b")


def test_a_listing_without_end_is_refused(hub: LocalHub, store: HubStore) -> None:
    def endless(folder: str, start: int) -> list[dict[str, Any]]:
        return [{"type": "directory", "path": f"data/r{start}_{n}", "oid": "2" * 40, "size": 0} for n in range(20_000)]

    hub.listing = endless
    with pytest.raises(ShareError, match="more than 50,000 files"):
        list_runs(store)
    assert hub.count("list") <= 4


def test_names_of_folders_are_checked_too(hub: LocalHub, store: HubStore) -> None:
    names = ["..", "data/../..", "data/con", "data/a\\b", "data/.git"]

    def hostile(folder: str, start: int) -> list[dict[str, Any]]:
        return [] if start else [{"type": "directory", "path": name, "oid": "2" * 40, "size": 0} for name in names]

    hub.listing = hostile
    assert list_runs(store) == []


@pytest.mark.parametrize("place", ["", NAME, f"{NAME}/log", ".pull", f".pull/{NAME}"])
def test_nothing_is_written_through_a_link_here(store: HubStore, make_run, tmp_path: Path, place: str) -> None:
    push_run(make_run(), store)
    outside = tmp_path / "outside"
    outside.mkdir()
    data = tmp_path / "b"
    (data / place).parent.mkdir(parents=True, exist_ok=True)
    (data / place).symlink_to(outside, target_is_directory=True)
    if not place:
        # the data folder itself may be a link: that is the user's own choice
        pull_runs(NAME, store, data)
        assert (outside / NAME / "log/demo.log").exists()
        return
    with pytest.raises(ShareError, match="is a link"):
        pull_runs(NAME, store, data)
    assert list(outside.iterdir()) == []


# --- folders


@pytest.fixture
def team(tmp_path: Path) -> FolderStore:
    """A folder that a team shares."""
    (tmp_path / "team").mkdir()
    return FolderStore(tmp_path / "team")


def test_a_folder_round_trip(team: FolderStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    assert push_run(folder, team) == str(tmp_path / "team" / "data" / NAME)
    assert has_run(team, NAME)
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    for path, content in read_tree(pulled.path).items():
        if path != "README.md":
            assert content == (folder / path).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "team").rglob("*")}
    push_run(folder, team)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "team").rglob("*")} == before


def test_a_run_is_fetched_once_at_a_time(team: FolderStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), team)
    data = tmp_path / "b"
    with lock_file(data / ".pull" / f"{NAME}.lock", wait=0), pytest.raises(RunFolderError, match="another process"):
        pull_runs(NAME, team, data)
    assert not (data / NAME).exists()
    pull_runs(NAME, team, data)
    assert [path.name for path in data.iterdir()] == [NAME]
    # nothing is to be fetched, so nobody is in the way
    with lock_file(data / ".pull" / f"{NAME}.lock", wait=0):
        ((again,), _) = pull_runs(NAME, team, data)
    assert again.num_fetched == 0


def test_runs_that_are_fetched_at_the_same_time_leave_each_other_alone(
    team: FolderStore, make_run, tmp_path: Path
) -> None:
    names = [f"{NAME}_{index}" for index in range(1, 5)]
    for name in names:
        push_run(make_run(name), team)
    with ThreadPoolExecutor(len(names)) as pool:
        for number in range(20):
            data = tmp_path / str(number)
            list(pool.map(lambda name, data=data: pull_runs(name, team, data), names))
            assert sorted(path.name for path in data.iterdir() if path.name != ".pull") == names


def test_links_in_a_shared_folder_are_not_followed(team: FolderStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), team)
    (tmp_path / "private.log").write_text("Session 0 done\n")
    place = tmp_path / "team" / "data" / NAME / "log/demo.log"
    place.unlink()
    place.symlink_to(tmp_path / "private.log")
    assert not has_run(team, NAME)
    with pytest.raises(ShareError, match="is a link"):
        pull_runs(NAME, team, tmp_path / "b")
    with pytest.raises(ShareError, match="link"):
        push_run(make_run(), team)
    assert (tmp_path / "private.log").read_text() == "Session 0 done\n"
    (tmp_path / "team" / "data" / "linked").symlink_to(tmp_path)
    assert [run.name for run in list_runs(team)] == [NAME]


def test_a_copy_that_was_cut_goes_on(team: FolderStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), team)
    part = tmp_path / "b/.pull" / NAME / "model/demo_t0_s0_ckpt-best_net_model.pt.part"
    part.parent.mkdir(parents=True)
    whole = (tmp_path / "team" / "data" / NAME / "model/demo_t0_s0_ckpt-best_net_model.pt").read_bytes()
    part.write_bytes(whole[:1000])
    (part.parent / "stray_net_model.pt").write_text("of another time")
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert (pulled.path / "model/demo_t0_s0_ckpt-best_net_model.pt").read_bytes() == whole
    assert not (pulled.path / "model/stray_net_model.pt").exists()
    # and what was kept of it may be wrong
    (pulled.path / "log/demo.log").unlink()
    part = tmp_path / "b/.pull" / NAME / "log/demo.log.part"
    part.parent.mkdir(parents=True)
    part.write_text("wrong")
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert (pulled.path / "log/demo.log").read_text() == "Session 0 done\n"


def test_a_pipe_in_a_shared_folder_is_not_waited_for(team: FolderStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), team)
    # one of an earlier attempt is removed
    part = tmp_path / "b/.pull" / NAME / "log/demo.log.part"
    part.parent.mkdir(parents=True)
    os.mkfifo(part)
    os.mkfifo(part.with_name("demo.log"))
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert (pulled.path / "log/demo.log").read_text() == "Session 0 done\n"
    place = tmp_path / "team" / "data" / NAME
    (place / "log/demo.log").unlink()
    os.mkfifo(place / "log/demo.log")
    with pytest.raises(UnreadableError, match=r"log/demo.log: not a regular file, but a pipe or device"):
        pull_runs(NAME, team, tmp_path / "c")
    assert not has_run(team, NAME)
    (place / MANIFEST).unlink()
    os.mkfifo(place / MANIFEST)
    with pytest.raises(ShareError, match=r"manifest.json: not a regular file, but a pipe or device"):
        pull_runs(NAME, team, tmp_path / "c")
    assert [run.problem for run in list_runs(team)] == [f"{place / MANIFEST}: not a regular file, but a pipe or device"]
    (place / MANIFEST).unlink()
    (place / MANIFEST).mkdir()
    with pytest.raises(ShareError, match="cannot be read"):
        pull_runs(NAME, team, tmp_path / "c")


PAGES = ("report.html", "graph/demo_t0_curve.html", "graph/plotly.min.js", "graph/demo_t0_curve.svg")


def test_pages_and_scripts_of_others_are_not_fetched(team: FolderStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    for page in PAGES:
        (folder / page).write_text("<script>steal()</script>")
    push_run(folder, team)
    # people may look at them where they are shared, and the run is whole with them
    assert all((tmp_path / "team" / "data" / NAME / page).exists() for page in PAGES)
    assert has_run(team, NAME)
    # one that is damaged or missing there is no obstacle either
    (tmp_path / "team" / "data" / NAME / "report.html").unlink()
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert pulled.kept == ()
    files = read_tree(tmp_path / "b")
    assert not any(path.endswith(PAGES) or b"steal" in content for path, content in files.items())
    # a report of one's own is neither taken for another's nor overwritten
    (pulled.path / "report.html").write_text("mine")
    ((again,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert (again.num_fetched, again.kept) == (0, ())
    assert (pulled.path / "report.html").read_text() == "mine"


# --- secrets


@pytest.mark.parametrize("kind", TOKENS)
def test_a_file_with_a_token_is_not_sent(team: FolderStore, make_run, tmp_path: Path, kind: str) -> None:
    folder = make_run()
    (folder / "log/demo.log").write_text(f"line 1\nusing {TOKENS[kind]}\n")
    with pytest.raises(ShareError, match=r"log/demo.log (line 2 )?holds what looks like a secret") as caught:
        push_run(folder, team)
    assert TOKENS[kind] not in str(caught.value)
    assert read_tree(tmp_path / "team") == {}


def test_a_model_with_a_known_secret_is_not_sent(
    team: FolderStore, make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "plain-looking")
    folder = make_run()
    model = folder / "model/demo_t0_s0_ckpt-best_net_model.pt"
    # across the border of two pieces that are read
    model.write_bytes(bytes((1 << 20) - 4) + b"plain-looking" + bytes(10))
    with pytest.raises(ShareError, match="holds the value of MY_TOKEN of the environment"):
        push_run(folder, team)
    assert read_tree(tmp_path / "team") == {}


def test_a_folder_without_results_is_told_so(team: FolderStore, make_run) -> None:
    folder = make_run()
    for table in (folder / "info").glob("*.csv"):
        table.unlink()
    with pytest.raises(Exception, match="has no results"):
        push_run(folder, team)
