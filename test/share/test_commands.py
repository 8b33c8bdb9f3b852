"""The commands as a user types them, against a hub on this machine and a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slm_lab.cli.upload import upload_run
from test.share.conftest import NAME, REPO, read_tree
from test.share.local_hub import WRITER, Fault, LocalHub

ROOT = Path(__file__).parents[2]


def test_a_team_shares_a_folder(lab, make_run, tmp_path: Path) -> None:
    folder = make_run()
    Path(".env").write_text(f"# ours\nexport HF_REPO='{tmp_path}/team disk'\n")
    assert f"{tmp_path}/team disk/data/{NAME}" in lab("push", "latest")[0]
    shown, _ = lab("list", "--hub")
    assert NAME in shown
    assert "40.50" in shown
    assert shown.splitlines()[1].endswith("yes")
    lab("pull", "demo*", "-l", "--data-dir", "b")
    assert not Path("b").exists()
    assert "Fetched" in lab("pull", "demo*", "--data-dir", "b")[0]
    assert Path("b", NAME, "log/demo.log").read_bytes() == (folder / "log/demo.log").read_bytes()
    # nothing is here, but there
    assert NAME in lab("list", "--data-dir", "empty")[0]
    assert f"Would copy {NAME}: 12 files" in lab("graduate", "--to", f"{tmp_path}/public", "--dry-run")[0]
    assert f"Copied   {tmp_path}/public/data/{NAME}" in lab("graduate", "--to", f"{tmp_path}/public")[0]


def test_push_list_pull_at_a_hub(lab, hub: LocalHub, make_run) -> None:
    make_run()
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    out, err = lab("push", f"data/{NAME}", HF_TOKEN=WRITER, **place)
    assert f"{hub.url}/datasets/{REPO}/tree/main/data/{NAME}" in out
    assert WRITER not in out + err
    assert f"Uploading data/{NAME} to {REPO}/data/{NAME}: " in err
    assert NAME in lab("list", "--remote", "demo", **place)[0]
    lab("pull", NAME, "--data-dir", "b", **place)


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (("push", "latest"), {}, "HF_REPO is not set"),
        (("pull", "x"), {"HF_REPO": "one/two/three"}, "neither USER/NAME nor a path"),
        (("push", "latest"), {"HF_REPO": "me/runs", "HF_ENDPOINT": "ftp://x"}, "HF_ENDPOINT"),
        (("pull", "x"), {"HF_REPO": "./nowhere"}, "does not exist; is its disk mounted?"),
        (("push", "latest"), {"HF_REPO": "/no/such/disk/x"}, "is it mounted?"),
        (("pull", "x", "--max-size", "much"), {"HF_REPO": "."}, "--max-size"),
        (("push", "nothing"), {"HF_REPO": "."}, "no run folder 'nothing'"),
        (("graduate", "--to", "./b"), {"HF_REPO": "./b"}, "source and target are the same"),
    ],
)
def test_a_mistake_is_one_line(lab, make_run, words, variables, message: str) -> None:
    make_run()
    _, err = lab(*words, code=2, **variables)
    assert message in err
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1


def test_a_training_is_uploaded_at_its_end(lab, hub: LocalHub, monkeypatch, capsys) -> None:
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    words = ("run", "reinforce_cartpole", "dev", "-s", "env.max_frame=600", "--upload-hf")
    assert "set HF_TOKEN" in lab(*words, code=2, **place)[1]
    assert not Path("data").exists()
    # an upload that fails leaves the run as it is, and says what to type
    hub.faults += [Fault("commit", 403)]
    _, err = lab(*words, code=2, HF_TOKEN=WRITER, **place)
    (folder,) = Path("data").iterdir()
    assert f"Uploading data/{folder.name}" in err
    assert f"the run is complete, but was not uploaded: {REPO}: the token in HF_TOKEN may not write here (403)" in err
    assert f"slm-lab push data/{folder.name}" in err
    for name, value in {**place, "HF_TOKEN": WRITER}.items():
        monkeypatch.setenv(name, value)
    assert upload_run(folder) == 0
    assert f"Shared   {hub.url}/datasets/{REPO}/tree/main/data/{folder.name}" in capsys.readouterr().out
    there = read_tree(hub.repo(REPO) / "data" / folder.name)
    assert "report.html" in there
    for path, content in there.items():
        assert WRITER.encode() not in content, path
        assert path in ("README.md", "manifest.json") or content == (folder / path).read_bytes()
    # what is pulled can be played, and its report written here
    assert f"slm-lab report b/{folder.name}" in lab("pull", folder.name, "--data-dir", "b", **place)[0]
    assert not Path("b", folder.name, "report.html").exists()
    lab("report", f"b/{folder.name}")
    assert "mean total_reward" in lab("run", f"enjoy@b/{folder.name}", "--episodes", "1")[0]


def test_a_crash_leaves_no_secret_in_any_file(lab, hub: LocalHub) -> None:
    """Tokens in the environment, in `.env` and in the text of an exception; two sessions, so workers too."""
    secrets = {"A_TOKEN": "gh" + "p_" + "aB3" * 12, "B_PASSWORD": "correct horse battery", "HF_TOKEN": WRITER}
    place = {"HF_REPO": REPO, "HF_ENDPOINT": hub.url}
    Path(".env").write_text('C_SECRET="staple of the horse"\n')
    Path("bad_env.py").write_text(
        "import os\nimport gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n"
        "class Bad(CartPoleEnv):\n    num = 0\n\n    def step(self, action):\n        Bad.num += 1\n"
        "        if Bad.num > 300:\n"
        "            raise ValueError(os.environ['A_TOKEN'] + os.environ['B_PASSWORD'] + ' staple of the horse'"
        " + os.environ['HF_TOKEN'])\n        return super().step(action)\n\n"
        "gymnasium.register('Bad-v0', entry_point=Bad, max_episode_steps=100)\n"
    )
    words = ("train", "-s", "env.name=bad_env:Bad-v0", "-s", "meta.max_session=2", "-s", "env.max_frame=2000")
    command = ("run", "reinforce_cartpole", *words, "-s", "meta.log_frequency=200", "--upload-hf")
    # a program of its own: what its sessions write to the console counts too
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **place, **secrets}
    done = subprocess.run([sys.executable, "-m", "slm_lab.cli", *command], env=environ, capture_output=True, text=True)
    out, err = done.stdout, done.stderr
    assert done.returncode == 1, out + err
    assert "ValueError: [secret]" in err
    # no session has a result, so it is not sent by itself; by hand it is
    lab("push", "latest", **place, **secrets)
    assert any("[secret]" in path.read_text() for path in (hub.repo(REPO) / "data").rglob("*.log"))
    files = {**read_tree(Path("data")), **read_tree(hub.root), "console": (out + err).encode()}
    assert len(files) > 5
    for path, content in files.items():
        for value in (*secrets.values(), "staple of the horse"):
            assert value.encode() not in content, path
