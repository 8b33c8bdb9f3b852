"""Runs to the hub and back, with the real client against a hub on this machine."""

import ast
import inspect
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.cli import bench
from slm_lab.lib.errors import ShareError
from slm_lab.share import hub_client, hub_store
from slm_lab.share.hub_store import HubStore
from slm_lab.share.manifest import MANIFEST, has_run
from slm_lab.share.pull import list_runs, pull_runs
from slm_lab.share.push import push_run
from test.share.conftest import MODEL, NAME, REPO, RESUME, SHARED, read_tree
from test.share.local_hub import LFS_SUFFIXES, READER, WRITER, Fault, LocalHub

LARGE = [path for path in SHARED if path.endswith(LFS_SUFFIXES)]
LOG, TABLE = "log/demo.log", "info/demo_t0_s0_session_df_train.csv"


def test_a_run_comes_back_byte_for_byte_and_once(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    before = read_tree(folder)
    assert push_run(folder, store) == f"{hub.url}/datasets/{REPO}/tree/main/data/{NAME}"
    assert read_tree(folder) == before
    there = read_tree(hub.repo(REPO) / "data" / NAME)
    assert set(there) == SHARED | {MANIFEST}
    assert has_run(store, NAME)
    ((pulled,), _) = pull_runs("demo", store, tmp_path / "b")
    assert pulled.path == tmp_path / "b" / NAME
    assert read_tree(pulled.path) == {path: there[path] for path in SHARED}
    assert all(there[path] == before[path] for path in SHARED - {"README.md"})
    assert list((tmp_path / "b").iterdir()) == [pulled.path]
    # the second time nothing travels
    hub.log.clear()
    push_run(folder, store)
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert pulled.num_fetched == 0
    assert hub.count("put") == hub.count("commit") == hub.count("get") == 0


def test_only_public_names_of_the_library_are_used() -> None:
    for module in (hub_client, hub_store):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("huggingface_hub", "httpx2")):
                names = [*str(node.module).split("."), *(name.name for name in node.names)]
                assert not any(name.startswith("_") for name in names), names


# --- failures

STEPS = ["auth", "list", "preupload", "batch", "put", "commit"]


@pytest.mark.parametrize("kind", [429, 500, 503, "cut"])
def test_what_passes_is_survived_at_every_step(hub: LocalHub, store, make_run, tmp_path: Path, kind) -> None:
    folder = make_run()
    hub.faults += [Fault(step, kind, retry_after="1" if kind == 429 else None) for step in STEPS]
    push_run(folder, store)
    assert all(hub.count(f"{step}:{kind}") == 1 for step in STEPS)
    assert has_run(store, NAME)
    steps = ("list", "resolve", "get")
    hub.faults[:] = [Fault(step, kind, times=2) for step in steps]
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    # the push looks at the list once more
    assert all(hub.count(f"{step}:{kind}") >= 2 for step in steps)
    assert all((pulled.path / path).read_bytes() == (folder / path).read_bytes() for path in SHARED - {"README.md"})


@pytest.mark.parametrize("step", STEPS)
def test_a_push_that_fails_for_good_says_so_and_is_resumed(hub: LocalHub, store, make_run, step: str) -> None:
    folder = make_run()
    hub.faults += [Fault(step, 503 if step in ("auth", "commit") else "cut", times=100)]
    with pytest.raises(ShareError, match=r"tried 5 times.*same command again"):
        push_run(folder, store)
    hub.faults.clear()
    assert not has_run(store, NAME)
    push_run(folder, store)
    assert has_run(store, NAME)
    # each large file has travelled once
    assert hub.traffic("put") == sum((folder / path).stat().st_size for path in LARGE)


