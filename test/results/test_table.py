"""Tables of numbers are read as Python reads numbers, in little memory."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from slm_lab.results.table import read_table


def test_a_row_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    # half of 300
    path.write_text("total_reward,frame\n,100\n5,200\n7,3")
    assert read_table(path)["frame"].tolist() == [100.0, 200.0]
    path.write_text("total_reward,frame\n,100\n5,200\n7\n")
    read = read_table(path)
    assert read["frame"].tolist() == [100.0, 200.0]
    assert math.isnan(read["total_reward"][0])


@pytest.mark.parametrize("piece", [100, 1000])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_table_is_read_as_python_reads_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, line_break: str
) -> None:
    monkeypatch.setattr("slm_lab.results.table._PIECE", piece)
    cells = [repr(value) for value in np.random.default_rng(0).normal(0, 1e5, 90).tolist()]
    cells += ["5e-324", "1.7976931348623157e308", "inf", "-INF", "nan", "+.5", "1.", "-0", "", "9" * 20, " 7 ", '"8"']
    rows = [cells[index : index + 3] for index in range(0, len(cells), 3)]
    rows += [["", "", ""], ["1", "", ""], ["", "", "2"]]
    lines = ["a,b,c", *(",".join(row) for row in rows), "", "1,2", "1,2,3,4"]
    path = tmp_path / "table.csv"
    path.write_bytes((line_break.join(lines) + line_break + "1,2,3").encode())
    read = read_table(path)
    expected = np.array([[float(cell.strip('"') or "nan") for cell in row] for row in rows])
    assert np.array_equal(np.stack([read[name] for name in "abc"], 1), expected, equal_nan=True)


def test_a_table_of_one_column_has_no_blank_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("frame\n\n1\n\n2\n")
    assert read_table(path)["frame"].tolist() == [1.0, 2.0]
    path.write_text("\n1\n")
    assert read_table(path) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("frame,x\n1,two\n", "could not convert string to float: 'two'"),
        ("frame,x\n1,1-2\n", "could not convert string to float: '1-2'"),
        ("frame,x\n1,2e\n", "could not convert string to float: '2e'"),
        ("frame,x\n" + "1" * 3_000_000 + "1,2\n", "a row of more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_number_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        read_table(tmp_path / "table.csv")


def test_a_table_takes_little_more_memory_than_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    # small pieces, so that a table of many needs few rows: tracing memory is slow
    monkeypatch.setattr("slm_lab.results.table._PIECE", 1 << 12)
    tracemalloc.start()
    try:
        # blank lines, of which nothing is kept, and 480 kB of numbers, twice while they are put together
        for text, count, most in (("1,2\n" + "\n" * 60_000, 1, 500_000), ("100,2.5\n" * 30_000, 30_000, 1_700_000)):
            path.write_text(f"frame,x\n{text}")
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert len(read_table(path)["frame"]) == count
            assert tracemalloc.get_traced_memory()[1] - before < most
    finally:
        tracemalloc.stop()
    monkeypatch.setattr("slm_lab.results.table.MAX_NUMBERS", 40_000)
    with pytest.raises(ValueError, match="it holds more than 40,000 numbers"):
        read_table(path)
