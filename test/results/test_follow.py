"""Tables that grow while they are read."""

from pathlib import Path

import numpy as np
import pytest

from slm_lab.results import follow
from slm_lab.results.follow import NUM_LAST, FollowedTable
from slm_lab.results.table import read_table

HEAD = "frame,total_reward,loss\n"


def write_rows(path: Path, first: int, last: int, value: float = 1.0) -> None:
    with path.open("a") as file:
        file.writelines(f"{frame},{frame / 2},{value}\n" for frame in range(first, last))


def test_a_growing_table_is_what_a_fresh_look_finds(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(HEAD)
    table = FollowedTable(path)
    assert {name: len(column) for name, column in table.read().items()} == dict(frame=0, total_reward=0, loss=0)
    for first in range(0, 50, 10):
        write_rows(path, first, first + 10)
        with path.open("a") as file:
            file.write("99,")
        found, fresh = table.read(), read_table(path)
        assert list(found) == list(fresh)
        assert all(np.array_equal(found[name], fresh[name], equal_nan=True) for name in fresh)
        assert table.read() is found
        path.write_text(path.read_text().removesuffix("99,"))


def test_a_table_that_was_cut_back_and_grew_again_is_read_from_the_start(tmp_path: Path) -> None:
    """As by a resumed session, also where it is as long as before."""
    path = tmp_path / "table.csv"
    path.write_text(HEAD)
    write_rows(path, 0, 20)
    table = FollowedTable(path)
    table.read()
    for last, value in ((20, 2.0), (30, 3.0)):
        kept = path.read_text().splitlines(keepends=True)[:11]
        path.write_text("".join(kept))
        write_rows(path, 10, last, value)
        assert table.read()["loss"].tolist() == read_table(path)["loss"].tolist()


def test_a_long_table_is_thinned_but_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MAX_ROWS", 500)
    path = tmp_path / "table.csv"
    path.write_text(HEAD)
    write_rows(path, 0, 300)
    grown = FollowedTable(path)
    assert len(grown.read()["frame"]) == 300
    for first in range(300, 12_300, 1000):
        write_rows(path, first, first + 1000)
        frames = grown.read()["frame"]
        assert len(frames) <= 2 * 500 + NUM_LAST
        assert frames[-NUM_LAST:].tolist() == list(range(first + 1000 - NUM_LAST, first + 1000))
        assert (np.diff(frames) > 0).all()
        # evenly, up to the rows that are all there
        assert set(np.diff(frames[: -NUM_LAST - 1])) <= {grown.stride}
    assert grown.num_row == 12_300
    at_once = FollowedTable(path)
    at_once.read()
    # guessed from its first row, which is shorter than most
    assert (grown.stride, at_once.stride) == (16, 32)


def test_a_damaged_table_is_an_error_each_time(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{HEAD}1,2,x\n")
    table = FollowedTable(path)
    for _ in range(2):
        with pytest.raises(ValueError, match="could not convert"):
            table.read()
    path.write_text(f"{HEAD}1,2,3\n")
    assert table.read()["loss"].tolist() == [3]
