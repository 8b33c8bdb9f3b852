"""`slm_lab.read` gives the rows of all sessions, with whatever library of tables is installed."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slm_lab
from slm_lab.lib.errors import RunFolderError
from slm_lab.results.folder import RunFolder
from test.results.sample import make_table, write_run, write_table

LIBRARIES = ("pandas", "polars")


@pytest.fixture(params=[*LIBRARIES, None])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The library that is installed, a stand-in that keeps its columns; the others are missing, or empty folders."""
    for name, other in zip(LIBRARIES, (types.ModuleType("pandas"), None), strict=True):
        monkeypatch.setitem(sys.modules, name, other)
    if request.param is not None:
        module: Any = types.ModuleType(request.param)
        module.DataFrame = lambda columns: {"made by": request.param, **columns}
        monkeypatch.setitem(sys.modules, request.param, module)
    chosen: str | None = request.param
    return chosen


def test_the_rows_of_all_sessions_are_one_table(tmp_path: Path, library: str | None) -> None:
    tables = {0: make_table(3), 2: make_table(2, seed=1, kl=np.array([0.5, 0.25]))}
    run = write_run(tmp_path / "run", tables, {2: make_table(1, 1000)})
    data = slm_lab.read("run", tmp_path)
    assert data.df.pop("made by", None) == library
    assert next(iter(data.df)) == "session"
    assert data.df["session"].tolist() == [0, 0, 0, 2, 2]
    assert data.df["frame"].tolist() == [500, 1000, 1500, 500, 1000]
    assert data.df["frame"].dtype == data.df["session"].dtype == int
    assert data.df["total_reward"].tolist() == [*tables[0]["total_reward"], *tables[2]["total_reward"]]
    # a column of one session only
    np.testing.assert_equal(data.df["kl"], [np.nan] * 3 + [0.5, 0.25])
    assert data.eval_df["session"].tolist() == [2]
    assert data.spec["env"]["name"] == "CartPole-v1"
    assert (data.score, data.scores) == (pytest.approx(np.mean(run.scores)), run.scores)


def test_episodes_are_there_where_a_run_logged_them(tmp_path: Path, warnings: list[str]) -> None:
    run = write_run(tmp_path / "run", {0: make_table(3), 1: make_table(3)})
    assert slm_lab.read(tmp_path / "run").run.path == run.path
    empty = slm_lab.read("run", tmp_path).episodes
    assert [len(empty[name]) for name in ("session", "frame", "total_reward")] == [0, 0, 0]
    folder = RunFolder(run.path, run.name)
    names = ("frame", "env", "total_reward", "episode_length")
    table = dict(zip(names, np.arange(12.0).reshape(4, 3), strict=True))
    write_table(folder.table_file(0, 1, "episode"), table)
    folder.table_file(0, 0, "episode").write_text("frame,total_reward\n1,what\n")
    episodes = slm_lab.read("run", tmp_path).episodes
    assert list(episodes) == ["session", *names]
    assert list(episodes["session"]) == [1, 1, 1]
    assert list(episodes["episode_length"]) == [9, 10, 11]
    assert len(warnings) == 1
    assert "demo_t0_s0_session_df_episode.csv is left out: could not convert" in warnings[0]


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "mine")
    with pytest.raises(RunFolderError, match=r"^no run folder 'mien'; did you mean 'mine'\?"):
        slm_lab.read("mien", tmp_path)
