"""Where a run folder is opened: what leads out of it is refused."""

import os
import re
from pathlib import Path

import pytest

from slm_lab.experiment import folder
from slm_lab.experiment.folder import RunFolder, find_run_path, is_running, open_run_folder, replay_file
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import write_yaml
from slm_lab.spec.loading import dump_spec, load_spec

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


def test_the_folder_of_a_run_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "near").symlink_to(run)
    assert open_run_folder(str(tmp_path / "near"), tmp_path)[0].name == NAME


def test_the_name_of_a_file_of_rows_is_made_in_one_place() -> None:
    assert replay_file(RunFolder(Path("run"), "x").replay_prefix(0, 1, "memory"), 0, 6) == Path(
        "run/model/x_t0_s1_replay-memory_0-6.pt"
    )
    lab = Path(folder.__file__).parents[1]
    found = [path.name for path in lab.rglob("*.py") if re.search(r"\}-\{[^}]*\}\.pt", path.read_text())]
    assert found == ["folder.py"]


@pytest.mark.timeout(20)
def test_a_run_with_a_pipe_for_a_lock_is_not_running(run: Path) -> None:
    os.mkfifo(run / "model" / ".a.lock")
    assert not is_running(run)
