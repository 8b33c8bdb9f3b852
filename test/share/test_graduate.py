"""Finished runs go public as they are, links follow, nothing is deleted."""

from pathlib import Path

import pytest

from slm_lab.lib.errors import ShareError
from slm_lab.share.folder_store import FolderStore
from slm_lab.share.graduate import Graduation, graduate, plan
from slm_lab.share.hub_store import HubStore
from slm_lab.share.manifest import has_run
from slm_lab.share.push import push_run
from slm_lab.share.store import Store
from test.share.conftest import NAME, REPO, read_tree
from test.share.local_hub import WRITER, Fault, LocalHub

PUBLIC = "me/public"
OTHER = "demo_2026_02_02_120000"


@pytest.fixture
def public(hub: LocalHub) -> HubStore:
    """The public repo, which is not made yet."""
    return HubStore(PUBLIC, WRITER, hub.url)


@pytest.fixture
def docs(hub: LocalHub, tmp_path: Path) -> Path:
    """A checkout with a page that links to runs."""
    root = tmp_path / "checkout"
    (root / "docs/plots").mkdir(parents=True)
    (root / "README.md").write_text("# Lab\n")
    (root / "docs/plots/a.png").write_bytes(b"\x89PNG")
    (root / "docs/secret.env").write_text("not a doc")
    base = f"{hub.url}/datasets/{REPO}"
    (root / "docs/BENCHMARKS.md").write_text(
        f"| [run]({base}/tree/main/data/{NAME}) | ![c]({base}/resolve/main/data/{NAME}/graph/a.png) |\n"
        f"| [not yet]({base}/tree/main/data/{OTHER}) | [repo]({base}) |\n"
    )
    return root


def go(source: Store, target: Store, root: Path, may_rewrite: bool = True) -> Graduation:
    """Plan and copy."""
    found = plan("", source, target)
    graduate(found, source, target, root, may_rewrite)
    return found


def test_finished_runs_are_copied_byte_for_byte_and_once(hub: LocalHub, store, public, docs, pushed, make_run) -> None:
    unfinished = make_run(OTHER, seed=1)
    (unfinished / "demo_t0_trial_metrics.json").write_text('{"is_complete": false}')
    push_run(unfinished, store)
    before = read_tree(hub.repo(REPO))
    found = go(store, public, docs)
    assert [run.name for run in found.runs] == [NAME]
    assert found.left_out == {OTHER: "it is not complete"}
    there = read_tree(hub.repo(PUBLIC))
    assert {path: data for path, data in there.items() if path.startswith("data/")} == {
        path: data for path, data in before.items() if path.startswith(f"data/{NAME}/")
    }
    assert has_run(public, NAME)
    assert read_tree(hub.repo(REPO)) == before
    # docs: the run that is there is linked there, the other stays where it is
    page = there["docs/BENCHMARKS.md"].decode()
    assert page == (docs / "docs/BENCHMARKS.md").read_text()
    assert f"{PUBLIC}/tree/main/data/{NAME})" in page
    assert f"{PUBLIC}/resolve/main/data/{NAME}/graph/a.png" in page
    assert f"{REPO}/tree/main/data/{OTHER})" in page
    assert f"[repo]({hub.url}/datasets/{REPO})" in page
    of_docs = {path for path in there if not path.startswith("data/")}
    assert of_docs == {"README.md", "docs/BENCHMARKS.md", "docs/plots/a.png"}
    # the second time nothing is sent, and nothing deleted
    (hub.repo(PUBLIC) / "docs/old.md").write_text("of an earlier time")
    before = read_tree(hub.root)
    hub.log.clear()
    found = go(store, public, docs)
    assert (found.runs, found.done) == ((), (NAME,))
    assert hub.count("put") == hub.count("commit") == 0
    assert read_tree(hub.root) == before


def test_a_copy_that_was_cut_is_resumed(hub: LocalHub, store, public, docs: Path, pushed) -> None:
    hub.faults += [Fault("commit", 503, times=100)]
    with pytest.raises(ShareError, match="same command again"):
        go(store, public, docs)
    hub.faults.clear()
    before, text = hub.count("put"), (docs / "docs/BENCHMARKS.md").read_text()
    go(store, public, docs, may_rewrite=False)
    assert has_run(public, NAME)
    # large files of the run had arrived; the one more is a picture of the docs
    assert hub.count("put") == before + 1
    assert (docs / "docs/BENCHMARKS.md").read_text() == text


def test_another_run_of_the_name_in_public_is_not_overwritten(store, public, docs, pushed, make_run, tmp_path) -> None:
    push_run(make_run(data_dir=tmp_path / "b", seed=5), public)
    with pytest.raises(ShareError, match="name is taken"):
        go(store, public, docs)


def test_from_a_folder_to_a_folder(docs: Path, make_run, tmp_path: Path) -> None:
    dev, pub = FolderStore(tmp_path / "dev"), FolderStore(tmp_path / "pub")
    push_run(make_run(), dev)
    (docs / "docs/BENCHMARKS.md").write_text(f"[run]({tmp_path}/dev/data/{NAME})\n")
    go(dev, pub, docs)
    assert read_tree(tmp_path / "pub/data") == read_tree(tmp_path / "dev/data")
    assert (docs / "docs/BENCHMARKS.md").read_text() == f"[run]({tmp_path}/pub/data/{NAME})\n"
