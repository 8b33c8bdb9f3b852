"""Where a run folder is opened: what leads out of it is refused."""

import os
import re
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.experiment.search_run import _find_latest
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import write_yaml
from slm_lab.results import folder
from slm_lab.results.folder import (
    RunFolder,
    find_run_path,
    find_same_run,
    is_running,
    match_names,
    open_run_folder,
    replay_file,
    save_spec,
)
from slm_lab.spec.loading import dump_spec, load_spec
from slm_lab.spec.reader import read_document

NAME = "ppo_cartpole"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "run"
    for name in ("info", "log", "model"):
        (path / name).mkdir(parents=True)
    write_yaml(path / f"{NAME}_spec.yaml", dump_spec(load_spec(NAME).spec))
    return path


@pytest.mark.parametrize("place", ["model", "graph", f"log/{NAME}_t0_s0", f"info/{NAME}_study.log"])
def test_a_run_with_a_link_that_is_written_to_is_refused(run: Path, tmp_path: Path, place: str) -> None:
    assert open_run_folder(str(run), tmp_path)[0].path == run
    outside = tmp_path / "outside"
    outside.mkdir()
    link = run / place
    if link.is_dir():
        link.rmdir()
    if link.suffix:
        outside = outside / "journal"
        outside.write_text("mine")
    link.symlink_to(outside)
    for where in (str(run), str(run / f"{NAME}_spec.yaml"), "latest", f"{tmp_path}/data/r*"):
        with pytest.raises(RunFolderError, match=f"{place} is a link"):
            find_run_path(where, run.parent)
    with pytest.raises(RunFolderError, match=f"{place} is a link"):
        open_run_folder(str(run), run.parent)


def test_a_pattern_is_looked_up_here_and_else_in_the_data_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for where in ("run", "r*", "ru?", f"r*/{NAME}_spec.yaml"):
        assert find_run_path(where, run.parent) == run, where
    # what is here comes first, as for a plain name
    (tmp_path / "rush").mkdir()
    assert find_run_path("r*", run.parent) == Path("rush")
    (run.parent / "rerun").mkdir()
    with pytest.raises(RunFolderError, match=r"must match one run, but matches\n  .*rerun\n  .*run$"):
        find_run_path("*un", run.parent)
    with pytest.raises(RunFolderError, match=r"must match one run, but matches nothing \(`slm-lab list"):
        find_run_path("x*", run.parent)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a_1", "a_2", "b"]),
        ("a", ["a_1", "a_2"]),
        ("a_*", ["a_1", "a_2"]),
        ("?_2", ["a_2"]),
        ("b", ["b"]),
        ("c*", []),
    ],
)
def test_names_by_part_or_pattern(pattern: str, expected: list[str]) -> None:
    assert match_names(["b", "a_2", "a_1"], pattern) == expected


def test_the_folder_of_a_run_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "near").symlink_to(run)
    assert open_run_folder(str(tmp_path / "near"), tmp_path)[0].name == NAME


def test_the_name_of_a_file_of_rows_is_made_in_one_place() -> None:
    assert replay_file(RunFolder(Path("run"), "x").replay_prefix(0, 1, "memory"), 0, 6) == Path(
        "run/model/x_t0_s1_replay-memory_0-6.safetensors"
    )
    lab = Path(folder.__file__).parents[1]
    found = [path.name for path in lab.rglob("*.py") if re.search(r"\}-\{[^}]*\}\{STATE_SUFFIX", path.read_text())]
    assert found == ["folder.py"]


@pytest.mark.timeout(20)
def test_a_run_with_a_pipe_for_a_lock_is_not_running(run: Path) -> None:
    os.mkfifo(run / "model" / ".a.lock")
    assert not is_running(run)


def make_runs(data: Path, *names: str) -> None:
    """Runs of shipped specs, the first the oldest."""
    for age, name in enumerate(names):
        spec = load_spec(name.partition(":")[0], overrides={"env": "ALE/Pong-v5"} if ":" in name else None).spec
        path = data / f"{spec.name}_{age}"
        (path / "info").mkdir(parents=True)
        save_spec(path / f"{spec.name}_spec.yaml", spec)
        os.utime(path / f"{spec.name}_spec.yaml", (age, age))


