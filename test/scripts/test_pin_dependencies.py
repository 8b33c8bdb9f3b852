"""The pin block holds every dependency, and nothing about where it came from."""

import importlib.metadata
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pin_dependencies
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pin_dependencies import BEGIN, END, ROOT, keep_pins, main, parse_export, read_pins, write_pins

BARE = """\
[project]
name = "demo"

[tool.uv]
default-groups = ["dev"]

[build-system]
requires = ["hatchling"]
"""
PINS = ["numpy==2.4.6 ; python_full_version < '3.12'", "numpy==2.5.4 ; python_full_version >= '3.12'", "torch==2.13.0"]


def test_parse_export_keeps_markers_and_strips_local_versions() -> None:
    exported = (
        "# a comment\n\nnumpy==2.4.6 ; python_full_version < '3.12'\ntorch==2.13.0+cpu ; sys_platform == 'linux'\n"
    )
    assert parse_export(exported) == [
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "torch==2.13.0 ; sys_platform == 'linux'",
    ]


def test_parse_export_merges_builds_that_differ_in_their_local_version() -> None:
    assert parse_export("torch==2.13.0\ntorch==2.13.0+cpu\n") == ["torch==2.13.0"]


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "./wheels/torch-2.13.0-py3-none-any.whl",
        "torch @ https://example.com/torch-2.13.0-py3-none-any.whl",
        "torch @ file:///wheels/torch-2.13.0-py3-none-any.whl",
        "--index-url https://example.com/simple",
        "--find-links /wheels",
        "torch>=2.13.0",
        "torch",
        "torch==2.13.0 --hash=sha256:abc",
        "torch==2.13.0 ; sys_platform == 'https://example.com'",
    ],
)
def test_parse_export_refuses_anything_that_is_not_a_plain_pin(line: str) -> None:
    with pytest.raises(ValueError, match="cannot pin"):
        parse_export(f"numpy==2.4.6\n{line}\n")


def test_parse_export_refuses_an_empty_export() -> None:
    with pytest.raises(ValueError, match="no dependency"):
        parse_export("# nothing\n")


def test_write_pins_round_trips_and_leaves_the_rest_alone() -> None:
    pinned = write_pins(BARE, PINS)
    assert read_pins(pinned) == PINS
    assert tomllib.loads(pinned)["tool"]["uv"] == {"default-groups": ["dev"], "constraint-dependencies": PINS}
    assert write_pins(pinned, []) == BARE


def test_write_pins_is_idempotent_and_replaces_old_pins() -> None:
    pinned = write_pins(BARE, PINS)
    assert write_pins(pinned, PINS) == pinned
    assert write_pins(pinned, ["torch==2.14.0"]) == write_pins(BARE, ["torch==2.14.0"])


def test_write_pins_refuses_hand_written_constraints_outside_the_block() -> None:
    with pytest.raises(ValueError, match="outside"):
        write_pins(BARE.replace("[tool.uv]\n", '[tool.uv]\nconstraint-dependencies = ["numpy<3"]\n'), PINS)


def test_write_pins_needs_the_table() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        write_pins('[project]\nname = "demo"\n', PINS)


def test_read_pins_without_a_block_is_empty() -> None:
    assert read_pins(BARE) == []


def test_keep_pins_frees_only_what_may_move() -> None:
    assert keep_pins(PINS, upgrade=False, upgrade_packages=[]) == PINS
    assert keep_pins(PINS, upgrade=False, upgrade_packages=["NumPy"]) == ["torch==2.13.0"]
    assert keep_pins(PINS, upgrade=True, upgrade_packages=[]) == []


class FakeUv:
    """Stands in for uv: records each call and prints a fixed export."""

    def __init__(self, exported: str, fails: bool = False) -> None:
        self.exported = exported
        self.fails = fails
        self.environments: list[dict[str, str]] = []
        self.pyprojects: list[str] = []

    def __call__(
        self, command: Sequence[str], *, cwd: str, env: dict[str, str], **_: Any
    ) -> subprocess.CompletedProcess[str]:
        if self.fails:
            raise subprocess.CalledProcessError(2, list(command))
        self.environments.append(env)
        self.pyprojects.append(Path(cwd, "pyproject.toml").read_text(encoding="utf-8"))
        return subprocess.CompletedProcess(list(command), 0, stdout=self.exported if command[1] == "export" else "")


