"""Runs to the hub and back, with the real client against a hub on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.cli import bench
from slm_lab.lib.errors import ShareError
from slm_lab.share.hub_store import HubStore
from slm_lab.share.manifest import MANIFEST, has_run
from slm_lab.share.pull import list_runs, pull_runs
from slm_lab.share.push import push_run
from test.share.conftest import NAME, QUICK, REPO, read_tree
from test.share.local_hub import READER, WRITER, Fault, LocalHub

EXPECTED = {
    "README.md",
    "demo_spec.yaml",
    "demo_t0_spec.yaml",
    "demo_t0_trial_metrics.json",
    "graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png",
    "info/demo_provenance.json",
    "info/demo_t0_s0_session_df_train.csv",
    "info/demo_t0_s1_session_df_train.csv",
    "log/demo.log",
    "model/demo_t0_s0_ckpt-best_net_model.pt",
    "model/demo_t0_s1_ckpt-best_net_model.pt",
    "video/demo_t0_s0_f400.mp4",
}


def test_a_run_comes_back_byte_for_byte(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    before = read_tree(folder)
    url = push_run(folder, store)
    assert url == f"{hub.url}/datasets/{REPO}/tree/main/data/{NAME}"
    assert read_tree(folder) == before
    there = read_tree(hub.repo(REPO) / "data" / NAME)
    assert set(there) == EXPECTED | {MANIFEST}
    assert has_run(store, NAME)
    ((pulled,), _) = pull_runs("demo", store, tmp_path / "elsewhere")
    assert pulled.path == tmp_path / "elsewhere" / NAME
    here = read_tree(pulled.path)
    assert set(here) == EXPECTED
    for path, content in here.items():
        assert content == there[path]
        if path != "README.md":
            assert content == before[path]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [NAME]


def test_a_second_push_and_pull_send_nothing(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    pull_runs(NAME, store, tmp_path / "b")
    hub.log.clear()
    push_run(make_run(), store)
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert pulled.num_fetched == 0
    assert hub.count("put") == hub.count("commit") == hub.count("get") == 0


STEPS = ["auth", "list", "preupload", "batch", "put", "commit"]
PASSING: list[int | str] = [429, 500, 503, "cut"]


@pytest.mark.parametrize("kind", PASSING)
def test_a_push_and_a_pull_survive_what_passes_at_every_step(
    hub: LocalHub, store: HubStore, make_run, tmp_path: Path, kind: int | str
) -> None:
    folder = make_run()
    hub.faults = [Fault(step, kind, retry_after="0" if kind == 429 else None) for step in STEPS]
    push_run(folder, store)
    assert all(hub.count(f"{step}:{kind}") == 1 for step in STEPS)
    assert has_run(store, NAME)
    hub.log.clear()
    steps = ("list", "resolve", "get")
    hub.faults = [Fault(step, kind, times=2, retry_after="0" if kind == 429 else None) for step in steps]
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert all(hub.count(f"{step}:{kind}") == 2 for step in steps)
    for path in EXPECTED - {"README.md"}:
        assert (pulled.path / path).read_bytes() == (folder / path).read_bytes()


@pytest.mark.parametrize("step", STEPS)
def test_a_push_that_fails_for_good_says_so_and_goes_on_later(
    hub: LocalHub, store: HubStore, make_run, step: str
) -> None:
    folder = make_run()
    before = read_tree(folder)
    hub.faults = [Fault(step, 503 if step in ("auth", "commit") else "cut", times=100)]
    with pytest.raises(ShareError, match=r"tried 4 times.*same command again"):
        push_run(folder, store)
    assert not has_run_now(hub, store)
    hub.faults = []
    push_run(folder, store)
    assert has_run(store, NAME)
    assert read_tree(folder) == before
    # each large file has travelled once
    large = [path for path in EXPECTED if path.endswith((".pt", ".png", ".mp4"))]
    assert hub.traffic("put") == sum((folder / path).stat().st_size for path in large)


def has_run_now(hub: LocalHub, store: HubStore) -> bool:
    """The same with the faults lifted."""
    hub.faults = []
    return has_run(store, NAME)


def test_a_file_cut_on_its_way_up_is_the_only_one_sent_again(hub: LocalHub, store: HubStore, make_run) -> None:
    folder = make_run()
    hub.faults = [Fault("put", "cut", times=100, after=2)]
    with pytest.raises(ShareError, match="connection was cut"):
        push_run(folder, store)
    assert hub.count("put") >= 1
    hub.faults = []
    push_run(folder, store)
    assert hub.count("put") == 4


def test_a_download_goes_on_where_it_was_cut(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    folder = make_run()
    push_run(folder, store)
    hub.log.clear()
    hub.faults = [Fault("get", "cut", times=100, after=1)]
    with pytest.raises(ShareError, match=r"cannot fetch .*connection was cut"):
        pull_runs(NAME, store, tmp_path / "b")
    assert not (tmp_path / "b" / NAME).exists()
    hub.faults = []
    ((pulled,), _) = pull_runs(NAME, store, tmp_path / "b")
    for path in EXPECTED - {"README.md"}:
        assert (pulled.path / path).read_bytes() == (folder / path).read_bytes()
    large = [path for path in EXPECTED if path.endswith((".pt", ".png", ".mp4"))]
    assert hub.traffic("get") == sum((folder / path).stat().st_size for path in large)


def test_a_stall_is_not_waited_for(hub: LocalHub, make_run) -> None:
    hub.faults = [Fault("list", "stall", times=1)]
    with HubStore(REPO, WRITER, hub.url, QUICK) as store:
        push_run(make_run(), store)
        assert has_run(store, NAME)
    assert hub.count("list:stall") == 1


def test_a_server_that_asks_to_wait_long_is_not_waited_for(hub: LocalHub, store: HubStore) -> None:
    hub.faults = [Fault("list", 429, times=100, retry_after="3600")]
    with pytest.raises(ShareError, match=r"asks to wait 3,600 s \(tried 1 times\)"):
        list_runs(store)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, "needs a token: set HF_TOKEN"),
        (READER, r"may not write here \(403\)"),
        ("hf_" + "wrongWRONG" * 3, r"does not accept the token in HF_TOKEN \(401\)"),
    ],
)
def test_a_token_that_is_missing_or_wrong(hub: LocalHub, make_run, token: str | None, words: str) -> None:
    with HubStore(REPO, token, hub.url, QUICK) as store, pytest.raises(ShareError, match=words) as caught:
        push_run(make_run(), store)
    assert token is None or token not in str(caught.value)
    assert read_tree(hub.repo(REPO)) == {}


@pytest.mark.parametrize(("step", "status"), [(step, 403) for step in STEPS] + [("commit", 401)])
def test_a_refusal_in_the_middle_is_told_at_once(
    hub: LocalHub, store: HubStore, make_run, step: str, status: int
) -> None:
    hub.faults = [Fault(step, status, times=100)]
    with pytest.raises(ShareError, match=rf"\({status}\)"):
        push_run(make_run(), store)
    # large files are sent side by side
    assert hub.count(f"{step}:{status}") <= (4 if step == "put" else 1)


def test_reading_a_public_repo_needs_no_token(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    with HubStore(REPO, None, hub.url, QUICK) as reader:
        assert [run.name for run in list_runs(reader)] == [NAME]
        assert pull_runs("*", reader, tmp_path / "b")[0][0].num_fetched == len(EXPECTED)


def test_a_missing_repo(hub: LocalHub, tmp_path: Path) -> None:
    for token, words in ((None, "does not exist or is private"), (READER, "does not exist; check HF_REPO")):
        with HubStore("me/nothing", token, hub.url, QUICK) as store:
            with pytest.raises(ShareError, match=words):
                list_runs(store)
            with pytest.raises(ShareError, match=words):
                pull_runs("x", store, tmp_path)


@pytest.mark.parametrize("is_private", [True, False])
def test_a_push_makes_the_repo(hub: LocalHub, make_run, is_private: bool) -> None:
    with HubStore("me/new", WRITER, hub.url, QUICK, is_private) as store:
        push_run(make_run(), store)
        assert has_run(store, NAME)
        assert store.is_public() is not is_private
    assert ("me/new" in hub.private) is is_private


@pytest.mark.parametrize("is_private", [True, False])
def test_links_that_others_cannot_open_are_told(hub: LocalHub, monkeypatch, is_private: bool) -> None:
    if is_private:
        hub.private.add(REPO)
    for name, value in (("HF_REPO", REPO), ("HF_TOKEN", WRITER), ("HF_ENDPOINT", hub.url)):
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    handle = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    with bench._open_share():
        logger.remove(handle)
    assert any("is private" in line for line in lines) is is_private


def test_no_server_at_all(make_run) -> None:
    with HubStore(REPO, WRITER, "http://127.0.0.1:9", QUICK) as store, pytest.raises(ShareError, match="no connection"):
        push_run(make_run(), store)


def test_a_name_that_is_taken_is_not_overwritten(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    before = read_tree(hub.repo(REPO))
    other = make_run(data_dir=tmp_path / "other", seed=7)
    with pytest.raises(ShareError, match=r"name is taken.*rename"):
        push_run(other, store)
    assert read_tree(hub.repo(REPO)) == before
    # nor where the other run's upload was cut
    (hub.repo(REPO) / "data" / NAME / MANIFEST).unlink()
    with pytest.raises(ShareError, match="name is taken"):
        push_run(other, store)


def test_a_run_that_went_on_is_updated_not_set_back(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    further = make_run(frame=800, data_dir=tmp_path / "b")
    push_run(further, store)
    table = f"data/{NAME}/info/demo_t0_s0_session_df_train.csv"
    assert (hub.repo(REPO) / table).read_bytes() == (further / "info/demo_t0_s0_session_df_train.csv").read_bytes()
    with pytest.raises(ShareError, match=r"gone further \(800 frames\) than the copy here \(400\)"):
        push_run(make_run(), store)


def test_checkpoints_are_sent_when_asked_for_and_stay(hub: LocalHub, store: HubStore, make_run) -> None:
    folder = make_run()
    push_run(folder, store, with_checkpoints=True)
    resume = f"data/{NAME}/model/demo_t0_s0_ckpt-last_resume.pt"
    assert (hub.repo(REPO) / resume).exists()
    push_run(folder, store)
    assert "_resume.pt" in (hub.repo(REPO) / "data" / NAME / MANIFEST).read_text()


def test_has_run_is_false_when_a_file_is_lost_or_changed(hub: LocalHub, store: HubStore, make_run) -> None:
    push_run(make_run(), store)
    place = hub.repo(REPO) / "data" / NAME
    assert not has_run(store, "other")
    assert not has_run(HubStore("me/nothing", WRITER, hub.url, QUICK), NAME)
    (place / "log/demo.log").write_text("Session 1 done\n")
    assert not has_run(store, NAME)
    push_run(make_run(), store)
    assert has_run(store, NAME)
    (place / "demo_t0_spec.yaml").unlink()
    assert not has_run(store, NAME)


def test_what_is_here_with_other_content_is_kept(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    ((first,), _) = pull_runs(NAME, store, tmp_path / "b")
    (first.path / "log/demo.log").write_text("mine")
    (first.path / "demo_t0_spec.yaml").unlink()
    ((second,), _) = pull_runs(NAME, store, tmp_path / "b")
    assert second.kept == ("log/demo.log",)
    assert (second.path / "log/demo.log").read_text() == "mine"
    assert (second.path / "demo_t0_spec.yaml").exists()
    (first.path / "demo_spec.yaml").write_text("other: {}\n")
    with pytest.raises(ShareError, match="is another run"):
        pull_runs(NAME, store, tmp_path / "b")


def test_a_file_that_was_changed_there_is_not_used(hub: LocalHub, store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    place = hub.repo(REPO) / "data" / NAME / "log/demo.log"
    place.write_text("Session 1 done\n")
    with pytest.raises(ShareError, match=r"log/demo.log.*SHA-256 differs"):
        pull_runs(NAME, store, tmp_path / "b")
    assert not (tmp_path / "b" / NAME).exists()
    # one byte more than there should be
    place.write_text("Session 0 done\n+")
    with pytest.raises(ShareError, match="larger than the 15 bytes"):
        pull_runs(NAME, store, tmp_path / "b")


def test_a_size_limit(store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    with pytest.raises(ShareError, match=r"at most 10\.0 kB are fetched"):
        pull_runs(NAME, store, tmp_path / "b", max_size=10_000)
    assert not (tmp_path / "b").exists()


def test_an_unknown_name_gets_the_nearest(store: HubStore, make_run, tmp_path: Path) -> None:
    push_run(make_run(), store)
    with pytest.raises(ShareError, match=f"did you mean '{NAME}'"):
        pull_runs("demo_2026_01_01_12000x", store, tmp_path)


def test_a_listing_has_scores(store: HubStore, make_run: Callable[..., Path]) -> None:
    push_run(make_run(), store)
    (run,) = list_runs(store, "demo")
    assert run.manifest is not None
    summary = run.manifest.summary
    assert (summary.algorithm, summary.env, summary.kind, summary.is_complete) == ("PPO", "CartPole-v1", "train", True)
    # rows of 10, 20, 30, 40, and of one more in the second session
    assert summary.values == (40.0, 41.0)
    assert summary.score == 40.5