def test_latest_of_a_spec_is_the_newest_run_of_that_spec(tmp_path: Path) -> None:
    make_runs(tmp_path, "ppo_cartpole", "ppo_cartpole", "ppo_cartpole_arc", "sac_pendulum")
    assert open_run_folder("latest", tmp_path)[0].path.name == "sac_pendulum_3"
    assert open_run_folder("latest", tmp_path, "ppo_cartpole")[0].path.name == "ppo_cartpole_1"
    assert open_run_folder("latest", tmp_path, "ppo_cartpole_arc")[0].path.name == "ppo_cartpole_arc_2"
    with pytest.raises(RunFolderError, match=r"there is no run of 'ppo_pendulum' in .* yet"):
        open_run_folder("latest", tmp_path, "ppo_pendulum")
    with pytest.raises(RunFolderError, match=r"is a run of 'sac_pendulum', not of 'ppo_cartpole'"):
        open_run_folder("sac_pendulum_3", tmp_path, "ppo_cartpole")
    # the name of one spec may begin as that of another
    with pytest.raises(RunFolderError, match=r"is a run of 'ppo_cartpole_arc', not of 'ppo_cartpole'"):
        open_run_folder("ppo_cartpole_arc_2", tmp_path, "ppo_cartpole")


def test_latest_search_of_a_spec_is_one_of_that_spec(tmp_path: Path) -> None:
    make_runs(tmp_path, "ppo_cartpole", "ppo_cartpole_arc")
    for age, name in enumerate(("ppo_cartpole", "ppo_cartpole_arc")):
        journal = tmp_path / f"{name}_{age}" / "info" / f"{name}_study.log"
        journal.touch()
        os.utime(journal, (age, age))
    assert _find_latest(tmp_path, None) == str(tmp_path / "ppo_cartpole_arc_1")
    assert _find_latest(tmp_path, "ppo_cartpole") == str(tmp_path / "ppo_cartpole_0")
    with pytest.raises(RunFolderError, match="there is no search of 'sac_pendulum'"):
        _find_latest(tmp_path, "sac_pendulum")


def test_a_run_of_a_spec_whose_env_was_given_is_one_of_that_spec(tmp_path: Path) -> None:
    make_runs(tmp_path, "ppo_atari:", "ppo_cartpole")
    assert open_run_folder("latest", tmp_path, "ppo_atari")[0].name == "ppo_atari_pong"


def test_a_run_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_runs(tmp_path, "ppo_cartpole", "sac_pendulum", "ppo_pendulum")
    (tmp_path / "ppo_pendulum_2" / "ppo_pendulum_spec.yaml").write_bytes(b"\xff: [")
    whole = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        # as a folder of somebody else's answers; the tests may be root, whom nothing is refused
        if path.parent.name == "sac_pendulum_1":
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    try:
        assert open_run_folder("latest", tmp_path, "ppo_cartpole")[0].name == "ppo_cartpole"
    finally:
        logger.remove(sink)
    (told,) = lines
    assert "sac_pendulum_spec.yaml: cannot be read (Permission denied)" in told


def test_the_commit_stands_in_a_saved_spec_and_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_runs(tmp_path, "ppo_cartpole")
    file = tmp_path / "ppo_cartpole_0" / "ppo_cartpole_spec.yaml"
    commit = read_document(file)["ppo_cartpole"]["meta"]["git_sha"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", commit)
    spec = load_spec("ppo_cartpole").spec
    # neither code of another commit nor a run without one is another spec
    for known in ("0" * 40, None):
        monkeypatch.setattr("slm_lab.results.folder.git_sha", lambda known=known: known)
        save_spec(file, spec)
        assert read_document(file)["ppo_cartpole"]["meta"]["git_sha"] == (known or "unknown")
        assert load_spec(file, "ppo_cartpole").notes == ()
        assert find_same_run(spec, tmp_path, is_search=False) == file.parent