def test_a_pull_that_was_cut_is_resumed(hub: LocalHub, store: HubStore, pushed: Path, tmp_path: Path) -> None:
    hub.faults += [Fault("get", "cut", times=1000, after=2)]
    with pytest.raises(ShareError, match=r"cannot fetch .*connection was cut"):
        pull_runs(NAME, store, tmp_path / "b")
    assert not (tmp_path / "b" / NAME).exists()
    hub.faults.clear()
    # of what was fetched, one is damaged by now
    (tmp_path / "b/.pull" / NAME / "data" / NAME / "demo_spec.yaml").write_text("wrong")
    hub.log.clear()
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert all((pulled.path / path).read_bytes() == (pushed / path).read_bytes() for path in SHARED - {"README.md"})
    assert hub.count("get") == len(LARGE) - 2


def test_a_stall_or_a_long_wait_is_not_waited_for(hub: LocalHub) -> None:
    hub.faults += [Fault("list", "stall")]
    assert list_runs(HubStore(REPO, WRITER, hub.url, timeout=0.5)) == []
    assert hub.count("list:stall") == 1
    hub.faults += [Fault("list", 429, times=100, retry_after="3600")]
    with pytest.raises(ShareError, match=r"too many requests \(429\), which asks to wait 3,600 s \(tried 1 times\)"):
        list_runs(HubStore(REPO, WRITER, hub.url))


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, "needs a token: set HF_TOKEN"),
        (READER, r"may not write here \(403\)"),
        ("hf_" + "wrongWRONG" * 3, r"does not accept the token in HF_TOKEN \(401\)"),
    ],
)
def test_a_token_that_is_missing_or_wrong(hub: LocalHub, make_run, token: str | None, words: str) -> None:
    with pytest.raises(ShareError, match=words) as caught:
        push_run(make_run(), HubStore(REPO, token, hub.url))
    assert token is None or token not in str(caught.value)
    assert read_tree(hub.repo(REPO)) == {}


@pytest.mark.parametrize(("step", "status"), [(step, 403) for step in STEPS] + [("commit", 401)])
def test_a_refusal_in_the_middle_ends_at_once(hub: LocalHub, store, make_run, step: str, status: int) -> None:
    hub.faults += [Fault(step, status, times=100)]
    with pytest.raises(ShareError, match=rf"\({status}\)"):
        push_run(make_run(), store)
    # large files are sent side by side
    assert hub.count(f"{step}:{status}") <= (len(LARGE) if step == "put" else 1)


def test_reading_a_public_repo_needs_no_token(hub: LocalHub, pushed: Path, tmp_path: Path) -> None:
    reader = HubStore(REPO, None, hub.url)
    (run,) = list_runs(reader)
    assert run.manifest is not None
    summary = run.manifest.summary
    assert (summary.algorithm, summary.env, summary.kind, summary.is_complete) == ("PPO", "CartPole-v1", "train", True)
    # rows of 10, 20, 30, 40, and of one more in the second session
    assert (summary.values, summary.score) == ((40.0, 41.0), 40.5)
    assert pull_runs("*", reader, tmp_path / "b")[0][0].num_fetched == len(SHARED)


