"""The command's front door: light help, routing, older forms without `run`, and typing mistakes."""

import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import pytest

from slm_lab.cli import main as main_module
from slm_lab.cli.main import COMMANDS, route
from slm_lab.lib.errors import LabError
from slm_lab.spec import loading
from test.cli.conftest import Call

LOADED = """
import sys
sys.argv = ["slm-lab", *sys.argv[1:]]
from slm_lab.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize(
    ("arguments", "needed", "heavy"),
    [
        (["--help"], "typer", {"torch", "pydantic", "gymnasium", "numpy", "yaml", "matplotlib", "loguru"}),
        (["spec", "check", "ppo_cartpole"], "pydantic", {"torch", "gymnasium", "matplotlib"}),
    ],
)
def test_a_command_loads_no_more_than_it_needs(arguments: list[str], needed: str, heavy: set[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.splitlines()[-1].split())
    assert needed in loaded
    assert loaded & heavy == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["spec.json", "name", "train"],
        ["slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "dev"],
        ["spec.yaml"],
        ["run.yaml", "train"],
        ["specs.yml"],
        ["ppo_cartpole"],
        ["ppo_cartpole", "train"],
        ["train@latest"],
        ["train@data/ppo_cartpole_2026_01_01_000000"],
        ["search@latest"],
        ["enjoy@data/x"],
        ["dev"],
        ["train"],
        ["-s", "env=CartPole-v1", "spec.json", "name", "train"],
        ["--render", "spec.json", "name", "dev"],
        ["spec.json", "spec", "train"],
    ],
)
def test_older_forms_without_run_still_run(arguments: list[str]) -> None:
    assert route(arguments) == ["run", *arguments]
    assert route(["run", *arguments]) == ["run", *arguments]


def test_every_command_is_routed_to_itself() -> None:
    for name in COMMANDS:
        assert route([name, "--help", "x"]) == [name, "--help", "x"]


@pytest.mark.parametrize(("typed", "meant"), [("rn", "run"), ("runn", "run"), ("specs", "spec"), ("doctr", "doctor")])
@pytest.mark.parametrize("rest", [[], ["latest", "--data-dir", "x"]])
def test_a_mistyped_command_is_told_the_nearest(call: Call, typed: str, meant: str, rest: list[str]) -> None:
    assert call(typed, *rest) == (2, "", f"Error: no command '{typed}'; did you mean 'slm-lab {meant}'?\n")


def test_a_spec_is_never_a_mistyped_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command in COMMANDS:
        monkeypatch.setattr(loading, "SHIPPED", tmp_path / "none")
        with pytest.raises(LabError, match=r"did you mean 'slm-lab \S+'"):
            route([f"{command}s", "train"])
        # a spec of that name, in a file of another; then a file of that name
        folder = tmp_path / command
        folder.mkdir()
        (folder / "other.json").write_text(f'{{"{command}s": {{}}, "{command}x": {{}}}}')
        (folder / f"{command}y.yaml").write_text("some: {}")
        monkeypatch.setattr(loading, "SHIPPED", folder)
        for word in (f"{command}s", f"{command}x", f"{command}y"):
            assert route([word, "train"]) == ["run", word, "train"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_groups_every_command_and_says_how_to_start(call: Call, arguments: list[str]) -> None:
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    places = [out.index(f"─ {panel} ─") for panel in ("Train", "Look", "Share", "Maintain")]
    assert places == sorted(places)
    for name, entry in COMMANDS.items():
        assert f"│ {name} " in out
        assert entry.help[:40] in out
    assert "slm-lab run ppo_cartpole train" in out


def test_version_is_the_installed_one(call: Call) -> None:
    assert call("--version") == (0, f"slm-lab {version('slm-lab')}\n", "")


@pytest.mark.parametrize("command", [["spec"], ["run"], ["search"], ["resume"], ["enjoy"]])
def test_a_command_says_how_it_is_used(call: Call, command: list[str]) -> None:
    code, out, _ = call(*command, "--help")
    assert code == 0
    assert f"Usage: slm-lab {command[0]} " in out


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        # before training, so there is nothing to save
        (KeyboardInterrupt(), 130, ""),
        (ModuleNotFoundError("no torch", name="torch"), 2, "Error: this command needs torch; run `uv sync`, or"),
        (ModuleNotFoundError("no slm_lab.x", name="slm_lab.x"), 1, "ModuleNotFoundError: no slm_lab.x"),
        (LabError("wrong"), 2, "Error: wrong"),
        (ZeroDivisionError("a bug"), 1, "Traceback (most recent call last)"),
    ],
)
def test_an_error_has_one_meaning(
    monkeypatch: pytest.MonkeyPatch, call: Call, error: BaseException, code: int, told: str
) -> None:
    def fail(name: str) -> NoReturn:
        raise error

    monkeypatch.setattr(main_module, "import_module", fail)
    ended, out, err = call("run")
    assert (ended, out) == (code, "")
    assert told in err


def test_an_unknown_option_is_one_line(call: Call) -> None:
    code, _, err = call("run", "--foo")
    assert code == 2
    assert err.splitlines()[-1] == "Error: No such option: --foo"


def test_ui_without_its_packages_says_how_to_get_them(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slm_lab.cli.ui.find_spec", lambda name: None)
    message = "slm-lab ui needs fastapi and uvicorn: run `uv sync --group ui`, or `pip install '.[ui]'`"
    assert call("ui") == (2, "", f"Error: {message}\n")


def test_ui_refuses_a_folder_that_is_not_there_and_a_port_that_is_taken(call: Call, tmp_path: Path) -> None:
    code, _, err = call("ui", "--data-dir", "nothing")
    assert (code, "there is no such folder" in err) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = call("ui", "--data-dir", str(tmp_path), "--port", port)
    assert (code, f"--port {port}: cannot listen on 127.0.0.1" in err) == (2, True)
