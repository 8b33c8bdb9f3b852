"""The commands as a user types them, against a hub on this machine and a folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from test.share.conftest import NAME, REPO, read_tree
from test.share.local_hub import WRITER, LocalHub

Lab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Runs `slm-lab` in the folder of the test."""

    def call(*words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "slm_lab.cli", *words],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


def test_a_team_shares_a_folder(lab: Lab, make_run, tmp_path: Path) -> None:
    folder = make_run()
    (tmp_path / "here" / ".env").write_text(f"# ours\nexport HF_REPO='{tmp_path}/team disk'\n")
    assert f"{tmp_path}/team disk/data/{NAME}" in lab("push", "latest").stdout
    shown = lab("list", "--hub").stdout
    assert NAME in shown
    assert "40.50" in shown
    assert shown.splitlines()[1].endswith("yes")
    lab("pull", "demo*", "-l", "--data-dir", "b")
    assert not (tmp_path / "here" / "b").exists()
    assert "Fetched" in lab("pull", "demo*", "--data-dir", "b").stdout
    here = read_tree(tmp_path / "here" / "b" / NAME)
    assert here["log/demo.log"] == (folder / "log/demo.log").read_bytes()
    # nothing is here, but there
    assert NAME in lab("list", "--data-dir", "empty").stdout


def test_push_list_pull_at_a_hub(lab: Lab, hub: LocalHub, make_run) -> None:
    make_run()
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    done = lab("push", f"data/{NAME}", HF_TOKEN=WRITER, **place)
    assert f"{hub.url}/datasets/{REPO}/tree/main/data/{NAME}" in done.stdout
    assert WRITER not in done.stdout + done.stderr
    assert f"Uploading data/{NAME} to {REPO}/data/{NAME}: " in done.stderr
    assert NAME in lab("list", "--remote", "demo", **place).stdout
    lab("pull", NAME, "--data-dir", "b", **place)


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (("push", "latest"), {}, "HF_REPO is not set"),
        (("pull", "x"), {"HF_REPO": "one/two/three"}, "neither USER/NAME nor a path"),
        (("push", "latest"), {"HF_REPO": "me/runs", "HF_ENDPOINT": "ftp://x"}, "HF_ENDPOINT"),
        (("pull", "x"), {"HF_REPO": "./nowhere"}, "is not there; is its disk mounted?"),
        (("push", "latest"), {"HF_REPO": "/no/such/disk/x"}, "is it mounted?"),
        (("pull", "x", "--max-size", "much"), {"HF_REPO": "."}, "--max-size"),
        (("push", "nothing"), {"HF_REPO": "."}, "no run folder 'nothing'"),
        (("graduate", "--to", "./b"), {"HF_REPO": "./b"}, "source and target are the same"),
    ],
)
def test_a_mistake_is_one_line(lab: Lab, make_run, words, variables, told: str) -> None:
    make_run()
    done = lab(*words, code=2, **variables)
    assert told in done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_training_is_uploaded_at_its_end(lab: Lab, hub: LocalHub, tmp_path: Path) -> None:
    run = ["run", "reinforce_cartpole", "dev", "-s", "env.max_frame=600", "-s", "meta.log_frequency=200"]
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    refused = lab(*run, "--upload-hf", code=2, **place)
    assert "set HF_TOKEN" in refused.stderr
    assert not (tmp_path / "here" / "data").exists()
    done = lab(*run, UPLOAD_HF="true", HF_TOKEN=WRITER, **place)
    (folder,) = (tmp_path / "here" / "data").iterdir()
    assert f"Uploading data/{folder.name}" in done.stderr
    assert f"Shared   {hub.url}/datasets/{REPO}/tree/main/data/{folder.name}" in done.stdout
    there = read_tree(hub.repo(REPO) / "data" / folder.name)
    assert "report.html" in there
    for path, content in there.items():
        assert WRITER.encode() not in content, path
        if path not in ("README.md", "manifest.json"):
            assert content == (folder / path).read_bytes()
    # what is pulled can be played, and its report written here
    assert f"slm-lab report b/{folder.name}" in lab("pull", folder.name, "--data-dir", "b", **place).stdout
    assert not (tmp_path / "here" / "b" / folder.name / "report.html").exists()
    lab("report", f"b/{folder.name}")
    assert "mean total_reward" in lab("run", f"enjoy@b/{folder.name}", "--episodes", "1").stdout


def test_an_upload_that_fails_leaves_the_run_and_says_what_to_type(lab: Lab, tmp_path: Path) -> None:
    team = tmp_path / "team"
    (team / "data").mkdir(parents=True)
    # a file where a folder should be
    run = ["run", "reinforce_cartpole", "dev", "-s", "env.max_frame=400", "-s", "meta.log_frequency=200"]
    (team / "data").rmdir()
    (team / "data").write_text("")
    done = lab(*run, "--upload-hf", code=2, HF_REPO=str(team))
    (folder,) = (tmp_path / "here" / "data").iterdir()
    assert f"slm-lab push data/{folder.name}" in done.stderr
    (team / "data").unlink()
    assert str(team) in lab("push", f"data/{folder.name}", HF_REPO=str(team)).stdout


def test_a_crash_leaves_no_secret_in_any_file(lab: Lab, hub: LocalHub, tmp_path: Path) -> None:
    """Tokens in the environment, in `.env` and in the text of an exception; two sessions, so workers too."""
    secrets = {"A_TOKEN": "gh" + "p_" + "aB3" * 12, "B_PASSWORD": "correct horse battery", "HF_TOKEN": WRITER}
    (tmp_path / "here" / ".env").write_text('C_SECRET="staple of the horse"\n')
    (tmp_path / "here" / "bad_env.py").write_text(
        "import os\nimport gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n"
        "class Bad(CartPoleEnv):\n    num = 0\n\n    def step(self, action):\n        Bad.num += 1\n"
        "        if Bad.num > 300:\n"
        "            raise ValueError(os.environ['A_TOKEN'] + os.environ['B_PASSWORD'] + ' staple of the horse'"
        " + os.environ['HF_TOKEN'])\n        return super().step(action)\n\n"
        "gymnasium.register('Bad-v0', entry_point=Bad, max_episode_steps=100)\n"
    )
    words = ["run", "reinforce_cartpole", "train", "-s", "env.name=bad_env:Bad-v0", "-s", "meta.max_session=2"]
    words += ["-s", "env.max_frame=2000", "-s", "meta.log_frequency=100", "--upload-hf"]
    done = lab(*words, code=1, HF_REPO=REPO, HF_ENDPOINT=hub.url, **secrets)
    assert "ValueError: [secret]" in done.stderr
    # no session has a result, so it is not sent by itself; by hand it is
    lab("push", "latest", HF_REPO=REPO, HF_ENDPOINT=hub.url, **secrets)
    assert any("[secret]" in path.read_text() for path in (hub.repo(REPO) / "data").rglob("*.log"))
    values = [*secrets.values(), "staple of the horse"]
    files = {**read_tree(tmp_path / "here" / "data"), **read_tree(hub.root)}
    assert len(files) > 4
    for path, content in {**files, "console": (done.stdout + done.stderr).encode()}.items():
        for value in values:
            assert value.encode() not in content, path
