"""A hub on this machine, a folder of a team, and a run to share."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slm_lab.cli.main import main
from slm_lab.share.folder_store import FolderStore
from slm_lab.share.hub_store import HubStore
from slm_lab.share.push import push_run
from test.share.local_hub import WRITER, LocalHub, serve_hub

REPO = "me/runs"
NAME = "demo_2026_01_01_120000"
MODEL = "model/demo_t0_s0_ckpt-best_net_model.pt"
RESUME = "model/demo_t0_s0_ckpt-last_resume.pt"
# what is shared of the run below
SHARED = {
    "README.md",
    "demo_spec.yaml",
    "demo_t0_spec.yaml",
    "demo_t0_trial_metrics.json",
    "graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png",
    "info/demo_provenance.json",
    "info/demo_t0_s0_session_df_train.csv",
    "info/demo_t0_s1_session_df_train.csv",
    "log/demo.log",
    MODEL,
    "model/demo_t0_s1_ckpt-best_net_model.safetensors",
    "video/demo_t0_s0_f400.mp4",
}
MakeRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables, `.env` or login of the person who runs the tests, and no waiting between attempts."""
    for name in ("HF_TOKEN", "HF_REPO", "HF_ENDPOINT", "UPLOAD_HF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with serve_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(served: LocalHub, tmp_path: Path) -> LocalHub:
    """The hub, with an empty repo and nothing else."""
    served.reset(tmp_path / "hub")
    served.repo(REPO).mkdir(parents=True)
    return served


@pytest.fixture
def store(hub: LocalHub) -> HubStore:
    """The repo, with leave to write."""
    return HubStore(REPO, WRITER, hub.url)


@pytest.fixture
def team(tmp_path: Path) -> FolderStore:
    """A folder that a team shares."""
    (tmp_path / "team").mkdir()
    return FolderStore(tmp_path / "team")


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes the folder of a run that was never trained."""

    def make(name: str = NAME, frame: int = 400, data_dir: Path | None = None, seed: int = 0) -> Path:
        folder = (data_dir or tmp_path / "here" / "data") / name
        shutil.rmtree(folder, ignore_errors=True)
        for sub in ("info", "graph", "log", "model", "video"):
            (folder / sub).mkdir(parents=True)
        algorithm = {"name": "PPO", "algorithm": {"name": "PPO"}}
        spec = {"demo": {"agent": algorithm, "env": {"name": "CartPole-v1"}, "meta": {"seed": seed}}}
        rows = {s: "".join(f"{step},{step / 10 + s},1000\n" for step in range(100, frame + 1, 100)) for s in (0, 1)}
        metrics = {"is_complete": True, "num_session": 2, "session_index": [0, 1], "random_return": 20.0}
        provenance = {"command": ["slm-lab", "run", "demo"], "versions": {"numpy": "2"}, "run_id": f"{seed}"}
        texts = {
            "demo_spec.yaml": json.dumps(spec),
            "demo_t0_spec.yaml": json.dumps(spec),
            "demo_t0_trial_metrics.json": json.dumps(metrics),
            "info/demo_provenance.json": json.dumps(provenance),
            "info/demo_t0_s0_session_df_train.csv": f"frame,total_reward,fps\n{rows[0]}",
            "info/demo_t0_s1_session_df_train.csv": f"frame,total_reward,fps\n{rows[1]}",
            "log/demo.log": "Session 0 done\n",
            "graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png": "png" * 700,
            "video/demo_t0_s0_f400.mp4": "film" * 500,
            MODEL: "weights" * 10_000,
            MODEL.replace("s0", "s1").replace(".pt", ".safetensors"): "weights1" * 10_000,
            RESUME: "resume" * 1000,
            # what does not belong to a run
            "model/.demo_t0_s0.lock": "",
            "model/.x.pt.12-ab.tmp": "half",
            "info/notes.txt": "mine",
        }
        for path, text in texts.items():
            (folder / path).write_text(text)
        (folder / "model/link_net_model.pt").symlink_to(folder / "log/demo.log")
        return folder

    return make


@pytest.fixture
def pushed(store: HubStore, hub: LocalHub, make_run: MakeRun) -> Path:
    """The folder of a run that is at the hub; the requests that took are forgotten."""
    folder = make_run()
    push_run(folder, store)
    hub.log.clear()
    return folder


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """`slm-lab` in the folder of the test; what it wrote, once its exit code is as expected."""

    def call(*words: str, code: int = 0, **variables: str) -> tuple[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["slm-lab", *words])
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                main()
                ended = 0
            except SystemExit as end:
                ended = int(end.code or 0)
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out, err

    return call


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by their path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
