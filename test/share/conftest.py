"""A hub of one's own, and a run to share."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slm_lab.share.hub_store import HubStore
from slm_lab.share.patience import Patience
from test.share.local_hub import WRITER, LocalHub, serve_hub

REPO = "me/runs"
NAME = "demo_2026_01_01_120000"
QUICK = Patience(attempts=4, base=0.01, longest=0.2, timeout=1.0)


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables, no `.env` and no login of the person who runs the tests."""
    for name in ("HF_TOKEN", "HF_REPO", "HF_ENDPOINT", "UPLOAD_HF"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    """A hub with an empty repo."""
    with serve_hub(tmp_path / "hub") as served:
        served.create(REPO)
        yield served


@pytest.fixture
def store(hub: LocalHub) -> Iterator[HubStore]:
    """The repo, with leave to write."""
    with HubStore(REPO, WRITER, hub.url, QUICK) as opened:
        yield opened


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of a run that was never trained."""

    def make(name: str = NAME, frame: int = 400, data_dir: Path | None = None, seed: int = 0) -> Path:
        folder = (data_dir or tmp_path / "here" / "data") / name
        for sub in ("info", "graph", "log", "model", "video"):
            (folder / sub).mkdir(parents=True, exist_ok=True)
        spec = {
            "agent": {"name": "PPO", "algorithm": {"name": "PPO"}},
            "env": {"name": "CartPole-v1"},
            "meta": {"seed": seed},
        }
        for stem in ("demo", "demo_t0"):
            (folder / f"{stem}_spec.yaml").write_text(json.dumps({"demo": spec}))
        for session in range(2):
            rows = "".join(f"{step},{step / 10 + session},1000\n" for step in range(100, frame + 1, 100))
            table = folder / f"info/demo_t0_s{session}_session_df_train.csv"
            table.write_text(f"frame,total_reward,fps\n{rows}")
            (folder / f"model/demo_t0_s{session}_ckpt-best_net_model.pt").write_bytes(
                bytes([session, *range(256)]) * 300
            )
            (folder / f"model/demo_t0_s{session}_ckpt-last_resume.pt").write_bytes(b"resume" * 1000)
        metrics = {"is_complete": True, "num_session": 2, "session_index": [0, 1], "random_return": 20.0}
        (folder / "demo_t0_trial_metrics.json").write_text(json.dumps(metrics))
        provenance = {"command": ["slm-lab", "run", "demo"], "versions": {"numpy": "2"}, "run_id": f"{seed}"}
        (folder / "info/demo_provenance.json").write_text(json.dumps(provenance))
        (folder / "graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png").write_bytes(b"\x89PNG" + bytes(2000))
        (folder / "video/demo_t0_s0_f400.mp4").write_bytes(b"film" * 500)
        (folder / "log/demo.log").write_text("Session 0 done\n")
        # what does not belong to a run
        (folder / "model/.demo_t0_s0.lock").touch()
        (folder / "model/.x.pt.12-ab.tmp").write_text("half")
        (folder / "info/notes.txt").write_text("mine")
        if not (folder / "model/link_net_model.pt").is_symlink():
            (folder / "model/link_net_model.pt").symlink_to(folder / "log/demo.log")
        return folder

    return make


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by their path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
