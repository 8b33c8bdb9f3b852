"""The check of the wheel: what it must hold, which versions are tried, and that the page shows them."""

import re
import subprocess

import check_wheel
import pytest
from check_wheel import BLOCK, PAGE, PYTHONS, STEPS, Row, find_content_problems, format_table, install, last_line


def test_a_wheel_that_lacks_or_adds_a_file_is_refused() -> None:
    tracked = ["slm_lab/api.py", "slm_lab/spec/benchmark/ppo/ppo_cartpole.yaml", "slm_lab/results/report_page/page.js"]
    assert not find_content_problems([*tracked, "slm_lab-0.2.0.dist-info/METADATA"], tracked)
    assert find_content_problems([*tracked[:2], "test/test_api.py"], tracked) == [
        "the wheel lacks slm_lab/results/report_page/page.js",
        "the wheel has test/test_api.py",
    ]


def test_the_oldest_and_newest_torch_come_from_the_project(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(check_wheel, "ROOT", tmp_path)
    project = '[project.optional-dependencies]\nml = ["numpy", "{}"]\n'
    (tmp_path / "pyproject.toml").write_text(project.format("torch>=2.13,<2.16"))
    assert check_wheel.read_torch_versions() == ("2.13", "2.15")
    (tmp_path / "pyproject.toml").write_text(project.format("torch==2.13.0"))
    with pytest.raises(SystemExit, match=r"is not torch>=A\.B,<C\.D"):
        check_wheel.read_torch_versions()


def test_the_wheel_is_installed_with_the_torch_asked_for(tmp_path) -> None:
    made, installed = install(tmp_path, "/usr/bin/python3", tmp_path / "slm_lab.whl", "2.15")
    assert made[:2] == ["uv", "venv"]
    assert installed[-2:] == [f"slm-lab[ml] @ file://{tmp_path}/slm_lab.whl", "torch==2.15.*"]
    assert install(tmp_path, "/usr/bin/python3", None, "")[1][-1] == f"{check_wheel.ROOT}[ml]"


def test_a_step_that_fails_or_cannot_compile_is_in_the_row(tmp_path, monkeypatch) -> None:
    def run(words, folder) -> subprocess.CompletedProcess[str]:
        if "doctor" in words:
            return subprocess.CompletedProcess(words, 1, "", "Traceback\nValueError: a | b\n")
        if "meta.compile=true" in words:
            return subprocess.CompletedProcess(words, 0, "", "Compiling failed, so plain calls are used\n")
        return subprocess.CompletedProcess(words, 0, "2.15.0\n", "")

    monkeypatch.setattr(check_wheel, "run_words", run)
    monkeypatch.setattr(check_wheel, "_version", lambda python: "3.12.1")
    row = check_wheel.try_out(tmp_path, "python", tmp_path / "a.whl", "2.15")
    assert (row.python, row.torch) == ("3.12.1", "2.15.0")
    assert row.failures == {"compile": "Compiling failed, so plain calls are used", "report": "ValueError: a / b"}
    assert last_line("\n") == ""


def test_an_install_that_fails_is_a_row_too(tmp_path, monkeypatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "error: no such version\n")
    monkeypatch.setattr(check_wheel, "run_words", lambda words, folder: failed)
    monkeypatch.setattr(check_wheel, "_version", lambda python: "3.12.1")
    row = check_wheel.try_out(tmp_path, "python", tmp_path / "a.whl", "2.15")
    assert set(row.failures.values()) == {"not installed: error: no such version"}


def test_the_table_has_a_column_for_each_step() -> None:
    head, _, row = format_table([Row("3.11.7", "2.13.0", "wheel", {"train": "exit code 1"})]).splitlines()
    assert head.count("|") == row.count("|") == 4 + len({step.name for step in STEPS})
    assert "| exit code 1 |" in row


def test_the_page_shows_rows_of_the_matrix_and_no_failure() -> None:
    found = BLOCK.search(PAGE.read_text())
    assert found is not None
    rows = re.findall(r"^\| (3\.\d+)\.\d+ \| (\d+\.\d+)\.\S+ \| wheel \| (.*) \|$", found[0], re.M)
    wanted = [(python, torch) for python in PYTHONS for torch in check_wheel.read_torch_versions()]
    shown = [(python, torch) for python, torch, _ in rows]
    # in the order of the matrix, the oldest Python with both versions of torch
    assert shown == [pair for pair in wanted if pair in shown]
    assert shown[:2] == wanted[:2]
    assert {cell for *_, cells in rows for cell in cells.split(" | ")} <= {"ok", check_wheel.NOT_TRIED}
