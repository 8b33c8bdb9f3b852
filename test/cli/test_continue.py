"""`--continue`: the same command starts a run, goes on with it, or tells that it is done."""

import csv
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from test.cli.command import call

SHORT = ["-s", "env.max_frame=2000", "-s", "meta.max_session=1", "-s", "meta.log_frequency=500"]
SEARCH = """
tiny:
  agent:
    name: Reinforce
    algorithm: {name: Reinforce, gamma: 0.99, training_frequency: 1}
    memory: {name: OnPolicyReplay}
    net: {type: MLPNet, hid_layers: [8], optim_spec: {name: Adam, lr: 0.01}}
  env: {name: CartPole-v1, num_envs: 1, max_frame: 400}
  meta: {max_trial: 2, log_frequency: 200, compile: false, final_eval: 0}
  search: {agent.algorithm.gamma__uniform: [0.9, 0.99]}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read_table(data_dir: str) -> list[dict[str, str]]:
    """Rows of the only run, without what reads the clock."""
    (path,) = Path(data_dir).glob("*/info/*_t0_s0_session_df_train.csv")
    with path.open() as file:
        return [{key: row[key] for key in row if key not in ("fps", "wall_t")} for row in csv.DictReader(file)]


def test_a_run_is_started_then_shown_and_never_mixed_with_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "reinforce_cartpole", "train", *SHORT, "--continue"]
    assert call(monkeypatch, *command) == 0
    capsys.readouterr()
    (folder,) = Path("data").iterdir()
    tables = read_table("data")

    assert call(monkeypatch, *command) == 0
    out, log = capsys.readouterr()
    assert "is done already" in log
    assert "Score    " in out
    assert list(Path("data").iterdir()) == [folder]
    assert read_table("data") == tables

    assert call(monkeypatch, *command, "--seed", "5") == 2
    problem = capsys.readouterr().err.splitlines()[-1]
    assert problem == (
        f"Error: data/{folder.name} is a run of 'reinforce_cartpole' with another meta.seed: 0 there, 5 here; "
        "--continue goes on with the same spec only: give the same settings, or another --data-dir"
    )
    assert list(Path("data").iterdir()) == [folder]

    assert call(monkeypatch, "run", "train@latest", "--continue") == 2
    assert "leave one out" in capsys.readouterr().err
    # of another name, so it is another run beside it
    assert call(monkeypatch, "run", "sarsa_boltzmann_cartpole", "train", *SHORT, "--continue") == 0
    assert len(list(Path("data").iterdir())) == 2


def test_a_killed_run_goes_on_exactly_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "reinforce_cartpole", "train", *SHORT, "-s", "env.max_frame=20000"]
    # a folder that a kill left without a spec is no run
    Path("data/reinforce_cartpole_2020_01_01_000000").mkdir(parents=True)
    words = [*command, "-s", "meta.checkpoint_frequency=1000", "--continue"]
    process = subprocess.Popen([sys.executable, "-m", "slm_lab.cli", *words], stderr=subprocess.DEVNULL)
    while not list(Path("data").glob("*/model/*_ckpt-last_resume.safetensors")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    killed_at = int(float(read_table("data")[-1]["frame"]))
    assert killed_at < 20000
    assert call(monkeypatch, *words) == 0
    assert len(list(Path("data").iterdir())) == 2

    assert call(monkeypatch, *words, "--data-dir", "whole") == 0
    assert read_table("data") == read_table("whole")


def test_a_search_and_its_proof_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(SEARCH)
    command = ["run", "tiny.yaml", "tiny", "search", "--continue", "--validate", "1"]
    assert call(monkeypatch, *command) == 0
    first = capsys.readouterr().out
    assert len(list(Path("data").iterdir())) == 2
    assert call(monkeypatch, *command) == 0
    again = capsys.readouterr().out
    assert len(list(Path("data").iterdir())) == 2
    proved = re.compile(r"^Proved .*$", re.M)
    assert proved.findall(first) == proved.findall(again) != []
    assert call(monkeypatch, *command, "-s", "meta.max_trial=3") == 2
    assert "with another meta.max_trial: 2 there, 3 here" in capsys.readouterr().err
