"""A repo without manifests, as the published SLM-Lab uploads runs: listed and fetched like any other."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.errors import ShareError
from slm_lab.share.folder_store import FolderStore
from slm_lab.share.graduate import plan
from slm_lab.share.hub_store import HubStore
from slm_lab.share.pull import list_runs, pull_runs
from slm_lab.share.store import DATA
from test.share.conftest import NAME, REPO, read_tree
from test.share.local_hub import LocalHub

PPO, SAC = "ppo_cartpole_2026_02_01_120000", "sac_pendulum_2026_02_01_130000"
STRANGE = (
    *("report.html", "graph/plotly.min.js", "graph/x.svg"),
    *("run.sh", "info/notes.txt", "model/.hidden_net_model.pt"),
)


def upload(root: Path, name: str, algorithm: str = "PPO", env: str = "CartPole-v1") -> Path:
    """The folder of a run as the published lab uploads it, with a few files that no one asked for."""
    spec = name[:-18]
    folder = root / DATA / name
    for sub in ("info", "graph", "log", "model"):
        (folder / sub).mkdir(parents=True)
    agent = {"name": algorithm, "algorithm": {"name": algorithm}}
    flat = {"agent": agent, "env": {"name": env}, "meta": {}, "name": spec}
    for stem in (spec, f"{spec}_t0"):
        (folder / f"{stem}_spec.json").write_text(json.dumps(flat))
    metrics = {"frame": 400.0, "total_reward_ma": 123.456, "strength": 100.0}
    for place in ("", "info/"):
        (folder / f"{place}{spec}_t0_trial_metrics_scalar.json").write_text(json.dumps(metrics))
    for session in range(2):
        lead = f"{spec}_t0_s{session}"
        (folder / f"info/{lead}_session_df_train.csv").write_text("total_reward,frame\n1,100\n")
        (folder / f"model/{lead}_ckpt-best_net_model.pt").write_bytes(bytes([session, *range(256)]) * 300)
        (folder / f"model/{lead}_net_optim.pt").write_bytes(b"optimiser")
    (folder / f"{spec}_t0_trial_graph_mean_returns_vs_frames.png").write_bytes(b"\x89PNG")
    (folder / f"log/{spec}.log").write_text("Session 0 done\n")
    for path in STRANGE:
        (folder / path).write_text("<script>alert(1)</script>")
    return folder


def expected(folder: Path) -> dict[str, bytes]:
    """What is fetched of it."""
    return {path: data for path, data in read_tree(folder).items() if path not in STRANGE and "_optim.pt" not in path}


@pytest.fixture
def there(hub: LocalHub) -> Path:
    """The files of a repo with two runs."""
    root = hub.repo(REPO)
    upload(root, PPO)
    upload(root, SAC, "SoftActorCritic", "Pendulum-v1")
    return root


def test_runs_without_manifests_are_listed_fetched_and_verified(store: HubStore, there: Path, tmp_path: Path) -> None:
    found = {run.name: run for run in list_runs(store)}
    assert list(found) == [PPO, SAC]
    manifest = found[SAC].manifest
    assert manifest is not None
    summary = manifest.summary
    assert (summary.algorithm, summary.env, summary.frame, summary.score) == ("SAC", "Pendulum-v1", 400, 123.456)
    assert len(summary.values) == 2
    assert manifest.size == sum(map(len, expected(there / DATA / SAC).values()))
    (pulled,), problems = pull_runs("sac", store, tmp_path / "b")
    assert not problems
    assert read_tree(tmp_path / "b" / SAC) == expected(there / DATA / SAC)
    assert pulled.num_fetched == len(expected(there / DATA / SAC))
    # nothing is fetched again, and what was changed here stays
    (tmp_path / "b" / SAC / "log" / "sac_pendulum.log").write_text("mine")
    (again,), _ = pull_runs("sac", store, tmp_path / "b")
    assert (again.num_fetched, again.kept) == (0, ("log/sac_pendulum.log",))
    # they are not as they were made, so they do not graduate
    graduation = plan("", store, FolderStore(tmp_path / "public"))
    assert not graduation.runs
    assert set(graduation.left_out.values()) == {"it has no manifest; pull it, and push it to the public repo"}


@pytest.mark.parametrize("path", ["model/sac_pendulum_t0_s0_ckpt-best_net_model.pt", "log/sac_pendulum.log"])
def test_what_is_not_what_the_hub_says_is_not_used_and_others_are(
    store: HubStore, hub: LocalHub, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    runs = hub.entries(REPO, DATA, False)
    known = {name: hub.entries(REPO, f"{DATA}/{name}", True) for name in (PPO, SAC)}
    monkeypatch.setattr(hub, "entries", lambda repo, folder, is_all: known[Path(folder).name] if is_all else runs)
    file = there / DATA / SAC / path
    file.write_bytes(bytes(len(file.read_bytes())))
    pulled, problems = pull_runs("*", store, tmp_path / "b")
    assert [run.path.name for run in pulled] == [PPO]
    assert list(problems) == [SAC]
    assert f"{path} at {REPO} is not what" in problems[SAC]
    assert not (tmp_path / "b" / SAC).exists()


def test_a_bad_folder_does_not_block_the_others(store: HubStore, there: Path, tmp_path: Path) -> None:
    broken = there / DATA / "broken_2026_02_01_120000"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    # an upload of this lab that was cut
    cut = there / DATA / "cut_2026_02_01_120000"
    cut.mkdir()
    (cut / "cut_spec.yaml").write_text("cut: {}")
    (cut / "cut_spec.json").write_text("{}")
    # specs and metrics that are no JSON cost a run its score alone
    (there / DATA / PPO / "ppo_cartpole_spec.json").write_text("[" * 100_000)
    (there / DATA / PPO / "ppo_cartpole_t0_trial_metrics_scalar.json").write_text('{"total_reward_ma": "x"')
    found = {run.name: run for run in list_runs(store)}
    assert [name for name, run in found.items() if run.manifest is None] == [broken.name, cut.name]
    assert "manifest.json there is damaged" in found[broken.name].problem
    assert "its upload has not ended" in found[cut.name].problem
    manifest = found[PPO].manifest
    assert manifest is not None
    assert (manifest.summary.algorithm, manifest.summary.values) == ("unknown algorithm", ())
    pulled, problems = pull_runs("*", store, tmp_path / "b")
    assert [run.path.name for run in pulled] == [PPO, SAC]
    assert list(problems) == [broken.name, cut.name]
    with pytest.raises(ShareError, match=r"manifest\.json there is damaged"):
        pull_runs("broken", store, tmp_path / "b")


def test_limits_hold_without_a_manifest(store: HubStore, there: Path, tmp_path: Path) -> None:
    with pytest.raises(ShareError, match=r"'\*' matches 2 runs of .* limit of 10\.0 kB"):
        pull_runs("*", store, tmp_path / "b", max_size=10_000)
    # one file on some systems, two on others
    (there / DATA / PPO / "log" / "PPO_CartPole.log").write_text("twice")
    with pytest.raises(ShareError, match="lists a file twice"):
        pull_runs(PPO, store, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_folder_without_manifests(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = FolderStore(there)
    whole = os.scandir

    def scan(path: str | Path | int) -> Any:
        # as a folder of somebody else's answers; the tests may be root, whom nothing is refused
        if str(path).endswith(PPO):
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path)

    monkeypatch.setattr(os, "scandir", scan)
    ppo, sac = list_runs(team)
    assert ppo.manifest is None
    assert "cannot be read (Permission denied)" in ppo.problem
    assert sac.manifest is not None
    assert sac.manifest.summary.score == 123.456
    (pulled,), problems = pull_runs("*", team, tmp_path / "b")
    assert (pulled.path.name, list(problems)) == (SAC, [PPO])
    assert read_tree(tmp_path / "b" / SAC) == expected(there / DATA / SAC)


def test_list_shows_what_is_here_and_then_the_hub(lab, hub: LocalHub, there: Path, make_run) -> None:
    make_run()
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    shown, _ = lab("list", **place)
    assert shown.index(NAME) < shown.index(f"\nAt {REPO}:\n") < shown.index(PPO) < shown.index(SAC)
    only, _ = lab("list", "--local", **place)
    assert NAME in only
    assert PPO not in only
    assert NAME not in lab("list", "--hub", **place)[0]
    # nothing here is no mistake where the hub has runs
    assert SAC in lab("list", "--data-dir", "empty", **place)[0]
    assert f"Fetched  b/{PPO}" in lab("pull", "ppo", "--data-dir", "b", **place)[0]
    away = {"HF_REPO": REPO, "HF_ENDPOINT": "http://127.0.0.1:9"}
    shown, warned = lab("list", **away)
    assert NAME in shown
    assert warned.startswith("Warning: cannot list the runs at HF_REPO: ")
    assert len(warned.splitlines()) == 1
    lab("list", "--data-dir", "empty", code=2, **away)
