"""A trial is concluded once, and what is written is what is read back, by this version and by those before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from slm_lab.results import conclude as module
from slm_lab.results import metrics as metrics_module
from slm_lab.results.conclude import conclude, recompute
from slm_lab.results.metrics import METRICS, SessionFile, SessionResult, TrialMetrics
from slm_lab.results.run import read_run
from test.results.sample import make_table, write_run

# as the version before wrote it, of sessions in which no episode ended
BEFORE = """{"scalar": {"frame": 500, "total_reward_ma": null, "strength": null, "consistency": 1.0},
"total_reward_ma": {"mean": null, "std": null, "iqm": null, "low": null, "high": null, "values": [null]},
"random_return": 23.68, "sessions": [{"frame": 500, "strength": null}], "num_session": 2, "session_index": [0],
"failed": [1], "final_eval": null, "is_complete": false}"""


def end(session: int, final: list[float] | None = None) -> SessionResult:
    return SessionResult(session, True, 20_000, {"act": 1.0, "update": 3.0}, final or [])


def count(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[Any]:
    """Calls of a function, by their first argument."""
    calls: list[Any] = []
    function: Callable[..., Any] = vars(place)[name]

    def counted(first: Any, *rest: Any, **options: Any) -> Any:
        calls.append(first)
        return function(first, *rest, **options)

    monkeypatch.setattr(place, name, counted)
    return calls


def test_everything_is_computed_once_and_read_back_as_it_is(tmp_path, monkeypatch) -> None:
    tables = {session: make_table(seed=session) for session in range(3)}
    run = write_run(tmp_path / "run", tables, has_end=False)
    counts = {name: count(monkeypatch, module, name) for name in ("find_symptoms", "plot_run", "write_report")}
    sessions = count(monkeypatch, metrics_module, "calc_session_metrics")
    concluded = conclude(run, [end(0, [400.0, 420.0]), end(2, [480.0])], [1], 23.0, 3)
    assert [len(calls) for calls in counts.values()] == [1, 1, 1]
    assert len(sessions) == 2
    assert concluded.report == tmp_path / "run" / "report.html"
    back = read_run(run.path)
    assert back.metrics == concluded.metrics == concluded.run.metrics
    assert back.session_metrics == concluded.run.session_metrics
    assert (back.failed, list(back.counted_tables), back.scores) == ((1,), [0, 2], [410.0, 480.0])
    # keys and forms that other readers know
    written = json.loads((tmp_path / "run" / "demo_t0_trial_metrics.json").read_text())
    assert list(written["scalar"]) == ["frame", *METRICS, "consistency"]
    assert list(written["total_reward_ma"]) == ["mean", "std", "iqm", "low", "high", "values"]
    assert written["final_eval"]["values"] == [410.0, 480.0]
    kept = ("random_return", "num_session", "session_index", "failed", "is_complete")
    assert [written[key] for key in kept] == [23.0, 3, [0, 2], [1], False]
    own = json.loads((tmp_path / "run" / "info" / "demo_t0_s2_session_metrics.json").read_text())
    assert {key: own[key] for key in ("session", "is_done", "frame", "final_eval")} == {
        "session": 2,
        "is_done": True,
        "frame": 20_000,
        "final_eval": [480.0],
    }
    # the same once more, from the folder alone
    assert recompute(back, 23.0).metrics == concluded.metrics


def test_files_of_the_version_before_are_read(tmp_path) -> None:
    (tmp_path / "metrics.json").write_text(BEFORE)
    metrics = TrialMetrics.read(tmp_path / "nowhere.json", tmp_path / "metrics.json")
    assert metrics is not None
    assert metrics.scalar is not None
    assert (metrics.scalar.frame, metrics.scalar.consistency) == (500, 1.0)
    assert str(metrics.scalar.strength) == "nan"
    assert (metrics.failed, metrics.session_index, metrics.is_complete, metrics.final_eval) == ((1,), (0,), False, None)
    assert TrialMetrics.read(tmp_path / "nowhere.json") is None


@pytest.mark.parametrize("text", ["[]", "{", "[" * 200_000, '{"phases": {"act": 1e999}, "final_eval": [null]}'])
def test_files_of_a_wrong_form_hold_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    read = SessionFile.read(tmp_path / "metrics.json")
    assert read is None or (read.phases, read.final_eval) == (None, None)


def test_a_report_that_cannot_be_written_loses_no_run(tmp_path, monkeypatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of no use")

    run = write_run(tmp_path / "run", {0: make_table()}, has_end=False)
    monkeypatch.setattr(module, "write_report", fail)
    lines: list[str] = []
    handle = logger.add(lines.append, format="{level} {message}")
    try:
        concluded = conclude(run, [end(0)], [], 20.0, 1)
    finally:
        logger.remove(handle)
    assert (concluded.report, concluded.metrics.is_complete) == (None, True)
    assert lines == ["WARNING No report: ZeroDivisionError: of no use\n"]