@pytest.mark.parametrize(
    ("options", "kept"), [([], PINS), (["--upgrade"], []), (["--upgrade-package", "torch"], PINS[:2])]
)
def test_main_resolves_apart_from_find_links_and_with_the_kept_pins_only(
    options: list[str], kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", "/wheels")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://example.com/simple")
    uv = FakeUv("numpy==2.6.0\ntorch==2.14.0+cpu\n")
    monkeypatch.setattr(pin_dependencies.subprocess, "run", uv)
    path = tmp_path / "pyproject.toml"
    path.write_text(write_pins(BARE, PINS), encoding="utf-8")

    assert main(options, path=path) == 0

    assert len(uv.environments) == 2
    assert all("UV_FIND_LINKS" not in environment for environment in uv.environments)
    assert all(environment["UV_DEFAULT_INDEX"] == "https://example.com/simple" for environment in uv.environments)
    assert uv.pyprojects == [write_pins(BARE, kept)] * 2
    assert path.read_text(encoding="utf-8") == write_pins(BARE, ["numpy==2.6.0", "torch==2.14.0"])


def test_main_leaves_the_file_alone_when_uv_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pin_dependencies.subprocess, "run", FakeUv("", fails=True))
    path = tmp_path / "pyproject.toml"
    path.write_text(write_pins(BARE, PINS), encoding="utf-8")
    assert main([], path=path) == 1
    assert path.read_text(encoding="utf-8") == write_pins(BARE, PINS)
    assert "pins left as they were" in capsys.readouterr().err


@pytest.fixture(scope="module")
def pyproject() -> str:
    """The project's own pyproject.toml."""
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def requirements(pyproject: str) -> list[Requirement]:
    """Return the project's direct requirements, from every extra and group."""
    tables = tomllib.loads(pyproject)
    project = tables["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *tables["dependency-groups"].values()]
    # a group may include another one, which is listed itself
    found = [Requirement(line) for lines in lists for line in lines if isinstance(line, str)]
    return [requirement for requirement in found if requirement.name != project["name"]]


def test_the_projects_pins_are_exact_and_name_no_source(pyproject: str) -> None:
    assert pyproject.count(BEGIN) == pyproject.count(END) == 1
    pins = read_pins(pyproject)
    assert parse_export("\n".join(pins)) == pins


def test_each_package_has_one_version_on_every_python(pyproject: str) -> None:
    # Pins that split by Python version make uv pass over a CPU build of torch given through find-links.
    names = [Requirement(pin).name for pin in read_pins(pyproject)]
    assert sorted(names) == sorted(set(names))


def test_every_direct_requirement_is_pinned_to_a_version_it_allows(pyproject: str) -> None:
    pins = [Requirement(pin) for pin in read_pins(pyproject)]
    for requirement in requirements(pyproject):
        name = canonicalize_name(requirement.name)
        versions = [next(iter(pin.specifier)).version for pin in pins if pin.name == name]
        assert versions, f"{name} has no pin: run scripts/pin_dependencies.py"
        assert all(requirement.specifier.contains(version) for version in versions), f"stale pin of {name}"


def test_every_transitive_requirement_is_pinned(pyproject: str) -> None:
    pinned = {Requirement(pin).name for pin in read_pins(pyproject)}
    waiting = [(requirement, extra) for requirement in requirements(pyproject) for extra in ("", *requirement.extras)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        assert name in pinned, f"{name} has no pin: run scripts/pin_dependencies.py"
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # The CPU and CUDA builds of torch need different libraries; only what is installed can be walked.
            continue
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed, inner) for inner in ("", *needed.extras)]
    assert len(seen) > len(requirements(pyproject))
