"""The fault programme: tiny counts of its rows through the same functions, its files and its page."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench.faults import page as page_module
from bench.faults import row as row_module
from bench.faults.crowd import run_together
from bench.faults.death import kill_session, kill_workers
from bench.faults.grid import drift, stop_and_go
from bench.faults.hostile import damage, load_hostile, read_specs
from bench.faults.kill import kill_anywhere, kill_in_saves
from bench.faults.page import build_table, write_page
from bench.faults.row import Batch, Row, Verdict, read_result, run_row
from bench.faults.rows import ROW_BY_NAME, ROWS
from bench.faults.secrets import plant, read_tokens
from bench.faults.soak import soak
from bench.faults.specs import ALGORITHMS, OTHERS, make_spec
from bench.faults.stop import stop_in
from slm_lab.spec.schema import ALGORITHM_SPECS

SAMPLES: dict[str, tuple[Callable[[Path], Iterator[Verdict]], int]] = {
    "kill_in_save": (partial(kill_in_saves, "DQN", 2, 2), 4),
    "kill_anywhere": (partial(kill_anywhere, "PPO", 2, 400), 2),
    "resume_grid": (lambda folder: stop_and_go(make_spec("SARSA", env={"max_frame": 200}), folder), 3),
    "not exact": (drift, 1),
    "corruption": (partial(damage, "checkpoint", 1), 2),
    "corruption of a replay": (partial(damage, "replay", 1), 2),
    "hostile_checkpoint": (
        partial(load_hostile, names=("state: nesting", "weights: bytes of ten gigabytes", "weights: command")),
        3,
    ),
    "hostile_spec": (partial(read_specs, 4), 4),
    "worker_death": (partial(kill_workers, 1, 800), 2),
    "session_death": (partial(kill_session, 1, 2), 2),
    "signals": (partial(stop_in, "update", ("SIGTERM",)), 1),
    "secrets": (lambda folder: plant("GitHub", read_tokens()["GitHub"], folder), 5),
    "concurrency": (partial(run_together, 3), 3),
    "soak": (partial(soak, 5.0, ("PPO, two env workers",)), 4),
}


# Many processes each, for what a fast test proves: test_chaos.py, test_secret.py and share/test_commands.py,
# test_env_worker.py, cli/test_run.py, lib/test_io.py.
SLOW = {"session_death", "secrets", "worker_death", "signals", "concurrency", "soak"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SAMPLES]
)
def test_a_sample_ends_as_promised(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # of a machine that is at work on something else
    monkeypatch.setattr("bench.faults.stop.STOP_SECONDS", 120.0)
    monkeypatch.setattr("bench.faults.hostile.MAX_SPEC_SECONDS", 5.0)
    run, count = SAMPLES[name]
    verdicts = list(run(tmp_path))
    assert [verdict for verdict in verdicts if not verdict.is_passed] == []
    assert len(verdicts) >= count


def test_every_algorithm_is_among_the_specs() -> None:
    # those that learn from files have tests of their own
    assert {*ALGORITHMS, *OTHERS} == set(ALGORITHM_SPECS) - {"BC", "IQL", "TD3BC"}


def test_rows_have_what_the_page_promises() -> None:
    counts = {row.name: row.count(quick=False) for row in ROWS}
    assert counts["kill_in_save"] >= 500
    assert counts["kill_anywhere"] >= 200
    # twelve algorithms with two nets, six with a third; two numbers of envs, three stops; one that cannot be exact
    assert counts["resume_grid"] == (12 * 2 + 6) * 2 * 3 + 1
    assert counts["signals"] == 8 * 3
    assert counts["worker_death"] >= 50
    assert counts["corruption"] == 200
    assert counts["hostile_checkpoint"] >= 40
    assert counts["hostile_spec"] >= 60
    assert counts["secrets"] >= 8 * 5
    assert len(ROW_BY_NAME) == len(ROWS) == 17


# --- the rows' own machinery


def make_row(log: list[str], *verdicts: Verdict, count: int = 1) -> Row:
    def run(name: str, folder: Path) -> Iterator[Verdict]:
        log.append(name)
        assert folder.is_dir()
        yield from verdicts

    return Row(
        "demo", "a fault", "it is survived", lambda _: [Batch(name, count, partial(run, name)) for name in ("a", "b")]
    )


def test_a_row_that_was_interrupted_goes_on_with_its_next_batch(tmp_path: Path) -> None:
    log: list[str] = []
    row = make_row(log, Verdict("one", True))
    run_row(row, tmp_path, False, lambda _: None)
    assert log == ["a", "b"]
    path = tmp_path / "demo.json"
    result = json.loads(path.read_text())
    del result["batches"]["b"]
    path.write_text(json.dumps(result | {"is_whole": False}))
    assert run_row(row, tmp_path, False, lambda _: None)["is_whole"]
    assert log == ["a", "b", "b"]
    # with other code all of it is planted anew
    path.write_text(json.dumps(result | {"is_whole": False, "commit": "another"}))
    run_row(row, tmp_path, False, lambda _: None)
    assert log == ["a", "b", "b", "a", "b"]


def test_faults_that_were_not_planted_are_failures(tmp_path: Path) -> None:
    told: list[str] = []
    result = run_row(make_row([], Verdict("one", True), count=2), tmp_path, False, told.append)
    assert row_module.count_passed(result) == (2, 4)
    assert "only 1 of 2 faults were planted" in row_module.list_failures(result)[0]
    assert any("FAILED" in line for line in told)


def test_the_page_tells_what_was_run_and_what_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (replace(make_row([], Verdict("one", True), Verdict("two", False, "it sank")), told="one"),)
    monkeypatch.setattr(page_module, "ROWS", rows)
    full, quick = tmp_path / "full", tmp_path / "quick"
    assert "not run in full yet" in build_table(full, quick)
    run_row(rows[0], quick, True, lambda _: None)
    assert "not run in full yet; quick run: 2 of 4" in build_table(full, quick)
    run_row(rows[0], full, False, lambda _: None)
    assert read_result(rows[0], full) is not None
    text = write_page(full, quick, tmp_path / "page.md").read_text()
    assert "**2 of 4**" in text
    assert "- `demo`, a, two: it sank" in text
    assert "Measured: one; one." in text
    assert "$" not in text
