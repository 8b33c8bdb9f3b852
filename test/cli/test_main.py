"""The command's front door: light help, routing, older forms without `run`, and typing mistakes."""

import subprocess
import sys
import types
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import pytest

from slm_lab.cli import main as main_module
from slm_lab.cli.main import COMMANDS, main, route
from slm_lab.spec import loading

HEAVY = ("torch", "pydantic", "typer", "gymnasium", "numpy", "yaml", "matplotlib", "loguru")
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


def loaded_by(*arguments: str) -> set[str]:
    """Top packages that a command has imported by its end."""
    ran = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    return set(ran.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_no_heavy_package(argument: str) -> None:
    loaded = loaded_by(argument)
    assert "slm_lab" in loaded
    assert loaded & set(HEAVY) == set()


def test_spec_commands_need_no_torch() -> None:
    loaded = loaded_by("spec", "check", "ppo_cartpole")
    assert "pydantic" in loaded
    assert loaded & {"torch", "gymnasium", "matplotlib"} == set()


Recorded = list[tuple[list[str], str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Replaces every command by a recorder of (arguments, program name)."""
    recorded: Recorded = []

    def app(args: list[str], prog_name: str) -> None:
        recorded.append((args, prog_name))

    def load(name: str) -> types.ModuleType | types.SimpleNamespace:
        return types.SimpleNamespace(app=app) if name.startswith("slm_lab.cli.") else import_module(name)

    monkeypatch.setattr(main_module, "import_module", load)
    return recorded


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command in this process; its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["slm-lab", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def test_every_command_is_routed_to_itself() -> None:
    for name in COMMANDS:
        assert route([name]) == (name, [])
        assert route([name, "--help", "x"]) == (name, ["--help", "x"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["spec.json", "name", "train"],
        ["slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "dev"],
        ["spec.yaml"],
        ["ppo_cartpole"],
        ["ppo_cartpole", "train"],
        ["train@latest"],
        ["train@data/ppo_cartpole_2026_01_01_000000"],
        ["enjoy@data/x"],
        ["dev"],
        ["train"],
        ["search"],
        ["-s", "env=CartPole-v1", "spec.json", "name", "train"],
        ["--render", "spec.json", "name", "dev"],
        ["spec.json", "spec", "train"],
    ],
)
def test_older_forms_without_run_still_run(calls: Recorded, call: Callable[..., int], arguments: list[str]) -> None:
    assert route(arguments) == ("run", arguments)
    assert call(*arguments) == 0
    assert call("run", *arguments) == 0
    assert calls == [(arguments, "slm-lab run")] * 2


@pytest.mark.parametrize(("typed", "meant"), [("rn", "run"), ("runn", "run"), ("specs", "spec"), ("doctr", "doctor")])
@pytest.mark.parametrize("rest", [[], ["latest"], ["latest", "--data-dir", "x"]])
def test_a_mistyped_command_is_told_the_nearest(
    calls: Recorded,
    call: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    typed: str,
    meant: str,
    rest: list[str],
) -> None:
    assert call(typed, *rest) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"Error: no command '{typed}'; did you mean 'slm-lab {meant}'?\n")
    assert calls == []


@pytest.mark.parametrize("typed", ["spec.json", "run.yaml", "specs.yml"])
def test_a_file_is_never_a_mistyped_command(calls: Recorded, call: Callable[..., int], typed: str) -> None:
    assert call(typed) == 0
    assert call(typed, "train") == 0
    assert calls == [([typed], "slm-lab run"), ([typed, "train"], "slm-lab run")]


def test_a_spec_is_never_a_mistyped_command(
    calls: Recorded, call: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for command in COMMANDS:
        monkeypatch.setattr(loading, "SHIPPED", tmp_path / "none")
        assert call(f"{command}s", "train") == 2
        # a spec of that name, in a file of another; then a file of that name
        folder = tmp_path / command
        folder.mkdir()
        (folder / "other.json").write_text(f'{{"{command}s": {{}}, "{command}x": {{}}}}')
        (folder / f"{command}y.yaml").write_text("some: {}")
        monkeypatch.setattr(loading, "SHIPPED", folder)
        for word in (f"{command}s", f"{command}x", f"{command}y"):
            assert call(word, "train") == 0
            assert calls.pop() == ([word, "train"], "slm-lab run")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_and_how_to_start(
    calls: Recorded, call: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert call(*arguments) == 0
    out, err = capsys.readouterr()
    for name, (_, text) in COMMANDS.items():
        assert f"  {name:<12} {text}\n" in out
    assert "slm-lab run ppo_cartpole train" in out
    assert err == ""
    assert calls == []


def test_version_is_the_installed_one(call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"slm-lab {version('slm-lab')}\n"


def test_an_interrupt_before_training_exits_quietly(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "import_module", interrupt)
    assert call("run") == 130
    assert capsys.readouterr() == ("", "")


def test_without_torch_the_install_is_named(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(main_module, "import_module", missing)
    assert call("run") == 2
    assert "this command needs torch" in capsys.readouterr().err


def test_a_missing_module_of_the_lab_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'slm_lab.x'", name="slm_lab.x")

    monkeypatch.setattr(main_module, "import_module", missing)
    assert call("run") == 1
    assert "Traceback" in (error := capsys.readouterr().err)
    assert "ModuleNotFoundError: No module named 'slm_lab.x'" in error


def test_a_command_says_how_it_is_used(call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("spec", "--help") == 0
    assert "Usage: slm-lab spec " in capsys.readouterr().out
