"""The run command on real folders: modes, older forms, messages, exit codes, signals."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slm_lab.cli.run import split_arguments
from slm_lab.lib.errors import LabError
from test.cli.command import call

SHORT = ["-s", "env.max_frame=1500", "-s", "meta.max_session=1"]


README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_words_are_file_name_and_mode() -> None:
    assert split_arguments([]) == ("ppo_cartpole", None, "dev")
    assert split_arguments(["train"]) == ("ppo_cartpole", None, "train")
    assert split_arguments(["ppo_lunar", "train"]) == ("ppo_lunar", None, "train")
    assert split_arguments(["a.json", "b", "train@x"]) == ("a.json", "b", "train@x")
    assert split_arguments(["a.json", "train"]) == ("a.json", None, "train")
    # a shipped file needs no path and no suffix
    assert split_arguments(["ppo_mujoco", "ppo_hopper", "train"]) == ("ppo_mujoco", "ppo_hopper", "train")
    with pytest.raises(LabError, match="unknown mode 'trian'; did you mean 'train'"):
        split_arguments(["a.json", "b", "trian"])
    with pytest.raises(LabError, match="unknown mode 'tran'"):
        split_arguments(["ppo_cartpole", "tran"])


def test_train_prints_score_files_and_next_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", "ppo_cartpole", "train", *SHORT, "--profile", "--seed", "7") == 0
    out, log = capsys.readouterr()
    (folder,) = Path("data").iterdir()
    assert f"slm-lab run enjoy@data/{folder.name}" in out
    assert f"Report   data/{folder.name}/report.html\n" in out
    assert f"train@data/{folder.name}" in (folder / "report.html").read_text()
    # ten episodes do not end within as many steps as this run has
    assert re.search(r"Score    [\d.]+ \((deterministic|exploring) policy, (last )?.*episodes\)\n", out)
    assert re.search(r"Time     session 0: .*update \d+\.\d%", out)
    assert "Session 0 done" in log
    assert "Trial 0 done" in log
    assert "trial_metrics: frame:1.50e+03 | total_reward_ma:" in log
    assert json.loads((folder / "info" / "ppo_cartpole_provenance.json").read_text())["versions"]["torch"]
    assert "seed: 7" in (folder / "ppo_cartpole_spec.yaml").read_text()

    assert call(monkeypatch, "run", f"enjoy@{folder}", "--episodes", "2") == 0
    out, log = capsys.readouterr()
    assert "over 2 episodes" in out
    assert call(monkeypatch, "run", f"enjoy@{folder}/*_t0_spec.yaml", "--episodes", "1") == 0
    capsys.readouterr()
    assert call(monkeypatch, "run", "train@latest") == 0
    assert re.search(r"Time     \d.*: .*\d%", capsys.readouterr().out)


def test_older_forms_without_run_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = "slm_lab/spec/benchmark/reinforce/reinforce_cartpole.json"
    assert call(monkeypatch, *SHORT, file, "reinforce_cartpole", "train") == 0
    assert call(monkeypatch, file, "reinforce_cartpole", "train", *SHORT) == 0
    assert len(list(Path("data").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no_such_spec"], "no file and no shipped spec is called 'no_such_spec'"),
        (["run", "ppo_cartpol"], "did you mean 'ppo_cartpole'?"),
        (["run", "missing.json", "x"], "no spec file missing.json"),
        (["run", "slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "ppo_cartpol"], "did you mean 'ppo_cartpole'?"),
        (["run", "ppo_cartpole", "-s", "gama=0.9"], "-s gama"),
        (
            ["run", "ppo_cartpole", "-s", "agent.algorithm.gama=0.9"],
            "-s agent.algorithm.gama=0.9: unknown key; did you mean",
        ),
        (["run", "ppo_cartpole", "-s", "env.num_envs=four"], "-s env.num_envs=four: whole number expected"),
        (["run", "ppo_cartpole", "-s", "agent.algorithm.lam=2"], "-s agent.algorithm.lam=2: less than"),
        (["run", "ppo_cartpole", "-s", "env.name=CartPole-v9"], "no env 'CartPole-v9'"),
        (["run", "ppo_cartpole", "-s", "env.kwargs.colour=red"], "env.kwargs"),
        (["run", "ppo_cartpole", "-s", "agent.algorithm.action_pdtype=Normal"], "does not fit actions"),
        (["run", "ppo_cartpole", "-s", "agent.net.log_std_init=0.0"], "log_std_init"),
        (["run", "ppo_cartpole", "--device", "cuda"], "no GPU"),
        (["run", "ppo_cartpole", "--import", "no_such_module"], "--import no_such_module"),
        (["run", "ppo_cartpole", "-s", "novalue"], "KEY=VALUE"),
        (["run", "train@nowhere"], "no run folder 'nowhere'"),
        (["run", "train@latest"], "there is no run in data yet"),
        (["run", "enjoy@nothing/*"], "matches nothing"),
        (["run", "train@latest", "--seed", "3"], "keeps its saved spec"),
        (["rnu"], "did you mean 'slm-lab run'"),
        (["run", "ppo_cartpole", "--import", ".."], "--import ..: '..' is not the name of a module"),
        (["run", "ppo_cartpole", "--import", ""], "'' is not the name of a module"),
        (["run", "ppo_cartpole", "-s", "env.name=:X"], "module '' of ':X' cannot be imported"),
        (["run", "ppo_cartpole", "-s", "env.name=..:X"], "'..' is not the name of a module"),
        (["run", "x" * 5000 + ".yaml"], "xxx': File name too long"),
        (["run", f"enjoy@{'x' * 5000}"], "xxx': File name too long"),
        (["doctor", "x" * 5000], "xxx': File name too long"),
        (["list", "--data-dir", "x" * 5000], "xxx': File name too long"),
        (["bench", "status", "--data-dir", str(README)], "README.md/bench/remote.json': Not a directory"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("data").exists()


def test_foreign_and_corrupt_folders_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos").mkdir()
    assert call(monkeypatch, "run", "train@photos") == 2
    assert "is not a run of this lab" in capsys.readouterr().err
    assert call(monkeypatch, "run", "reinforce_cartpole", "train", *SHORT) == 0
    (folder,) = Path("data").iterdir()
    for file in (folder / "model").iterdir():
        file.write_bytes(b"garbage")
    capsys.readouterr()
    assert call(monkeypatch, "run", f"train@{folder}") == 2
    assert "damaged" in capsys.readouterr().err
    assert call(monkeypatch, "run", f"enjoy@{folder}") == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "num_session"),
    [
        (signal.SIGINT, 130, 1),
        pytest.param(signal.SIGTERM, 143, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_stops_and_train_latest_goes_on(number: int, code: int, num_session: int) -> None:
    command = [sys.executable, "-m", "slm_lab.cli", "run"]
    limits = ["-s", "env.max_frame=10000", "-s", f"meta.max_session={num_session}"]
    process = subprocess.Popen(
        [*command, "reinforce_cartpole", "train", *limits], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "Session 0 frame" in line:
            process.send_signal(number)
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Continue with:\n  slm-lab run train@data/reinforce_cartpole" in out
    done = subprocess.run([*command, "train@latest"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Trial 0 done" in done.stderr


def test_a_run_in_which_no_episode_ended_says_so(monkeypatch, capsys) -> None:
    code = call(monkeypatch, "run", "ppo_pendulum", "train", "-s", "env.max_frame=64", "-s", "meta.max_session=1")
    assert code == 0
    assert "Score    none yet: no episode has ended" in capsys.readouterr().out
