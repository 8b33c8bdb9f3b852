"""A repo that means harm, a folder with links in it, and files that hold secrets."""

import json
import math
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
from slm_lab.share.manifest import MANIFEST, Summary, has_run, parse_manifest
from slm_lab.share.pull import list_runs, pull_runs
from slm_lab.share.push import push_run
from slm_lab.share.run_files import belongs
from slm_lab.share.safe_path import is_safe
from test.lib.test_secret import TOKENS
from test.share.conftest import MODEL, NAME, REPO, read_tree
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
Change = Callable[[dict[str, Any]], Any]
LIES: list[tuple[str, Change]] = [
    *(
        ("is refused|damaged", lambda data, path=path: data["files"][0].update(path=path))
        for path in (*HOSTILE, *FOREIGN)
    ),
    ("damaged", lambda data: data["files"][0].update(size=-1)),
    ("damaged", lambda data: data["files"][0].update(size="1")),
    ("damaged", lambda data: data["files"][0].update(size=10**400)),
    ("damaged", lambda data: data["files"][0].update(sha256="x")),
    ("damaged", lambda data: data.update(files=None)),
    ("damaged", lambda data: data.pop("summary")),
    ("damaged", lambda data: data["summary"].update(frame=float("inf"))),
    ("another format", lambda data: data.update(format=99)),
    ("is that of 'other'", lambda data: data.update(name="other")),
    ("more than 20,000 files", lambda data: data.update(files=data["files"] * 2000)),
    ("lists a file twice", lambda data: data.update(files=data["files"] * 2)),
]


@pytest.fixture
def place(team: FolderStore, make_run) -> Path:
    """A run in the team's folder."""
    return Path(push_run(make_run(), team))


def test_hostile_paths_and_lies_of_a_manifest_are_refused(team: FolderStore, place: Path, tmp_path: Path) -> None:
    assert not any(map(is_safe, HOSTILE))
    assert not any(map(belongs, FOREIGN))
    assert belongs(MODEL)
    whole = (place / MANIFEST).read_bytes()
    for words, change in LIES:
        data = json.loads(whole)
        change(data)
        with pytest.raises(ShareError, match=words):
            parse_manifest(json.dumps(data).encode(), NAME)
    # one of them all the way: nothing is written, and the run is none
    (place / MANIFEST).write_text(json.dumps(data))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ShareError, match="lists a file twice"):
        pull_runs(NAME, team, tmp_path / "b")
    assert [run.manifest for run in list_runs(team)] == [None]
    assert not has_run(team, NAME)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("values", "score"), [((), math.nan), ((math.nan,), math.nan), ((1.0, math.nan, 3.0), 2.0), ((1.0,) * 1000, 1.0)]
)
def test_a_shared_score_is_that_of_the_sessions_that_have_one(values: tuple[float, ...], score: float) -> None:
    summary = Summary("demo", "PPO", "CartPole-v1", "train", True, 100, values)
    assert summary.score == pytest.approx(score, nan_ok=True)


def test_bombs_are_not_fetched(hub: LocalHub, store: HubStore, pushed: Path, tmp_path: Path) -> None:
    place = hub.repo(REPO) / "data" / NAME / MANIFEST
    data = json.loads(place.read_text())
    data["files"][0]["size"] = 10**15
    place.write_text(json.dumps(data))
    with pytest.raises(ShareError, match="more than the limit"):
        pull_runs(NAME, store, tmp_path / "b")
    with pytest.raises(ShareError, match=r"needs 1000 TB, and .* left"):
        pull_runs(NAME, store, tmp_path / "b", max_size=10**16)
    for content, words in ((b" " * 10_000_001, "larger than 10,000,000 bytes"), (b"[" * 1_000_000, "damaged")):
        place.write_bytes(content)
        with pytest.raises(ShareError, match=words):
            pull_runs(NAME, store, tmp_path / "b")
    # it does not hide the others
    assert [run.manifest for run in list_runs(store)] == [None]
    hub.listing = lambda folder, start: [
        {"type": "directory", "path": f"data/r{start}_{n}", "oid": "2" * 40, "size": 0} for n in range(20_000)
    ]
    hub.log.clear()
    with pytest.raises(ShareError, match="more than 50,000 files"):
        list_runs(store)
    assert hub.count("list") <= 4
    names = ["..", "data/../..", "data/con", "data/a\\b", "data/.git"]
    hub.listing = lambda folder, start: [
        {"type": "directory", "path": name, "oid": "2" * 40, "size": 0} for name in names if not start
    ]
    assert list_runs(store) == []


