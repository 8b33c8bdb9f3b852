"""Training, resuming and playing from the command line on real folders: output, files, exit codes, signals."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slm_lab.cli.run import split_arguments
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_yaml
from slm_lab.spec.loading import dump_spec
from test.cli.conftest import Call
from test.tiny import make_tiny_spec

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def _specs(tmp_path: Path) -> None:
    """A spec of a second, one that searches, and one in which no episode ends."""
    write_yaml(tmp_path / "tiny.yaml", dump_spec(make_tiny_spec()))
    space = {"agent.algorithm.gamma__uniform": [0.9, 0.99]}
    search = make_tiny_spec("Reinforce", name="searched", env={"max_frame": 400}, meta={"max_trial": 2}, search=space)
    write_yaml(tmp_path / "searched.yaml", dump_spec(search))
    write_yaml(tmp_path / "grid.yaml", {"experiment": {"specs": ["ppo_cartpole"]}})
    write_yaml(tmp_path / "endless.yaml", dump_spec(make_tiny_spec(env={"name": "Pendulum-v1", "max_frame": 64})))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("ppo_cartpole", None, "dev")),
        (["train"], ("ppo_cartpole", None, "train")),
        (["ppo_lunar", "train"], ("ppo_lunar", None, "train")),
        (["a.json", "b", "train@x"], ("a.json", "b", "train@x")),
        (["a.json", "train"], ("a.json", None, "train")),
        (["a.json", "search", "train"], ("a.json", "search", "train")),
        # a shipped file needs no path and no suffix
        (["ppo_mujoco", "ppo_hopper", "train"], ("ppo_mujoco", "ppo_hopper", "train")),
        (["ppo_cartpole", "search"], ("ppo_cartpole", None, "search")),
        (["search@latest"], ("ppo_cartpole", None, "search@latest")),
        (["a.json", "b", "trian"], "unknown mode 'trian'; did you mean 'train'"),
        (["ppo_cartpole", "tran"], "unknown mode 'tran'"),
        (["train", "ppo_cartpole"], "the mode comes last: slm-lab run ppo_cartpole train"),
        (["train", "my specs.yaml"], "the mode comes last: slm-lab run 'my specs.yaml' train"),
    ],
)
def test_words_are_file_name_and_mode(words: list[str], expected: tuple[str, str | None, str] | str) -> None:
    if isinstance(expected, tuple):
        assert split_arguments(words) == expected
        return
    with pytest.raises(LabError, match=expected):
        split_arguments(words)


def test_a_run_from_its_start_to_its_damaged_end(call: Call) -> None:
    code, out, log = call("run", "tiny.yaml", "train", "--profile", "--seed", "7")
    assert code == 0, log
    (folder,) = Path("data").iterdir()
    assert f"slm-lab run enjoy@data/{folder.name}" in out
    assert f"Report   data/{folder.name}/report.html\n" in out
    assert f"train@data/{folder.name}" in (folder / "report.html").read_text()
    assert re.search(r"Score    [\d.]+ \((deterministic|exploring) policy, (last )?.*episodes\)\n", out)
    assert re.search(r"Time     session 0: .*update \d+\.\d%", out)
    assert "Session 0 done" in log
    assert "Trial 0 done" in log
    assert "trial_metrics: frame:6.00e+02 | total_reward_ma:" in log
    assert json.loads((folder / "info" / "tiny_provenance.json").read_text())["versions"]["torch"]
    assert "seed: 7" in (folder / "tiny_spec.yaml").read_text()

    # by mode and by verb
    for words in (["run", f"enjoy@{folder}/*_t0_spec.yaml"], ["enjoy", str(folder)], ["enjoy"]):
        code, out, _ = call(*words, "--episodes", "2")
        assert (code, "over 2 episodes" in out) == (0, True)
    for words in (["train@latest"], ["run", "train@latest"], ["resume"]):
        code, out, _ = call(*words)
        assert code == 0
        assert re.search(r"Time     \d.*: .*\d%", out)
    assert list(Path("data").iterdir()) == [folder]

    code, out, _ = call("collect", str(folder), "-o", "my steps.safetensors", "--frames", "16")
    assert (code, out.splitlines()[-1]) == (0, "Learn    -s 'agent.algorithm.data=my steps.safetensors'")

    for file in (folder / "model").iterdir():
        file.write_bytes(b"garbage")
    # nothing is read of a complete run but its result
    for words in (["resume", str(folder), "-s", "env.max_frame=1200"], ["run", f"enjoy@{folder}"]):
        code, _, error = call(*words)
        assert (code, "damaged" in error) == (2, True)


@pytest.mark.usefixtures("undrawn")
def test_older_forms_without_run_work(call: Call) -> None:
    file = "slm_lab/spec/benchmark/reinforce/reinforce_cartpole.json"
    short = ["-s", "env.max_frame=400", "-s", "meta.max_session=1", "-s", "meta.final_eval=0"]
    assert call(*short, file, "reinforce_cartpole", "train")[0] == 0
    assert len(list(Path("data").iterdir())) == 1


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
        (
            ["run", "ppo_cartpole", "-s", "meta.stop={total_reward: 475}"],
            'mapping expected, got "{total_reward: 475}"; -s takes JSON, with double quotes around keys and text\n',
        ),
        (["run", "ppo_cartpole", "-s", "meta.stop=[475]"], "mapping expected, got [475]\n"),
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
        (["run", "search@latest", "--seed", "3"], "keeps its saved spec"),
        (["run", "train@"], "train@ names no run; give train@DIR or train@latest"),
        (["run", "ppo_cartpole", "search@"], "search@ names no run"),
        (["run", "enjoy@latest", "--seed", "3"], "do not work with enjoy@"),
        (["run", "train@latest", "--continue"], "use only one"),
        (["run", "search@latest", "--continue"], "use only one"),
        (["resume"], "there is no run in data yet"),
        (["enjoy", "nowhere"], "no run folder 'nowhere'"),
        (["search", "ppo_cartpole", "train"], "unknown mode 'train'"),
        (["run", "search", "ppo_cartpole"], "the mode comes last: slm-lab run ppo_cartpole search"),
        (["run", "--render", "ppo_cartpole", "search"], "--render and --profile work with train"),
        (["run", "enjoy@latest", "--profile"], "--profile and --ray-address work with train, not with enjoy@latest"),
        (["run", "enjoy@latest", "--ray-address", "auto"], "work with train, not with enjoy@latest"),
        (["run", "enjoy@latest", "--schedules", "keep"], "--schedules is for a run that grows"),
        (["run", "ppo_cartpole", "train", "--episodes", "3"], "--episodes works with enjoy@DIR, not with train"),
        (["run", "ppo_cartpole", "train", "--video", "x.mp4"], "--video works with enjoy@DIR, not with train"),
        (["run", "train@latest", "--at", "3"], "--at works with enjoy@DIR, not with train@latest"),
        (["run", "grid.yaml", "train", "--render"], "--render and --profile work with a spec, and grid.yaml is an"),
        (["run", "grid.yaml", "train", "--profile"], "--render and --profile work with a spec, and grid.yaml is an"),
        (["run", "ppo_cartpole", "train", "--keep", "1"], "--keep and --validate work with search, not with train"),
        (["run", "ppo_cartpole", "--import", ".."], "--import ..: '..' is not the name of a module"),
        (["run", "ppo_cartpole", "--import", ""], "'' is not the name of a module"),
        (["run", "ppo_cartpole", "--import", "my.py"], "--import my.py: 'my.py' is a file; name the module: my"),
        (["run", "ppo_cartpole", "-s", "env.name=:X"], "module '' of ':X' cannot be imported"),
        (["run", "ppo_cartpole", "-s", "env.name=..:X"], "'..' is not the name of a module"),
        (["run", "x" * 5000 + ".yaml"], "xxx': File name too long"),
        (["run", f"enjoy@{'x' * 5000}"], "xxx': File name too long"),
        (["doctor", "x" * 5000], "xxx': File name too long"),
        (["list", "--data-dir", "x" * 5000], "xxx': File name too long"),
        (["bench", "status", "--data-dir", str(README)], "README.md/bench/remote.json': Not a directory"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments: list[str], message: str, call: Call) -> None:
    code, _, error = call(*arguments)
    assert code == 2
    assert message in error
    assert "Traceback" not in error
    assert not Path("data").exists()


def test_a_foreign_folder_is_refused(call: Call) -> None:
    Path("photos").mkdir()
    for words in (["run", "train@photos"], ["resume", "photos"]):
        code, _, error = call(*words)
        assert (code, "is not a run of this lab" in error) == (2, True)


@pytest.mark.usefixtures("undrawn")
def test_a_run_in_which_no_episode_ended_says_so(call: Call) -> None:
    code, out, _ = call("run", "endless.yaml", "train")
    assert code == 0
    assert "Score    none yet: no episode has ended" in out


def test_a_run_that_fails_at_once_names_no_file_or_command_that_does_not_work(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_env.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action): raise RuntimeError('broken')\n"
        "gym.register('Broken-v0', Broken)\n"
    )
    code, out, log = call("run", "tiny.yaml", "train", "-s", "env.name=broken_env:Broken-v0")
    assert (code, "RuntimeError: broken" in log) == (1, True)
    assert re.fullmatch(r"Files    (data/\S+)\nFailed   sessions \[0\]; resume them with slm-lab run train@\1\n", out)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("number", "code", "num_session"),
    [
        (signal.SIGINT, 130, 1),
        pytest.param(signal.SIGTERM, 143, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_stops_and_train_latest_resumes(
    number: int, code: int, num_session: int, call: Call
) -> None:
    words = ["run", "tiny.yaml", "train", "-s", "env.max_frame=8000", "-s", f"meta.max_session={num_session}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "slm_lab.cli", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "Session 0 frame" in line:
            process.send_signal(number)
            break
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Resume with:\n  slm-lab run train@data/tiny" in out
    ended, _, log = call("run", "train@latest")
    assert ended == 0, log
    assert "Trial 0 done" in log


# --- --continue: the same command starts a run, resumes it, or shows that it is done


def read_table(data_dir: str) -> list[dict[str, str]]:
    """Rows of the only run, without what reads the clock."""
    (path,) = Path(data_dir).glob("*/info/*_t0_s0_session_df_train.csv")
    with path.open() as file:
        return [{key: row[key] for key in row if key not in ("fps", "wall_t")} for row in csv.DictReader(file)]


@pytest.mark.usefixtures("undrawn")
def test_a_killed_run_is_resumed_exactly_then_shown_and_never_mixed_with_another(call: Call) -> None:
    # a folder that a kill left without a spec is no run
    Path("data/tiny_2020_01_01_000000").mkdir(parents=True)
    words = ["run", "tiny.yaml", "train", "-s", "env.max_frame=8000", "-s", "meta.checkpoint_frequency=1000"]
    words.append("--continue")
    process = subprocess.Popen([sys.executable, "-m", "slm_lab.cli", *words], stderr=subprocess.DEVNULL)
    while not list(Path("data").glob("*/model/*_ckpt-last_resume*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert int(float(read_table("data")[-1]["frame"])) < 8000
    assert call(*words)[0] == 0
    folder = max(Path("data").iterdir())
    assert len(list(Path("data").iterdir())) == 2
    assert call(*words, "--data-dir", "whole")[0] == 0
    tables = read_table("data")
    assert tables == read_table("whole")

    code, out, log = call(*words)
    assert (code, f"data/{folder.name} is complete" in log, "Score    " in out) == (0, True, True)
    assert read_table("data") == tables
    code, _, error = call(*words, "--seed", "5")
    assert code == 2
    assert error.splitlines()[-1] == (
        f"Error: data/{folder.name} is a run of 'tiny' with another meta.seed: 0 there, 5 here; "
        "--continue resumes the same spec only: give the same settings, or another --data-dir"
    )
    assert len(list(Path("data").iterdir())) == 2


@pytest.mark.usefixtures("inline", "undrawn")
def test_a_search_and_its_proof_are_resumed(call: Call) -> None:
    command = ["searched.yaml", "--continue", "--validate", "1"]
    code, first, log = call("search", *command)
    assert code == 0, log
    assert len(list(Path("data").iterdir())) == 2
    # as a mode of `run` it is the same search
    code, again, _ = call("run", "searched.yaml", "search", *command[1:])
    assert len(list(Path("data").iterdir())) == 2
    validated = re.compile(r"^Validated .*$", re.M)
    assert validated.findall(first) == validated.findall(again) != []
    code, _, error = call("search", *command, "-s", "meta.max_trial=3")
    assert code == 2
    assert "with another meta.max_trial: 2 there, 3 here" in error
    # a search is resumed as one, whatever it was started by
    (folder,) = (path.parents[1] for path in Path("data").glob("*/info/*_study.log"))
    code, out, _ = call("resume", str(folder), "--keep", "1")
    assert (code, "Trials   2: 2 done" in out) == (0, True)