def test_no_repo_no_server_no_network(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for token, words in ((None, "does not exist or is private"), (READER, "does not exist; check HF_REPO")):
        missing = HubStore("me/nothing", token, hub.url)
        with pytest.raises(ShareError, match=words):
            pull_runs("x", missing, tmp_path)
        assert not has_run(missing, NAME)
    with pytest.raises(ShareError, match="no connection; is the network up"):
        list_runs(HubStore(REPO, WRITER, "http://127.0.0.1:9"))
    monkeypatch.setattr(hub_store, "is_offline_mode", lambda: True)
    with pytest.raises(ShareError, match="HF_HUB_OFFLINE is set"):
        list_runs(HubStore(REPO, WRITER, hub.url))


@pytest.mark.parametrize("is_private", [True, False])
def test_a_push_makes_the_repo(hub: LocalHub, make_run, monkeypatch: pytest.MonkeyPatch, is_private: bool) -> None:
    store = HubStore("me/new", WRITER, hub.url, is_private)
    push_run(make_run(), store)
    assert has_run(store, NAME)
    assert store.is_public() is not is_private
    assert ("me/new" in hub.private) is is_private
    # links that others cannot open are named
    for name, value in (("HF_REPO", "me/new"), ("HF_TOKEN", WRITER), ("HF_ENDPOINT", hub.url)):
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    handle = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    bench._open_share()
    logger.remove(handle)
    assert any("is private" in line for line in lines) is is_private


# --- what is there and what is here


def test_a_name_that_is_taken_is_not_overwritten(hub: LocalHub, store, pushed: Path, make_run, tmp_path: Path) -> None:
    before = read_tree(hub.repo(REPO))
    other = make_run(data_dir=tmp_path / "other", seed=7)
    with pytest.raises(ShareError, match=r"name is taken.*rename"):
        push_run(other, store)
    assert read_tree(hub.repo(REPO)) == before
    # nor where the other run's upload was cut
    (hub.repo(REPO) / "data" / NAME / MANIFEST).unlink()
    with pytest.raises(ShareError, match="name is taken"):
        push_run(other, store)


def test_a_run_that_went_on_is_updated_not_set_back(hub: LocalHub, store, pushed, make_run, tmp_path: Path) -> None:
    further = make_run(frame=800, data_dir=tmp_path / "b")
    push_run(further, store, with_checkpoints=True)
    there = read_tree(hub.repo(REPO) / "data" / NAME)
    assert there[TABLE] == (further / TABLE).read_bytes()
    # checkpoints are sent when asked for, and stay part of the run
    assert RESUME in there
    push_run(further, store)
    assert RESUME in (hub.repo(REPO) / "data" / NAME / MANIFEST).read_text()
    with pytest.raises(ShareError, match=r"gone further \(800 frames\) than the copy here \(400\)"):
        push_run(pushed, store)


def test_a_run_is_not_whole_when_a_file_is_lost_or_changed(hub: LocalHub, store, pushed: Path, tmp_path: Path) -> None:
    place = hub.repo(REPO) / "data" / NAME
    assert not has_run(store, "other")
    for path, content, words in (
        (LOG, b"Session 1 done\n", "SHA-256 differs"),
        (LOG, b"Session 0 done\n+", "16 bytes for 15"),
        (MODEL, None, "is missing"),
    ):
        whole = (place / path).read_bytes()
        (place / path).unlink()
        if content is not None:
            (place / path).write_bytes(content)
        assert not has_run(store, NAME)
        with pytest.raises(ShareError, match=rf"{path} at {REPO} is not what its manifest says \(.*{words}"):
            pull_runs(NAME, store, tmp_path / "b")
        assert not (tmp_path / "b" / NAME).exists()
        (place / path).write_bytes(whole)
    (place / "demo_t0_spec.yaml").unlink()
    push_run(pushed, store)
    assert has_run(store, NAME)


def test_what_is_here_with_other_content_is_kept(store: HubStore, pushed: Path, tmp_path: Path) -> None:
    ((first,), _) = pull_runs(NAME, store, tmp_path / "b")
    (first.path / LOG).write_text("mine")
    (first.path / "demo_t0_spec.yaml").unlink()
    ((second,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert second.kept == (LOG,)
    assert (second.path / LOG).read_text() == "mine"
    assert (second.path / "demo_t0_spec.yaml").exists()
    (first.path / "demo_spec.yaml").write_text("other: {}\n")
    with pytest.raises(ShareError, match="is not the same run"):
        pull_runs(NAME, store, tmp_path / "b")
    with pytest.raises(ShareError, match=r"limit of 10\.0 kB"):
        pull_runs(NAME, store, tmp_path / "c", max_size=10_000)
    assert not (tmp_path / "c").exists()
    with pytest.raises(ShareError, match=f"did you mean '{NAME}'"):
        pull_runs(f"{NAME[:-1]}x", store, tmp_path)