@pytest.mark.parametrize("link", ["", NAME, f"{NAME}/log", ".pull", f".pull/{NAME}", f".pull/{NAME}/data"])
def test_nothing_is_written_through_a_link_here(team: FolderStore, place: Path, tmp_path: Path, link: str) -> None:
    outside, data = tmp_path / "outside", tmp_path / "b"
    outside.mkdir()
    (data / link).parent.mkdir(parents=True, exist_ok=True)
    (data / link).symlink_to(outside, target_is_directory=True)
    if link == "":
        # the data folder itself may be a link: that is the user's own choice
        pull_runs(NAME, team, data)
        assert (outside / NAME / "log/demo.log").exists()
        return
    if link == f".pull/{NAME}/data":
        # one among what an earlier attempt left is removed
        (outside / NAME).mkdir()
        pull_runs(NAME, team, data)
        assert [path.name for path in outside.rglob("*")] == [NAME]
        return
    with pytest.raises(ShareError, match="is a link"):
        pull_runs(NAME, team, data)
    assert list(outside.iterdir()) == []


# --- folders


def test_a_folder_round_trip(team: FolderStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    assert push_run(folder, team) == str(tmp_path / "team" / "data" / NAME)
    assert has_run(team, NAME)
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    for path, content in read_tree(pulled.path).items():
        assert path == "README.md" or content == (folder / path).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "team").rglob("*")}
    push_run(folder, team)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "team").rglob("*")} == before
    for table in (folder / "info").glob("*.csv"):
        table.unlink()
    with pytest.raises(Exception, match="has no results"):
        push_run(folder, team)


def test_a_run_is_fetched_once_at_a_time(team: FolderStore, place: Path, make_run, tmp_path: Path) -> None:
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
    # runs that are fetched at the same time leave each other alone
    names = [f"{NAME}_{index}" for index in range(1, 5)]
    for name in names:
        push_run(make_run(name), team)
    with ThreadPoolExecutor(len(names)) as pool:
        for number in range(10):
            data = tmp_path / str(number)
            list(pool.map(lambda name, data=data: pull_runs(name, team, data), names))
            assert sorted(path.name for path in data.iterdir() if path.name != ".pull") == names


def test_links_in_a_shared_folder_are_not_followed(team: FolderStore, place: Path, make_run, tmp_path: Path) -> None:
    (tmp_path / "private.log").write_text("Session 0 done\n")
    (place / "log/demo.log").unlink()
    (place / "log/demo.log").symlink_to(tmp_path / "private.log")
    assert not has_run(team, NAME)
    with pytest.raises(ShareError, match="is missing or a link"):
        pull_runs(NAME, team, tmp_path / "b")
    with pytest.raises(ShareError, match="is a link"):
        team.download(f"data/{NAME}/log/demo.log", tmp_path / "b")
    with pytest.raises(ShareError, match="link"):
        push_run(make_run(), team)
    assert (tmp_path / "private.log").read_text() == "Session 0 done\n"
    (tmp_path / "team" / "data" / "linked").symlink_to(tmp_path)
    assert [run.name for run in list_runs(team)] == [NAME]


def test_what_an_earlier_attempt_left(team: FolderStore, place: Path, tmp_path: Path) -> None:
    left = tmp_path / "b/.pull" / NAME / "data" / NAME
    (left / "log").mkdir(parents=True)
    (left / "model").mkdir()
    (left / "model/stray_net_model.pt").write_text("of another time")
    (left / MODEL).write_text("wrong")
    os.mkfifo(left / "log/demo.log")
    ((pulled,), _) = pull_runs(NAME, team, tmp_path / "b")
    assert (pulled.path / MODEL).read_bytes() == (place / MODEL).read_bytes()
    assert (pulled.path / "log/demo.log").read_text() == "Session 0 done\n"
    assert not (pulled.path / "model/stray_net_model.pt").exists()


def test_a_pipe_in_a_shared_folder_is_not_waited_for(team: FolderStore, place: Path, tmp_path: Path) -> None:
    (place / "log/demo.log").unlink()
    os.mkfifo(place / "log/demo.log")
    with pytest.raises(ShareError, match=r"log/demo.log .*is missing"):
        pull_runs(NAME, team, tmp_path / "c")
    with pytest.raises(UnreadableError, match=r"log/demo.log: not a regular file, but a pipe or device"):
        team.download(f"data/{NAME}/log/demo.log", tmp_path / "b")
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
    place = Path(push_run(folder, team))
    # people may look at them where they are shared, and the run is whole with them
    assert all((place / page).exists() for page in PAGES)
    assert has_run(team, NAME)
    # one that is damaged or missing there is no obstacle either
    (place / "report.html").unlink()
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


def test_a_file_with_a_secret_is_not_sent(team: FolderStore, make_run, tmp_path: Path, monkeypatch) -> None:
    folder = make_run()
    for token in TOKENS.values():
        (folder / "log/demo.log").write_text(f"line 1\nusing {token}\n")
        with pytest.raises(ShareError, match=r"log/demo.log (line 2 )?holds what looks like a secret") as caught:
            push_run(folder, team)
        assert token not in str(caught.value)
    (folder / "log/demo.log").write_text("")
    monkeypatch.setenv("MY_TOKEN", "plain-looking")
    # across the border of two pieces that are read
    (folder / MODEL).write_bytes(bytes((1 << 20) - 4) + b"plain-looking" + bytes(10))
    with pytest.raises(ShareError, match="holds the value of MY_TOKEN of the environment"):
        push_run(folder, team)
    assert read_tree(tmp_path / "team") == {}
